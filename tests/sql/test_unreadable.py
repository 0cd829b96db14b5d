"""Jobs that a worker cannot read: given back uncounted, offered to another, explained."""

from datetime import timedelta
from typing import Any

import pytest
from psycopg import errors

from tests.protocol import Later, Leased, Protocol


def give_back(db: Protocol, given: Leased, shape: str, problem: str = "why") -> Any:
    unread = {"shape": shape, "problem": problem}
    item = {"id": given.id, "token": given.token, "verb": "release", "unread": unread}
    return db.settle(item)


def waits(db: Protocol) -> float:
    [[seconds]] = db.connection.execute(
        "select extract(epoch from run_at - holdfast.now())::float from holdfast.job"
    )
    return float(seconds)


def present(db: Protocol, worker: str, shape: str) -> None:
    db.beat(worker, kinds=["work"], queues=["default"], shapes={"work": shape})


def test_it_waits_a_moment_while_another_declaration_is_there_and_else_a_minute(
    db: Protocol, later: Later
) -> None:
    id = db.put()
    present(db, "old", "v1")
    present(db, "new", "v2")

    [settled] = give_back(db, db.take(), "v1")
    assert settled.outcome == "queued"
    assert waits(db) < 2
    assert "Another running worker may be able to" in db.value("explain", id=id)

    later(seconds=6)
    give_back(db, db.take(), "v2", "there is no argument `x`.")
    assert waits(db) > 55
    assert db.value("explain", id=id).startswith(
        "No running worker can read it: there is no argument `x`. It waits, uncounted, since "
    )
    [job] = db.list("kind:work")
    assert (job.attempt, job.state) == (0, "queued")


def test_a_worker_with_another_declaration_makes_it_due_at_once(db: Protocol) -> None:
    db.put()
    present(db, "old", "v1")
    give_back(db, db.take(), "v1")
    assert waits(db) > 55

    present(db, "old too", "v1")
    assert waits(db) > 55
    present(db, "new", "v2")
    assert waits(db) <= 0
    assert db.take().attempt == 1


def test_what_is_noted_is_forgotten_when_the_job_has_run(db: Protocol, later: Later) -> None:
    id = db.put()
    give_back(db, db.take(), "v1")
    later(seconds=61)
    db.nack(db.take(), message="no", delay=timedelta(minutes=1))

    assert "Attempt 1 of" in db.value("explain", id=id)
    later(seconds=61)
    db.connection.execute("select holdfast.upkeep()")
    assert db.table("select * from holdfast.unreadable") == []


def test_a_lost_lease_notes_nothing(db: Protocol, later: Later) -> None:
    db.put()
    given = db.take()
    later(minutes=10)
    db.reap()

    [settled] = give_back(db, given, "v1")
    assert settled.outcome == "lost"
    assert db.table("select * from holdfast.unreadable") == []


@pytest.mark.parametrize(
    "change", [{"verb": "ack"}, {"unread": {"shape": "v1"}}, {"unread": "v1"}, {"unread": {"x": 1}}]
)
def test_what_is_not_a_shape_and_a_problem_of_a_release_is_refused(
    db: Protocol, change: dict[str, Any]
) -> None:
    db.put()
    given = db.take()
    unread = {"shape": "v1", "problem": "why"}
    item = {"id": given.id, "token": given.token, "verb": "release", "unread": unread}

    with pytest.raises(errors.DatabaseError) as refused:
        db.settle(item | change)
    assert refused.value.sqlstate == "HF201"
