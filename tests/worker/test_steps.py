"""Steps of a job: what is done stays done, and a job that sleeps or waits holds nothing."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import psycopg
import pytest

from holdfast import App, LeaseLost, current, jsonb, step_writer
from holdfast.client.aio.steps import AsyncSteps
from holdfast.errors import EventTimeout, InvalidResult, StepMisuse
from holdfast.records import Job, NewStep
from holdfast.worker import Worker
from tests.conftest import Clock

Drain = Callable[..., Worker]


@dataclass
class Receipt:
    number: int
    at: datetime


def only(app: App) -> Job:
    [job] = app.client.jobs.list("")
    return job


def names(app: App, id: Any) -> list[str]:
    return [step.name for step in app.client.steps.list(id)]


def test_a_step_runs_once_and_the_next_attempt_gets_its_result(app: App, drain: Drain) -> None:
    calls: list[Any] = []

    def charge(amount: int) -> Receipt:
        calls.append(amount)
        return Receipt(7, datetime(2030, 1, 1, tzinfo=UTC))

    @app.task(retry=0)
    def order() -> None:
        receipt = current().step("charge", charge, 100)
        calls.append(receipt)
        if current().attempt == 1:
            raise OSError("the mail server is away")

    order.enqueue()
    drain()

    receipt = Receipt(7, datetime(2030, 1, 1, tzinfo=UTC))
    assert calls == [100, receipt, receipt]


def test_async_steps_run_beside_each_other_and_once(app: App, drain: Drain) -> None:
    calls: list[str] = []

    async def fetch(page: int) -> str:
        calls.append(f"fetch {page}")
        await asyncio.sleep(0)
        return f"page {page}"

    @app.task(retry=0)
    async def crawl() -> None:
        job = current()
        pages = await asyncio.gather(*(job.step(f"page-{n}", fetch, n) for n in range(3)))
        calls.append(" ".join(pages))
        if job.attempt == 1:
            raise OSError

    crawl.enqueue()
    drain()

    assert sorted(calls[:3]) == ["fetch 0", "fetch 1", "fetch 2"]
    assert calls[3:] == ["page 0 page 1 page 2"] * 2


def test_an_async_handler_may_give_a_step_a_lambda_or_a_plain_function(
    app: App, drain: Drain
) -> None:
    seen: list[Any] = []

    async def fetch() -> int:
        return 1

    @app.task
    async def handler() -> None:
        job = current()
        seen.append(await job.step("lambda", lambda: fetch()))
        seen.append(await job.step("plain", asyncio.to_thread, len, "four"))

    handler.enqueue()
    drain()

    assert seen == [1, 4]


def test_a_step_that_raises_is_not_stored_and_may_be_tried_again_in_the_same_run(
    app: App, drain: Drain
) -> None:
    tries: list[int] = []

    def flaky() -> int:
        tries.append(len(tries))
        if len(tries) < 3:
            raise OSError
        return len(tries)

    @app.task
    def handler() -> None:
        job = current()
        for _ in range(3):
            try:
                tries.append(job.step("flaky", flaky))
            except OSError:
                continue
        job.step("next", lambda: None)

    handler.enqueue()
    drain()

    assert tries[:4] == [0, 1, 2, 3]


def test_the_effect_of_an_atomic_step_and_its_record_are_one_commit(
    app: App, drain: Drain, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table booking (id int)")

    def book(conn: psycopg.Connection[Any], id: int) -> int:
        conn.execute("insert into booking values (%s)", [id])
        return id

    def book_and_fail(conn: psycopg.Connection[Any]) -> None:
        conn.execute("insert into booking values (2)")
        raise OSError

    @app.task(retry=0)
    def handler() -> None:
        job = current()
        job.atomic_step("book", book, 1)
        if job.attempt == 1:
            job.atomic_step("other", book_and_fail)

    id = handler.enqueue().id
    drain()

    assert [job.id for job in app.client.jobs.list("state:done")] == [id]
    with psycopg.connect(database) as connection:
        assert connection.execute("select id from booking").fetchall() == [(1,)]


def test_an_async_atomic_step_commits_with_its_record(
    app: App, drain: Drain, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table booking (id int)")

    async def book(conn: psycopg.AsyncConnection[Any], id: int) -> int:
        await conn.execute("insert into booking values (%s)", [id])
        return id

    @app.task(retry=0)
    async def handler() -> None:
        job = current()
        assert await job.atomic_step("book", book, 1) == 1
        if job.attempt == 1:
            raise OSError

    handler.enqueue()
    drain()

    with psycopg.connect(database) as connection:
        assert connection.execute("select id from booking").fetchall() == [(1,)]


def test_a_step_inside_the_transaction_of_the_ack_is_stored_by_it(app: App, drain: Drain) -> None:
    app.client.queues.set("default", keep_done=3600)

    @app.task(retry=0)
    def handler() -> None:
        job = current()
        with job.transaction() as conn:
            conn.execute("select 1")
            job.step("inside", lambda: "yes")
            if job.attempt == 1:
                raise OSError

    id = handler.enqueue().id
    drain()

    [step] = app.client.steps.list(id)
    assert (step.name, step.result, step.attempt) == ("inside", "yes", 2)


def test_a_step_of_a_transaction_that_was_rolled_back_is_not_on_record(
    app: App, drain: Drain
) -> None:
    with app.client.steps.transaction() as connection:
        connection.execute("create table effect (n int)")
    app.client.queues.set("default", keep_done=60)

    @app.task(max_attempts=1)
    def book() -> None:
        job = current()

        def write(connection: psycopg.Connection, n: int) -> int:
            connection.execute("insert into effect values (%s)", [n])
            return n

        with suppress(KeyError), job.transaction() as connection:
            job.step("first", write, connection, 1)
            job.step("second", write, connection, 2)
            raise KeyError
        with job.transaction() as connection:
            # in the same place as before, and done again, because it was undone
            assert job.step("first", write, connection, 3) == 3

    id = book.enqueue().id
    drain()

    with app.client.steps.transaction() as connection:
        assert connection.execute("select n from effect").fetchall() == [(3,)]
    assert [(step.name, step.result_json) for step in app.client.steps.list(id)] == [("first", "3")]
    assert only(app).state == "done"


def test_an_atomic_step_that_was_stored_unheard_has_no_second_effect(
    app: App, drain: Drain
) -> None:
    results: list[int] = []
    with app.client.steps.transaction() as connection:
        connection.execute("create table effect (n int)")

    @app.task(max_attempts=1)
    def book() -> None:
        job = current()

        def write(connection: psycopg.Connection, n: int) -> int:
            connection.execute("insert into effect values (%s)", [n])
            # the commit of an earlier call, whose reply was lost, takes place only now
            app.client.steps.store([(job.lease, NewStep("book", b"1", 1, 0.0))])
            return n

        results.append(job.atomic_step("book", write, 2))

    @app.task(max_attempts=1)
    async def abook() -> None:
        job = current()

        async def write(connection: psycopg.AsyncConnection[Any], n: int) -> int:
            await connection.execute("insert into effect values (%s)", [n])
            await app.aclient.steps.store([(job.lease, NewStep("book", b"1", 1, 0.0))])
            return n

        results.append(await job.atomic_step("book", write, 2))

    @app.task(max_attempts=1)
    def call() -> None:
        job = current()

        def elsewhere() -> int:
            app.client.steps.store([(job.lease, NewStep("call", b"1", 1, 0.0))])
            return 2

        results.append(job.step("call", elsewhere))

    for task in (book, abook, call):  # one after the other: each needs two connections at once
        task.enqueue()
        drain()

    # what is on record is what the next run would get
    assert results == [1, 1, 1]
    with app.client.steps.transaction() as connection:
        assert connection.execute("select n from effect").fetchall() == []
    assert {job.state for job in app.client.jobs.list("")} == {"done"}


def test_results_that_are_large_together_are_stored_in_several_calls(
    app: App, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_writer, "MOST", 250)
    sizes: list[int] = []
    real = AsyncSteps.store

    async def store(self: Any, done: Any) -> Any:
        sizes.append(len(done))
        return await real(self, done)

    monkeypatch.setattr(AsyncSteps, "store", store)

    @app.task(max_attempts=1)
    async def many() -> None:
        job = current()
        names = [f"step-{n}" for n in range(7)]
        await asyncio.gather(*(job.step(name, lambda: "x" * 98) for name in names))

    many.enqueue()
    drain()

    assert {job.state for job in app.client.jobs.list("")} == {"done"}
    assert sum(sizes) == 7
    assert max(sizes) == 2  # of 100 bytes each


def test_a_stale_holder_stores_nothing(app: App, drain: Drain) -> None:
    told: list[str] = []

    @app.task
    def handler() -> None:
        job = current()
        app.client.release([job.lease], delay=3600)
        try:
            job.step("late", told.append, "ran")
        except LeaseLost:
            told.append("lost")
            raise

    id = handler.enqueue().id
    drain()

    assert told == ["ran", "lost"]
    assert names(app, id) == []


def test_a_name_that_is_used_twice_in_a_run_is_refused(app: App, drain: Drain) -> None:
    @app.task(max_attempts=1)
    def handler() -> None:
        job = current()
        for _ in range(2):
            job.step("page", lambda: 1)

    handler.enqueue()
    drain()

    error = only(app).error or ""
    assert "the step 'page' was called twice in this run" in error
    assert 'job.step(f"page-{n}", …)' in error


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (["a", "new", "b"], "step 2 was 'b' when it was stored, and is now 'new', which is new"),
        (["b", "a"], "step 1 was 'a' when it was stored, and is now 'b', which was step 2"),
        (["b"], "step 1 was 'a' when it was stored, and is now 'b', which was step 2"),
    ],
)
def test_a_changed_order_is_an_error_that_says_so(
    app: App, drain: Drain, second: list[str], told: str
) -> None:
    ran: list[str] = []

    @app.task(max_attempts=2, retry=0)
    def handler() -> None:
        job = current()
        for name in ["a", "b"] if job.attempt == 1 else second:
            job.step(name, ran.append, name)
        if job.attempt == 1:
            raise OSError

    handler.enqueue()
    drain()

    assert told in (only(app).error or "")
    assert ran == ["a", "b"]


def test_what_branches_call_has_no_order(app: App, drain: Drain) -> None:
    ran: list[str] = []

    async def one(name: str) -> None:
        ran.append(name)

    async def branch(job: Any, *steps: str) -> None:
        for name in steps:
            await job.step(name, one, name)

    @app.task(retry=0)
    async def handler() -> None:
        job = current()
        branches = [branch(job, "a1", "a2"), branch(job, "b1", "b2")]
        await asyncio.gather(*(branches if job.attempt == 1 else reversed(branches)))
        await job.step("last", one, "last")
        if job.attempt == 1:
            raise OSError

    id = handler.enqueue().id
    drain()

    assert sorted(ran) == ["a1", "a2", "b1", "b2", "last"]
    assert [job.id for job in app.client.jobs.list("state:done")] == [id]


def test_a_result_that_json_cannot_say_is_refused_by_its_step(app: App, drain: Drain) -> None:
    @app.task
    def handler() -> None:
        current().step("object", object)

    handler.enqueue()
    drain()

    job = only(app)
    assert job.state == "dead"
    assert "the result of the step 'object'" in (job.error or "")


def test_what_a_step_returns_is_what_the_next_run_would_get(app: App, drain: Drain) -> None:
    seen: list[Any] = []

    @app.task
    def handler() -> None:
        seen.append(current().step("pair", lambda: (1, {"a": None})))

    handler.enqueue()
    drain()

    assert seen == [[1, {"a": None}]]


def test_a_recorded_result_that_no_longer_fits_says_so(app: App, drain: Drain) -> None:
    def number() -> int:
        return 1

    def text() -> str:
        return "one"

    @app.task(retry=0)
    def handler() -> None:
        current().step("value", number if current().attempt == 1 else text)
        raise OSError

    handler.enqueue()
    drain()

    assert "does not fit text any more" in (only(app).error or "")


def test_a_job_that_sleeps_holds_nothing_and_goes_on_when_its_time_has_come(
    app: App, drain: Drain, clock: Clock
) -> None:
    runs: list[str] = []

    @app.task(max_attempts=1)
    def handler() -> None:
        job = current()
        runs.append(f"run, attempt {job.attempt}")
        job.step("before", runs.append, "before")
        try:
            job.sleep(hours=2)
        except Exception:
            runs.append("caught")
        job.step("after", runs.append, "after")

    id = handler.enqueue().id
    drain()

    job = app.client.jobs.get(id)
    assert job is not None
    assert (job.state, job.worker, job.attempt) == ("queued", None, 0)
    assert app.client.jobs.explain(id).startswith("Sleeps until ")
    clock.advance(hours=1)
    drain()
    clock.advance(hours=1)
    drain()
    assert runs == ["run, attempt 1", "before", "run, attempt 1", "after"]
    assert [job.id for job in app.client.jobs.list("state:done")] == [id]


def test_an_async_job_sleeps_until_a_time(app: App, drain: Drain, clock: Clock) -> None:
    runs: list[int] = []
    until = app.client.now() + timedelta(minutes=5)

    @app.task(max_attempts=1)
    async def handler() -> None:
        runs.append(1)
        await current().asleep_until(until)
        await current().asleep(minutes=5)
        runs.append(2)

    handler.enqueue()
    drain()
    clock.advance(minutes=6)
    drain()
    clock.advance(minutes=6)
    drain()

    assert runs == [1, 1, 1, 2]


def test_a_sleep_that_was_cut_short_by_somebody_goes_on(
    app: App, drain: Drain, clock: Clock
) -> None:
    runs: list[int] = []

    @app.task(max_attempts=1)
    def handler() -> None:
        runs.append(1)
        current().sleep(hours=2)
        runs.append(2)

    id = handler.enqueue().id
    drain()
    app.client.jobs.edit([id], run_at=app.client.now())
    drain()
    clock.advance(hours=2, seconds=1)
    drain()

    assert runs == [1, 1, 1, 2]


def test_a_job_gets_the_event_that_it_waits_for(app: App, drain: Drain) -> None:
    seen: list[Any] = []

    @app.task(max_attempts=1)
    def handler(order: int) -> None:
        seen.append("run")
        seen.append(current().wait_event("approved", key=str(order), timeout=60))

    id = handler.enqueue(42).id
    drain()
    assert app.client.jobs.explain(id).startswith("Waits for the event approved (key 42), until ")
    app.client.send_event("approved", {"by": "Eva"}, key="43")
    drain()
    assert seen == ["run"]
    app.client.send_event("approved", {"by": "Ada"}, key="42")
    drain()

    assert seen == ["run", "run", {"by": "Ada"}]


def test_a_wait_tells_what_it_takes(app: App, drain: Drain) -> None:
    @app.task(max_attempts=1)
    async def typed() -> None:
        await current().await_event("ready", type=Receipt)

    @app.task(max_attempts=1)
    def untyped() -> None:
        current().wait_event("ready")

    stored = [typed.enqueue(), untyped.enqueue()]
    drain()

    told = [app.client.steps.list(one.id)[0].schema for one in stored]
    assert told == [jsonb.schema(Receipt), None]


def test_an_event_that_comes_before_the_wait_is_not_lost(app: App, drain: Drain) -> None:
    seen: list[Any] = []

    @app.task(max_attempts=1)
    async def handler() -> None:
        seen.append(await current().await_event("ready", type=Receipt))

    receipt = Receipt(1, datetime(2030, 1, 1, tzinfo=UTC))
    app.client.send_event("ready", receipt)
    handler.enqueue()
    drain()

    assert seen == [receipt]


def test_a_wait_that_times_out_stays_timed_out(app: App, drain: Drain, clock: Clock) -> None:
    seen: list[Any] = []

    @app.task(retry=0)
    def handler() -> None:
        try:
            current().wait_event("approved", timeout=timedelta(days=1))
        except EventTimeout as late:
            seen.append(late.event)
        if len(seen) == 1:
            raise OSError

    handler.enqueue()
    drain()
    clock.advance(days=1, seconds=1)
    drain()
    app.client.send_event("approved")
    drain()

    assert seen == ["approved", "approved"]


def test_a_handler_that_goes_on_after_its_sleep_fails(app: App, drain: Drain) -> None:
    @app.task(max_attempts=1)
    def handler() -> None:
        try:
            current().sleep(hours=1)
        except BaseException:
            return

    handler.enqueue()
    drain()

    assert "it caught what stops it" in (only(app).error or "")


def test_a_task_group_may_wait(app: App, drain: Drain) -> None:
    seen: list[Any] = []

    async def wait(job: Any) -> None:
        seen.append(await job.await_event("go"))

    @app.task(max_attempts=1)
    async def handler() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait(current()))

    handler.enqueue()
    drain()
    app.client.send_event("go", 1)
    drain()

    assert seen == [1]


def test_a_job_does_not_sleep_while_a_step_runs(app: App, drain: Drain) -> None:
    refused: list[BaseException] = []

    @app.task(max_attempts=1)
    def handler() -> None:
        job = current()

        def slow() -> None:
            with pytest.raises(StepMisuse) as info:
                job.sleep(hours=1)
            refused.append(info.value)

        job.step("slow", slow)

    handler.enqueue()
    drain()

    assert "while a step runs: 'slow'" in str(refused[0])


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", 5])
def test_what_has_no_name_is_not_done(app: App, drain: Drain, name: Any) -> None:
    ran: list[int] = []

    @app.task(max_attempts=1)
    def handler() -> None:
        current().step(name, ran.append, 1)

    handler.enqueue()
    drain()

    assert ran == []
    assert "cannot be the name of a step" in (only(app).error or "")


def test_a_result_that_is_too_large_is_not_made_again(app: App, drain: Drain) -> None:
    ran: list[int] = []

    def large() -> str:
        ran.append(1)
        return "x" * 300_000

    @app.task(max_attempts=3, retry=0)
    def handler() -> None:
        current().step("large", large)

    handler.enqueue()
    drain()

    assert (only(app).state, ran) == ("dead", [1])
    assert "the result of the step 'large' cannot be stored" in (only(app).error or "")


def test_a_handler_that_does_not_await_its_step_fails(app: App, drain: Drain) -> None:
    async def fetch() -> int:
        return 1

    @app.task(max_attempts=1)
    async def handler() -> None:
        left.append(current().step("fetch", fetch))

    left: list[Any] = []
    handler.enqueue()
    drain()
    left[0].close()

    assert "the handler returned before its steps have ended: 'fetch'" in (only(app).error or "")


@pytest.mark.parametrize("days", [-1, 40_000])
def test_a_job_does_not_sleep_for_ever_or_backwards(app: App, drain: Drain, days: int) -> None:
    @app.task(max_attempts=1)
    def handler() -> None:
        current().sleep(days=days)

    handler.enqueue()
    drain()

    assert "is out of range" in (only(app).error or "")


def test_a_thread_of_the_handler_may_take_steps(app: App, drain: Drain) -> None:
    seen: list[int] = []

    @app.task(max_attempts=1)
    def handler() -> None:
        job = current()
        threads = [
            Thread(target=lambda n=n: seen.append(job.step(f"part-{n}", lambda: n))) for n in (1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        job.step("last", seen.append, 3)

    handler.enqueue()
    drain()

    assert sorted(seen) == [1, 2, 3]


def test_steps_of_a_done_job_are_gone_unless_it_is_kept(app: App, drain: Drain) -> None:
    @app.task
    def handler() -> None:
        current().step("one", lambda: 1)

    app.client.queues.set("default", keep_recent=False)
    gone = handler.enqueue().id
    drain()
    app.client.queues.set("default", keep_done=3600)
    kept = handler.enqueue().id
    drain()

    assert (names(app, gone), names(app, kept)) == ([], ["one"])


def test_a_dead_job_that_is_retried_goes_on_where_it_was(app: App, drain: Drain) -> None:
    ran: list[str] = []

    @app.task(max_attempts=1)
    def handler() -> None:
        job = current()
        job.step("one", ran.append, "one")
        if len(ran) == 1:
            ran.append("failed")
            raise OSError
        job.step("two", ran.append, "two")

    id = handler.enqueue().id
    drain()
    assert names(app, id) == ["one"]
    app.client.jobs.retry([id])
    drain()

    assert ran == ["one", "failed", "two"]


def test_async_sleep_in_a_plain_call_is_refused(app: App, drain: Drain) -> None:
    @app.task(max_attempts=1)
    async def handler() -> None:
        current().sleep(hours=1)

    handler.enqueue()
    drain()

    assert "await job.asleep(…)" in (only(app).error or "")


def test_the_result_of_a_step_is_refused_if_its_type_cannot_be_stored(
    app: App, drain: Drain
) -> None:
    ran: list[str] = []

    class Odd:
        pass

    def odd() -> Odd:
        ran.append("ran")
        return Odd()

    @app.task(max_attempts=1)
    def handler() -> None:
        current().step("odd", odd)

    handler.enqueue()
    drain()

    assert ran == []
    assert "its result cannot be stored" in (only(app).error or "")
    assert InvalidResult.code == "HF232"
