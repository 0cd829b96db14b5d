"""Workflows under concurrency: keys, cancel and retry against whoever ends or adds jobs."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.protocol import Later, Leased, Open, Protocol
from tests.sql.test_workflows import begin, rows, run, shown
from tests.sql.test_workflows import start as started

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]
FAN: list[dict[str, Any]] = [{"kind": "p"}, {"kind": "p"}, {"kind": "f", "after": [1, 2]}]
# A job that goes on, so that its workflow lives.
LATE = {"kind": "late", "run_at": "2100-01-01"}


def verb(db: Protocol, name: str, id: UUID) -> Any:
    return rows(db, f"select * from holdfast.workflow_{name}(%(id)s)", id=id)


def operate(db: Protocol) -> None:
    while rows(db, "select * from holdfast.operation_step()"):
        db.later(seconds=60)


def states(db: Protocol, id: UUID) -> dict[str, int]:
    return {state: jobs for state, jobs in shown(db, id).jobs.items() if jobs}


def code(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def add(session: Protocol, **item: Any) -> str:
    try:
        return str(session.enqueue({"kind": "added", **item})[0].id)
    except psycopg.Error as error:
        return str(error.sqlstate)


def test_of_eight_who_start_with_one_key_one_starts(db: Protocol, at_once: AtOnce) -> None:
    answers = at_once(8, lambda session, _: begin(session, {"kind": "a"}, key="7")[0])

    assert sorted(one.started for one in answers) == [False] * 7 + [True]
    assert len({one.workflow for one in answers}) == 1
    assert run(db) == ["a"]


@pytest.mark.parametrize("more", [{}, {"key": "7"}])
def test_a_repeat_waits_for_the_start_that_it_repeats(
    db: Protocol, held_open: Protocol, start: Start, more: dict[str, str]
) -> None:
    [new] = rows(db, "select holdfast.new_id('default') as flow, holdfast.new_id('default') as job")
    item = {"kind": "a", "id": str(new.job)}
    first = begin(held_open, item, id=new.flow, **more)
    other = start(lambda session: begin(session, item, id=new.flow, repeat=True, **more))
    assert other.waits()
    held_open.connection.commit()

    assert other.answer() == first
    assert run(db) == ["a"]


def test_a_repeat_starts_if_what_it_repeats_was_rolled_back(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    [new] = rows(db, "select holdfast.new_id('default') as flow, holdfast.new_id('default') as job")
    item = {"kind": "a", "id": str(new.job)}
    first = begin(held_open, item, id=new.flow, key="7")
    other = start(lambda session: begin(session, item, id=new.flow, key="7", repeat=True))
    assert other.waits()
    held_open.connection.rollback()

    assert other.answer() == first
    assert run(db) == ["a"]


def test_an_addition_that_is_repeated_behind_the_cancel_is_answered(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a"})
    [new] = rows(db, "select holdfast.new_id('default') as job")
    item = {"kind": "b", "id": str(new.job), "workflow": str(id)}
    held_open.enqueue(item)
    stop = start(lambda session: verb(session, "cancel", id))
    assert stop.waits()
    other = start(lambda session: session.enqueue(item, repeat=True)[0])
    assert other.waits()
    held_open.connection.commit()

    assert stop.answer()[0].total == 2
    assert (other.answer().id, other.answer().created) == (new.job, True)
    operate(db)
    assert states(db, id) == {"total": 2, "cancelled": 2}


def test_a_key_is_free_when_the_end_of_the_last_job_has_committed(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a"}, key="7")
    held_open.ack(db.take())

    [early] = begin(db, {"kind": "b"}, key="7")
    held_open.connection.commit()
    [late] = begin(db, {"kind": "b"}, key="7")

    assert (early.started, early.workflow) == (False, id)
    assert late.started
    assert shown(db, id).state == "done"


def test_a_job_that_is_added_keeps_the_key_from_whoever_waits_to_take_it(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a"}, key="7")
    db.ack(db.take())
    held_open.enqueue({"kind": "b", "workflow": str(id)})
    other = start(lambda session: begin(session, {"kind": "c"}, key="7")[0])
    assert other.waits()
    held_open.connection.commit()

    assert (other.answer().started, other.answer().workflow) == (False, id)
    assert run(db) == ["b"]


def test_whoever_takes_a_key_first_keeps_the_old_workflow_from_coming_back(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a", "max_attempts": 1}, key="7")
    held = db.take()
    db.nack(held)
    assert begin(held_open, {"kind": "b"}, key="7")[0].started
    other = start(lambda session: _code_of(lambda: session.retry(held.id)))
    assert other.waits()
    held_open.connection.commit()

    assert other.answer() == "HF217"
    assert shown(db, id).state == "failed"


def _code_of(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_the_last_two_end_while_the_workflow_is_cancelled(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, *FAN)
    held = db.claim(max_jobs=2)
    held_open.ack(held[0])
    second = start(lambda session: session.ack(held[1])[0].outcome)
    assert second.waits()
    verb(db, "cancel", id)
    chunk = start(operate)
    assert chunk.waits()
    held_open.connection.commit()

    assert second.answer() == "done"
    chunk.answer()
    operate(db)
    assert states(db, id) == {"total": 3, "done": 2, "cancelled": 1}
    assert run(db) == []


@pytest.mark.parametrize("how", ["workflow", "child_of"])
def test_a_handler_that_adds_while_its_workflow_is_cancelled_adds_before_it_or_not_at_all(
    db: Protocol, held_open: Protocol, start: Start, how: str
) -> None:
    id = started(db, {"kind": "a"})
    held = db.take()
    assert len(add(held_open, **{how: str(held.id)})) == 36
    other = start(lambda session: verb(session, "cancel", id))
    assert other.waits()
    # It ends its own job in the same transaction, for which the one that cancels must not wait.
    assert held_open.ack(held)[0].outcome == "done"
    held_open.connection.commit()
    [row] = other.answer()

    operate(db)
    assert row.total == 1
    assert states(db, id) == {"total": 2, "done": 1, "cancelled": 1}
    assert add(db, workflow=str(id)) == "HF216"


def test_a_handler_that_adds_after_the_cancel_is_refused_and_its_work_undone(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a"})
    held = db.take()
    verb(held_open, "cancel", id)
    other = start(lambda session: add(session, child_of=str(held.id)))
    assert other.waits()
    held_open.connection.commit()

    assert other.answer() == "HF216"
    operate(db)
    assert states(db, id) == {"total": 1, "cancelled": 1}


def test_a_job_of_another_queue_that_is_added_first_keeps_a_user_of_some_queues_out(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a", "queue": "mail"})
    held_open.enqueue({"kind": "b", "queue": "secret", "workflow": str(id)})
    call = "select * from holdfast.workflow_cancel(%(id)s, queues => array['mail'])"
    other = start(lambda session: _code_of(lambda: rows(session, call, id=id)))
    assert other.waits()
    held_open.connection.commit()

    assert other.answer() == "HF409"
    assert rows(db, "select from holdfast.operation") == []


@pytest.mark.parametrize("alone", [False, True])
def test_a_repeat_does_not_store_a_job_again_that_is_cancelled_meanwhile(
    db: Protocol, held_open: Protocol, start: Start, alone: bool
) -> None:
    id = started(db, LATE)
    [new] = rows(db, "select holdfast.new_id('default') as job")
    item = {"kind": "b", "id": str(new.job)} | ({} if alone else {"workflow": str(id)})
    db.enqueue(item)
    held_open.cancel(new.job)
    other = start(lambda session: session.enqueue(item, repeat=True)[0])
    assert other.waits()
    held_open.connection.commit()

    assert (other.answer().id, other.answer().created) == (new.job, True)
    assert db.state(new.job) == "cancelled"
    assert run(db) == []


def test_a_retry_comes_before_or_after_the_cancel_of_its_workflow_and_not_between(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a", "max_attempts": 1}, {"kind": "b", "run_at": "2100-01-01"})
    held = db.take()
    db.nack(held)
    assert held_open.retry(held.id)[0].changed
    other = start(lambda session: verb(session, "cancel", id))
    assert other.waits()
    held_open.connection.commit()

    assert other.answer()[0].total == 2
    operate(db)
    assert states(db, id) == {"total": 2, "cancelled": 2}


def test_the_undo_of_a_retry_leaves_a_workflow_open_that_somebody_adds_to(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a"})
    verb(db, "cancel", id)
    operate(db)
    [row] = verb(db, "retry", id)
    operate(db)
    held_open.enqueue({"kind": "b", "workflow": str(id)})
    rows(db, "select * from holdfast.operation_undo(%(id)s)", id=row.id)
    undo = start(operate)
    assert undo.waits()
    undo.answer()  # it does not wait for as long as somebody adds
    held_open.connection.commit()

    assert states(db, id) == {"total": 2, "cancelled": 1, "queued": 1}
    assert len(add(db, workflow=str(id))) == 36
    assert run(db) == ["b", "added"]


def test_who_adds_to_a_workflow_behind_the_undo_of_its_retry_is_refused(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = started(db, {"kind": "a"})
    verb(db, "cancel", id)
    operate(db)
    [row] = verb(db, "retry", id)
    operate(db)
    rows(db, "select * from holdfast.operation_undo(%(id)s)", id=row.id)
    for _ in range(2):
        rows(held_open, "select * from holdfast.operation_step()")
        db.later(seconds=60)
    other = start(lambda session: add(session, workflow=str(id)))
    assert other.waits()
    held_open.connection.commit()

    assert other.answer() == "HF216"
    assert shown(db, id).state == "cancelled"


def test_upkeep_leaves_a_workflow_that_somebody_retries(
    db: Protocol, held_open: Protocol, later: Later
) -> None:
    id = started(db, {"kind": "a", "max_attempts": 1})
    held = db.take()
    db.nack(held)
    later(seconds=2)
    db.upkeep()
    later(days=8)
    assert held_open.retry(held.id)[0].changed

    db.upkeep()
    held_open.connection.commit()
    later(seconds=2)
    db.upkeep()

    assert states(db, id) == {"total": 1, "queued": 1}
    assert run(db) == ["a"]
    assert shown(db, id).state == "done"


def test_a_retry_behind_upkeep_that_forgets_runs_the_job_alone(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    id = started(db, {"kind": "a", "max_attempts": 1})
    held = db.take()
    db.nack(held)
    later(seconds=2)
    db.upkeep()
    later(days=8)
    held_open.connection.execute("select holdfast.tend_workflows()")
    other = start(lambda session: session.retry(held.id)[0].changed)
    assert other.waits()
    held_open.connection.commit()

    assert other.answer()
    assert run(db) == ["a"]
    assert not rows(db, "select from holdfast.workflows where id = %(id)s", id=id)


def tend(db: Protocol) -> None:
    """Upkeep, twice, with the operations that it starts."""
    for _ in range(2):
        db.later(seconds=2)
        db.upkeep()
        operate(db)


def newborn(db: Protocol) -> int:
    return len(rows(db, "select from holdfast.newborn"))


@pytest.mark.parametrize("first", ["child", "parent"])
@pytest.mark.parametrize("end", ["cancel", "die", "delete"])
def test_a_child_goes_with_its_parent_whichever_of_them_commits_first(
    db: Protocol, other: Open, first: str, end: str
) -> None:
    started(db, {"kind": "parent", "max_attempts": 1}, LATE)
    parent = db.take()
    bound = {"kind": "bound", "child_of": str(parent.id), "if_failed": "cancel"}
    adder, ender = other(autocommit=False), other(autocommit=False)
    added = adder.enqueue(bound, {**bound, "kind": "child", "if_failed": "wait"})
    if end == "die":
        ender.nack(parent)
    else:
        ender.cancel(parent.id)
    if end == "delete":
        ender.delete(parent.id)

    for session in (adder, ender) if first == "child" else (ender, adder):
        session.connection.commit()
        tend(db)

    assert db.state(added[0].id) == "cancelled"
    assert db.state(added[1].id) == ("queued" if end == "die" else "cancelled")
    assert newborn(db) == 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_child_workflow_goes_with_a_parent_that_is_cancelled_before_it_commits(
    db: Protocol, held_open: Protocol, whole: bool
) -> None:
    id = started(db, {"kind": "parent"}, LATE)
    parent = db.take()
    inner = started(held_open, {"kind": "inner"}, name="inner", child_of=parent.id)
    if whole:
        verb(db, "cancel", id)
        operate(db)
    else:
        db.cancel(parent.id)
    tend(db)
    held_open.connection.commit()
    tend(db)

    assert shown(db, inner).state == "cancelled"
    assert "whose child it is, was cancelled" in shown(db, inner).reason
    assert newborn(db) == 0


def test_upkeep_waits_for_nobody_who_is_at_a_parent_and_looks_again(
    db: Protocol, held_open: Protocol
) -> None:
    started(db, {"kind": "parent"}, {"kind": "parent"}, LATE)
    [one, two] = db.claim(max_jobs=2)
    child = {"kind": "child", "child_of": str(one.id)}
    db.enqueue(child, child, {**child, "child_of": str(two.id)})
    held_open.cancel(one.id)

    tend(db)
    assert newborn(db) == 1  # that of the one, which may be cancelled, or not
    held_open.connection.rollback()
    tend(db)

    assert newborn(db) == 0
    assert run(db) == ["child"] * 3


def test_who_adds_a_child_keeps_nobody_from_ending_its_parent_or_adding_another(
    db: Protocol, other: Open
) -> None:
    started(db, {"kind": "parent"}, LATE)
    parent = db.take()
    child = {"kind": "child", "child_of": str(parent.id)}
    one, two = other(autocommit=False), other(autocommit=False)
    one.enqueue(child)
    two.enqueue(child)

    assert [row.outcome for row in db.touch(parent)] == ["leased"]
    assert [row.outcome for row in db.ack(parent)] == ["done"]
    one.connection.commit()
    two.connection.commit()
    tend(db)
    assert run(db) == ["child"] * 2


def test_a_parent_and_its_child_may_end_while_they_are_cancelled(
    db: Protocol, at_once: AtOnce
) -> None:
    id = started(db, {"kind": "parent"})
    parent = db.take()
    db.enqueue(*[{"kind": "child", "child_of": str(parent.id)}] * 6)
    children: list[Leased] = db.claim(max_jobs=6)

    def work(session: Protocol, nth: int) -> Any:
        if nth == 0:
            return session.cancel(parent.id)[0].changed
        if nth == 1:
            return verb(session, "cancel", id)
        return session.ack(children[nth - 2])[0].outcome

    answers = at_once(8, work)

    assert [code(one) for one in answers if isinstance(one, BaseException)] in ([], ["HF409"])
    operate(db)
    assert shown(db, id).jobs["leased"] == 0
    done = answers[2:].count("done")
    assert shown(db, id).jobs["done"] == done
    assert shown(db, id).jobs["cancelled"] == 7 - done


def test_a_retry_that_holds_a_key_does_not_wait_for_who_starts_a_workflow(
    db: Protocol, held_open: Protocol, other: Open, start: Start
) -> None:
    job = {"kind": "a", "queue": "wf", "key": "j", "max_attempts": 1}
    begin(db, job, key="k")
    [dead] = db.list("queue:wf")
    db.nack(db.take("wf"))
    db.upkeep()
    begin(db, {"kind": "b", "queue": "wf"}, key="k")
    held_open.enqueue(job)
    retried = start(lambda session: _code_of(lambda: session.retry(dead.id)))
    assert retried.waits(on=held_open)
    db.ack(db.take("wf"))
    second = other(autocommit=False)
    begin(second, {"kind": "b", "queue": "wf"}, key="k")

    held_open.connection.rollback()

    assert retried.answer() == "HF217"
    second.connection.commit()
    assert db.state(dead.id) == "dead"
