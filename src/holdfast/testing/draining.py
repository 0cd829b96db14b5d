"""Runs due jobs in the process of a test, one after the other, as a worker would.

Jobs are claimed and settled by the protocol, and handlers are called as workers call them. There
are no threads, no notifications and no polling: what runs, and in which order, is the same each
time.
"""

import asyncio
import gc
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import copy_context
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import uuid4

from holdfast.app import App, Task, apps, disconnect
from holdfast.client import Client
from holdfast.client.statement import Statement
from holdfast.current import CurrentJob, running
from holdfast.errors import Misuse
from holdfast.outcome import Cancel, Release, Retry
from holdfast.records import (
    Cancelled,
    Done,
    Failed,
    Lease,
    Released,
    Settled,
    Settlement,
    Suspended,
)
from holdfast.testing.faults import CRASHED, Crashed, Faults
from holdfast.testing.report import Drained, Ended, Ran
from holdfast.upkeep.loop import Upkeep
from holdfast.worker.handlers import Ending, call, ending, settlement_of
from holdfast.worker.lease_clock import believed

# More attempts than this in one drain are a task that enqueues or releases itself for ever.
LIMIT = 1000

# A drain that waits gives up after so many waits in a row after which nothing ran.
_MOST_IN_VAIN = 10
# The clock of the database is read in another statement than the one that finds a job due.
_A_MOMENT = timedelta(milliseconds=1)

_DUE = """
select array(
         select queue from holdfast.job
         where token is null and not blocked and run_at <= holdfast.now() and kind = any(%s::text[])
         group by queue order by min(run_at), queue)
       || array(select queue from holdfast.adopted order by queue),
       exists (select from holdfast.lease where open and until <= holdfast.now()),
       exists (select from holdfast.schedule
               where next_at <= holdfast.now() and paused_at is null and withdrawn_at is null)
"""
_UNCLEAR = "select kind from holdfast.job where kind = any(%s::text[]) and token is null limit 1"
_NEXT = """
select min(case when token is null then run_at else lease_until end) - holdfast.now()
from holdfast.job where kind = any(%s::text[]) and not blocked
"""


class Draining:
    """One drain: which tasks it runs, and what it has run so far."""

    def __init__(
        self,
        client: Client,
        tasks: Mapping[str, Task[..., Any, Any]],
        *,
        faults: Faults | None = None,
        unclear: Iterable[str] = (),
        limit: int = LIMIT,
    ) -> None:
        self.report = Drained()
        self._client = client
        self._tasks = tasks
        self._kinds = sorted(tasks)
        self._faults = faults or Faults(client)
        self._unclear = list(unclear)
        self._limit = limit
        self._worker = f"test-{uuid4().hex[:8]}"
        self._stack = AsyncExitStack()
        self._resources: dict[App, Any] = {}
        self.running: CurrentJob | None = None
        self._ran = self._in_vain = 0

    def jobs(self) -> Iterator[CurrentJob]:
        """Lease due jobs one after the other until none is left; each is to be settled."""
        found = True
        while found:
            found = False
            for queue in self._due():
                while leases := self._claim(queue):
                    found = True
                    yield self._begun(leases[0])
                    self._refuse_more()

    def run(self, job: CurrentJob, runner: asyncio.Runner) -> "Ending | Crashed":
        """Call a handler in this thread, an async one on the loop of the runner."""
        if self._faults.may_crash(job):
            return self._faults.run_apart(self._apart(job))
        if job.app not in self._resources:
            self._resources[job.app] = runner.run(self._opened(job.app))
        job.resources = self._resources[job.app]
        if job.task.runs == "async":
            return runner.run(self._acall(job), context=copy_context())
        return copy_context().run(self._call, job)

    async def arun(self, job: CurrentJob) -> "Ending | Crashed":
        """Call a handler, an async one on this loop and others in a thread."""
        if self._faults.may_crash(job):
            return await asyncio.to_thread(self._faults.run_apart, self._apart(job))
        if job.app not in self._resources:
            self._resources[job.app] = await self._opened(job.app)
        job.resources = self._resources[job.app]
        if job.task.runs == "async":
            task = asyncio.get_running_loop().create_task(self._acall(job), context=copy_context())
            return await task
        return await asyncio.to_thread(self._call, job)

    def settle(self, job: CurrentJob, ended: "Ending | Crashed") -> None:
        """Report to the database how a handler ended, and note it."""
        job.finished, self.running = True, None
        if ended is CRASHED:
            disconnect(job.app)  # its connections went with the worker
            self.note(job, "crashed")
            return
        self._faults.ended(job)
        settlement = settlement_of(job, ended)
        how: Ended
        if settlement is None:
            how = "done" if job.settled else "handed over" if job.ticket else "lost"
        else:
            [answer] = self._client.settle([settlement])
            how = _how(settlement, answer)
        raised, job.raised = job.raised, None
        self.note(job, how, raised)

    def note(self, job: CurrentJob, how: Ended, raised: BaseException | None = None) -> None:
        """Add an attempt to the report."""
        self.report.ran.append(Ran(job.id, job.kind, job.attempt, how, raised))

    async def close(self) -> None:
        """Close the resources of the lifespans."""
        await self._stack.aclose()

    def wait(self) -> timedelta | None:
        """Return when the next job comes due or a lease ends; None if waiting is of no use."""
        length: timedelta | None
        [(length,)] = self._query(_NEXT)
        self._in_vain = 0 if len(self.report) > self._ran else self._in_vain + 1
        self._ran = len(self.report)
        if length is None or self._in_vain > _MOST_IN_VAIN:
            return None
        if length > timedelta():
            return length + _A_MOMENT
        # Due, and nobody may claim it yet: a rate that is used up, a pause, a lane that is busy.
        return timedelta(seconds=2**self._in_vain)

    def _apart(self, job: CurrentJob) -> Callable[[], Ending]:
        """Return how to run a handler as in another process: with a loop and resources of its own.

        They are never closed if it crashes.
        """

        def run() -> Ending:
            with asyncio.Runner() as runner:
                opened = job.app.resources()
                job.resources = runner.run(opened.__aenter__())
                try:
                    if job.task.runs == "async":
                        ended = runner.run(self._acall(job), context=copy_context())
                        if isinstance(job.raised, RuntimeError) and _LOOP in str(job.raised):
                            job.raised.add_note(_APART)
                        return ended
                    return copy_context().run(self._call, job)
                finally:
                    runner.run(opened.__aexit__(None, None, None))

        return run

    def _call(self, job: CurrentJob) -> Ending:
        running.set(job)
        try:
            self._faults.reach("start")
            returned = call(job)
            self._faults.reach("return")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return ending(job, None, error)
        return ending(job, returned)

    async def _acall(self, job: CurrentJob) -> Ending:
        running.set(job)
        job.runner = asyncio.current_task()
        try:
            self._faults.reach("start")
            returned = await call(job)
            self._faults.reach("return")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return ending(job, None, error)
        return ending(job, returned)

    async def _opened(self, app: App) -> Any:
        return await self._stack.enter_async_context(app.resources())

    def _query(self, sql: Any, kinds: list[str] | None = None) -> list[tuple[Any, ...]]:
        named = self._kinds if kinds is None else kinds
        return self._client._door.run(Statement("due", sql, [named], reads=True))

    def _due(self) -> list[str]:
        """Return the queues with due jobs, after upkeep if there is something for it to do."""
        self._refuse_unclear()
        [(queues, expired, slots)] = self._query(_DUE)
        if expired or slots:
            self.catch_up()
            [(queues, *_)] = self._query(_DUE)
        return list(queues)

    def catch_up(self) -> None:
        """Do what the upkeep of a worker would have done by now."""
        checks = {kind: task.check for kind, task in self._tasks.items() if task.check}
        if checks:
            # Only a living worker that has the checks is waited for.
            about = [{"kind": kind, "done_when": True} for kind in checks]
            self._client.kinds.declare(about)
            self._client.workers.beat(self._worker, kinds=self._kinds)
        Upkeep(self._client, holder=self._worker, checks=checks).catch_up()

    def _claim(self, queue: str) -> list[Lease]:
        self._sent = monotonic()
        return self._client.claim(queue, worker=self._worker, kinds=self._kinds)

    def _begun(self, lease: Lease) -> CurrentJob:
        job = leased(self._tasks[lease.kind], lease, self._client, self._sent, self._faults.reach)
        self.running = job
        return job

    def _refuse_unclear(self) -> None:
        kinds = self._query(_UNCLEAR, self._unclear) if self._unclear else []
        if kinds:
            raise Misuse(
                f"several apps have a task of the kind {kinds[0][0]!r}",
                fix="Choose whose tasks run:  drain(apps=[app])",
            )

    def _refuse_more(self) -> None:
        if len(self.report) >= self._limit:
            raise Misuse(
                f"{self._limit} attempts have run, and there are still due jobs",
                why=f"The last one was: {self.report.ran[-1]}",
                fix="A task that enqueues or releases itself never ends. For more: drain(limit=…)",
            )


def leased(
    task: Task[..., Any, Any],
    lease: Lease,
    client: Client,
    sent: float | None = None,
    noted: Callable[[str], None] = lambda note: None,
) -> CurrentJob:
    """Return what `current()` returns in the handler of a leased job."""
    sent = monotonic() if sent is None else sent
    length = lease.length.total_seconds()
    deadline, renew_at = believed(sent, length)
    keeps = _Keeps(client, noted)
    job = CurrentJob(
        task,
        keeps,
        lease.queue,
        None,
        (),
        lease.token.bytes,
        length,
        sent,
        deadline,
        renew_at,
        _lease=lease,
    )
    job.started = monotonic()
    keeps.job = job
    return job


class _Keeps:
    """Renews the lease of one job when its handler asks for that, at once."""

    job: CurrentJob

    def __init__(self, client: Client, noted: Callable[[str], None]) -> None:
        self._client = client
        self._noted = noted

    def renew_soon(self) -> None:
        """Renew, with what the handler reported."""
        job, sent = self.job, monotonic()
        note, job.noted = job.noted, None
        progress = None if note is None else [note]
        [answer] = self._client.touch([job.lease], progress=progress)
        if answer.held:
            job.deadline, job.renew_at = believed(sent, job.lease_seconds)
        elif not (job.ticket or job.settled or job.finished):
            job.deadline = 0.0
        if note and "note" in note:
            self._noted(str(note["note"]))


def tasks_of(
    chosen: Sequence[App] | None, used: Container[App]
) -> tuple[dict[str, Task[..., Any, Any]], set[str]]:
    """Return the tasks to run by kind, of the apps chosen, else of all; and the unclear kinds.

    If several apps have a kind, that of an app which was used in this test counts.
    """
    found = _by_kind(chosen or apps())
    if any(len(tasks) > 1 for tasks in found.values()) and not chosen:
        gc.collect()  # apps of earlier tests may be nothing but garbage
        found = _by_kind(apps())
    clear = {}
    for kind, tasks in found.items():
        of_used = [task for task in tasks if task.app in used] or tasks
        if len(of_used) == 1:
            clear[kind] = of_used[0]
    return clear, found.keys() - clear.keys()


def raise_first(report: Drained) -> None:
    """Raise what the first handler that failed raised, unless it only asked for another attempt."""
    failures = [ran for ran in report if ran.ended in ("failed", "dead")]
    errors = [ran for ran in failures if ran.error and not isinstance(ran.error, _STEERS)]
    if not errors:
        return
    first, *others = errors
    assert first.error is not None
    more = "".join(f"\n  {ran}" for ran in others)
    first.error.add_note(
        f"raised by the handler of {first.kind}, job {first.id}, attempt {first.attempt}: "
        f"{first.ended}" + (f"\nand then:{more}" if more else "")
    )
    raise first.error


def _by_kind(chosen: Sequence[App]) -> dict[str, list[Task[..., Any, Any]]]:
    found: dict[str, list[Task[..., Any, Any]]] = {}
    for app in chosen:
        for kind, task in app.tasks.items():
            found.setdefault(kind, []).append(task)
    return found


def _how(settlement: Settlement, answer: Settled) -> Ended:
    if not answer.held:
        return "lost"
    match settlement:
        case Done():
            return "done"
        case Failed():
            return "dead" if answer.outcome == "dead" else "failed"
        case Released():
            return "released"
        case Cancelled():
            return "cancelled"
        case Suspended():
            return "suspended"


_STEERS = (Retry, Release, Cancel)
# What asyncio says of something that another event loop has opened.
_LOOP = "attached to a different loop"
_APART = (
    "A handler that is to crash runs on an event loop of its own, as in another process. Let it "
    "use what  @app.lifespan  yields, which is opened there again; or connections without a pool."
)
