"""What a test has in its hands: a database of its own, and ways to look at jobs and run them."""

import asyncio
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from holdfast import conninfo, embedded
from holdfast.app import App, Task, apps, stand_in
from holdfast.client import Client, client_on
from holdfast.client.statement import Statement
from holdfast.errors import Misuse
from holdfast.records import Duration, Job
from holdfast.testing import matching
from holdfast.testing.clock import Clock
from holdfast.testing.draining import LIMIT, Draining, raise_first, tasks_of
from holdfast.testing.matching import WITHIN, Expected
from holdfast.testing.report import Drained

# How often a drain that waits moves the time: retries of one job, at most.
_MOST_WAITS = 200
# A job that is due in a moment: the clock of the database is read in another statement.
_A_MOMENT = timedelta(milliseconds=1)


class Kit:
    """A test's own database, in which all apps of the process enqueue while it is open.

    `url` is its address, for connections of your own; `client` is a client of it. HOLDFAST_URL
    names it, too.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = Client(url, application_name="holdfast test")
        self._clock = Clock(self.client)
        self._used: weakref.WeakSet[App] = weakref.WeakSet()
        self._declared: set[str] = set()
        self._open = ExitStack()
        self._runner: asyncio.Runner | None = None
        self._draining: Draining | None = None

    def __enter__(self) -> Self:
        self._open.callback(self.client.close)
        self._open.enter_context(_environment(conninfo.VARIABLE, self.url))
        self._open.enter_context(stand_in(self._database))
        self._open.callback(self._stop_loop)
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
        _refuse_in_loop()
        self._runner = self._runner or asyncio.Runner()
        with self._one_drain(apps, limit) as draining:
            if draining is None:
                return Drained()
            try:
                for _ in range(_MOST_WAITS):
                    for job in draining.jobs():
                        draining.settle(job, draining.run(job, self._runner))
                    if not (wait and self._waited_for(draining)):
                        break
            finally:
                self._runner.run(draining.close())
        if raises:
            raise_first(draining.report)
        return draining.report

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
                for _ in range(_MOST_WAITS):
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
        return draining.report

    # -- looking

    def enqueued(
        self,
        task: "Task[..., Any, Any] | str | None" = None,
        *,
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
        wanted = Expected.read(task, args, within, expected)
        return [job for job in jobs if not wanted.differences(job)]

    def assert_enqueued(
        self,
        task: "Task[..., Any, Any] | str",
        *,
        args: Mapping[str, Any] | None = None,
        count: int | None = None,
        within: Duration = WITHIN,
        conn: Any = None,
        **expected: Any,
    ) -> Job:
        """Raise AssertionError unless a job of the task waits or runs; returns it.

        Name any of its arguments, and any fields of the job: queue, key, lane, tenant, subject,
        priority, max_attempts, headers, delay, and run_at, give or take `within` seconds. `args`
        has arguments whose names are taken. `count` is how many jobs must match; by default one or
        more. `conn` looks inside a transaction that is not committed.
        """
        wanted = Expected.read(task, args, within, expected)
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
        task: "Task[..., Any, Any] | str | None" = None,
        *,
        args: Mapping[str, Any] | None = None,
        within: Duration = WITHIN,
        conn: Any = None,
        **expected: Any,
    ) -> None:
        """Raise AssertionError if a job waits or runs that matches; takes what the other takes.

        Without a task, no job at all may wait or run.
        """
        found = self.enqueued(task, args=args, within=within, conn=conn, **expected)
        if found:
            wanted = Expected.read(task, args, within, expected) if task else "no jobs at all"
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

    # -- its own

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
        self._draining = Draining(self.client, tasks, unclear=unclear, limit=limit)
        try:
            yield self._draining
        finally:
            self._draining = None

    def _waited_for(self, draining: Draining) -> bool:
        """Move the time to what comes next; False if nothing does."""
        if (length := draining.wait()) is None:
            return False
        self._clock.advance(timedelta(seconds=max(length, 0.0)) + _A_MOMENT)
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

    def _age_lease(self, length: timedelta) -> None:
        if self._draining and (job := self._draining.running):
            job.deadline -= length.total_seconds()

    def _live(self, conn: Any) -> list[Job]:
        client = self.client if conn is None else client_on(conn)
        return list(client.jobs.list("state:queued,leased", limit=10_000))[::-1]

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
