"""reap: taking back what nobody renewed."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.protocol import Later, Protocol


@pytest.mark.proves("S0.6", "S0.9", "S0.11", "S4.14", "S4.28")
def test_an_expired_lease_is_taken_back(db: Protocol, later: Later) -> None:
    id = db.put("greet", queue="mail")
    db.take("mail", worker="crashed")
    later(seconds=31)

    [reaped] = db.reap()

    job = db.job(id)
    assert tuple(reaped) == (id, "mail", "greet", "crashed", "queued")
    assert (job.state, job.worker, job.lease_until, job.attempt) == ("queued", None, None, 1)
    assert job.error is not None
    assert job.error.startswith("LeaseExpired")
    assert db.take("mail").id == id


@pytest.mark.proves("S0.16", "S4.28")
def test_a_job_that_kills_its_workers_runs_out_of_attempts(db: Protocol, later: Later) -> None:
    id = db.put(max_attempts=2)
    for worker in ("w1", "w2"):
        db.take(worker=worker)
        later(seconds=31)
        outcome = db.reap()[0].outcome

    assert outcome == "dead"
    assert (db.job(id).state, db.job(id).attempt) == ("dead", 2)
    assert [attempt.outcome for attempt in db.attempts(id)] == ["expired", "expired"]


@pytest.mark.proves("S0.21")
def test_a_dead_job_holds_no_lease(db: Protocol, later: Later) -> None:
    db.put(max_attempts=1)
    job = db.take()
    later(seconds=31)
    db.reap()

    assert db.held(job.token) == []
    assert db.job(job.id).lease_until is None
    assert db.ack(job)[0].outcome == "lost"


def test_a_lease_that_still_runs_is_left_alone(db: Protocol, later: Later) -> None:
    db.put()
    db.take()
    later(seconds=29)

    assert db.reap() == []


def test_each_job_of_a_claim_expires_by_its_own_lease(db: Protocol, later: Later) -> None:
    db.enqueue({"kind": "short", "lease": 5}, {"kind": "long", "lease": 100}, {"kind": "usual"})
    db.claim(max_jobs=3)

    reaped = []
    for seconds in (6, 25, 70):
        later(seconds=seconds)
        reaped.append([each.kind for each in db.reap()])

    assert reaped == [["short"], ["usual"], ["long"]]


def test_a_touched_job_of_a_claim_stays_when_the_others_go(db: Protocol, later: Later) -> None:
    db.enqueue(*[{"kind": "k"}] * 3)
    one, two, three = db.claim(max_jobs=3)
    db.ack(one)
    later(seconds=20)
    db.touch(two)
    later(seconds=11)

    assert [each.id for each in db.reap()] == [three.id]
    assert [each.id for each in db.held(two.token)] == [two.id]
    later(seconds=20)
    assert [each.id for each in db.reap()] == [two.id]


@pytest.mark.proves("S4.28")
def test_an_expired_lease_is_found_behind_many_finished_claims(db: Protocol, later: Later) -> None:
    for _ in range(300):
        db.put()
        db.ack(db.take())
    id = db.put()
    db.take()
    later(seconds=31)

    reaped = db.upkeep()["reaped"]

    assert reaped == 1
    assert db.state(id) == "queued"


@pytest.mark.proves("S0.10")
def test_a_claim_finds_an_expired_lease_behind_many_finished_ones(
    db: Protocol, later: Later
) -> None:
    for _ in range(20):
        db.put()
        db.ack(db.take())
    id = db.put()
    db.take()
    later(seconds=31)

    assert [job.id for job in db.claim()] == [id]


def test_many_are_reaped_in_portions(db: Protocol, later: Later) -> None:
    db.enqueue(*[{"kind": "k"}] * 50)
    db.claim(max_jobs=50)
    later(seconds=31)

    portions = [len(db.reap(max_jobs=20)) for _ in range(4)]

    assert portions == [20, 20, 10, 0]


def test_a_reaped_job_is_ready_at_once(db: Protocol, later: Later) -> None:
    db.queue_set("default", backoff=3600)
    id = db.put()
    db.take()
    later(seconds=31)
    db.reap()

    assert db.take().id == id


def test_leases_are_credited_with_the_time_the_database_was_away(
    db: Protocol, later: Later
) -> None:
    id = db.put()
    job = db.take()
    # As after a failover: the last sign of life is 40 s old and the timeline is another.
    later(seconds=40)
    db.connection.execute(
        "update holdfast.pulse"
        " set timeline = 'before', reaped_at = holdfast.now() - interval '40 seconds'"
    )

    after_return = db.reap()
    later(seconds=20)
    in_the_credit = db.reap()
    held = db.touch(job)[0].outcome
    later(seconds=60)

    assert (after_return, in_the_credit, held) == ([], [], "leased")
    assert [each.id for each in db.reap()] == [id]


def test_leases_are_credited_by_whoever_comes_second_after_an_outage(
    db: Protocol, later: Later, other: Callable[..., Protocol]
) -> None:
    """Named interleaving: the first has begun its turn and not committed it."""
    db.put()
    job = db.take()
    later(seconds=40)
    db.connection.execute(
        "update holdfast.pulse"
        " set timeline = 'before', reaped_at = holdfast.now() - interval '40 seconds'"
    )
    first = other()

    with first.connection.transaction():
        first.reap()
        second = db.reap()
    third = db.reap()

    assert (second, third) == ([], [])
    assert db.touch(job)[0].outcome == "leased"


def test_leases_claimed_after_the_return_get_no_credit(db: Protocol, later: Later) -> None:
    db.enqueue({"kind": "before"}, {"kind": "after"})
    db.take()
    later(seconds=40)
    db.connection.execute(
        "update holdfast.pulse"
        " set timeline = 'before', reaped_at = holdfast.now() - interval '40 seconds'"
    )
    db.reap()
    after = db.take(lease=timedelta(seconds=10))

    later(seconds=11)

    assert after.kind == "after"
    assert [job.id for job in db.reap()] == [after.id]


@pytest.mark.proves("S0.25", "S4.9")
def test_a_reap_reads_only_what_expired(db: Protocol, later: Later) -> None:
    db.enqueue(*[{"kind": "k", "lease": 600}] * 3000, {"kind": "k", "lease": 5, "priority": 9})
    db.claim(max_jobs=1)
    for _ in range(30):
        db.claim(max_jobs=100)
    later(seconds=6)

    with db.connection.transaction():
        before = db.rows_read()
        reaped = db.reap()
        read = db.rows_read() - before

    assert len(reaped) == 1
    assert read < 50
