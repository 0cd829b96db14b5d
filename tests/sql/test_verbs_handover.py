"""hand_over: a lease passes to somebody outside, who answers with a token of their own."""

from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.protocol import Hold, Later, Leased, Protocol

THREE_MINUTES = timedelta(minutes=3)


def handed_over(db: Protocol, **item: object) -> tuple[Leased, Hold]:
    """A job whose lease was handed over: the lease as claimed, and what holds it now."""
    db.put(**item)
    job = db.take()
    token = uuid4()
    assert db.hand_over(job, token).outcome == "leased"
    return job, Hold(job.id, token)


def test_the_lease_passes_to_the_new_token_for_the_timeout(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take()
    later(seconds=10)

    answer = db.hand_over(job, timeout=timedelta(minutes=10))

    assert (answer.outcome, answer.detail) == ("leased", None)
    assert answer.lease_until is not None
    assert timedelta(minutes=9) < answer.lease_until - job.lease_until < timedelta(minutes=10)
    shown = db.job(job.id)
    assert (shown.state, shown.worker, shown.attempt) == ("leased", "outside", 1)
    assert shown.lease_until == answer.lease_until


@pytest.mark.proves("S2.22")
def test_whoever_has_the_ticket_acks(db: Protocol) -> None:
    db.queue_set("default", keep_done=60)
    _, ticket = handed_over(db)

    [answer] = db.ack(ticket, results=[{"paid": True}])

    assert answer.outcome == "done"
    assert db.job(ticket.id).result == {"paid": True}
    assert [repeat.outcome for repeat in db.ack(ticket)] == ["already"]


@pytest.mark.parametrize(
    ("verb", "outcome"), [("nack", "queued"), ("release", "queued"), ("touch", "leased")]
)
def test_whoever_has_the_ticket_does_what_a_holder_does(
    db: Protocol, verb: str, outcome: str
) -> None:
    _, ticket = handed_over(db)

    assert [answer.outcome for answer in getattr(db, verb)(ticket)] == [outcome]


@pytest.mark.parametrize("verb", ["touch", "ack", "nack", "release"])
def test_the_old_token_is_stale_and_is_told_why(db: Protocol, verb: str) -> None:
    job, ticket = handed_over(db)

    [answer] = getattr(db, verb)(job)

    assert answer.outcome == "lost"
    assert answer.detail is not None
    assert f"job {job.id} was handed over to outside, which has until " in answer.detail
    assert db.job(job.id).lease_until is not None
    assert [held.id for held in db.held(job.token, ticket.token)] == [job.id]


def test_the_old_token_is_told_so_after_the_answer_too(db: Protocol) -> None:
    job, ticket = handed_over(db)
    db.ack(ticket)

    [answer] = db.ack(job)

    assert answer.outcome == "lost"
    assert answer.detail == f"job {job.id} is gone; its lease ended as handed over"


def test_a_repeat_answers_already_as_long_as_the_receipt_is_kept(db: Protocol) -> None:
    db.put()
    job, token = db.take(), uuid4()
    first = db.hand_over(job, token)

    again = db.hand_over(job, token)
    db.ack(Hold(job.id, token))
    after = db.hand_over(job, token)
    other = db.hand_over(job, uuid4())

    assert (again.outcome, again.lease_until) == ("already", first.lease_until)
    assert (after.outcome, after.lease_until) == ("already", first.lease_until)
    assert other.outcome == "lost"


def test_only_the_holder_hands_over(db: Protocol) -> None:
    id = db.put()
    db.take(worker="ada")

    stranger = db.hand_over(Hold(id, uuid4()))
    nobody = db.hand_over(Hold(uuid4(), uuid4()))

    assert (stranger.outcome, nobody.outcome) == ("lost", "unknown")
    assert stranger.detail is not None
    assert "leased by ada" in stranger.detail
    assert db.job(id).worker == "ada"


@pytest.mark.proves("S2.17", "S2.22")
def test_without_an_answer_the_attempt_fails_and_says_so(db: Protocol, later: Later) -> None:
    _, ticket = handed_over(db, max_attempts=2)
    later(seconds=179)
    early = db.reap()

    later(seconds=2)
    [reaped] = db.reap()

    assert early == []
    assert (reaped.id, reaped.worker, reaped.outcome) == (ticket.id, "outside", "queued")
    [attempt] = db.attempts(ticket.id)
    assert (attempt.outcome, attempt.error_kind) == ("expired", "NoAnswer")
    assert attempt.message == "no answer from outside within 00:03:00"
    assert db.job(ticket.id).error == "NoAnswer: no answer from outside within 00:03:00"
    assert [late.outcome for late in db.ack(ticket)] == ["lost"]


def test_an_attempt_counts_from_its_claim_although_it_was_handed_over(
    db: Protocol, later: Later
) -> None:
    db.put()
    job = db.take()
    later(seconds=20)
    ticket = Hold(job.id, uuid4())
    db.hand_over(job, ticket.token)
    later(seconds=5)

    db.nack(ticket)

    [attempt] = db.attempts(job.id)
    taken = attempt.ended_at - attempt.started_at
    assert timedelta(seconds=25) <= taken < timedelta(seconds=45)


@pytest.mark.parametrize("job_lease", [None, 10])
def test_a_touch_by_the_ticket_waits_as_long_again(
    db: Protocol, later: Later, job_lease: int | None
) -> None:
    _, ticket = handed_over(db, lease=job_lease)
    before = db.job(ticket.id).lease_until
    later(seconds=60)

    [touched] = db.touch(ticket)

    assert touched.lease_until is not None
    assert before is not None
    assert timedelta(seconds=60) <= touched.lease_until - before < timedelta(seconds=75)


def test_a_job_that_was_handed_over_keeps_its_lane_and_its_place_under_a_limit(
    db: Protocol,
) -> None:
    db.queue_set("few", limit=1)
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 2, *[{"kind": "k", "queue": "few"}] * 2)
    laned, limited = db.take(), db.take("few")
    tickets = [Hold(job.id, uuid4()) for job in (laned, limited)]
    for job, ticket in zip((laned, limited), tickets, strict=True):
        db.hand_over(job, ticket.token)

    assert (db.claim(), db.claim("few")) == ([], [])
    db.ack(*tickets)
    assert (len(db.claim()), len(db.claim("few"))) == (1, 1)


def test_others_of_the_same_claim_stay_with_their_worker(db: Protocol, later: Later) -> None:
    db.enqueue(*[{"kind": "k"}] * 2)
    first, second = db.claim(max_jobs=2)

    db.hand_over(first)

    assert [answer.outcome for answer in db.touch(first, second)] == ["lost", "leased"]
    later(seconds=31)
    assert [(reaped.id, reaped.worker) for reaped in db.reap()] == [(second.id, "ada")]


def test_a_ticket_can_be_handed_on(db: Protocol) -> None:
    _, ticket = handed_over(db)

    last = Hold(ticket.id, uuid4())
    db.hand_over(ticket, last.token, holder="provider-2")

    assert [answer.outcome for answer in db.ack(ticket)] == ["lost"]
    assert [answer.outcome for answer in db.ack(last)] == ["done"]


def test_an_operator_can_cancel_what_waits_for_an_answer(db: Protocol) -> None:
    _, ticket = handed_over(db)

    db.cancel(ticket.id)

    [answer] = db.ack(ticket)
    assert answer.outcome == "lost"
    assert answer.detail == f"job {ticket.id} is cancelled; its lease ended as cancelled"


def test_what_waits_for_an_answer_says_so(db: Protocol, later: Later) -> None:
    job, _ = handed_over(db)
    waiting = db.explain(job.id)

    later(minutes=4)

    assert waiting.startswith("Waiting for an answer from outside until ")
    assert waiting.endswith(", attempt 1 of 3.")
    assert db.explain(job.id).startswith("The time for outside to answer ended 00:01:00 ago")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"id": None}, "HF208"),
        ({"token": None}, "HF207"),
        ({"new_token": None}, "HF207"),
        ({"new_token": "same"}, "HF207"),
        ({"timeout": None}, "HF204"),
        ({"timeout": timedelta(0)}, "HF204"),
        ({"timeout": timedelta(seconds=-1)}, "HF204"),
        ({"timeout": timedelta(days=400)}, "HF204"),
        ({"holder": ""}, "HF202"),
        ({"holder": "a\nb"}, "HF202"),
    ],
)
def test_a_hand_over_that_makes_no_sense_is_refused(
    db: Protocol, change: dict[str, object], code: str
) -> None:
    db.put()
    job = db.take()
    given: dict[str, object] = {
        "id": job.id,
        "token": job.token,
        "new_token": uuid4(),
        "timeout": THREE_MINUTES,
        "holder": "outside",
    }
    given |= {name: job.token if value == "same" else value for name, value in change.items()}

    with pytest.raises(psycopg.Error) as refusal:
        db.connection.execute(
            "select outcome from holdfast.hand_over(id => %(id)s::uuid, token => %(token)s::uuid,"
            " new_token => %(new_token)s::uuid, timeout => %(timeout)s::interval,"
            " holder => %(holder)s::text)",
            given,
        )

    assert refusal.value.sqlstate == code
    assert _holder(db, job.id) == "ada"


def _holder(db: Protocol, id: UUID) -> str | None:
    return db.job(id).worker
