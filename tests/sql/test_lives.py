"""Attempts are counted over all lives of a job, so that one that goes round in circles is found."""

from collections.abc import Callable
from uuid import UUID

import pytest

from tests.protocol import Hold, Later, Protocol
from tests.sql.test_operations import preview, run
from tests.sql.test_undo import undone


def fail(db: Protocol, queue: str = "default") -> Hold:
    held = db.take(queue)
    db.nack(held, final=True, message="no such file")
    return Hold(held.id, held.token)


def nights(db: Protocol, id: UUID, count: int, queue: str = "default") -> None:
    """So many nightly retries, each with one attempt that fails for good."""
    for _ in range(count):
        [answer] = db.retry(id, reason="Retry requested by nightly workflow")
        assert answer.changed
        fail(db, queue)


def total(db: Protocol, id: UUID) -> tuple[int, int]:
    job = db.job(id)
    return job.attempt, job.total_attempts


@pytest.mark.proves("S0.15")
def test_a_job_that_fails_every_night_is_found_by_its_attempts(db: Protocol) -> None:
    id, other = db.put(), db.put("other")
    fail(db)
    db.ack(db.take())

    nights(db, id, 5)

    assert total(db, id) == (1, 6)
    assert db.find("attempts:>5") == db.find("attempts:6 state:dead") == [id]
    assert db.find("attempt:>5") == db.find("attempts:>6") == []
    assert searched(db, "attempts:>5") == [id]
    [(jobs,)] = db.call("count_jobs", columns=("jobs",), filter="attempts:>5")
    assert jobs == 1
    assert other not in db.find("attempts:>5")


def searched(db: Protocol, filter: str) -> list[UUID]:
    rows = db.connection.execute("select (s.job).id from holdfast.search(%s) s", [filter])
    return [id for (id,) in rows.fetchall()]


def test_attempts_of_this_life_come_on_top(db: Protocol, later: Later) -> None:
    id = db.put()
    fail(db)
    db.retry(id)
    assert total(db, id) == (0, 1)

    held = db.take()
    assert total(db, id) == (1, 2)
    db.release(held)
    assert total(db, id) == (0, 1)
    db.take()
    later(seconds=31)
    db.reap()
    db.take()
    assert total(db, id) == (2, 3)


def ack(db: Protocol, id: UUID) -> None:
    db.queue_set("default", keep_done=3600)
    db.ack(db.take())


def archive(db: Protocol, id: UUID) -> None:
    fail(db)
    db.archive(id)


def cancel(db: Protocol, id: UUID) -> None:
    db.take()
    db.cancel(id)


def move_dead(db: Protocol, id: UUID) -> None:
    fail(db)
    db.move(id, queue="elsewhere")


def move_waiting(db: Protocol, id: UUID) -> None:
    db.nack(db.take(), delay=None)
    db.move(id, queue="elsewhere")


def fan_out(db: Protocol, id: UUID) -> None:
    fail(db)
    db.queue_set("default", fanout=8)
    db.retry(id)


def undo_retry(db: Protocol, id: UUID) -> None:
    fail(db)
    operation = run(db, preview(db, "retry", "state:dead").token)
    assert operation.changed == 1
    assert undone(db, operation.id).changed == 1
    assert db.state(id) == "dead"


def undo_archive(db: Protocol, id: UUID) -> None:
    fail(db)
    operation = run(db, preview(db, "archive", "state:dead").token)
    assert undone(db, operation.id).changed == 1
    assert db.state(id) == "dead"


def undo_cancel(db: Protocol, id: UUID) -> None:
    db.nack(db.take(), delay=None)
    operation = run(db, preview(db, "cancel", "state:queued").token)
    assert undone(db, operation.id).changed == 1
    assert db.state(id) == "queued"


@pytest.mark.parametrize(
    "deed",
    [
        ack,
        archive,
        cancel,
        move_dead,
        move_waiting,
        fan_out,
        undo_retry,
        undo_archive,
        undo_cancel,
    ],
)
def test_whatever_becomes_of_a_job_its_attempts_stay_counted(
    db: Protocol, deed: Callable[[Protocol, UUID], None]
) -> None:
    id = db.put(key="order-42")
    fail(db)
    nights(db, id, 3)
    db.retry(id)

    deed(db, id)

    assert db.job(id).total_attempts == 5
    [job] = db.list("attempts:5")
    assert job.total_attempts == 5


def test_a_job_that_is_replaced_counts_from_zero(db: Protocol) -> None:
    id = db.put(key="order-42")
    fail(db)
    nights(db, id, 3)
    db.retry(id)

    db.enqueue({"kind": "work", "key": "order-42", "on_conflict": "replace"})

    assert total(db, id) == (0, 0)
