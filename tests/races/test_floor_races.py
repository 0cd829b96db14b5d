"""Floors against writers that commit late."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.protocol import Open, Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


def churn(db: Protocol, jobs: int = 2000) -> None:
    """Jobs that come and go, so that the floor has a reason to rise."""
    db.enqueue(*[{"kind": "k"}] * jobs)
    db.ack(*db.claim(max_jobs=jobs))


def floor(db: Protocol) -> int:
    row = db.connection.execute(
        "select coalesce(max(floors[10]), 0) from holdfast.floor"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_writer_under_way_is_never_passed(db: Protocol, held_open: Protocol) -> None:
    db.queue_set("default")
    late = held_open.put("late")
    churn(db)

    raised = [db.raise_floors() for _ in range(5)]
    held_open.connection.commit()

    assert raised == [0] * 5
    assert [job.id for job in db.claim()] == [late]


def test_the_floor_rises_when_the_writer_is_gone(db: Protocol, held_open: Protocol) -> None:
    db.queue_set("default")
    held_open.put("late")
    churn(db)
    db.raise_floors()
    held_open.connection.rollback()

    db.raise_floors()
    db.raise_floors()

    assert floor(db) > 0


def test_a_writer_that_began_after_the_look_is_not_passed_either(
    db: Protocol, held_open: Protocol
) -> None:
    db.queue_set("default")
    churn(db)
    db.raise_floors()
    late = held_open.put("late")

    raised = db.raise_floors()
    held_open.connection.commit()

    assert raised == 1
    assert floor(db) > 0
    assert [job.id for job in db.claim()] == [late]


def test_after_its_patience_the_floor_rises_and_the_stray_is_lifted(
    db: Protocol, held_open: Protocol
) -> None:
    db.queue_set("default")
    late = held_open.put("late")
    churn(db)
    db.raise_floors(patience=timedelta(0))
    raised = db.raise_floors(patience=timedelta(0))
    held_open.connection.commit()
    hidden = db.claim()

    # The writers that were passed are gone: the next look lifts what they left.
    db.raise_floors()

    assert raised == 1
    assert hidden == []
    assert [job.id for job in db.claim()] == [late]


def test_a_prepared_transaction_is_a_writer_under_way(db: Protocol, held_open: Protocol) -> None:
    row = db.connection.execute("show max_prepared_transactions").fetchone()
    if row == ("0",):
        pytest.skip("the server prepares no transactions")
    db.queue_set("default")
    late = held_open.put("late")
    churn(db)
    db.raise_floors()
    held_open.connection.execute("prepare transaction 'late'")

    try:
        raised = [db.raise_floors() for _ in range(3)]
    finally:
        db.connection.execute("commit prepared 'late'")

    assert raised == [0, 0, 0]
    assert [job.id for job in db.claim()] == [late]


@pytest.mark.parametrize("verb", ["nack", "promote", "retry", "edit", "unblock", "move"])
def test_whatever_gives_a_job_its_place_is_a_writer_under_way(
    db: Protocol, held_open: Protocol, verb: str
) -> None:
    db.queue_set("default")
    if verb == "nack":
        id = db.put()
        held_open.nack(db.take(), delay=timedelta(0))
    elif verb == "promote":
        id = db.put(delay=5)
        db.later(seconds=6)
        held_open.promote()
    elif verb == "retry":
        id = db.put(max_attempts=1)
        db.nack(db.take())
        held_open.retry(id)
    elif verb == "edit":
        id = db.put(delay=3600)
        held_open.edit(id, changes={"run_at": "2020-01-01T00:00:00Z"})
    elif verb == "move":
        id = db.put(queue="other")
        [moved] = held_open.move(id, queue="default")
        assert moved.new_id is not None
        id = moved.new_id
    else:
        _, id = (each.id for each in db.enqueue(*[{"kind": "k", "lane": "l"}] * 2))
        held_open.ack(db.take())
    churn(db)

    raised = [db.raise_floors() for _ in range(3)]
    held_open.connection.commit()

    assert raised == [0, 0, 0]
    assert [job.id for job in db.claim()] == [id]


def test_floors_raised_under_full_load_lose_no_job(
    db: Protocol, other: Open, at_once: AtOnce
) -> None:
    db.queue_set("default")

    def work(session: Protocol, nth: int) -> int:
        done = 0
        for n in range(25):
            if nth == 0:
                session.raise_floors(patience=timedelta(0))
            elif nth < 3:
                with session.connection.transaction():
                    session.enqueue(*[{"kind": "k", "priority": n % 2, "max_attempts": 99}] * 60)
            else:
                jobs = session.claim(worker=f"w{nth}", max_jobs=70)
                done += len(jobs[6:])
                session.ack(*jobs[6:])
                session.release(*jobs[:3])
                session.nack(*jobs[3:6], delay=timedelta(0))
        return done

    done = at_once(5, work)

    assert not [each for each in done if isinstance(each, Exception)]
    db.lift_strays()
    while jobs := db.claim(max_jobs=1000):
        db.ack(*jobs)
    assert db.depth() == {"done": 3000}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("call", ["upkeep", "raise_floors", "sweep"])
def test_upkeep_on_an_old_snapshot_is_refused(
    db: Protocol, other: Open, level: str, call: str
) -> None:
    """It would raise floors over jobs that it cannot see, although nobody writes any more."""
    old = other(autocommit=False)
    old.connection.execute(f"set transaction isolation level {level}")

    with pytest.raises(psycopg.Error) as refusal:
        old.value(call)

    assert refusal.value.sqlstate == "HF209"
