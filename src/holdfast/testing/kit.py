"""What a test has in its hands: a database of its own, and ways to look at jobs and run them."""

import asyncio
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self

from holdfast import conninfo, embedded
from holdfast.app import App, Call, apps, disconnect, stand_in
from holdfast.client import Client, client_on
from holdfast.client.aio.pool import AsyncPool
from holdfast.client.statement import Statement
from holdfast.client.sync.pool import Pool
from holdfast.current import CurrentJob
from holdfast.errors import Misuse
from holdfast.records import Duration, Job
from holdfast.task import Enqueuer
from holdfast.testing import astray, matching
from holdfast.testing.bound import stored_job
from holdfast.testing.clock import Clock
from holdfast.testing.databases import Databases
from holdfast.testing.draining import LIMIT, Draining, raise_first, tasks_of
from holdfast.testing.effects import assert_once
from holdfast.testing.faults import APPLICATION, FAULTS, Fault, Faults
from holdfast.testing.inline import inline, off_loop
from holdfast.testing.matching import WITHIN, Declared, Expected
from holdfast.testing.report import Drained

# How many jobs are read at once.
PAGE = 10_000


class Kit:
    """A test's own database, in which all apps of the process enqueue while it is open.

    `url` is its address, for connections of your own; `client` is a client of it. HOLDFAST_URL
    names it, too.
    """

    def __init__(
        self, url: str, databases: Databases | None = None, client: Client | None = None
    ) -> None:
        self.url = url
        self.client = client or Client(url, application_name=APPLICATION)
        self._databases = databases
        self._clock = Clock(self.client)
        self._faults = Faults(self.client)
        self._used: weakref.WeakSet[App] = weakref.WeakSet()
        self._declared: set[str] = set()
        self._open = ExitStack()
        self._runner: asyncio.Runner | None = None
        self._draining: Draining | None = None

    def __enter__(self) -> Self:
        self._open.callback(lambda: self.client.close())
        self._open.enter_context(_environment(conninfo.VARIABLE, self.url))
        self._open.enter_context(stand_in(self._database))
        if self._databases is not None:
            self._open.enter_context(astray.refused(conninfo.database(self.url)))
        self._open.callback(self._stop_loop)
        self._open.callback(self._faults.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    # -- running

    def drain(
        self,
        *,
        apps: Sequence[App] | None = None,
        raises: bool = True,
        wait: bool = False,
        limit: int = LIMIT,
    ) -> Drained:
        """Run all due jobs in this thread, and those they enqueue, until none is due.

        Then it raises what the first handler that failed raised, unless `raises` is False. With
        `wait` it also runs what is due later, retries and leases that have to expire included: the
        time moves on to them. Tasks are those of `apps`, else of all apps of the process.
        """
        report = self._drained(apps, wait, limit)
        if raises:
            raise_first(report)
        self._faults.refuse_missed()
        return report

    async def adrain(
        self,
        *,
        apps: Sequence[App] | None = None,
        raises: bool = True,
        wait: bool = False,
        limit: int = LIMIT,
    ) -> Drained:
        """Like `drain`, on the running event loop; handlers that are not async run in threads."""
        with self._one_drain(apps, limit) as draining:
            if draining is None:
                return Drained()
            try:
                while True:
                    jobs = draining.jobs()
                    while job := await asyncio.to_thread(next, jobs, None):
                        ended = await draining.arun(job)
                        await asyncio.to_thread(draining.settle, job, ended)
                    if not (wait and await asyncio.to_thread(self._waited_for, draining)):
                        break
            finally:
                await draining.close()
        if raises:
            raise_first(draining.report)
        self._faults.refuse_missed()
        return draining.report

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Run every job as soon as it is enqueued, before `enqueue` returns, which raises errors.

        What is enqueued in a transaction of yours runs after its commit, with the next enqueue or
        `drain`; what a handler enqueues runs when that handler has ended.
        """
        with inline(self.drain, self.adrain, self._has_committed):
            yield

    @contextmanager
    def job(
        self, task: "Enqueuer[..., Any]", *args: Any, resources: Any = None, **kwargs: Any
    ) -> Iterator[CurrentJob]:
        """Enqueue and lease a job, and bind `current()` to it: call the task inside the block.

        Afterwards the job ends as it would in a worker: done, or failed if the block raises.
        """
        with stored_job(self.client, task, args, kwargs, resources) as bound:
            yield bound

    # -- looking

    def enqueued(
        self,
        task: Declared | str | None = None,
        *given: Any,
        args: Mapping[str, Any] | None = None,
        within: Duration = WITHIN,
        conn: Any = None,
        **expected: Any,
    ) -> list[Job]:
        """Return the jobs that wait or run, oldest first: all, or those that match.

        Takes what `assert_enqueued` takes.
        """
        jobs = self._live(conn)
        if task is None:
            return jobs
        wanted = Expected.read(task, given, args, within, expected)
        return [job for job in jobs if not wanted.differences(job)]

    def assert_enqueued(
        self,
        task: Declared | str,
        *given: Any,
        args: Mapping[str, Any] | None = None,
        count: int | None = None,
        within: Duration = WITHIN,
        conn: Any = None,
        **expected: Any,
    ) -> Job:
        """Raise AssertionError unless a job of the task waits or runs; returns it.

        Give any of its arguments, as to `enqueue`, and any fields of the job: queue, key, lane,
        tenant, subject, priority, max_attempts, headers, delay, and run_at, give or take `within`
        seconds. `args` has arguments whose names are taken. `count` is how many jobs must match;
        by default one or more. `conn` looks inside a transaction that is not committed.
        """
        wanted = Expected.read(task, given, args, within, expected)
        jobs = self._live(conn)
        matches = [job for job in jobs if not wanted.differences(job)]
        if count == 0:
            raise Misuse("count must be at least 1 (got 0)", fix="Use  assert_not_enqueued(…)")
        if not matches:
            raise AssertionError(matching.nothing_matches(wanted, jobs, self._hint(conn)))
        if count is not None and len(matches) != count:
            raise AssertionError(matching.wrong_count(wanted, matches, count))
        return matches[-1]

    def assert_not_enqueued(
        self,
        task: Declared | str | None = None,
        *given: Any,
        args: Mapping[str, Any] | None = None,
        within: Duration = WITHIN,
        conn: Any = None,
        **expected: Any,
    ) -> None:
        """Raise AssertionError if a job waits or runs that matches; takes what the other takes.

        Without a task, no job at all may wait or run.
        """
        found = self.enqueued(task, *given, args=args, within=within, conn=conn, **expected)
        if found:
            wanted = (
                Expected.read(task, given, args, within, expected) if task else "no jobs at all"
            )
            raise AssertionError(matching.unexpected(wanted, found))

    # -- time

    def now(self) -> datetime:
        """Return the time of the database."""
        return self._clock.now()

    def travel(self, **by: float) -> None:
        """Move the time of the database by what `timedelta` takes: `travel(hours=2)`.

        Delays, retries, schedules and leases follow. The clock of Python does not.
        """
        self._declare_schedules(apps())
        self._clock.advance(length := timedelta(**by))
        self._age_lease(length)

    def travel_to(self, at: datetime) -> None:
        """Move the time of the database to a moment, from which it runs on.

        Slots of schedules count from there, unless the time was moved before.
        """
        before = self._clock.now()
        self._clock.set(at)
        self._age_lease(at - before)
        self._declare_schedules(apps())

    # -- faults

    def crash_next(self, task: Declared, at: str | None = None) -> None:
        """Let the worker of the task's next job vanish at a point, as by kill -9.

        By default that is before its first commit or, if it commits nothing, as it returns.
        Points are `start`, `before_commit` and `after_commit` (of any transaction on a connection
        of psycopg 3), `return` (the handler has returned, and its job is not settled), and the
        note of a `current().progress(…)`. The job stays leased: the next attempt runs when the
        lease has expired, with `travel` or `drain(wait=True)`.
        """
        fault = Fault("crash", at or "before_commit")
        self._faults.arm(fault, _kind(task), or_at_return=at is None)

    def lose_lease(self, task: Declared, at: str = "start") -> None:
        """Let another worker take the task's next job while its handler runs, at a point.

        From there `current().held()` is False, and what is written in `current().transaction()` is
        rolled back. The job runs again in the same drain.
        """
        self._faults.arm(Fault("lose_lease", at), _kind(task))

    def drop_connection_at(
        self,
        point: Literal["commit"],
        *,
        committed: bool = True,
        task: Declared | None = None,
    ) -> None:
        """Cut the connection at the next commit, on any connection of psycopg 3 in this process.

        Whoever commits gets the error of a lost connection and cannot know whether the server has
        `committed`. With a task, only commits in its handler count.
        """
        if point != "commit":
            raise Misuse(f"a connection is cut at 'commit', not at {point!r}")
        at = "after_commit" if committed else "before_commit"
        self._faults.arm(Fault("drop_connection", at), _kind(task) if task else None)

    def assert_effect_once(
        self,
        call: Call[Any],
        effect: "str | Callable[[], int | Sized]",
        *,
        under: Sequence[Fault] = FAULTS,
    ) -> None:
        """Run a call under each fault, and raise AssertionError unless its effect is there once.

        `effect` counts: SQL that selects a number and may use the call's arguments by name, or a
        function that returns a number or a collection. Between faults the database returns to
        what it was, for which all connections to it are closed.
        """
        off_loop(lambda: assert_once(self, call, effect, under))

    # -- its own

    def _drained(self, chosen: Sequence[App] | None, wait: bool, limit: int) -> Drained:
        _refuse_in_loop()
        runner = self._runner = self._runner or asyncio.Runner()
        with self._one_drain(chosen, limit) as draining:
            if draining is None:
                return Drained()
            try:
                while True:
                    for job in draining.jobs():
                        with self._around(job):
                            ended = draining.run(job, runner)
                        draining.settle(job, ended)
                    if not (wait and self._waited_for(draining)):
                        break
            finally:
                runner.run(draining.close())
        return draining.report

    def _has_committed(self, door: Any) -> bool:
        """Whether jobs that were enqueued on a door are committed."""
        return isinstance(door, Pool | AsyncPool)

    @contextmanager
    def _around(self, job: CurrentJob) -> Iterator[None]:
        """Surround the call of a handler in this thread."""
        yield

    @contextmanager
    def _returning(self) -> Iterator[Callable[[], None]]:
        """Remember the database as it is; yields how to return to that."""
        if self._databases is None:
            raise Misuse(
                "the database was not made by the test kit and cannot be copied",
                fix="Name one fault at a time:  under=[fault]",
            )
        with self._databases.snapshot(self.url) as restore:

            def to_it() -> None:
                self._connect_again()
                restore()

            self._connect_again()
            yield to_it

    def _connect_again(self) -> None:
        self.client.close()
        for app in apps():
            disconnect(app)
        self.client = self._faults.client = Client(self.url, application_name=APPLICATION)
        self._clock = Clock(self.client)

    def _database(self, app: App) -> embedded.Database:
        self._used.add(app)
        return embedded.Database(self.url, "test")

    @contextmanager
    def _one_drain(self, chosen: Sequence[App] | None, limit: int) -> Iterator[Draining | None]:
        """Begin a drain, unless a handler of one calls this: that one goes on with the rest."""
        if self._draining:
            yield None
            return
        tasks, unclear = tasks_of(chosen, self._used)
        self._declare_queues({task.app for task in tasks.values()})
        self._draining = Draining(
            self.client, tasks, faults=self._faults, unclear=unclear, limit=limit
        )
        try:
            yield self._draining
        finally:
            self._draining = None

    def _waited_for(self, draining: Draining) -> bool:
        """Move the time to what comes next; False if nothing does."""
        if (length := draining.wait()) is None:
            return False
        self._clock.advance(length)
        return True

    def _declare_schedules(self, chosen: Sequence[App]) -> None:
        """Declare schedules as a worker does when it starts: from then on their slots count.

        Only before the time is moved: else the slot of a full minute would come in some tests.
        """
        for app in chosen:
            new = [one for one in app.schedules if one.name not in self._declared]
            if new:
                self._declared.update(one.name for one in new)
                self.client.schedules.declare(new, owner=app.name)
                Draining(self.client, {}).catch_up()

    def _declare_queues(self, chosen: Iterable[App]) -> None:
        """Store the settings of queues as a worker does when it starts."""
        for app in chosen:
            if app.queues:
                self.client.queues.declare(app.queues)

    def _age_lease(self, length: timedelta) -> None:
        if self._draining and (job := self._draining.running):
            job.deadline -= length.total_seconds()

    def _live(self, conn: Any) -> list[Job]:
        client = self.client if conn is None else client_on(conn)
        # All of them: of a page, an assertion that there is no such job could not fail.
        found: list[Job] = []
        while some := client.jobs.list(
            "state:queued,leased", limit=PAGE, before=found[-1].id if found else None
        ):
            found += some
        return found[::-1]

    def _hint(self, conn: Any) -> str:
        sql = (
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and state = 'idle in transaction'"
        )
        [(count,)] = self.client._door.run(Statement("open", sql, reads=True))
        if conn is not None or not count:
            return ""
        return "A transaction is open: to see what it has not committed, pass  conn="

    def _stop_loop(self) -> None:
        if self._runner:
            self._runner.close()


def _kind(task: Any) -> str:
    kind = getattr(task, "kind", None)
    if not isinstance(kind, str):
        raise Misuse(f"{task!r} is not a task", fix="Give it the function under @app.task.")
    return kind


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def _refuse_in_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Misuse(
        "drain() was called in a running event loop", fix="Write:  await holdfast.adrain()"
    )
