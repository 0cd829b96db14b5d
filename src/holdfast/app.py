"""The API for developers: functions become tasks, and calls of tasks become jobs.

An `App` names the database and collects tasks and schedules; it connects at the first call. A
worker uses the same declarations to run the jobs.
"""

import asyncio
import inspect
import logging
import os
import weakref
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from holdfast import budget, cron, embedded, schema, synonyms
from holdfast.callsite import caller, declared_at, module_of_caller
from holdfast.client import AsyncClient, Client, async_client_on, client_on
from holdfast.crypto import Encryption
from holdfast.current import CurrentJob
from holdfast.ends import Ends
from holdfast.errors import InvalidSchedule, InvalidTask, Misuse
from holdfast.handle import Handle
from holdfast.job_transaction import JobTransaction
from holdfast.middleware import Middleware, around
from holdfast.outcome import seconds
from holdfast.queue_options import check_queue, check_schedule
from holdfast.recent import Recent
from holdfast.records import Duration, Enqueued, Missed, NewSchedule, Overlap, QueueOptions
from holdfast.stores import ClaimCheck, sweep
from holdfast.task import Call, Declares, Task, TaskSettings, astore, store
from holdfast.uncaught import reported_at_the_end
from holdfast.watch.webhooks import Looks, OwnDetector
from holdfast.workflow import Workflow

__all__ = ["App", "Call", "Handle", "Task"]

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound=Task[..., Any, Any])
AnyClient = TypeVar("AnyClient", Client, AsyncClient)

F = TypeVar("F", bound=Callable[..., Any])
AnyLooks = TypeVar("AnyLooks", bound=Looks)

log = logging.getLogger("holdfast")


class App:
    """Collects tasks and names the database they are enqueued in.

    The database is `url`, or HOLDFAST_URL, or an embedded PostgreSQL in ./.holdfast, which is for
    development and is migrated automatically. `pool_size` is how many connections handlers and
    callers share: 4 by default, and in a worker one more for each slot, up to 32 more. `timeout` is
    how long a call may take, repeats included: HOLDFAST_TIMEOUT by default, or 60 seconds.
    `middleware` is around every enqueue and every run, the first of it outermost. `encryption`
    and `large_payloads` are those of all tasks that do not say their own. Safe to share between
    threads and across a fork.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        pool_size: int | None = None,
        timeout: Duration | None = None,
        middleware: Sequence[Middleware] = (),
        encryption: Encryption | None = None,
        large_payloads: ClaimCheck | None = None,
    ) -> None:
        self.name = name
        self.module = module_of_caller()
        self.pool_size = pool_size
        self.timeout = timeout
        self.around_enqueue = around(middleware, "enqueue")
        self.around_run = around(middleware, "run")
        self.encryption = encryption
        self.large_payloads = large_payloads
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        # The same by every kind that they run: their own, and what it was called before.
        self.handlers: dict[str, Task[..., Any, Any]] = {}
        self.schedules: list[NewSchedule] = []
        self.queues: dict[str, QueueOptions] = {}
        self.detectors: dict[str, OwnDetector] = {}
        # The module and the name under which a new process finds it, if that is known.
        self.home: tuple[str, str] | None = None
        self._given = url
        self._room = budget.SPARE
        self._lifespan: Callable[..., Any] | None = None
        # A mounted server ends with the app whose database it serves.
        self._ends_too: list[Callable[[], Coroutine[Any, Any, None]]] = []
        # Who in this process waits for which job.
        self.ends: Ends
        # How many of the jobs that end in this process are kept for a day.
        self.recent = Recent()
        self._lock: RLock
        self._database: embedded.Database | None
        self._client: Client | None
        self._aclients: dict[asyncio.AbstractEventLoop, AsyncClient]
        self._forget()
        _APPS.add(self)

    @overload
    def task(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, **settings: Unpack[TaskSettings]) -> Declares: ...
    def task(self, fn: Any = None, **settings: Any) -> Any:
        """Turn a function into a task: `@app.task`, or with settings `@app.task(queue="mail")`."""
        declare = partial(self._declare, settings=cast("TaskSettings", settings))
        return declare if fn is None else declare(fn)

    @overload
    def workflow(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self, *, name: str | None = None
    ) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...
    def workflow(self, fn: Any = None, *, name: str | None = None) -> Any:
        """Turn a function that returns a flow into a workflow: `@app.workflow` above it.

        `nightly.start(…)` stores all its jobs as a whole, under the name of the function.
        """

        def declare(fn: Any) -> Any:
            return Workflow(self, fn, name or fn.__name__)

        return declare if fn is None else declare(fn)

    def schedule(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        anchor: datetime | None = None,
        tz: str = "UTC",
        missed: Missed = "once",
        overlap: Overlap = "queue",
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Callable[[AnyTask], AnyTask]:
        """Enqueue a task on a schedule: `@app.schedule("30 5 * * MON-FRI", tz="Europe/Paris")`.

        Write it above `@app.task`; `payload` has the arguments by name. A worker stores it.
        """

        def declare(task: AnyTask) -> AnyTask:
            self.schedules.append(
                self._scheduled(
                    task,
                    name=name,
                    cron=cron,
                    every=every,
                    anchor=anchor,
                    tz=tz,
                    missed=missed,
                    overlap=overlap,
                    payload={} if payload is None else payload,
                )
            )
            return task

        return declare

    def queue(self, name: str, **settings: Unpack[QueueOptions]) -> None:
        """Declare settings of a queue: `app.queue("mail", limit=4, keep_done=timedelta(days=7))`.

        A worker stores them when it starts. An operator's change of a setting stays until its
        declaration changes; a setting that is no longer declared goes back to its default.
        """
        if name in self.queues:
            raise Misuse(
                f"queue {name!r} is declared twice",
                why=caller(),
                fix="Declare all its settings once.",
            )
        check_queue(name, settings)
        self.queues[name] = settings

    def detector(
        self, *, every: Duration = 60.0, name: str | None = None
    ) -> Callable[[AnyLooks], AnyLooks]:
        """Declare your own detector: `@app.detector(every=60)` above a function.

        It takes a connection, on which it may only read, and returns findings; workers run it in
        their upkeep, one of them each time. Anomalies that it no longer finds are resolved.
        """

        def declare(looks: AnyLooks) -> AnyLooks:
            code = str(name or getattr(looks, "__name__", ""))
            if not code.isidentifier() or code in self.detectors:
                raise Misuse(
                    f"a detector cannot be called {code!r}",
                    why=caller(),
                    fix="Give it another name, of letters, digits and underscores: name=…",
                )
            self.detectors[code] = OwnDetector(looks, seconds(every))
            return looks

        return declare

    def lifespan(self, fn: F) -> F:
        """Open resources that all handlers of a process share: `@app.lifespan` above a generator.

        What it yields is `current().resources`. It may be asynchronous or not, or return a context
        manager.
        """
        if self._lifespan is not None:
            raise Misuse(
                "an app has one lifespan", why=caller(), fix="Open everything in that one."
            )
        self._lifespan = fn
        return fn

    @asynccontextmanager
    async def resources(self) -> AsyncIterator[Any]:
        """Open the resources of the lifespan during the block; None without a lifespan."""
        if self._lifespan is None:
            yield self._sufficient(None)
            return
        opened = _context_manager(self._lifespan, self)
        if isinstance(opened, AbstractAsyncContextManager):
            async with opened as resources:
                yield self._sufficient(resources)
        else:
            with opened as resources:
                yield self._sufficient(resources)

    def _sufficient(self, resources: Any) -> Any:
        """Check that every task finds in them what it wants, before its first job comes."""
        for task in self.tasks.values():
            if task.wants is not None:
                task.wants.given(resources)
        return resources

    def enqueue_many(self, calls: Iterable[Call[R]], *, conn: Any = None) -> list[Handle[R]]:
        """Store calls in one transaction, that of `conn` if given; returns a handle for each."""
        calls = self._checked(calls)
        if not calls:
            return []
        client = self.client if conn is None else client_on(conn)
        enqueued = store(client, calls)
        return _handles(calls, enqueued, conn)

    async def aenqueue_many(self, calls: Iterable[Call[R]], *, conn: Any = None) -> list[Handle[R]]:
        """Store calls in one transaction, as `enqueue_many` does."""
        calls = self._checked(calls)
        if not calls:
            return []
        client = self.aclient if conn is None else async_client_on(conn)
        enqueued = await astore(client, calls)
        return _handles(calls, enqueued, conn)

    def sweep_payloads(self, older_than: Duration = timedelta(days=1)) -> int:
        """Delete payloads in stores whose jobs are gone or were never committed; returns how many.

        Payloads that are younger than `older_than` stay: their transaction may still be open.
        """
        before = datetime.now(UTC) - timedelta(seconds=seconds(older_than))
        checks = [task.codec.large for task in self.tasks.values() if task.codec]
        stores = {check.store.name: check.store for check in checks if check}
        return sum(sweep(self.client, store, before) for store in stores.values())

    def _transaction_of(self, job: CurrentJob, result: Any) -> JobTransaction:
        """Return what `current().transaction()` enters."""
        return JobTransaction(job, result)

    def run(self, **options: Any) -> None:
        """Run the app's workers until they are stopped; options are those of Worker.

        `processes` is how many ordinary worker processes; a single one is this process. A program
        that does not catch what it raises ends as `holdfast worker` does: with the message, without
        a traceback, and with the same exit code.
        """
        with reported_at_the_end():
            import_module("holdfast.worker.fleet").run(self, **options)

    @property
    def database(self) -> embedded.Database:
        """The database, and where its address came from; the embedded one is started."""
        with self._lock:
            if self._database is None:
                stand_in = _STAND_INS[-1] if _STAND_INS else None
                self._database = stand_in(self) if stand_in else _resolved(self._given)
            return self._database

    @property
    def url(self) -> str:
        """The address of the database."""
        return self.database.url

    def use(self, url: str) -> None:
        """Use this database from now on."""
        self.close()
        self._given = url

    @property
    def client(self) -> Client:
        """The client that all threads of this process share."""
        if _JOINED:
            return _JOINED[-1][0]()
        if (client := self._client) is None:
            with self._lock:
                client = self._client = self._client or self._made(Client)
        return client

    @property
    def aclient(self) -> AsyncClient:
        """The client that all tasks of the running event loop share."""
        if _JOINED:
            return _JOINED[-1][1]()
        loop = _running_loop()
        if (client := self._aclients.get(loop)) is None:
            with self._lock:
                self._abandon_closed_loops()
                client = self._aclients[loop] = self._made(AsyncClient)
        return client

    def make_room(self, slots: int) -> None:
        """Enlarge the pool for handlers that all use a transaction at the same time."""
        self._room = budget.for_handlers(slots)
        if self.pool_size is not None and self.pool_size < self._room:
            log.warning(
                "%d slots that hold transactions need %d connections; this pool has %d",
                slots,
                self._room,
                self.pool_size,
            )
        if self.pool_size is None:
            with self._lock:
                if self._client:
                    self._client.widen(self._room)
                for client in self._aclients.values():
                    client.widen(self._room)

    def close(self) -> None:
        """Close the client and leave the embedded database; the next use opens them again."""
        with self._lock:
            client, database = self._client, self._database
            self._client = self._database = None
            self._abandon_closed_loops()
        self.ends.close()
        if client is not None:
            client.close()
        if database is not None:
            database.close()

    async def aclose(self) -> None:
        """Close the client of the running event loop, and what `close` closes."""
        for end in self._ends_too:
            await end()
        with self._lock:
            client = self._aclients.pop(_running_loop(), None)
        if client is not None:
            await client.close()
        self.close()

    if not TYPE_CHECKING:  # a type checker refuses what is not there by itself

        def __getattr__(self, name: str) -> Any:
            told = f"{type(self).__name__!r} object has no attribute {name!r}"
            if ours := synonyms.of_app(name):
                told += f": {ours}"
            raise AttributeError(told, name=name, obj=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _declare(self, fn: Callable[..., Any], settings: TaskSettings) -> Task[..., Any, Any]:
        task: Task[..., Any, Any] = Task(self, fn, settings)
        self._add(task)
        return task

    def _add(self, task: Task[..., Any, Any]) -> None:
        for kind in (task.kind, *task.aliases):
            other = self.handlers.get(kind)
            # The same function declared again, as in a notebook, replaces the old one.
            if other and _identity(other.fn) != _identity(task.fn):
                raise InvalidTask(
                    f"two tasks are of the kind {kind!r}: {other.kind}{declared_at(other.fn)} "
                    f"and {task.kind}{declared_at(task.fn)}",
                    fix='Give one of them another:  @app.task(kind="…")',
                )
            self.handlers[kind] = task
        self.tasks[task.kind] = task

    def _scheduled(
        self,
        task: Task[..., Any, Any],
        *,
        name: str | None,
        every: Duration | None,
        payload: Mapping[str, Any],
        **rule: Any,
    ) -> NewSchedule:
        if not isinstance(task, Task):
            raise InvalidTask(
                f"{task!r} is scheduled but is not a task",
                why=caller(),
                fix="Write @app.schedule above @app.task.",
            )
        if any(declared.name == (name or task.kind) for declared in self.schedules):
            raise InvalidTask(
                f"two schedules have the name {name or task.kind!r}",
                why=caller(),
                fix='Give one of them another:  @app.schedule(…, name="…")',
            )
        check_schedule(task.kind, name=name or task.kind, payload=payload, **rule)
        length = None if every is None else _interval(every)
        cron.rule(cron=rule["cron"], every=length, anchor=rule["anchor"], tz=rule["tz"])
        return task._schedule(name or task.kind, payload, every=length, **rule)

    def _checked(self, calls: Iterable[Call[R]]) -> list[Call[R]]:
        if isinstance(calls, Call):
            raise Misuse(
                f"enqueue_many: {calls.task.kind}.call(…) is one call",
                why=caller(),
                fix=f"Give a list of calls; or store this one:  {calls.task.kind}.enqueue(…)",
            )
        calls = list(calls)
        for call in cast("list[Any]", calls):
            if not isinstance(call, Call) or call.task.app is not self:
                raise Misuse(
                    f"enqueue_many: {call!r} is not a call of a task of this app",
                    why=caller(),
                    fix="Give it calls:  app.enqueue_many(task.call(x) for x in …)",
                )
        return calls

    def _made(self, kind: type[AnyClient]) -> AnyClient:
        database = self.database
        return kind(
            database.url,
            pool_size=self.pool_size or self._room,
            timeout=self.timeout,
            application_name=f"holdfast {self.name}" if self.name else "holdfast",
            source=SOURCES[database.origin],
        )

    def _abandon_closed_loops(self) -> None:
        for loop in [loop for loop in self._aclients if loop.is_closed()]:
            self._aclients.pop(loop).abandon()

    def _forget(self) -> None:
        self._lock = RLock()
        self._database = None
        self._client = None
        self._aclients = {}
        self.ends = Ends()


def _identity(fn: Any) -> tuple[Any, ...]:
    return getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)


def _handles(calls: Sequence[Call[R]], enqueued: Sequence[Enqueued], conn: Any) -> list[Handle[R]]:
    pairs = zip(calls, enqueued, strict=True)
    return [Handle(call.task, one, on_conn=conn is not None) for call, one in pairs]


def _context_manager(lifespan: Callable[..., Any], app: App) -> Any:
    if inspect.isasyncgenfunction(lifespan):
        return asynccontextmanager(lifespan)(app)
    if inspect.isgeneratorfunction(lifespan):
        return contextmanager(lifespan)(app)
    return lifespan(app)


def _resolved(url: str | None) -> embedded.Database:
    database = embedded.resolve(url)
    if database.server:
        log.warning("using %s; a url or HOLDFAST_URL names another", database.server)
        try:
            schema.migrate(database.url)
        except BaseException:
            database.close()
            raise
    return database


@contextmanager
def stand_in(database: Callable[[App], embedded.Database]) -> Iterator[None]:
    """Have every app of this process use another database during the block: that of a test.

    Connections of all threads and event loops are closed before and after it.
    """
    _STAND_INS.append(database)
    try:
        for app in apps():
            disconnect(app)
        yield
    finally:
        _STAND_INS.remove(database)
        for app in apps():
            disconnect(app)


@contextmanager
def joined(client: Callable[[], Client], aclient: Callable[[], AsyncClient]) -> Iterator[None]:
    """Have every app of this process use these clients during the block: those of a test."""
    _JOINED.append((client, aclient))
    try:
        yield
    finally:
        _JOINED.pop()


def disconnect(app: App) -> None:
    """Close the connections of an app in all threads and event loops; the next use opens others."""
    with app._lock:
        loops, app._aclients = list(app._aclients.values()), {}
    for client in loops:
        client.abandon()
    app.close()


def apps() -> list[App]:
    """Return the apps of this process."""
    return list(_APPS)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise Misuse(
            "no event loop is running",
            why=caller(),
            fix="Use  app.client, or await in a coroutine.",
        ) from None


def _after_fork() -> None:
    # Connections of the parent stay open: closing them here would end them for both.
    for app in list(_APPS):
        _LEFT_TO_THE_PARENT.append((app._client, app._aclients, app._database))
        app._forget()


SOURCES = {
    "argument": "the url of the App",
    "HOLDFAST_URL": "HOLDFAST_URL in the environment",
    "embedded": "the embedded server",
    "test": "the database of a test",
    "django": "DATABASES in Django's settings",
}
_JOINED: list[tuple[Callable[[], Client], Callable[[], AsyncClient]]] = []
_STAND_INS: list[Callable[[App], embedded.Database]] = []
_APPS: "weakref.WeakSet[App]" = weakref.WeakSet()
_LEFT_TO_THE_PARENT: list[Any] = []

if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_after_fork)


def _interval(every: Duration) -> timedelta:
    try:
        return timedelta(seconds=seconds(every))
    except (TypeError, ValueError):
        raise InvalidSchedule(
            f"every {every!r} is not an interval",
            fix="Give seconds or a timedelta:  every=300, every=timedelta(minutes=5)",
        ) from None
