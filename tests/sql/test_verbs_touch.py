"""touch: holding on for longer."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.protocol import Hold, Later, Protocol


@pytest.mark.proves("S4.23")
def test_a_touch_moves_the_end_of_the_lease(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take()
    later(seconds=20)

    [touched] = db.touch(job, lease=timedelta(seconds=60))

    assert touched.outcome == "leased"
    assert touched.lease_until is not None
    assert timedelta(seconds=49) < touched.lease_until - job.lease_until < timedelta(seconds=59)
    assert db.job(job.id).lease_until == touched.lease_until


@pytest.mark.parametrize(
    ("job", "queue", "seconds"), [(None, None, 30), (None, 45, 45), (10, 45, 10)]
)
def test_a_touch_gives_as_long_as_a_claim_would(
    db: Protocol, later: Later, job: int | None, queue: int | None, seconds: int
) -> None:
    if queue:
        db.queue_set("default", lease=queue)
    db.put(lease=job)
    leased = db.take()
    later(seconds=5)

    [touched] = db.touch(leased)

    assert touched.lease_until is not None
    gained = touched.lease_until - leased.lease_until
    assert timedelta(seconds=5) <= gained < timedelta(seconds=9)
    assert touched.lease_until - leased.created_at < timedelta(seconds=seconds + 9)


def test_a_touch_never_shortens_what_the_claim_asked_for(db: Protocol) -> None:
    db.put()
    job = db.take(lease=timedelta(minutes=3))

    [touched] = db.touch(job)

    assert touched.lease_until is not None
    assert touched.lease_until >= job.lease_until


def test_a_lease_made_shorter_is_reaped_at_its_new_end(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take()
    db.touch(job, lease=timedelta(seconds=5))
    later(seconds=6)
    [end] = db.connection.execute(
        "select lease_until <= holdfast.now() from holdfast.jobs where id = %s", [job.id]
    ).fetchone() or [None]

    reaped = [each.id for each in db.reap()]

    # Either a touch cannot shorten a lease, or whoever shortened it is taken at his word.
    assert (reaped == [job.id]) == end


@pytest.mark.proves("S0.5", "S4.23")
def test_a_job_that_is_touched_in_time_is_never_taken_away(db: Protocol, later: Later) -> None:
    id = db.put()
    job = db.take()
    for _ in range(10):
        later(seconds=20)
        assert db.reap() == []
        assert db.claim(worker="other") == []
        assert db.touch(job)[0].outcome == "leased"

    assert db.job(id).attempt == 1
    assert db.ack(job)[0].outcome == "done"


def test_an_expired_lease_that_nobody_took_can_still_be_touched(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take()
    later(seconds=31)

    [touched] = db.touch(job)

    assert touched.outcome == "leased"
    assert db.reap() == []


@pytest.mark.proves("S4.21", "S4.22")
def test_a_touch_after_the_job_was_taken_is_lost(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take()
    later(seconds=31)
    heir = db.take(worker="heir")

    [touched] = db.touch(job)

    assert (touched.outcome, touched.lease_until) == ("lost", None)
    assert touched.detail is not None
    assert "heir" in touched.detail
    assert db.job(job.id).lease_until == heir.lease_until


def test_many_are_touched_at_once_and_answered_in_order(db: Protocol) -> None:
    for n in range(6):
        db.put(queue=f"q{n}")
    jobs = [db.take(f"q{n}") for n in range(6)]
    db.ack(jobs[2])
    nobody = Hold(uuid4(), uuid4())

    touched = db.touch(*reversed(jobs), nobody)

    assert [each.id for each in touched] == [job.id for job in reversed(jobs)] + [nobody.id]
    assert [each.outcome for each in touched] == ["leased"] * 3 + ["lost"] + ["leased"] * 2 + [
        "unknown"
    ]


def test_a_stale_token_beside_the_right_one_is_lost(db: Protocol) -> None:
    db.put()
    job = db.take()

    touched = db.touch(Hold(job.id, uuid4()), job)

    assert [each.outcome for each in touched] == ["lost", "leased"]


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_touch_to_no_time_is_refused(db: Protocol, seconds: int) -> None:
    db.put()
    job = db.take()

    with pytest.raises(psycopg.Error) as refusal:
        db.touch(job, lease=timedelta(seconds=seconds))

    assert refusal.value.sqlstate == "HF204"


def test_a_touch_shows_how_far_the_work_is(db: Protocol) -> None:
    db.enqueue({"kind": "a"}, {"kind": "b"}, {"kind": "c"})
    a, b, c = db.claim(max_jobs=3)

    db.touch(a, b, c, progress=[{"done": 3, "total": 20, "note": "page 3"}, None, {"done": 0.5}])

    shown = db.job(a.id).progress
    assert {name: shown[name] for name in ("done", "total", "note", "attempt")} == {
        "done": 3,
        "total": 20,
        "note": "page 3",
        "attempt": 1,
    }
    assert shown["at"]
    assert db.job(b.id).progress is None
    assert (db.job(c.id).progress["done"], "note" in db.job(c.id).progress) == (0.5, False)


def test_a_touch_without_progress_leaves_what_was_said(db: Protocol) -> None:
    db.put()
    job = db.take()
    db.touch(job, progress=[{"done": 1}])

    db.touch(job)
    db.touch(job, progress=[None])

    assert db.job(job.id).progress["done"] == 1


@pytest.mark.parametrize("end", ["nack", "release"])
def test_progress_of_an_earlier_lease_is_not_shown(db: Protocol, end: str) -> None:
    db.put()
    job = db.take()
    db.touch(job, progress=[{"done": 1}])
    getattr(db, end)(job, delay=timedelta(0))
    before = db.job(job.id).progress

    again = db.take()

    assert (before, db.job(job.id).progress) == (None, None)
    db.touch(again, progress=[{"done": 2}])
    assert db.job(job.id).progress["done"] == 2


def test_a_lost_lease_says_nothing_of_the_job(db: Protocol) -> None:
    db.put()
    job = db.take()

    [answer] = db.touch(Hold(job.id, uuid4()), progress=[{"done": 1}])

    assert answer.outcome == "lost"
    assert db.job(job.id).progress is None


def test_a_long_note_is_cut(db: Protocol) -> None:
    db.put()
    job = db.take()

    db.touch(job, progress=[{"note": "x" * 10_000}])

    assert db.job(job.id).progress["note"] == "x" * 500


@pytest.mark.parametrize(
    "progress",
    [
        [],
        [{}, {}],
        {"done": 1},
        [7],
        [{"done": "3"}],
        [{"total": [1]}],
        [{"note": 3}],
        [{"colour": "red"}],
    ],
)
def test_progress_is_one_object_per_id(db: Protocol, progress: Any) -> None:
    db.put()
    job = db.take()

    with pytest.raises(psycopg.Error) as refusal:
        db.touch(job, progress=progress)

    assert refusal.value.sqlstate == "HF208"
