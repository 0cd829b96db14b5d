"""What a handler sees and what becomes of what it returns or raises."""

import asyncio
import contextvars
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import App, Cancel, Client, Release, Retry
from holdfast.errors import Misuse
from holdfast.worker import Worker, claiming
from tests.conftest import Connect

Drain = Callable[..., Worker]
NOWHERE = "postgresql://ada@127.0.0.1:1/shop"
Start = Callable[..., Any]


def test_a_worker_inside_a_running_loop_is_answered_with_what_to_type(app: App) -> None:
    @app.task
    def greet() -> None: ...

    async def main(run: Callable[[], None]) -> None:
        run()

    for run in (app.run, Worker(app).run):
        with pytest.raises(Misuse, match="inside a running event loop") as refused:
            asyncio.run(main(run))
        assert "await Worker(app).run_async()" in str(refused.value)


def test_an_async_handler_runs_with_its_arguments(app: App, drain: Drain) -> None:
    seen = []

    @app.task
    async def greet(name: str, shout: bool = False) -> None:
        seen.append((name, shout))

    greet.enqueue("Ada")
    greet.enqueue("Grace", shout=True)
    worker = drain()

    assert seen == [("Ada", False), ("Grace", True)]
    assert worker.counts.acked == 2


@pytest.mark.parametrize("style", ["async", "def"])
def test_an_error_reaches_the_log_with_its_traceback(
    app: App, drain: Drain, caplog: pytest.LogCaptureFixture, style: str
) -> None:
    def fail() -> None:
        raise ValueError("no")

    async def fail_async() -> None:
        fail()

    app.task(max_attempts=2, retry=0)(fail if style == "def" else fail_async).enqueue()
    drain()

    failed, died = caplog.records
    assert [(one.levelname, one.message) for one in (failed, died)] == [
        ("WARNING", "attempt failed"),
        ("ERROR", "job died"),
    ]
    for record in (failed, died):
        assert record.exc_info
        kind, error, trace = record.exc_info
        assert (kind, str(error)) == (ValueError, "no")
        frames = [frame.name for frame in traceback.extract_tb(trace)]
        assert frames == (["fail"] if style == "def" else ["fail_async", "fail"])


def test_a_handler_that_asks_for_another_attempt_leaves_no_traceback(
    app: App, drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(max_attempts=1)
    def later() -> None:
        raise Retry(reason="not yet")

    later.enqueue()
    drain()

    [died] = caplog.records
    assert (died.message, died.exc_info) == ("job died", None)


@pytest.mark.parametrize("style", ["async", "def"])
@pytest.mark.parametrize("trouble", ["unreachable", "another queue", "read-only", "cut"])
def test_the_trouble_of_another_database_is_a_failed_attempt(
    app: App, drain: Drain, connect: Connect, style: str, trouble: str
) -> None:
    other = connect()

    def call_it() -> None:
        match trouble:
            case "unreachable":
                psycopg.connect(NOWHERE)
            case "another queue":
                Client(NOWHERE).enqueue("greet")
            case "read-only":
                other.execute("set default_transaction_read_only = on")
                other.execute("create table written ()")
            case "cut":
                other.execute("select pg_terminate_backend(pg_backend_pid())")

    def in_thread() -> None:
        with holdfast.current().transaction():
            call_it()

    async def on_loop() -> None:
        async with holdfast.current().transaction():
            call_it()

    handle = app.task(max_attempts=1)(in_thread if style == "def" else on_loop).enqueue()
    drain()

    assert handle.state() == "dead"


def test_a_plain_handler_runs_in_a_thread_of_its_own(app: App, drain: Drain) -> None:
    threads = []

    @app.task
    def greet(name: str) -> None:
        threads.append(threading.get_ident())

    greet.enqueue("Ada")
    drain()

    assert threads
    assert threading.get_ident() not in threads


def test_handlers_run_side_by_side_up_to_the_slots_of_their_queue(app: App, drain: Drain) -> None:
    now = most = 0
    lock = threading.Lock()
    full = threading.Event()

    @app.task
    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == 3:
                full.set()
        full.wait(100)
        with lock:
            now -= 1

    app.enqueue_many(work.call() for _ in range(9))
    drain(concurrency=3)

    assert most == 3


def test_jobs_claimed_ahead_wait_for_a_slot(app: App, drain: Drain) -> None:
    now = most = 0

    @app.task
    async def short() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    # So short that many are claimed before there is a slot for them.
    app.enqueue_many(short.call() for _ in range(1000))
    drain(concurrency=3)

    assert most == 3


def test_current_knows_the_job_and_its_attempt(app: App, drain: Drain) -> None:
    seen: list[Any] = []

    @app.task(queue="mail")
    async def greet(name: str) -> None:
        await asyncio.sleep(0)
        job = holdfast.current()
        seen.append((job.id, job.kind, job.queue, job.attempt, job.payload))
        job.assert_held()

    handle = greet.enqueue("Ada")
    drain()

    assert seen == [(handle.id, "greet", "mail", 1, {"name": "Ada"})]


def test_current_outside_of_a_handler_says_so() -> None:
    with pytest.raises(holdfast.HoldfastError, match="outside of a handler"):
        holdfast.current()


def test_what_one_handler_sets_in_its_context_the_next_does_not_see(app: App, drain: Drain) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    seen = []

    @app.task
    async def greet(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    @app.task
    def shout(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    app.enqueue_many([greet.call("Ada"), greet.call("Bob"), shout.call("Cy"), shout.call("Di")])
    drain(concurrency=1)

    assert seen == ["nobody"] * 4


def test_handlers_share_what_the_lifespan_opens(app: App, drain: Drain) -> None:
    events = []

    @app.lifespan
    async def resources(app: App) -> AsyncIterator[str]:
        events.append("opened")
        yield "a pool"
        events.append("closed")

    @app.task
    async def use() -> None:
        events.append(holdfast.current().resources)

    use.enqueue()
    drain()

    assert events == ["opened", "a pool", "closed"]


def test_a_failed_attempt_is_tried_again_and_told_in_full(app: App, drain: Drain) -> None:
    @app.task(max_attempts=3, retry=0)
    async def divide(a: int) -> float:
        return a / 0 if holdfast.current().attempt < 3 else a

    handle = divide.enqueue(1)
    worker = drain()

    assert handle.state() == "done"
    attempts = app.client.jobs.attempts(handle.id)
    assert [attempt.error_kind for attempt in attempts] == ["ZeroDivisionError"] * 2
    assert "a / 0" in (attempts[0].traceback or "")
    assert (worker.counts.failed, worker.counts.acked) == (2, 1)


def test_a_job_out_of_attempts_is_dead(app: App, drain: Drain) -> None:
    @app.task(max_attempts=2, retry=0)
    def explode() -> None:
        raise RuntimeError("boom")

    handle = explode.enqueue()
    drain()

    assert handle.state() == "dead"
    assert len(app.client.jobs.attempts(handle.id)) == 2


@pytest.mark.parametrize("sort", ["async", "thread"])
def test_a_handler_steers_by_what_it_raises(app: App, drain: Drain, sort: str) -> None:
    raised: dict[str, Exception] = {
        "retry": Retry(in_=3600),
        "release": Release(in_=3600),
        "cancel": Cancel("the user left"),
    }

    if sort == "async":

        @app.task(kind="steer")
        async def asteer(how: str) -> None:
            raise raised[how]

        handles = {how: asteer.enqueue(how) for how in raised}
    else:

        @app.task(kind="steer")
        def steer(how: str) -> None:
            raise raised[how]

        handles = {how: steer.enqueue(how) for how in raised}
    drain()

    jobs = {how: app.client.jobs.get(handle.id) for how, handle in handles.items()}
    states = {how: (job.state, job.attempt) for how, job in jobs.items() if job}
    assert states["retry"] == ("queued", 1)
    assert states["release"] == ("queued", 0)  # the attempt was given back
    assert states["cancel"][0] == "cancelled"
    assert jobs["cancel"]
    assert jobs["cancel"].reason == "the user left"


def test_a_handler_that_cancels_itself_has_failed(app: App, drain: Drain) -> None:
    @app.task(max_attempts=1)
    async def confused() -> None:
        raise asyncio.CancelledError

    handle = confused.enqueue()
    drain()

    assert handle.state() == "dead"


def test_a_payload_the_function_does_not_take_waits_as_it_is(app: App, drain: Drain) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    job = app.client.enqueue("greet", {"nmae": "Ada"}, max_attempts=5)
    drain()

    found = app.client.jobs.get(job.id)
    assert found
    assert (found.state, found.attempt, found.payload) == ("queued", 0, {"nmae": "Ada"})


def test_only_kinds_the_worker_has_are_claimed(app: App, drain: Drain) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    other = app.client.enqueue("somebody_elses", {})
    greet.enqueue("Ada")
    worker = drain()

    assert worker.counts.acked == 1
    found = app.client.jobs.get(other.id)
    assert found
    assert (found.state, found.attempt) == ("queued", 0)


def test_a_kept_result_can_be_awaited(app: App, start: Callable[..., Any]) -> None:
    @app.task(keep_result=True)
    def add(a: int, b: int) -> int:
        return a + b

    start()

    assert add.enqueue(1, 2).result(timeout=100) == 3


def test_a_result_that_cannot_be_kept_is_a_failure(app: App, drain: Drain) -> None:
    @app.task(keep_result=True, max_attempts=1)
    def odd() -> Any:
        return object()

    handle = odd.enqueue()
    drain()

    assert handle.state() == "dead"


def test_a_handler_whose_error_cannot_be_told_still_ends(app: App, drain: Drain) -> None:
    class RudeError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no comment")

    @app.task(max_attempts=1)
    async def rude() -> None:
        raise RudeError

    handle = rude.enqueue()
    drain()

    assert handle.state() == "dead"


@pytest.mark.proves("S3.35")
def test_a_worker_that_drains_leaves_when_nothing_is_left(app: App, drain: Drain) -> None:
    @app.task
    def work(n: int) -> None:
        if n:
            work.enqueue(n - 1)  # found as well: it was there before the worker was idle

    work.enqueue(5)
    worker = drain()

    assert worker.counts.acked == 6
    queue = app.client.queues.get("default")
    assert queue
    assert (queue.queued, queue.leased) == (0, 0)


def test_a_worker_that_drains_looks_again_after_the_last_handler(app: App, drain: Drain) -> None:
    @app.task
    def work(n: int) -> None:
        if n:
            time.sleep(0.5)  # the idle slots find nothing, and more often than is enough
            work.enqueue(n - 1)

    work.enqueue(2)
    worker = drain()

    assert worker.counts.acked == 3


@pytest.mark.proves("S1.7")
def test_a_worker_runs_beside_whatever_else_its_program_does(app: App) -> None:
    @app.task(keep_result=True)
    async def add(a: int, b: int) -> int:
        return a + b

    async def serve() -> int:
        worker = Worker(app)
        working = asyncio.create_task(worker.run_async())
        handle = await add.aenqueue(1, 2)
        total = await handle.aresult(timeout=100)
        worker.stop()
        await working
        await app.aclose()
        return total

    assert asyncio.run(serve()) == 3


def test_a_worker_that_is_cancelled_stops_in_order(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def work() -> None:
        begun.set()
        go_on.wait(100)

    async def serve() -> None:
        working = asyncio.create_task(Worker(app).run_async())
        await work.aenqueue()
        await asyncio.to_thread(begun.wait, 100)
        working.cancel()
        done, _ = await asyncio.wait([working], timeout=0.5)
        assert not done  # it waits for its handler, whose lease it keeps
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await working
        await app.aclose()

    asyncio.run(serve())

    queue = app.client.queues.get("default")
    assert queue is not None
    assert (queue.queued, queue.leased, queue.dead) == (0, 0, 0)
    assert app.client.workers.list() == []
    assert [one.message for one in caplog.records if one.levelname == "CRITICAL"] == []


@pytest.mark.usefixtures("hearing")
@pytest.mark.proves("S1.21")
def test_a_job_nobody_was_told_of_is_found_by_looking(
    app: App, start: Start, connect: Connect
) -> None:
    ran = threading.Event()

    @app.task
    def work() -> None:
        ran.set()

    start(poll=0.2)
    conn = connect()
    while conn.execute("delete from holdfast.waiter returning queue").fetchone() is None:
        pass  # until it waits, and then nobody will wake it
    work.enqueue()

    assert ran.wait(100)


@pytest.mark.usefixtures("hearing")
def test_an_idle_worker_is_told_of_a_job_and_starts_it_without_another_look(
    app: App, start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "FIRST_LOOK", 3600.0)
    ran = threading.Semaphore(0)

    @app.task
    def work() -> None:
        ran.release()

    start(poll=3600)
    conn = connect()
    # More than one: the first may meet the look that comes behind the asking to be told.
    for _ in range(4):
        while conn.execute("select from holdfast.waiter").rowcount == 0:
            time.sleep(0.01)
        work.enqueue()
        assert ran.acquire(timeout=60)


def test_a_worker_leaves_after_the_jobs_it_was_to_run(app: App) -> None:
    @app.task
    async def count() -> None: ...

    app.enqueue_many(count.call() for _ in range(20))
    worker = Worker(app, max_jobs=7)
    worker.run()

    assert worker.counts.acked == 7
    queue = app.client.queues.get("default")
    assert queue
    assert (queue.queued, queue.leased) == (13, 0)


@pytest.mark.parametrize("name", [None, "shop"])
def test_a_schedule_that_was_deleted_from_the_code_ends_with_the_next_deploy(
    database: str, name: str | None
) -> None:
    """Also the last one, and that of an app without a name."""

    def deploy(*, scheduled: bool) -> str:
        with App(database, name=name) as app:

            @app.task
            def report() -> None: ...

            if scheduled:
                app.schedule("30 5 * * *", name="nightly")(report)
            Worker(app, until_idle=True).run()
            found = app.client.schedules.get("nightly")
            assert found
            return found.state

    assert deploy(scheduled=True) == "active"
    assert deploy(scheduled=False) == "withdrawn"
    assert deploy(scheduled=True) == "active"


def test_settings_of_queues_stand_beside_the_tasks_and_a_worker_stores_them(
    app: App, drain: Drain
) -> None:
    app.queue("mail", limit=4, lease=90)
    app.task(queue="mail", kind="send")(lambda: None)
    with pytest.raises(Misuse, match="'limits' cannot be declared"):
        app.queue("other", limits=4)  # type: ignore[call-arg]
    with pytest.raises(Misuse, match="holdfast queue set"):
        app.queue("other", fanout=4)
    with pytest.raises(Misuse, match="declared twice"):
        app.queue("mail", lease=2)
    drain()
    app.client.queues.set("mail", limit=1)
    drain()

    mail = app.client.queues.get("mail")
    assert mail
    assert (mail.limit, mail.lease.total_seconds()) == (1, 90)
