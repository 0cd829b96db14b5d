"""Whoever hands over or looks for output, against the holder, the reaper and the canceller."""

import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from tests.protocol import Hold, Leased, Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


@pytest.fixture
def leased(db: Protocol) -> Leased:
    db.put("checked")
    return db.take()


@pytest.fixture
def expired(db: Protocol, leased: Leased) -> Leased:
    """A lease that ran out and that nobody took back yet."""
    db.later(seconds=31)
    return leased


@pytest.fixture
def doubtful(db: Protocol) -> Leased:
    """A lease that ran out, of a kind that can tell whether its work is done."""
    db.declare_kinds({"kind": "checked", "done_when": True})
    db.put("checked")
    job = db.take()
    db.later(seconds=31)
    db.beat("judge", kinds=["checked"])
    return job


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "touch"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_holder_waits_for_the_hand_over_and_then_knows(
    db: Protocol, leased: Leased, held_open: Protocol, start: Start, verb: str, end: str
) -> None:
    held_open.hand_over(leased)
    settle = start(lambda session: getattr(session, verb)(leased)[0])
    waited = settle.waits()

    getattr(held_open.connection, end)()

    assert waited
    answer = settle.answer()
    assert (answer.outcome == "lost") == (end == "commit")
    assert ("handed over" in (answer.detail or "")) == (end == "commit")


@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "leased")])
def test_a_hand_over_waits_for_the_ack_and_then_knows(
    leased: Leased, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    held_open.ack(leased)
    hand_over = start(lambda session: session.hand_over(leased).outcome)
    waited = hand_over.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert hand_over.answer() == outcome


@pytest.mark.parametrize(("end", "outcome"), [("commit", "already"), ("rollback", "leased")])
def test_a_repeated_hand_over_waits_for_the_first(
    db: Protocol, leased: Leased, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    token = uuid4()
    held_open.hand_over(leased, token)
    again = start(lambda session: session.hand_over(leased, token).outcome)
    waited = again.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert again.answer() == outcome
    assert db.ack(Hold(leased.id, token))[0].outcome == "done"


def test_of_two_hand_overs_one_holds(db: Protocol, leased: Leased, at_once: AtOnce) -> None:
    tickets = [Hold(leased.id, uuid4()) for _ in range(4)]

    answers = at_once(4, lambda session, nth: session.hand_over(leased, tickets[nth].token).outcome)

    assert sorted(answers) == ["leased", "lost", "lost", "lost"]
    acked = [answer.outcome == "done" for ticket in tickets for answer in db.ack(ticket)]
    assert acked == [answer == "leased" for answer in answers]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_reap_leaves_alone_what_is_being_handed_over(
    db: Protocol, expired: Leased, held_open: Protocol, start: Start, end: str
) -> None:
    held_open.hand_over(expired)
    reap = start(lambda session: session.reap())
    waited = reap.waits()

    getattr(held_open.connection, end)()

    assert not waited
    assert reap.answer() == []
    assert [job.id for job in db.reap()] == ([] if end == "commit" else [expired.id])


@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "leased")])
def test_a_hand_over_waits_for_the_reap_and_then_knows(
    db: Protocol, expired: Leased, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    held_open.reap()
    hand_over = start(lambda session: session.hand_over(expired).outcome)
    waited = hand_over.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert hand_over.answer() == outcome


def test_hand_over_ack_and_reap_at_once_end_a_lease_once(db: Protocol, at_once: AtOnce) -> None:
    def turn(job: Leased, ticket: Hold, session: Protocol, nth: int) -> Any:
        if nth == 0:
            return session.hand_over(job, ticket.token).outcome == "leased"
        if nth == 1:
            return session.ack(job)[0].outcome == "done"
        return bool(session.reap())

    won = []
    for _ in range(40):
        db.put(max_attempts=1)
        job = db.take()
        ticket = Hold(job.id, uuid4())
        db.later(seconds=31)
        handed_over, acked, reaped = answers = at_once(3, partial(turn, job, ticket))
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        won.append(sum(answers))
        state = {(True, False, False): "leased", (False, True, False): None}
        assert db.state(job.id) == state.get((handed_over, acked, reaped), "dead")
        if handed_over:
            assert db.ack(ticket)[0].outcome == "done"

    # A reap may pass over what the two others are at: then it is theirs.
    assert set(won) == {1}


@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "done")])
def test_an_answer_from_outside_waits_for_the_reap_and_then_knows(
    db: Protocol, leased: Leased, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    ticket = Hold(leased.id, uuid4())
    db.hand_over(leased, ticket.token)
    db.later(minutes=4)
    held_open.reap()
    answer = start(lambda session: session.ack(ticket)[0].outcome)
    waited = answer.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert answer.answer() == outcome


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("verb", ["ack", "touch", "nack"])
def test_a_verdict_leaves_alone_what_its_holder_is_at(
    db: Protocol,
    doubtful: Leased,
    held_open: Protocol,
    start: Start,
    verb: str,
    end: str,
    done: bool,
) -> None:
    getattr(held_open, verb)(doubtful)
    reconcile = start(lambda session: session.reconcile(doubtful, done=[done])[0].outcome)
    waited = reconcile.waits()

    getattr(held_open.connection, end)()

    assert not waited
    assert reconcile.answer() == "lost"
    # Whoever let go of it without a word is asked about again.
    assert [job.id for job in db.doubtful()] == ([] if end == "commit" else [doubtful.id])


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "done")])
def test_a_holder_waits_for_the_verdict_and_then_knows(
    db: Protocol,
    doubtful: Leased,
    held_open: Protocol,
    start: Start,
    end: str,
    outcome: str,
    done: bool,
) -> None:
    held_open.reconcile(doubtful, done=[done])
    ack = start(lambda session: session.ack(doubtful)[0].outcome)
    waited = ack.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert ack.answer() == outcome


def test_of_two_verdicts_one_counts(db: Protocol, doubtful: Leased, at_once: AtOnce) -> None:
    def judge(session: Protocol, nth: int) -> str:
        return session.reconcile(doubtful, done=[nth % 2 == 0])[0].outcome

    answers = at_once(4, judge)

    assert sum(answer in ("done", "queued") for answer in answers) == 1
    assert set(answers) <= {"done", "queued", "lost", "already"}
    assert len(db.attempts(doubtful.id)) == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_reap_leaves_alone_what_is_being_judged(
    db: Protocol, doubtful: Leased, held_open: Protocol, start: Start, end: str
) -> None:
    held_open.reconcile(doubtful, done=[True])
    db.connection.execute("delete from holdfast.worker")
    reap = start(lambda session: session.reap())
    waited = reap.waits()

    getattr(held_open.connection, end)()

    assert not waited
    assert reap.answer() == []
    assert [job.id for job in db.reap()] == ([] if end == "commit" else [doubtful.id])


def test_doubtful_waits_for_nobody(doubtful: Leased, held_open: Protocol, start: Start) -> None:
    held_open.ack(doubtful)
    look = start(lambda session: session.doubtful())
    waited = look.waits()

    held_open.connection.commit()

    assert not waited
    assert [job.id for job in look.answer()] == [doubtful.id]


@pytest.mark.parametrize("queues", [1, 12])
def test_verdicts_hand_overs_settles_and_cancels_never_deadlock(
    db: Protocol, at_once: AtOnce, queues: int
) -> None:
    def turn(round: int, jobs: list[Leased], session: Protocol, nth: int) -> None:
        order = random.Random(f"{round}/{nth}").sample(jobs, len(jobs))
        if nth == 0:
            session.reconcile(*order, done=[n % 2 == 0 for n in range(len(order))])
        elif nth == 1:
            session.cancel(*[job.id for job in order])
        elif nth == 2:
            verbs = ["ack", "nack", "cancel", "release"]
            session.settle(
                *[
                    {"verb": verbs[n % 4], "id": job.id, "token": job.token}
                    for n, job in enumerate(order)
                ]
            )
        elif nth == 3:
            for job in order[:4]:
                session.hand_over(job)
        else:
            session.reap()

    failures = []
    for round in range(50):
        for n in range(12):
            db.put(queue=f"q{n % queues}")
        jobs = [
            job
            for n in range(queues)
            for job in db.claim(f"q{n}", max_jobs=50, lease=timedelta(microseconds=1))
        ]
        answers = at_once(5, partial(turn, round, jobs))
        failures += [each for each in answers if each is not None]

    assert failures == []


def test_verdicts_and_settles_that_share_claims_never_deadlock(
    db: Protocol, at_once: AtOnce
) -> None:
    def turn(round: int, jobs: list[Leased], session: Protocol, nth: int) -> None:
        mine = [job for n, job in enumerate(jobs) if n % 4 == nth]
        random.Random(f"{round}/{nth}").shuffle(mine)
        if nth == 0:
            session.cancel(*[job.id for job in mine])
        elif nth == 1:
            session.reconcile(*mine, done=[n % 2 == 0 for n in range(len(mine))])
        elif nth == 2:
            session.settle(
                *[
                    {"verb": ["nack", "cancel"][n % 2], "id": job.id, "token": job.token}
                    for n, job in enumerate(mine)
                ]
            )
        else:
            session.nack(*mine)

    failures = []
    for round in range(50):
        # Claims over several queues: a token's jobs lie in several parts.
        db.enqueue(*[{"kind": "k", "queue": f"q{n % 4}"} for n in range(48)])
        jobs = [
            job
            for n in range(4)
            for _ in range(4)
            for job in db.claim(f"q{n}", max_jobs=3, lease=timedelta(microseconds=1))
        ]
        random.Random(round).shuffle(jobs)
        answers = at_once(4, partial(turn, round, jobs))
        failures += [each for each in answers if each is not None]

    assert failures == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_reap_leaves_alone_what_its_holder_is_cancelling(
    db: Protocol, expired: Leased, held_open: Protocol, start: Start, end: str
) -> None:
    held_open.settle(item("cancel", expired, reason="no longer wanted"))
    reap = start(lambda session: session.reap())
    waited = reap.waits()

    getattr(held_open.connection, end)()

    assert not waited
    assert reap.answer() == []
    assert db.state(expired.id) == ("cancelled" if end == "commit" else "leased")
    assert [job.id for job in db.reap()] == ([] if end == "commit" else [expired.id])


@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "cancelled")])
def test_a_holder_who_cancels_waits_for_the_reap_and_then_knows(
    db: Protocol, expired: Leased, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    held_open.reap()
    cancel = start(lambda session: session.settle(item("cancel", expired))[0].outcome)
    waited = cancel.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert cancel.answer() == outcome
    assert db.state(expired.id) == ("queued" if end == "commit" else "cancelled")


@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "cancelled")])
def test_a_holder_who_cancels_waits_for_the_operator_and_then_knows(
    db: Protocol, leased: Leased, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    held_open.cancel(leased.id)
    cancel = start(lambda session: session.settle(item("cancel", leased))[0].outcome)
    waited = cancel.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert cancel.answer() == outcome
    assert db.depth() == {"cancelled": 1}


def test_mixed_settles_and_cancels_of_the_same_jobs_never_deadlock(
    db: Protocol, at_once: AtOnce
) -> None:
    verbs = ["ack", "nack", "release", "cancel"]

    def turn(round: int, jobs: list[Leased], session: Protocol, nth: int) -> None:
        order = random.Random(f"{round}/{nth}").sample(jobs, len(jobs))
        if nth == 0:
            session.cancel(*[job.id for job in order])
        else:
            session.settle(*[item(verbs[(n + nth) % 4], job) for n, job in enumerate(order)])

    failures = []
    for round in range(40):
        for n in range(12):
            db.put(queue=f"q{n % 3}")
        jobs = [job for n in range(3) for job in db.claim(f"q{n}", max_jobs=50)]
        answers = at_once(3, partial(turn, round, jobs))
        failures += [each for each in answers if each is not None]

    assert failures == []


def item(verb: str, held: Hold | Leased, **more: Any) -> dict[str, Any]:
    return {"verb": verb, "id": held.id, "token": held.token, **more}
