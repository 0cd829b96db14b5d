"""A start or an enqueue that is sent again stores nothing twice, whatever became of it since."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.protocol import Protocol
from tests.sql.test_workflow_verbs import cancel, members, tend
from tests.sql.test_workflows import begin, rows, run, shown, start


def ids(db: Protocol, queue: str = "default") -> Any:
    query = "select holdfast.new_id(%(queue)s) as flow, holdfast.new_id(%(queue)s) as job"
    [row] = rows(db, query, queue=queue)
    return row


def row(db: Protocol, id: UUID) -> Any:
    [found] = rows(db, "select * from holdfast.workflow where id = %(id)s", id=id)
    return found


def forget_receipts(db: Protocol) -> None:
    """Let the last traces of the claims of ended jobs go."""
    for _ in range(2):  # the first sees that time has jumped
        db.later(days=1)
        db.upkeep()
    assert rows(db, "select from holdfast.lease") == []


def test_a_repeated_start_returns_what_the_first_returned(db: Protocol) -> None:
    new = ids(db)
    items = [{"kind": "a", "id": str(new.job)}, {"kind": "b", "after": [1]}]

    first = begin(db, *items, id=new.flow, key="7")
    again = begin(db, *items, id=new.flow, key="7", repeat=True)

    assert again == first
    assert [one.created for one in again] == [True, True]
    assert run(db) == ["a", "b"]


def test_a_repeated_start_leaves_what_has_ended_even_when_all_traces_are_gone(db: Protocol) -> None:
    new = ids(db)
    item = {"kind": "a", "id": str(new.job)}
    first = begin(db, item, id=new.flow)
    run(db)
    tend(db)
    forget_receipts(db)
    before = row(db, new.flow)

    assert begin(db, item, id=new.flow, repeat=True) == first
    assert row(db, new.flow) == before
    assert run(db) == []


def test_a_repeated_start_is_answered_although_its_key_is_in_use_again(db: Protocol) -> None:
    new = ids(db)
    item = {"kind": "a", "id": str(new.job)}
    first = begin(db, item, id=new.flow, key="7")
    run(db)
    other = start(db, {"kind": "b"}, key="7")

    assert begin(db, item, id=new.flow, key="7", repeat=True) == first
    assert shown(db, other).state == "running"


def test_a_repeated_start_is_answered_although_it_was_cancelled(db: Protocol) -> None:
    new = ids(db)
    item = {"kind": "a", "id": str(new.job)}
    first = begin(db, item, id=new.flow, deadline=timedelta(hours=1))
    cancel(db, new.flow)

    assert begin(db, item, id=new.flow, deadline=timedelta(hours=1), repeat=True) == first
    assert shown(db, new.flow).state == "cancelled"


def test_a_repeated_start_of_an_empty_workflow_has_one_row(db: Protocol) -> None:
    new = ids(db)

    assert begin(db, id=new.flow) == begin(db, id=new.flow, repeat=True)


def test_a_repeated_start_finds_jobs_of_a_queue_with_fanout(db: Protocol) -> None:
    db.queue_set("wide", fanout=8)
    new = ids(db, "wide")
    item = {"kind": "a", "queue": "wide", "id": str(new.job), "lane": "l"}
    first = begin(db, item, id=new.flow)

    assert [(one.job, one.created) for one in begin(db, item, id=new.flow, repeat=True)] == [
        (one.job, True) for one in first
    ]


@pytest.mark.parametrize("changed", [{"name": "export"}, {"key": "8"}])
def test_another_start_with_an_id_that_exists_is_not_a_repeat(
    db: Protocol, changed: dict[str, str]
) -> None:
    new = ids(db)
    begin(db, {"kind": "a"}, id=new.flow, key="7")

    with pytest.raises(psycopg.DatabaseError, match="another workflow with the id") as refused:
        begin(db, {"kind": "a"}, id=new.flow, repeat=True, **{"key": "7", **changed})
    assert refused.value.sqlstate == "HF206"


def test_a_job_that_is_added_again_leaves_a_workflow_that_has_ended(db: Protocol) -> None:
    id, new = start(db, {"kind": "a"}, key="7"), ids(db)
    item = {"kind": "b", "workflow": str(id), "id": str(new.job)}
    db.enqueue(item)
    run(db)
    tend(db)
    forget_receipts(db)
    start(db, {"kind": "c"}, key="7")
    before = row(db, id)

    [again] = db.enqueue(item, repeat=True)

    assert (again.id, again.created) == (new.job, True)
    assert row(db, id) == before
    assert run(db) == ["c"]


def test_a_job_that_is_added_again_is_answered_although_its_workflow_was_cancelled(
    db: Protocol,
) -> None:
    id, new = start(db, {"kind": "a"}), ids(db)
    item = {"kind": "b", "workflow": str(id), "id": str(new.job)}
    db.enqueue(item)
    cancel(db, id)

    [again] = db.enqueue(item, repeat=True)

    assert (again.id, again.created) == (new.job, True)
    assert members(db, id) == [("a", "cancelled"), ("b", "cancelled")]
