"""Workflows as a whole: cancel, retry, undo, deadlines, keys, children."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Protocol
from tests.sql.test_operations import preview
from tests.sql.test_operations import run as operated
from tests.sql.test_undo import undone
from tests.sql.test_workflows import FAN, begin, counts, rows, run, shown, start

# A job that fails, what waits for it, what is cancelled with it, and what runs anyway.
FAILING: list[dict[str, Any]] = [
    {"kind": "fails", "max_attempts": 1},
    {"kind": "waits", "after": [1]},
    {"kind": "goes", "after": [1], "if_failed": "cancel"},
    {"kind": "cleans", "after": [1], "if_failed": "run"},
]


def cancel(db: Protocol, id: UUID, **more: Any) -> Any:
    return operate(db, "workflow_cancel", id=id, **more)


def retry(db: Protocol, id: UUID, **more: Any) -> Any:
    return operate(db, "workflow_retry", id=id, **more)


def operate(db: Protocol, function: str, **given: Any) -> Any:
    """Start an operation and do all of it."""
    named = ", ".join(f"{name} => %({name})s" for name in given)
    [row] = rows(db, f"select * from holdfast.{function}({named})", **given)
    while rows(db, "select * from holdfast.operation_step(2)"):
        db.later(seconds=60)
    return row


def steps(db: Protocol) -> None:
    """Do all of the operations that run."""
    while rows(db, "select * from holdfast.operation_step(100)"):
        db.later(seconds=60)


def tend(db: Protocol) -> None:
    db.later(seconds=2)
    db.upkeep()
    steps(db)


def members(db: Protocol, id: UUID) -> list[tuple[str, str]]:
    jobs = rows(db, "select * from holdfast.workflow_jobs(%(id)s)", id=id)
    return [(job.kind, job.state) for job in jobs]


def refusal(db: Protocol, query: str, **given: Any) -> str:
    with pytest.raises(psycopg.DatabaseError) as refused, db.connection.transaction():
        rows(db, query, **given)
    return str(refused.value.sqlstate)


def test_a_cancelled_workflow_runs_and_takes_nothing_more(db: Protocol) -> None:
    id = start(db, *FAN, {"kind": "cleans", "after": [5], "if_failed": "run"})
    db.ack(*db.claim())
    held = db.claim()

    row = cancel(db, id, reason="too late", actor="ada")

    assert (row.verb, row.total, row.state) == ("cancel", 5, "running")
    assert counts(db, id) == {"total": 6, "done": 1, "cancelled": 5}
    assert (shown(db, id).state, shown(db, id).reason) == ("cancelled", "too late")
    assert [one.outcome for one in db.ack(*held)] == ["lost"]
    assert run(db) == []
    assert refusal(db, "select * from holdfast.enqueue(%(i)s)", i=_items(id)) == "HF216"
    assert refusal(db, "select * from holdfast.workflow_cancel(%(id)s)", id=id) == "HF409"


def _items(id: UUID) -> str:
    return f'[{{"kind": "late", "workflow": "{id}"}}]'


def test_the_cancel_of_a_workflow_can_be_undone(db: Protocol) -> None:
    id = start(db, *FAN)
    db.ack(*db.claim())
    row = cancel(db, id)

    operate(db, "operation_undo", id=row.id)

    assert counts(db, id) == {"total": 5, "done": 1, "queued": 3, "waiting": 1}
    assert run(db) == ["part", "part", "part", "sum"]
    assert shown(db, id).state == "done"


def test_a_retry_brings_back_all_that_failed_and_leaves_what_is_done(db: Protocol) -> None:
    id = start(db, *FAILING)
    db.nack(*db.claim())
    assert run(db) == ["cleans"]
    assert shown(db, id).state == "waiting"

    row = retry(db, id, actor="ada")

    assert (row.verb, row.total) == ("retry", 2)
    assert members(db, id) == [
        ("fails", "queued"),
        ("waits", "queued"),
        ("goes", "queued"),
        ("cleans", "done"),
    ]
    assert sorted(run(db)) == ["fails", "goes", "waits"]
    assert shown(db, id).state == "done"
    assert refusal(db, "select * from holdfast.workflow_retry(%(id)s)", id=id) == "HF409"


def test_a_retry_from_a_job_on_leaves_the_others(db: Protocol) -> None:
    twice = [*FAILING[:2], {**FAILING[0]}, {"kind": "other", "after": [3]}]
    id = start(db, *twice)
    db.nack(*db.claim(max_jobs=2))
    cancel(db, id)
    first = rows(db, "select * from holdfast.workflow_jobs(%(id)s)", id=id)[0].id
    outside = db.put("alone")

    retry(db, id, from_job=first)

    states = [state for _, state in members(db, id)]
    assert states == ["queued", "queued", "dead", "cancelled"]
    assert (
        refusal(
            db,
            "select * from holdfast.workflow_retry(%(id)s, from_job => %(job)s)",
            id=id,
            job=outside,
        )
        == "HF215"
    )


def test_a_retry_of_a_cancelled_workflow_opens_it_again(db: Protocol) -> None:
    id = start(db, *FAN)
    cancel(db, id)

    retry(db, id)

    assert run(db) == ["split", "part", "part", "part", "sum"]
    db.enqueue({"kind": "late", "workflow": str(id)})
    assert run(db) == ["late"]


def test_the_undo_of_a_cancel_restores_the_deadline(db: Protocol) -> None:
    id = start(db, {"kind": "a"}, deadline=timedelta(days=1))
    before = shown(db, id).deadline
    row = cancel(db, id)

    operate(db, "operation_undo", id=row.id)

    assert before is not None
    assert (shown(db, id).state, shown(db, id).deadline) == ("running", before)


def test_the_undo_of_a_retry_leaves_the_workflow_cancelled_as_it_was(db: Protocol) -> None:
    id = start(db, *FAN, key="7", deadline=timedelta(days=1))
    db.ack(*db.claim())
    cancel(db, id, reason="too late")
    before = shown(db, id)
    row = retry(db, id)
    assert shown(db, id).deadline is None

    operate(db, "operation_undo", id=row.id)

    after = shown(db, id)
    assert (after.state, after.reason, after.jobs) == ("cancelled", "too late", before.jobs)
    assert after.deadline == before.deadline
    assert refusal(db, "select * from holdfast.enqueue(%(i)s)", i=_items(id)) == "HF216"
    assert start(db, {"kind": "b"}, key="7") != id


def test_the_activity_log_has_who_cancelled_and_who_retried_a_workflow_and_why(
    db: Protocol,
) -> None:
    id = start(db, {"kind": "a"}, key="7")
    cancel(db, id, actor="ada", reason="wrong file")
    retry(db, id, actor="eve", reason="right file")

    events = rows(db, "select * from holdfast.events where event like 'workflow%%' order by seq")
    assert [(one.event, one.actor, one.reason) for one in events] == [
        ("workflow_started", None, None),
        ("workflow_cancelled", "ada", "wrong file"),
        ("workflow_retried", "eve", "right file"),
    ]
    for one in events:
        assert one.detail == {"workflow": str(id), "name": "import", "key": "7"}


def test_a_workflow_that_goes_on_is_not_closed_by_the_undo_of_its_retry(db: Protocol) -> None:
    id = start(db, {"kind": "a"}, {"kind": "b"})
    cancel(db, id)
    row = retry(db, id)
    held = db.take()

    operate(db, "operation_undo", id=row.id)

    assert members(db, id) == [("a", "leased"), ("b", "cancelled")]
    db.enqueue({"kind": "late", "child_of": str(held.id)})
    db.ack(held)
    assert run(db) == ["late"]


@pytest.mark.parametrize("undone", ["cancel", "retry"])
def test_a_new_verb_ends_the_undo_of_the_last_one(db: Protocol, undone: str) -> None:
    id = start(db, {"kind": "a"}, {"kind": "b"})
    row = cancel(db, id)
    row = retry(db, id) if undone == "retry" else row
    [undo] = rows(db, "select * from holdfast.operation_undo(%(id)s)", id=row.id)
    rows(db, "select * from holdfast.operation_step(1)")

    (cancel if undone == "cancel" else retry)(db, id)

    [ended] = rows(db, "select state from holdfast.operations where id = %(id)s", id=undo.id)
    assert ended.state == "cancelled"
    assert {state for _, state in members(db, id)} == {
        "cancelled" if undone == "cancel" else "queued"
    }


def test_a_retry_brings_back_what_was_archived(db: Protocol) -> None:
    id = start(db, *FAILING)
    [held] = db.claim()
    db.nack(held)
    run(db)
    ended = rows(db, "select * from holdfast.workflow_jobs(%(id)s)", id=id)
    db.archive(*(job.id for job in ended if job.state != "queued"))

    row = retry(db, id, from_job=held.id)

    assert row.total == 2
    assert sorted(run(db)) == ["fails", "goes", "waits"]
    assert shown(db, id).state == "done"


def test_the_undo_of_a_retry_knows_how_what_was_archived_had_ended(db: Protocol) -> None:
    id = start(db, {"kind": "a"}, {"kind": "b", "max_attempts": 1})
    db.cancel(*(job.id for job in db.list("kind:a")))
    db.nack(db.take())
    db.archive(*(job.id for job in db.list("state:dead,cancelled")))
    row = retry(db, id)

    operate(db, "operation_undo", id=row.id)

    assert members(db, id) == [("a", "cancelled"), ("b", "dead")]
    assert [job.state for job in db.list("")] == ["archived"] * 2


def test_what_was_deleted_is_not_counted_among_what_can_be_retried(db: Protocol) -> None:
    id = start(db, {"kind": "a"}, {"kind": "b"})
    [one, two] = rows(db, "select * from holdfast.workflow_jobs(%(id)s)", id=id)
    db.delete(one.id)
    db.cancel(two.id)

    assert retry(db, id).total == 1
    db.delete(two.id)
    assert refusal(db, "select * from holdfast.workflow_retry(%(id)s)", id=id) == "HF409"


def test_a_follower_outside_of_a_workflow_does_not_make_its_failure_good(db: Protocol) -> None:
    id = start(db, {"kind": "a", "max_attempts": 1})
    held = db.take()
    db.enqueue({"kind": "outside", "after": [str(held.id)], "if_failed": "run"})
    elsewhere = {"kind": "outside", "after": [str(held.id)], "if_failed": "run"}
    start(db, elsewhere, name="other")

    db.nack(held)

    assert shown(db, id).state == "failed"
    run(db)
    tend(db)
    assert shown(db, id).state == "failed"


def test_a_verb_for_some_queues_is_for_workflows_within_them(db: Protocol) -> None:
    id = start(db, {"kind": "a", "queue": "mail"}, {"kind": "b", "queue": "mail"})
    call = "select * from holdfast.workflow_{verb}(%(id)s, queues => array['mail'])"
    [job, _] = rows(db, "select * from holdfast.workflow_jobs(%(id)s)", id=id)

    [row] = rows(db, call.format(verb="cancel"), id=id)
    db.move(job.id, queue="secret")
    steps(db)

    # What has left these queues before the operation came to it is not theirs to cancel.
    assert row.filter.endswith(" queue:mail")
    assert members(db, id) == [("a", "queued"), ("b", "cancelled")]
    assert rows(db, call.format(verb="cancel"), id=id) == []
    assert rows(db, call.format(verb="retry"), id=id) == []


def test_what_is_not_done_at_the_deadline_is_cancelled(db: Protocol) -> None:
    id = start(db, *FAN, deadline=timedelta(minutes=5))
    first, last = db.claim()[0], rows(db, "select * from holdfast.workflow_jobs(%(id)s)", id=id)[4]
    assert "has not ended by" in db.explain(last.id)
    db.later(minutes=4)
    tend(db)
    assert shown(db, id).state == "running"

    db.later(minutes=2)
    tend(db)

    assert shown(db, id).state == "cancelled"
    assert counts(db, id) == {"total": 5, "cancelled": 5}
    assert "the deadline of its workflow" in db.explain(last.id)
    assert [one.outcome for one in db.ack(first)] == ["lost"]
    retry(db, id)
    tend(db)
    assert shown(db, id).state == "running"


def test_one_live_workflow_has_a_key(db: Protocol) -> None:
    id = start(db, {"kind": "a"}, key="7")

    [again] = begin(db, {"kind": "a"}, key="7")
    assert (again.workflow, again.started, again.job) == (id, False, None)
    assert start(db, {"kind": "a"}, key="8") != id
    assert start(db, {"kind": "a"}, name="export", key="7") != id
    assert len(run(db)) == 3

    # The last job has ended, though nobody has noted it: the key is free.
    other = start(db, {"kind": "a"}, key="7")
    assert other != id
    assert shown(db, id).state == "done"
    assert refusal(db, "select * from holdfast.enqueue(%(i)s)", i=_items(id)) == "HF217"


def test_a_workflow_without_jobs_keeps_its_key_for_an_hour(db: Protocol) -> None:
    id = start(db, key="7")

    assert not begin(db, {"kind": "b"}, key="7")[0].started
    tend(db)
    assert (shown(db, id).state, shown(db, id).unsettled) == ("waiting", True)
    db.enqueue({"kind": "a", "workflow": str(id)})
    assert not begin(db, {"kind": "b"}, key="7")[0].started
    assert run(db) == ["a"]
    assert start(db, key="7") != id

    db.later(minutes=61)
    tend(db)
    assert not rows(db, "select from holdfast.workflow where ended_at is null")
    assert start(db, key="7") != id


def test_the_cancel_of_a_workflow_without_jobs_ends_it(db: Protocol) -> None:
    id = start(db, key="7")

    cancel(db, id, reason="nothing to do")

    assert (shown(db, id).state, shown(db, id).unsettled) == ("cancelled", False)
    assert refusal(db, "select * from holdfast.enqueue(%(i)s)", i=_items(id)) == "HF216"
    assert refusal(db, "select * from holdfast.workflow_cancel(%(id)s)", id=id) == "HF409"
    assert start(db, key="7") != id


def test_a_child_goes_with_a_parent_that_is_cancelled(db: Protocol) -> None:
    id = start(db, {"kind": "parent"})
    parent = db.take()
    child = {"kind": "child", "child_of": str(parent.id)}
    [one, free] = db.enqueue(child, {**child, "kind": "free", "if_failed": "run"})
    [below] = db.enqueue({"kind": "below", "child_of": str(one.id)})
    inner = start(db, {"kind": "inner"}, name="inner", child_of=parent.id)

    db.cancel(parent.id)

    assert [db.state(x.id) for x in (one, free, below)] == ["cancelled", "queued", "cancelled"]
    tend(db)
    assert shown(db, inner).state == "cancelled"
    assert "whose child it is, was cancelled" in shown(db, inner).reason
    assert [kind for kind, _ in members(db, id)] == ["parent", "child", "free", "below"]


def test_a_child_that_comes_after_its_parent_was_cancelled_goes_with_it(db: Protocol) -> None:
    start(db, {"kind": "parent"}, {"kind": "late", "run_at": "2100-01-01"})
    parent = db.take()
    db.cancel(parent.id)

    [child] = db.enqueue({"kind": "child", "child_of": str(parent.id)})
    inner = start(db, {"kind": "inner"}, name="inner", child_of=parent.id)
    tend(db)

    assert "whose child it is, was cancelled" in db.explain(child.id)
    assert (db.state(child.id), shown(db, inner).state) == ("cancelled", "cancelled")


def test_a_child_workflow_cannot_start_once_that_of_its_parent_is_cancelled(db: Protocol) -> None:
    id = start(db, {"kind": "parent"})
    parent = db.take()
    rows(db, "select * from holdfast.workflow_cancel(%(id)s)", id=id)

    query = "select * from holdfast.workflow_start(name => 'inner', child_of => %(id)s)"
    assert refusal(db, query, id=parent.id) == "HF216"
    assert refusal(db, query, id=db.put("alone")) == "HF215"


def test_a_child_outlives_a_parent_that_dies_unless_it_says_otherwise(db: Protocol) -> None:
    start(db, {"kind": "parent", "max_attempts": 1})
    parent = db.take()
    child = {"kind": "child", "child_of": str(parent.id)}
    [one, bound] = db.enqueue(child, {**child, "if_failed": "cancel"})
    inner = start(db, {"kind": "inner"}, name="inner", child_of=parent.id)

    db.nack(parent)
    tend(db)

    assert [db.state(x.id) for x in (one, bound)] == ["queued", "cancelled"]
    assert "whose child it is, died" in db.explain(bound.id)
    assert shown(db, inner).state == "running"


def family(db: Protocol, **more: Any) -> tuple[UUID, UUID, list[UUID], UUID]:
    """A workflow, a job in it, two that go with that job, and a workflow that does."""
    first = {"kind": "first", "max_attempts": 1}
    id = start(db, first, {"kind": "parent", "queue": "own", "max_attempts": 1, **more})
    [parent] = db.find("kind:parent")
    child = {"kind": "child", "child_of": str(parent), "if_failed": "cancel"}
    children = [job.id for job in db.enqueue(child, child)]
    inner = start(db, {"kind": "inner"}, name="inner", child_of=parent)
    return id, parent, children, inner


def test_children_come_back_with_their_workflow_and_not_with_their_parent(db: Protocol) -> None:
    id, parent, children, inner = family(db)
    db.cancel(parent)
    tend(db)

    db.retry(parent)
    tend(db)
    assert [db.state(one) for one in children] == ["cancelled"] * 2

    retry(db, id)
    assert [db.state(one) for one in children] == ["queued"] * 2
    assert shown(db, inner).state == "cancelled"


def test_an_undo_brings_the_parent_back_and_not_its_children(db: Protocol) -> None:
    _, parent, children, _ = family(db)
    operation = operated(db, preview(db, "cancel", "kind:parent").token)

    undo = undone(db, operation.id)

    assert (operation.changed, undo.changed) == (3, 1)
    assert db.state(parent) == "queued"
    assert [db.state(one) for one in children] == ["cancelled"] * 2


def test_a_parent_that_is_back_before_upkeep_comes_keeps_its_workflows(db: Protocol) -> None:
    _, parent, children, inner = family(db)
    db.cancel(parent)
    db.retry(parent)
    tend(db)

    assert [db.state(one) for one in children] == ["cancelled"] * 2
    assert shown(db, inner).state == "running"


ENDS: dict[str, tuple[dict[str, Any], Callable[[Protocol, UUID], Any]]] = {
    "dies": ({}, lambda db, _: db.nack(*db.claim("own"))),
    "is cancelled": ({}, lambda db, parent: db.cancel(parent)),
    "is deleted": ({}, lambda db, parent: db.delete(parent)),
    "expires": ({"expires": 1}, lambda *_: None),
    "is stopped": ({"after": [1], "if_failed": "cancel"}, lambda db, _: db.nack(db.take())),
}


@pytest.mark.parametrize("end", ENDS)
def test_upkeep_takes_the_children_that_are_there_and_those_that_come_later(
    db: Protocol, end: str
) -> None:
    more, act = ENDS[end]
    _, parent, children, inner = family(db, **more)
    act(db, parent)
    for _ in range(4):
        tend(db)
    late = {"kind": "late", "child_of": str(parent), "if_failed": "cancel"}
    [joined] = db.enqueue(late)
    for _ in range(4):
        tend(db)

    assert [db.state(one) for one in children] == ["cancelled"] * 2
    assert shown(db, inner).state == ("running" if end == "dies" else "cancelled")
    assert db.state(joined.id) == "cancelled"


def test_a_child_of_a_job_that_is_in_no_workflow_is_refused_with_all_that_came_with_it(
    db: Protocol,
) -> None:
    id, alone = start(db), db.put()
    before = db.table("select from holdfast.job")
    for parent in (alone, uuid4()):
        child = {"kind": "child", "child_of": str(parent)}
        joins = "select * from holdfast.enqueue(%(i)s)"
        starts = "select * from holdfast.workflow_start('new', %(i)s)"

        assert refusal(db, joins, i=Jsonb([child])) == "HF215"
        # It names a workflow that is there, and a parent that is not.
        assert (
            refusal(db, joins, i=Jsonb([{"kind": "a"}, {**child, "workflow": str(id)}])) == "HF215"
        )
        assert refusal(db, starts, i=Jsonb([{"kind": "a"}, child])) == "HF215"

    assert db.table("select from holdfast.job") == before
    assert not rows(db, "select from holdfast.workflows where name = 'new'")


def test_a_parent_can_be_a_job_of_the_same_call(db: Protocol) -> None:
    [parent] = db.table("select holdfast.new_id('default') as id")
    start(
        db, {"kind": "parent", "id": str(parent.id)}, {"kind": "child", "child_of": str(parent.id)}
    )
    [child] = db.find("kind:child")

    db.cancel(parent.id)

    assert db.state(child) == "cancelled"


def test_upkeep_notes_that_a_workflow_has_ended_and_forgets_it_after_a_week(db: Protocol) -> None:
    id, empty = start(db, *FAN), start(db)
    run(db)
    assert shown(db, id).unsettled

    tend(db)
    assert not shown(db, id).unsettled
    assert shown(db, empty).unsettled
    events = rows(db, "select * from holdfast.events where event like 'workflow%%' order by seq")
    assert [(one.event, one.detail["workflow"]) for one in events] == [
        ("workflow_started", str(id)),
        ("workflow_started", str(empty)),
        ("workflow_ended", str(id)),
    ]
    db.later(days=8)
    tend(db)
    assert not rows(db, "select from holdfast.workflows where id = %(id)s", id=id)
    assert not rows(db, "select from holdfast.member")


def test_unknown_workflows_have_no_row(db: Protocol) -> None:
    nobody = UUID("01a1ddb2-de2b-801b-9129-ff06521fdfc7")
    for verb in ("cancel", "retry"):
        assert not rows(db, f"select * from holdfast.workflow_{verb}(%(id)s)", id=nobody)
