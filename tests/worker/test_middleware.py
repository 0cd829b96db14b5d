"""Middleware around enqueue and run: one shape for async, thread and process handlers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec.structs import replace

from holdfast import App, Cancel, InvalidJob, NewJob, resource
from holdfast.current import CurrentJob
from holdfast.errors import InvalidTask, Misuse
from holdfast.middleware import Middleware, carry, with_headers
from holdfast.worker import Worker
from tests.worker import wares

Make = Callable[..., App]


@pytest.fixture
def wared(database: str) -> Iterator[App]:
    """The app of `wares`, on a fresh database."""
    wares.app.use(database)
    wares.told.clear()
    yield wares.app
    wares.app.close()


@pytest.fixture
def make(database: str) -> Iterator[Make]:
    """Makes apps with middleware on a fresh database."""
    made: list[App] = []

    def app(*middleware: Middleware) -> App:
        made.append(App(database, middleware=middleware))
        return made[-1]

    yield app
    for one in made:
        one.close()


def drain(app: App) -> None:
    Worker(app, until_idle=True, concurrency=1).run()


class Heard:
    """A middleware that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def run(self, job: CurrentJob) -> Iterator[None]:
        try:
            self.heard.append((yield))
        except BaseException as error:
            self.heard.append(error)


def test_context_and_middleware_are_the_same_in_async_thread_and_process_handlers(
    wared: App,
) -> None:
    def in_a_request() -> list[Any]:
        wares.request_id.set("r-1")
        tasks = (wares.in_loop, wares.in_thread, wares.in_process, wares.in_process_loop)
        return [task.enqueue() for task in tasks] + [wares.enqueues.enqueue()]

    handles = copy_context().run(in_a_request)
    drain(wared)

    # A default is not carried: it is set where the handler runs, too.
    expected = ("r-1", "nobody", ("outer", "inner"))
    assert [handle.result() for handle in handles[:4]] == [expected] * 4
    [id] = wared.client.jobs.find("key:passed-on state:done")
    passed_on = wared.client.jobs.get(id)
    assert passed_on
    assert passed_on.result == ["r-1", "nobody", ["outer", "inner"]]
    assert passed_on.headers == {"context": {"request_id": "r-1"}}


def test_the_first_middleware_is_outermost_around_enqueue_and_run(wared: App) -> None:
    handle = wares.in_thread.enqueue()
    job = wared.client.jobs.get(handle.id)
    assert job
    assert job.subject == "outerinner"
    drain(wared)

    assert [one[:2] for one in wares.told] == [
        ("outer", "enqueue"),
        ("inner", "enqueue"),
        ("inner", "enqueued"),
        ("outer", "enqueued"),
        ("inner", "returned"),
        ("outer", "returned"),
    ]


@pytest.mark.parametrize("style", ["async", "def"])
def test_an_error_that_a_middleware_catches_still_counts(make: Make, style: str) -> None:
    heard = Heard()
    app = make(heard)

    def fail() -> None:
        raise ValueError("no")

    async def fail_async() -> None:
        await asyncio.sleep(0)
        fail()

    handle = app.task(max_attempts=1)(fail if style == "def" else fail_async).enqueue()
    drain(app)

    assert [str(one) for one in heard.heard] == ["no"]
    [attempt] = app.client.jobs.attempts(handle.id)
    assert (attempt.outcome, attempt.message) == ("failed", "no")
    assert attempt.traceback
    assert "test_middleware.py" in attempt.traceback
    assert "self.heard" not in attempt.traceback


def test_what_a_middleware_raises_takes_the_place_of_the_outcome(make: Make) -> None:
    class Gone:
        def run(self, job: CurrentJob) -> Iterator[None]:
            if job.payload["when"] == "before":
                raise Cancel("not started")
            try:
                yield
            except KeyError:
                raise Cancel("it is gone") from None
            if job.payload["when"] == "after":
                raise ValueError("too late")

    ran = []
    heard = Heard()
    app = make(heard, Gone())

    @app.task(max_attempts=1)
    def look(when: str) -> None:
        ran.append(when)
        if when == "during":
            raise KeyError

    handles = {when: look.enqueue(when) for when in ("before", "during", "after")}
    drain(app)

    assert ran == ["during", "after"]
    states = {when: app.client.jobs.get(handle.id) for when, handle in handles.items()}
    assert {when: (job.state, job.reason or job.error) for when, job in states.items() if job} == {
        "before": ("cancelled", "not started"),
        "during": ("cancelled", "it is gone"),
        "after": ("dead", "ValueError: too late"),
    }
    assert sorted(map(str, heard.heard)) == ["it is gone", "not started", "too late"]


def test_a_middleware_of_enqueue_sees_all_ways_to_enqueue(make: Make, database: str) -> None:
    class Counts:
        def __init__(self) -> None:
            self.count = 0

        def enqueue(self, job: NewJob) -> Iterator[NewJob]:
            self.count += 1
            yield with_headers(replace(job, priority=5), {"n": self.count})

    counts = Counts()
    app = make(counts)

    @app.task
    def greet(name: str) -> None: ...

    async def asynchronously() -> list[UUID]:
        try:
            one = await greet.aenqueue("c")
            return [one.id, *(h.id for h in await app.aenqueue_many([greet.call("d")]))]
        finally:
            await app.aclose()

    ids = [greet.enqueue("a").id, *(h.id for h in app.enqueue_many([greet.call("b")]))]
    ids += asyncio.run(asynchronously())
    with psycopg.connect(database) as conn:
        ids.append(greet.options(conn=conn).enqueue("e").id)
    jobs = [app.client.jobs.get(id) for id in ids]

    assert [(job.payload["name"], job.priority, job.headers["n"]) for job in jobs if job] == [
        (name, 5, nth) for nth, name in enumerate("abcde", 1)
    ]


def test_around_jobs_enqueued_together_the_last_to_begin_is_the_first_to_end(make: Make) -> None:
    depth: ContextVar[int] = ContextVar("depth", default=0)
    ended: list[str] = []

    class Nested:
        def enqueue(self, job: NewJob) -> Iterator[None]:
            token = depth.set(depth.get() + 1)
            yield
            depth.reset(token)
            ended.append(json.loads(job.payload)["name"])

    app = make(Nested())

    @app.task
    def greet(name: str) -> None: ...

    app.enqueue_many([greet.call(name) for name in "abc"])
    assert (depth.get(), ended) == (0, ["c", "b", "a"])

    with pytest.raises(InvalidJob):
        app.enqueue_many([greet.call("d"), greet.call("e" * 300_000)])
    assert depth.get() == 2  # without a finally


def test_a_changed_payload_is_checked_and_the_kind_cannot_change(make: Make) -> None:
    class Changes:
        change: Any = None

        def enqueue(self, job: NewJob) -> Iterator[NewJob]:
            yield replace(job, **self.change)

    changes = Changes()
    app = make(changes)

    @app.task
    def greet(name: str) -> None: ...

    changes.change = {"payload": {"name": "Grace"}}
    job = app.client.jobs.get(greet.enqueue("Ada").id)
    assert job
    assert json.loads(job.payload_json) == {"name": "Grace"}
    changes.change = {"payload": {"name": 7}}
    with pytest.raises(InvalidJob, match=r"greet.enqueue: Expected `str`, got `int`"):
        greet.enqueue("Ada")
    changes.change = {"kind": "other"}
    with pytest.raises(Misuse, match="for a job of the kind 'greet'"):
        greet.enqueue("Ada")


def test_a_refused_enqueue_reaches_its_middleware_and_its_caller(make: Make) -> None:
    class Sees:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def enqueue(self, job: NewJob) -> Iterator[NewJob]:
            try:
                yield job
            except InvalidJob as error:
                self.seen.append(error.code)

    sees = Sees()
    app = make(sees)

    @app.task
    def greet(name: str) -> None: ...

    with pytest.raises(InvalidJob):
        app.enqueue_many([greet.call("a"), greet.call("b" * 300_000)])
    assert len(sees.seen) == 2


def test_a_value_that_is_not_json_is_not_carried_as_something_else(make: Make) -> None:
    number: ContextVar[Any] = ContextVar("number")
    app = make(carry(number))

    @app.task
    def greet() -> None: ...

    def enqueue() -> None:
        number.set(UUID(int=7))
        greet.enqueue()

    with pytest.raises(InvalidJob, match="the context variable 'number' is UUID"):
        copy_context().run(enqueue)


def test_what_is_not_a_middleware_is_refused_when_the_app_is_made() -> None:
    class Wrong:
        @contextmanager
        def run(self, job: CurrentJob) -> Iterator[None]:
            yield

    class Async:
        async def run(self, job: CurrentJob) -> AsyncIterator[None]:
            yield

    for wrong, told in (
        (Heard, "Give an instance:  App"),
        (Wrong(), "is not a generator"),
        (Async(), "without async or a decorator"),
        (object(), "has neither a method `enqueue` nor a method `run`"),
    ):
        with pytest.raises(Misuse) as refused:
            App(middleware=[wrong])  # type: ignore[list-item]
        assert told in str(refused.value)


def test_clumsy_middleware_is_answered_with_what_to_type() -> None:
    with pytest.raises(Misuse, match="Give a list"):
        App(middleware=Heard())  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="it is not a ContextVar"):
        carry("request_id")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="have the same name"):
        carry(ContextVar("a"), ContextVar("a"))


def test_a_middleware_that_does_not_yield_once_fails_the_attempt_with_its_name(make: Make) -> None:
    class Never:
        def run(self, job: CurrentJob) -> Iterator[None]:
            if job.kind == "first":
                return
            yield
            yield

    app = make(Never())

    @app.task(max_attempts=1)
    def first() -> None: ...

    @app.task(max_attempts=1)
    def second() -> None:
        raise StopIteration

    handles = [first.enqueue(), second.enqueue()]
    drain(app)

    jobs = [app.client.jobs.get(handle.id) for handle in handles]
    assert [job and job.error and job.error.splitlines()[0] for job in jobs] == [
        f"Misuse: HF200 the middleware {Never.run.__qualname__} did not yield",
        "StopIteration: ",
    ]


class Database:
    """Something that a lifespan opens."""


def test_a_parameter_is_given_by_the_worker_by_its_type_and_is_not_part_of_the_job(
    app: App,
) -> None:
    one, other = Database(), Database()
    seen = []

    @app.lifespan
    def opened(app: App) -> Iterator[dict[str, Any]]:
        yield {"main": one, "replica": other, "name": "shop"}

    @app.task
    def report(month: str, *, replica: Database = resource, name: str = resource) -> None:
        seen.append((month, replica, name))

    @app.task
    async def pay(order: int, main: Database | None = resource) -> None:
        seen.append((order, main))

    report.enqueue("May")
    pay.enqueue(7)
    with pytest.raises(InvalidJob, match="unknown argument `main`"):
        pay.enqueue(7, main=one)
    drain(app)

    assert set(seen) == {("May", other, "shop"), (7, one)}
    assert list(pay.arguments.schema()["$defs"]["pay"]["properties"]) == ["order"]
    report("June", replica=one, name="by hand")
    assert seen[-1] == ("June", one, "by hand")


@pytest.mark.parametrize("yields", [None, {"a": Database(), "b": Database()}, ("x", 1)])
def test_a_resource_that_the_lifespan_does_not_yield_is_named_before_the_first_job(
    app: App, yields: Any
) -> None:
    @app.lifespan
    def opened(app: App) -> Iterator[Any]:
        yield yields

    @app.task
    def pay(order: int, db: Database = resource) -> None: ...

    count = "2" if isinstance(yields, dict) else "no"
    with pytest.raises(InvalidTask, match=f"the lifespan yields {count} Database for .* `db`"):
        drain(app)


def test_a_resource_that_nobody_gave_says_so(app: App) -> None:
    @app.task
    def pay(order: int, db: Any = resource) -> None:
        db.execute("select 1")

    with pytest.raises(Misuse, match="Pass it by name"):
        pay(7)
