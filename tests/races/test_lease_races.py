"""The holder against reaper, canceller, and himself."""

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from tests.protocol import Later, Leased, Open, Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


@pytest.fixture
def expired(db: Protocol) -> Leased:
    """A lease that ran out and that nobody took back yet."""
    db.put()
    job = db.take()
    db.later(seconds=31)
    return job


@pytest.mark.proves("S4.21", "S4.28")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_reap_leaves_alone_what_is_being_acked(
    db: Protocol, expired: Leased, held_open: Protocol, start: Start, end: str
) -> None:
    held_open.ack(expired)
    reap = start(lambda session: session.reap())
    waited = reap.waits()

    getattr(held_open.connection, end)()

    assert not waited
    assert reap.answer() == []
    assert db.state(expired.id) == (None if end == "commit" else "leased")
    assert [each.id for each in db.reap()] == ([] if end == "commit" else [expired.id])


@pytest.mark.proves("S4.21", "S4.24")
@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "done")])
def test_an_ack_waits_for_the_reap_and_then_knows(
    db: Protocol, expired: Leased, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    held_open.reap()
    ack = start(lambda session: session.ack(expired)[0].outcome)
    waited = ack.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert ack.answer() == outcome


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_reap_leaves_alone_what_is_being_touched(
    db: Protocol, expired: Leased, held_open: Protocol, start: Start, end: str
) -> None:
    held_open.touch(expired)
    reap = start(lambda session: session.reap())
    waited = reap.waits()

    getattr(held_open.connection, end)()

    assert not waited
    assert reap.answer() == []
    assert bool(db.reap()) == (end == "rollback")


@pytest.fixture
def reap_stops_half_way(db: Protocol) -> Iterator[Callable[[], None]]:
    """Has a reap stop after it has seen what expired, until what is given here is called.

    It stops where it closes a claim that holds nothing any more; such a claim is made here, too.
    """
    db.put()
    db.ack(db.take())
    db.connection.execute(
        """
        create function holdfast_test.stop() returns trigger language plpgsql
        as 'begin perform pg_advisory_xact_lock(1); return new; end';
        create trigger stop before update on holdfast.lease
        for each row when (old.open and not new.open) execute function holdfast_test.stop();
        select pg_advisory_lock(1);
        """
    )
    yield lambda: db.connection.execute("select pg_advisory_unlock(1)") and None
    db.connection.execute(
        "select pg_advisory_unlock_all(); drop function holdfast_test.stop() cascade"
    )


@pytest.mark.proves("S4x.8")
def test_a_lease_renewed_between_the_two_looks_of_a_reap_is_not_taken_back(
    db: Protocol,
    reap_stops_half_way: Callable[[], None],
    expired: Leased,
    start: Start,
) -> None:
    reap = start(lambda session: session.reap())
    assert reap.waits()
    assert db.touch(expired)[0].outcome == "leased"

    reap_stops_half_way()

    assert reap.answer() == []
    assert db.state(expired.id) == "leased"


@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "leased")])
def test_a_touch_waits_for_the_reap_and_then_knows(
    db: Protocol, expired: Leased, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    held_open.reap()
    touch = start(lambda session: session.touch(expired)[0].outcome)
    waited = touch.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert touch.answer() == outcome


@pytest.mark.parametrize("verb", ["nack", "release"])
@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "queued")])
def test_nack_and_release_wait_for_the_reap_and_then_know(
    db: Protocol,
    expired: Leased,
    held_open: Protocol,
    start: Start,
    verb: str,
    end: str,
    outcome: str,
) -> None:
    held_open.reap()
    settle = start(lambda session: getattr(session, verb)(expired)[0].outcome)
    waited = settle.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert settle.answer() == outcome


@pytest.mark.parametrize(("end", "outcome"), [("commit", "already"), ("rollback", "done")])
@pytest.mark.parametrize("keep_done", [0, 60])
def test_a_repeated_ack_waits_for_the_first(
    db: Protocol, held_open: Protocol, start: Start, end: str, outcome: str, keep_done: int
) -> None:
    db.queue_set("default", keep_done=keep_done)
    db.put()
    job = db.take()
    held_open.ack(job)
    again = start(lambda session: session.ack(job)[0].outcome)
    waited = again.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert again.answer() == outcome
    assert db.depth() == {"done": 1}


def test_eight_acks_of_one_lease_are_one(db: Protocol, at_once: AtOnce) -> None:
    db.queue_set("default", keep_done=60)
    db.put()
    job = db.take()

    outcomes = at_once(8, lambda session, nth: session.ack(job)[0].outcome)

    assert sorted(outcomes) == ["already"] * 7 + ["done"]
    assert db.depth() == {"done": 1}
    assert len(db.list("state:done")) == 1


def test_eight_nacks_of_one_lease_are_one(db: Protocol, at_once: AtOnce) -> None:
    id = db.put(max_attempts=1)
    job = db.take()

    outcomes = at_once(8, lambda session, nth: session.nack(job)[0].outcome)

    assert sorted(outcomes) == ["already"] * 7 + ["dead"]
    assert len(db.attempts(id)) == 1


@pytest.mark.parametrize(("end", "outcome"), [("commit", "lost"), ("rollback", "done")])
def test_an_ack_waits_for_the_cancel_and_then_knows(
    db: Protocol, held_open: Protocol, start: Start, end: str, outcome: str
) -> None:
    id = db.put()
    job = db.take()
    held_open.cancel(id)
    ack = start(lambda session: session.ack(job)[0].outcome)
    waited = ack.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert ack.answer() == outcome
    assert db.state(id) == ("cancelled" if end == "commit" else None)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_cancel_waits_for_the_ack_and_then_knows(
    db: Protocol, held_open: Protocol, start: Start, end: str
) -> None:
    id = db.put()
    job = db.take()
    held_open.ack(job)
    cancel = start(lambda session: session.cancel(id)[0])
    waited = cancel.waits()

    getattr(held_open.connection, end)()

    assert waited
    assert cancel.answer().changed == (end == "rollback")
    assert db.depth() == ({"done": 1} if end == "commit" else {"cancelled": 1})


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "touch"])
def test_a_settle_in_a_stream_of_touches_arrives(
    db: Protocol, other: Open, start: Start, verb: str
) -> None:
    db.put()
    job = db.take()
    first, second = other(autocommit=False), other(autocommit=False)
    first.touch(job)
    settle = start(lambda session: getattr(session, verb)(job)[0].outcome)
    settle.waits()
    touch = start(lambda session: session.touch(job)[0].outcome, second)
    touch.waits()

    first.connection.commit()
    touched = touch.answer() if verb == "touch" or not settle.waits() else None
    second.connection.commit()

    expected = {"ack": "done", "nack": "queued", "release": "queued", "touch": "leased"}
    assert settle.answer() == expected[verb]
    assert touched in (None, "leased", "lost")
    assert db.state(job.id) == {"ack": None, "touch": "leased"}.get(verb, "queued")


def test_touches_and_acks_under_way_together_lose_no_ack(db: Protocol, at_once: AtOnce) -> None:
    db.enqueue(*[{"kind": "k"}] * 30)
    jobs = db.claim(max_jobs=30)

    def work(session: Protocol, nth: int) -> Any:
        mine = jobs[nth % 2 :: 2]
        if nth < 3:
            for _ in range(40):
                session.touch(*random.Random(nth).sample(jobs, len(jobs)))
            return []
        chunks = [session.ack(*mine[n : n + 3]) for n in range(0, 15, 3)]
        return [each.outcome for chunk in chunks for each in chunk]

    answers = at_once(5, work)

    assert [each for each in answers if isinstance(each, Exception)] == []
    assert [outcome for each in answers for outcome in each] == ["done"] * 30
    assert db.depth() == {"done": 30}


def test_a_release_under_way_holds_the_floor_down(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.queue_set("default")
    first = db.put()
    job = db.take()
    db.enqueue(*[{"kind": "k"}] * 2000)
    db.ack(*db.claim(max_jobs=2000))
    db.raise_floors()
    held_open.release(job)

    raised = start(lambda session: [session.raise_floors() for _ in range(3)])
    waited = raised.waits()
    held_open.connection.commit()

    assert not waited
    assert raised.answer() == [0, 0, 0]
    db.enqueue(*[{"kind": "k"}] * 3)
    assert db.take().id == first


def test_a_job_released_after_the_floor_rose_is_found(db: Protocol) -> None:
    db.queue_set("default")
    first = db.put()
    job = db.take()
    db.enqueue(*[{"kind": "k"}] * 2000)
    db.ack(*db.claim(max_jobs=2000))
    raised = [db.raise_floors(), db.raise_floors()]
    db.enqueue(*[{"kind": "k"}] * 3)

    db.release(job)

    assert sum(raised) == 1
    assert db.take().id == first


@pytest.mark.parametrize("queues", [1, 12])
def test_settles_and_cancels_of_the_same_jobs_never_deadlock(
    db: Protocol, at_once: AtOnce, queues: int
) -> None:
    def turn(round: int, jobs: list[Leased], session: Protocol, nth: int) -> None:
        order = random.Random(f"{round}/{nth}").sample(jobs, len(jobs))
        if nth == 0:
            session.ack(*order)
        elif nth == 1:
            session.cancel(*[job.id for job in order])
        elif nth == 2:
            session.touch(*order)
        else:
            session.nack(*order, delay=timedelta(0))

    failures = []
    for round in range(50):
        # One by one: the order of ids is not the order of queues.
        for n in range(12):
            db.put(queue=f"q{n % queues}")
        jobs = [job for n in range(queues) for job in db.claim(f"q{n}", max_jobs=50)]
        answers = at_once(4, partial(turn, round, jobs))
        failures += [each for each in answers if each is not None]

    assert failures == []


def test_ack_and_cancel_in_opposite_orders_never_deadlock(
    db: Protocol, start: Start, other: Open
) -> None:
    one, two = other(), other()
    failures = []
    for _ in range(200):
        for n in range(8):
            db.put(queue=f"q{n % 4}")
        jobs = [job for n in range(4) for job in db.claim(f"q{n}", max_jobs=12)]
        backwards = [job.id for job in reversed(jobs)]
        ack = start(lambda session, jobs=jobs: session.ack(*jobs), one)
        cancel = start(lambda session, ids=backwards: session.cancel(*ids), two)
        for call in (ack, cancel):
            try:
                call.answer()
            except Exception as error:
                failures.append(error)

    assert failures == []


def test_settles_that_share_claims_never_deadlock(db: Protocol, at_once: AtOnce) -> None:
    def turn(round: int, jobs: list[Leased], session: Protocol, nth: int) -> None:
        mine = [job for n, job in enumerate(jobs) if n % 3 == nth]
        random.Random(f"{round}/{nth}").shuffle(mine)
        if nth == 0:
            session.cancel(*[job.id for job in mine])
        elif nth == 1:
            session.release(*mine)
        else:
            session.nack(*mine)

    failures = []
    for round in range(50):
        db.enqueue(*[{"kind": "k"}] * 36)
        jobs = [job for _ in range(12) for job in db.claim(max_jobs=3)]
        random.Random(round).shuffle(jobs)
        answers = at_once(3, partial(turn, round, jobs))
        failures += [each for each in answers if each is not None]

    assert failures == []


def test_a_reap_beside_settles_takes_each_job_once(db: Protocol, at_once: AtOnce) -> None:
    db.enqueue(*[{"kind": "k", "max_attempts": 1}] * 60)
    jobs = [job for _ in range(20) for job in db.claim(max_jobs=3)]
    db.later(seconds=31)

    def work(session: Protocol, nth: int) -> Any:
        if nth < 2:
            return [(each.id, each.outcome) for _ in range(5) for each in session.reap(20)]
        mine = jobs[nth - 2 :: 2]
        return [(each.id, each.outcome) for job in mine for each in session.ack(job)]

    answers = at_once(4, work)

    assert not [each for each in answers if isinstance(each, Exception)]
    ended = [pair for pairs in answers for pair in pairs if pair[1] in ("dead", "done")]
    rest = [(each.id, each.outcome) for each in db.reap()]
    assert len(ended + rest) == len({id for id, _ in ended + rest}) == 60


def test_a_claim_that_waited_at_the_gate_gives_a_whole_lease(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    db.queue_set("default", limit=5)
    db.enqueue(*[{"kind": "k"}] * 2)
    held_open.take()
    claim = start(lambda session: session.claim(lease=timedelta(seconds=30)))
    assert claim.waits()
    later(minutes=5)

    held_open.connection.commit()

    [job] = claim.answer()
    assert job.id not in [reaped.id for reaped in db.reap()]
    assert db.state(job.id) == "leased"


def _claim(session: Protocol, lease: timedelta) -> Any:
    return session.take(lease=lease).id


def _claim_each(session: Protocol, lease: timedelta) -> Any:
    [row] = session.call(
        "claim_each",
        queue="default",
        workers=["ada"],
        tokens=[uuid4()],
        numbers=[1],
        lease=lease,
        columns=("id",),
    )
    return row.id


def _lock_the_jobs(session: Protocol) -> None:
    session.connection.execute("lock table holdfast.job in share mode")


def _fan_another_out(session: Protocol) -> None:
    session.queue_set("other", fanout=2)


@pytest.mark.parametrize("wait", [_lock_the_jobs, _fan_another_out])
@pytest.mark.parametrize("claim", [_claim, _claim_each])
@pytest.mark.parametrize("lane", [None, "a"])
def test_a_claim_that_waited_for_the_table_gives_a_whole_lease(
    db: Protocol,
    held_open: Protocol,
    start: Start,
    later: Later,
    wait: Callable[[Protocol], None],
    claim: Callable[[Protocol, timedelta], Any],
    lane: str | None,
) -> None:
    db.put(lane=lane)
    wait(held_open)
    claims = start(partial(claim, lease=timedelta(seconds=30)))
    assert claims.waits()
    later(minutes=5)

    held_open.connection.commit()

    id = claims.answer()
    assert id not in [reaped.id for reaped in db.reap()]
    assert db.state(id) == "leased"
    assert db.table(
        "select l.until = l.claimed_at + l.length as whole, l.until = j.lease_until as same"
        " from holdfast.lease l join holdfast.job j on j.token = l.token"
    ) == [(True, True)]


def test_a_claim_that_waited_for_the_table_starts_nothing_that_expired_meanwhile(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    id = db.put(expires=60)
    _lock_the_jobs(held_open)
    claim = start(lambda session: session.claim())
    assert claim.waits()
    later(minutes=5)

    held_open.connection.rollback()

    assert claim.answer() == []
    assert db.state(id) == "cancelled"


@pytest.mark.parametrize("lane", [None, "a"])
def test_a_claim_that_waited_for_the_table_counts_its_start_from_then(
    db: Protocol, held_open: Protocol, start: Start, later: Later, lane: str | None
) -> None:
    if lane is None:
        db.queue_set("default", rate_limit=1, rate_period=60)
    else:
        db.lane_set("default", lane, rate_limit=1, rate_period=60)
    db.enqueue(*[{"kind": "k", "lane": lane}] * 2)
    _lock_the_jobs(held_open)
    claim = start(lambda session: session.take())
    assert claim.waits()
    later(minutes=5)
    held_open.connection.rollback()

    db.ack(claim.answer())
    later(seconds=30)

    assert db.claim() == []
    later(seconds=31)
    assert len(db.claim()) == 1


@pytest.mark.parametrize("lane", [None, "a"])
def test_a_claim_that_waited_for_the_table_is_noted_when_it_was_made(
    db: Protocol, held_open: Protocol, start: Start, later: Later, lane: str | None
) -> None:
    db.queue_set("default", activity="all")
    db.put(lane=lane)
    _lock_the_jobs(held_open)
    claim = start(lambda session: session.take())
    assert claim.waits()
    later(minutes=5)

    held_open.connection.rollback()

    id = claim.answer().id
    assert db.table(
        "select e.job, e.at = l.claimed_at as then from holdfast.event e, holdfast.lease l"
        " where e.event = 'claimed'"
    ) == [(id, True)]


def test_a_touch_that_waited_holds_on_for_all_of_the_lease(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    db.put()
    job = db.take()
    held_open.connection.execute("select from holdfast.job for update")
    touch = start(lambda session: session.touch(job, lease=timedelta(seconds=30)))
    assert touch.waits()
    later(minutes=5)

    held_open.connection.rollback()

    [touched] = touch.answer()
    assert touched.outcome == "leased"
    assert db.reap() == []


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_a_delay_is_counted_from_when_the_job_could_be_had(
    db: Protocol, held_open: Protocol, start: Start, later: Later, verb: str
) -> None:
    db.put()
    job = db.take()
    held_open.connection.execute("select from holdfast.job for update")
    settle = start(lambda session: getattr(session, verb)(job, delay=timedelta(seconds=30)))
    assert settle.waits()
    later(minutes=5)

    held_open.connection.rollback()

    assert settle.answer()[0].outcome == "queued"
    assert db.claim() == []


def test_a_hand_over_that_waited_leaves_the_whole_timeout(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    db.put()
    job = db.take()
    held_open.connection.execute("select from holdfast.job for update")
    hand_over = start(lambda session: session.hand_over(job, timeout=timedelta(seconds=30)))
    assert hand_over.waits()
    later(minutes=5)

    held_open.connection.rollback()

    assert hand_over.answer().outcome == "leased"
    assert db.reap() == []
