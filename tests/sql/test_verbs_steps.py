"""step, suspend, send_event, await_event: what a job has done so far, and what it waits for."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import errors
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from tests.protocol import Hold, Later, Leased, Protocol


def rows(db: Protocol, query: Any, *values: Any) -> list[Any]:
    return db.connection.cursor(row_factory=namedtuple_row).execute(query, values).fetchall()


def step(db: Protocol, job: Leased | Hold, name: str, result: Any = None, **more: Any) -> str:
    item = {"id": str(job.id), "token": str(job.token), "name": name, "result": result, **more}
    [row] = rows(db, "select outcome from holdfast.step(items => %s)", Jsonb([item]))
    return str(row.outcome)


def steps(db: Protocol, id: UUID) -> list[tuple[str, Any]]:
    found = rows(db, "select name, result from holdfast.steps(id => %s)", id)
    return [(row.name, row.result) for row in found]


def suspend(db: Protocol, job: Leased, name: str = "wait", **how: Any) -> str:
    item = {"id": str(job.id), "token": str(job.token), "verb": "suspend", "name": name, **how}
    return db.settle(item)[0].outcome


def send(db: Protocol, name: str = "go", **how: Any) -> None:
    given = "".join(f", {field} => %s" for field in how)
    rows(db, f"select holdfast.send_event(name => %s{given})", name, *how.values())


def awaited(db: Protocol, job: Leased, event: str = "go", key: str | None = None) -> Any:
    [row] = rows(
        db,
        "select outcome, result, until from holdfast.await_event("
        "id => %s, token => %s, step => 'wait', event => %s, key => %s)",
        *(job.id, job.token, event, key),
    )
    return row


def stored(db: Protocol) -> int:
    [row] = rows(db, "select count(*) as rows from holdfast.step")
    return int(row.rows)


def kept(db: Protocol) -> int:
    [row] = rows(db, "select count(*) as rows from holdfast.sent")
    return int(row.rows)


def test_a_step_is_stored_by_the_holder_alone(db: Protocol, later: Later) -> None:
    id = db.put()
    stale = db.take()
    assert step(db, stale, "one", {"a": 1}) == "stored"
    later(seconds=31)
    db.reap()
    holder = db.take()

    assert step(db, stale, "two") == "lost"
    assert step(db, holder, "one", "again") == "already"
    assert step(db, holder, "three", [3]) == "stored"
    assert steps(db, id) == [("one", {"a": 1}), ("three", [3])]
    assert step(db, Hold(id, stale.token), "four") == "lost"


def test_steps_of_many_jobs_are_stored_at_once_and_one_that_is_lost_is_alone(db: Protocol) -> None:
    for _ in range(3):
        db.put()
    first, second, third = db.claim(max_jobs=3)
    db.ack(second)
    items = [
        {"id": str(job.id), "token": str(job.token), "name": name}
        for job in (third, second, first)
        for name in ("a", "b")
    ]

    found = rows(db, "select ord, id, outcome from holdfast.step(items => %s)", Jsonb(items))

    told = ["stored", "stored", "lost", "lost", "stored", "stored"]
    assert [row.outcome for row in found] == told
    assert [row.id for row in found][::2] == [third.id, second.id, first.id]


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ({"name": "x"}, "HF207"),
        ({"token": "1", "name": "x"}, "HF201"),
        ({"name": ""}, "HF202"),
        ({"name": "x", "nth": "1"}, "HF201"),
        ({"name": "x", "nth": 1.5}, "HF201"),
        ({"name": "x", "nth": -1}, "HF201"),
        ({"name": "x", "nth": 10**30}, "HF201"),
        ({"name": "x", "seconds": -1}, "HF201"),
        ({"name": "x", "seconds": 1e30}, "HF201"),
        ({"name": "x", "more": 1}, "HF201"),
        ({"name": "x", "result": "x" * 300000}, "HF210"),
    ],
)
def test_what_is_not_a_step_is_refused(db: Protocol, item: dict[str, Any], code: str) -> None:
    db.put()
    job = db.take()
    whole = {"id": str(job.id), "token": str(job.token), **item}
    if code == "HF207":
        del whole["token"]

    with pytest.raises(errors.Error) as info:
        rows(db, "select outcome from holdfast.step(items => %s)", Jsonb([whole]))

    assert info.value.sqlstate == code


def test_the_steps_of_a_job_have_a_limit_together(db: Protocol) -> None:
    id = db.put()
    job = db.take()
    db.connection.execute("update holdfast.job set steps = 65536 where id = %s", [id])

    with pytest.raises(errors.Error) as info:
        step(db, job, "one too many")

    assert info.value.sqlstate == "HF210"


def test_an_ack_forgets_the_steps_and_a_kept_job_keeps_them(db: Protocol) -> None:
    gone, keep = db.put(), db.put()
    for job in db.claim(max_jobs=2):
        step(db, job, "one", 1)
        db.ack(job, keep=job.id == keep)

    assert (steps(db, gone), steps(db, keep), stored(db)) == ([], [("one", 1)], 0)


def test_a_dead_job_keeps_its_steps_through_archive_move_and_retry(db: Protocol) -> None:
    id = db.put()
    job = db.take()
    step(db, job, "one", 1)
    db.nack(job, final=True)
    assert (steps(db, id), stored(db)) == ([("one", 1)], 0)

    rows(db, "select changed from holdfast.move(ids => array[%s]::uuid[], queue => 'other')", id)
    rows(db, "select changed from holdfast.archive(ids => array[%s]::uuid[])", id)
    rows(db, "select changed from holdfast.retry(ids => array[%s]::uuid[])", id)

    assert (steps(db, id), stored(db)) == ([("one", 1)], 1)
    rows(db, "select changed from holdfast.move(ids => array[%s]::uuid[], queue => 'default')", id)
    assert steps(db, id) == [("one", 1)]
    rows(db, "select changed from holdfast.delete(ids => array[%s]::uuid[])", id)
    assert stored(db) == 0


def test_a_fresh_retry_forgets_the_steps(db: Protocol) -> None:
    id = db.put()
    job = db.take()
    step(db, job, "one", 1)
    db.nack(job, final=True)

    rows(db, "select changed from holdfast.retry(ids => array[%s]::uuid[], fresh => true)", id)

    assert (steps(db, id), stored(db)) == ([], 0)
    again = db.take()
    assert step(db, again, "one", 2) == "stored"
    rows(db, "select changed from holdfast.cancel(ids => array[%s]::uuid[])", id)
    assert (steps(db, id), stored(db)) == ([("one", 2)], 0)


def test_a_job_that_sleeps_is_queued_without_a_lease_and_comes_back_in_time(
    db: Protocol, later: Later
) -> None:
    id = db.put(max_attempts=1)
    job = db.take()

    assert suspend(db, job, delay=60) == "queued"
    assert suspend(db, job, delay=60) == "already"
    assert (db.job(id).state, db.job(id).attempt, db.job(id).worker) == ("queued", 0, None)
    later(seconds=59)
    assert db.claim() == []
    later(seconds=2)
    assert [again.attempt for again in db.claim()] == [1]


def test_who_has_lost_a_job_cannot_suspend_it(db: Protocol, later: Later) -> None:
    db.put()
    stale = db.take()
    later(seconds=31)
    db.reap()
    db.take()

    assert suspend(db, stale, delay=60) == "lost"
    assert stored(db) == 0


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"delay": 1, "until": "2030-01-01T00:00:00Z"},
        {"until": "soon"},
        {"until": "infinity"},
        {"key": "x"},
        {"delay": 1, "nth": 1.5},
        {"delay": 1, "nth": 10**30},
        {"delay": 1, "schema": {"type": "boolean"}},
        {"event": "go", "schema": "boolean"},
        {"event": "go", "schema": {"enum": ["x" * 200] * 101}},
    ],
)
def test_a_suspend_says_what_it_waits_for(db: Protocol, item: dict[str, Any]) -> None:
    db.put()
    job = db.take()

    with pytest.raises(errors.Error) as info:
        suspend(db, job, **item)

    assert info.value.sqlstate == "HF201"


def test_what_a_wait_takes_is_kept_with_it_and_after_it(db: Protocol) -> None:
    id = db.put()
    suspend(db, db.take(), event="go", schema={"type": "boolean"})
    schema = "select schema, result from holdfast.steps(%s)"

    assert db.connection.execute(schema, [id]).fetchall() == [({"type": "boolean"}, None)]
    send(db, payload=Jsonb(True))
    db.ack(db.take(), keep=True)
    assert db.connection.execute(schema, [id]).fetchall() == [({"type": "boolean"}, True)]


def test_an_event_wakes_the_job_that_has_waited_longest(db: Protocol) -> None:
    first, second = db.put(), db.put()
    for job in db.claim(max_jobs=2):
        suspend(db, job, event="go", key="7")
    send(db, key="8")
    assert db.claim() == []

    send(db, key="7", payload=Jsonb({"n": 1}))

    woken = db.claim(max_jobs=2)
    assert [job.id for job in woken] == [first]
    assert awaited(db, woken[0], key="7")[:2] == ("received", {"n": 1})
    assert steps(db, second) == [("wait", None)]
    assert kept(db) == 1


def test_an_event_for_everyone_wakes_all_that_wait_and_is_not_kept(db: Protocol) -> None:
    ids = {db.put() for _ in range(3)}
    for job in db.claim(max_jobs=3):
        suspend(db, job, event="go")

    send(db, everyone=True)

    assert {job.id for job in db.claim(max_jobs=3)} == ids
    send(db, everyone=True)
    assert kept(db) == 0


def test_an_event_that_was_sent_before_is_received_once(db: Protocol, later: Later) -> None:
    db.put(), db.put()
    first, second = db.claim(max_jobs=2)
    send(db, payload=Jsonb(1))

    assert awaited(db, first)[:2] == ("received", 1)
    assert awaited(db, first)[:2] == ("received", 1)
    assert awaited(db, second).outcome == "waiting"
    assert kept(db) == 0


def test_a_suspend_finds_an_event_that_came_after_the_look(db: Protocol) -> None:
    id = db.put()
    job = db.take()
    assert awaited(db, job).outcome == "waiting"
    send(db)

    suspend(db, job, event="go")

    assert [again.id for again in db.claim()] == [id]


def test_events_are_kept_for_their_time(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take(lease=timedelta(days=30))
    send(db, keep=timedelta(hours=1))
    later(hours=2)

    assert awaited(db, job).outcome == "waiting"
    rows(db, "select holdfast.upkeep(steps => '{promoted}')")
    assert kept(db) == 0


def test_a_wait_that_is_over_stays_over(db: Protocol, later: Later) -> None:
    db.put()
    suspend(db, db.take(), event="go", delay=60)
    later(seconds=61)
    job = db.take()

    assert awaited(db, job).outcome == "timed_out"
    send(db)
    assert awaited(db, job).outcome == "timed_out"


def test_an_event_beats_a_timeout_that_nobody_has_seen_yet(db: Protocol, later: Later) -> None:
    db.put()
    suspend(db, db.take(), event="go", delay=60)
    later(seconds=61)
    job = db.take()
    send(db, payload=Jsonb("late"))

    assert awaited(db, job)[:2] == ("received", "late")


def test_a_job_that_backs_off_is_not_hurried_by_its_event(db: Protocol, later: Later) -> None:
    id = db.put()
    suspend(db, db.take(), event="go", delay=60)
    later(seconds=61)
    db.nack(db.take(), delay=timedelta(hours=1))

    send(db)

    assert db.claim() == []
    assert steps(db, id) == [("wait", None)]
    later(hours=2)
    assert awaited(db, db.take()).outcome == "received"


def test_an_event_is_sent_with_its_transaction_or_not_at_all(db: Protocol, other: Any) -> None:
    db.put()
    suspend(db, db.take(), event="go")
    sender = other(autocommit=False)
    send(sender)
    assert db.claim() == []
    sender.connection.rollback()
    assert db.claim() == []
    send(sender)

    sender.connection.commit()

    assert len(db.claim()) == 1


@pytest.mark.parametrize("how", [{"keep": timedelta(0)}, {"everyone": True}])
def test_who_waits_receives_an_event_however_short_it_is_kept_and_whatever_the_clock_does(
    db: Protocol, later: Later, how: dict[str, Any]
) -> None:
    db.put()
    suspend(db, db.take(), event="go")
    later(seconds=-5)  # the clock was set back, or another server took over

    send(db, **how)

    assert len(db.claim()) == 1
    assert kept(db) == 0


def test_an_event_that_is_kept_for_less_than_its_transaction_takes_is_received(
    db: Protocol, other: Any, later: Later
) -> None:
    db.put()
    suspend(db, db.take(), event="go")
    sender = other(autocommit=False)
    send(sender, keep=timedelta(seconds=5))
    later(seconds=10)
    sender.connection.commit()

    assert len(db.claim()) == 1


def test_an_event_that_nobody_wanted_is_not_received_once_its_time_is_over(
    db: Protocol, later: Later
) -> None:
    send(db, keep=timedelta(seconds=5))
    later(seconds=10)
    db.put()
    job = db.take()

    assert awaited(db, job).outcome == "waiting"
    suspend(db, job, event="go")
    assert db.claim() == []
    rows(db, "select holdfast.upkeep(steps => '{promoted}')")
    assert kept(db) == 0


def test_an_event_of_an_old_snapshot_is_handed_out_by_upkeep(db: Protocol, other: Any) -> None:
    db.put()
    job = db.take()
    sender = other(autocommit=False)
    sender.connection.execute("set transaction isolation level repeatable read")
    send(sender)
    suspend(db, job, event="go")
    sender.connection.commit()
    assert db.claim() == []

    rows(db, "select holdfast.upkeep(steps => '{promoted}')")

    assert len(db.claim()) == 1


def test_an_event_of_a_prepared_transaction_is_handed_out_by_upkeep(
    db: Protocol, other: Any
) -> None:
    db.put()
    suspend(db, db.take(), event="go")
    sender = other(autocommit=False)
    send(sender)
    sender.connection.execute("prepare transaction 'sent'")
    sender.connection.rollback()
    sender.connection.autocommit = True
    sender.connection.execute("commit prepared 'sent'")

    rows(db, "select holdfast.upkeep(steps => '{promoted}')")

    assert len(db.claim()) == 1


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"name": ""}, "HF202"),
        ({"key": ""}, "HF202"),
        ({"key": "k" * 501}, "HF202"),
        ({"keep": timedelta(days=1000)}, "HF204"),
        ({"payload": Jsonb("x" * 300000)}, "HF210"),
    ],
)
def test_what_is_not_an_event_is_refused(db: Protocol, how: dict[str, Any], code: str) -> None:
    with pytest.raises(errors.Error) as info:
        send(db, **{"name": "go", **how})

    assert info.value.sqlstate == code


def test_a_sleep_and_a_wait_are_explained(db: Protocol) -> None:
    sleeper, waiter = db.put(), db.put()
    first, second = db.claim(max_jobs=2)
    suspend(db, first, name="nap", delay=7200)
    suspend(db, second, event="approved", key="42", until="2100-01-01T00:00:00Z")

    told = [
        rows(db, "select holdfast.explain(id => %s)", id)[0].explain for id in (sleeper, waiter)
    ]

    assert told[0].startswith("Sleeps until ")
    assert "(nap), for another " in told[0]
    assert told[1].startswith("Waits for the event approved (key 42), until 2100-01-01")


def test_what_happens_is_in_the_log_of_a_queue_that_asks_for_it(db: Protocol) -> None:
    rows(db, "select queue from holdfast.queue_set('default', '{\"activity\": \"all\"}')")
    id = db.put()
    suspend(db, db.take(), event="go")
    send(db)

    found = rows(db, "select (entry).event from holdfast.activity(job => %s)", id)

    assert [row.event for row in found] == ["woken", "suspended", "claimed", "enqueued"]


def test_an_undone_retry_has_its_steps_again(db: Protocol) -> None:
    id = db.put()
    job = db.take()
    step(db, job, "one", 1)
    db.nack(job, final=True)
    [preview] = rows(
        db,
        "select token from holdfast.operation_preview("
        "verb => 'retry', filter => 'state:dead', arguments => '{\"fresh\": true}')",
    )
    [started] = rows(db, "select id from holdfast.operation_start(%s)", preview.token)
    rows(db, "select holdfast.operation_step(100)")
    assert steps(db, id) == []

    rows(db, "select id from holdfast.operation_undo(%s)", started.id)
    rows(db, "select holdfast.operation_step(100)")

    assert (db.job(id).state, steps(db, id), stored(db)) == ("dead", [("one", 1)], 0)


def test_a_wait_that_is_over_and_asked_for_again_makes_the_job_ready_at_once(db: Protocol) -> None:
    db.put()
    suspend(db, db.take(), event="go")
    send(db, payload=Jsonb(1))
    suspend(db, db.take(), event="go")

    job = db.take()

    assert steps(db, job.id) == [("wait", 1)]


@pytest.mark.parametrize(
    "first",
    [
        lambda db, job: step(db, job, "wait", 1),
        lambda db, job: suspend(db, job, delay=0),
        lambda db, job: suspend(db, job, event="come"),
        lambda db, job: suspend(db, job, event="go", key="7"),
    ],
    ids=["a result", "a sleep", "another event", "another key"],
)
def test_a_wait_under_the_name_of_something_else_is_refused_and_the_lease_stays(
    db: Protocol, first: Callable[[Protocol, Leased], str]
) -> None:
    id = db.put()
    job = db.take()
    if first(db, job) == "queued":
        db.edit(id, changes={"run_at": "2020-01-01T00:00:00Z"})
        job = db.take()

    with pytest.raises(errors.Error, match="step 'wait' of job") as refused:
        suspend(db, job, event="go")

    assert refused.value.sqlstate == "HF213"
    assert db.job(id).state == "leased"
