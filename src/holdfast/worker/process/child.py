"""What runs in a child of the worker: the handlers of `process=True` tasks, one after the other.

The worker renews the lease and calls the database. The child decodes the arguments, runs the
handler and decides the outcome. Through the pipe it sends `ready` or `broken`, then for each job
`noted`, `logged`, `ending` and `ended` as they happen, and `done`.
"""

import asyncio
import faulthandler
import inspect
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any

from msgspec.structs import replace
from psycopg import AsyncConnection, Connection

from holdfast.app import App
from holdfast.current import CurrentJob
from holdfast.job_transaction import JobTransaction
from holdfast.records import Duration, Failed, Lease, Settlement, Ticket
from holdfast.worker.handlers import call, ending, settlement_of
from holdfast.worker.logs import Log, capture_logs
from holdfast.worker.process.source import AppSource
from holdfast.worker.process.spawned import belong, ignore_stops
from holdfast.worker.screen import Screen

# Notes more frequent than this are combined; the last one counts.
QUIET = 0.1
# Lines are sent to the worker as seldom as this.
GATHERED = 0.5


def run(parent: int, source: AppSource, pipe: Any, deadline: Any, screen: Screen | None) -> None:
    """Run the jobs from the pipe until it is told to end."""
    belong(parent)
    ignore_stops()
    with screen.shown() if screen else nullcontext():
        _work(source, pipe, deadline)


def _work(source: AppSource, pipe: Any, deadline: Any) -> None:
    # The traceback of a process that crashes.
    with suppress(AttributeError, OSError, ValueError):
        faulthandler.enable()
    worker = WorkerPipe(pipe)
    try:
        app = source.app()
        loop = Loop(app)
    except BaseException:
        worker.say("broken", traceback.format_exc())
        sys.exit(1)
    worker.say("ready")
    # A worker that has ended sends nothing more.
    with suppress(EOFError, OSError):
        while order := pipe.recv():
            lease, lease_seconds = order
            job = ChildJob.of(app, lease, lease_seconds, worker, deadline)
            with capture_logs():
                settlement, spent = copy_context().run(_run, job, loop)
            _flush()
            worker.end(job, settlement, spent)
            if spent:
                break
    loop.close()
    app.close()


class WorkerPipe:
    """The pipe to the worker, shared by all threads of a handler."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._job: ChildJob | None = None
        self._speak_at = 0.0
        self._timer: threading.Timer | None = None
        self._lines_timer: threading.Timer | None = None

    def say(self, *message: Any) -> None:
        """Send the worker a message about this process."""
        with self._lock:
            self._pipe.send(message)

    def begin(self, job: "ChildJob") -> None:
        """Send messages for this job from now on."""
        with self._lock:
            self._job = job

    def end(self, job: "ChildJob", settlement: Settlement | None, spent: bool) -> None:
        """Send how the job ended; later messages of its threads are ignored."""
        with self._lock:
            self._pass_on_lines()
            self._job = None
            job.finished = True
            self._pipe.send(("done", settlement, spent))

    @contextmanager
    def ending(self, job: "ChildJob") -> Iterator[None]:
        """Inform the worker, before it happens, that this process ends the lease."""
        with self._lock:
            known = self._job is job
            # Without a worker the database alone decides who holds the lease.
            with suppress(EOFError, OSError):
                if known:
                    self._pipe.send(("ending",))
                    self._pipe.recv()
        try:
            yield
        finally:
            with self._lock, suppress(OSError):
                if known and self._job is job:
                    self._pipe.send(("ended", job.settled, job.ticket))

    def renew_soon(self) -> None:
        """Pass on what the handler noted: at once, or a moment after the last time."""
        with self._lock:
            wait = self._speak_at - monotonic()
            if wait <= 0:
                self._pass_on()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._speak)
                self._timer.daemon = True
                self._timer.start()

    def lines_soon(self) -> None:
        """Pass on what the handler logged, in a moment."""
        with self._lock:
            if self._lines_timer is None and self._job:
                self._lines_timer = threading.Timer(GATHERED, self._speak_lines)
                self._lines_timer.daemon = True
                self._lines_timer.start()

    def _speak_lines(self) -> None:
        with self._lock, suppress(OSError):
            self._lines_timer = None
            self._pass_on_lines()

    def _pass_on_lines(self) -> None:
        if self._job and self._job.log:
            first, lines = self._job.log.unshown()
            self._job.log.shown(first + len(lines) - 1)
            if lines:
                self._pipe.send(("logged", lines))

    def _speak(self) -> None:
        with self._lock, suppress(OSError):
            self._timer = None
            self._pass_on()

    def _pass_on(self) -> None:
        if job := self._job:
            note, job.noted = job.noted, None
            soon, job.renew_at = job.renew_at == 0.0, inf
            self._speak_at = monotonic() + QUIET
            self._pipe.send(("noted", note, soon))


class ChildLog(Log):
    """What a handler in this process logs, which the worker gets to know as well."""

    def __init__(self, worker: WorkerPipe) -> None:
        super().__init__()
        self._worker = worker

    def add(self, record: str) -> None:
        """Add a record, and have it sent."""
        super().add(record)
        self._worker.lines_soon()


class ChildJob(CurrentJob, eq=False, kw_only=True):
    """A job whose lease another process renews, which writes here how long it is certainly held.

    The monotonic clock is one for both.
    """

    _worker: WorkerPipe
    _shared: Any
    _deadline: float | None = None

    @classmethod
    def of(
        cls, app: App, lease: Lease, lease_seconds: float, worker: WorkerPipe, shared: Any
    ) -> "ChildJob":
        """Begin a job that the worker has sent."""
        job = cls(
            task=app.handlers[lease.kind],
            _keeps=worker,
            queue=lease.queue,
            claim=None,
            row=(),
            token=lease.token.bytes,
            lease_seconds=lease_seconds,
            renew_at=inf,
            log=ChildLog(worker),
            _lease=lease,
            _worker=worker,
            _shared=shared,
        )
        worker.begin(job)
        return job

    @property  # type: ignore[misc] # mypy takes a Struct for a dataclass
    def deadline(self) -> float:
        """How long the lease is certainly held, according to the worker or the hand-over."""
        shared: float = self._shared.value
        return shared if self._deadline is None else self._deadline

    @deadline.setter
    def deadline(self, value: float) -> None:
        self._deadline = value

    def _may_be_held(self) -> bool:
        """Whether the lease is not known to be lost."""
        # The next job of this process has its own deadline in the same place.
        return not self.finished and super()._may_be_held()

    def transaction(self, result: Any = None) -> JobTransaction:
        """Yield a connection whose transaction includes the ack, as in the worker itself."""
        return ChildTransaction(self, super().transaction(result))

    def hand_over(self, timeout: Duration) -> Ticket:
        """Pass the lease to an external system, as in the worker itself."""
        with self._worker.ending(self):
            return super().hand_over(timeout)

    async def ahand_over(self, timeout: Duration) -> Ticket:
        """Like `hand_over`, for async handlers."""
        with self._worker.ending(self):
            return await super().ahand_over(timeout)


class ChildTransaction(JobTransaction):
    """A transaction whose commit the worker knows of before it happens."""

    def __init__(self, job: ChildJob, inner: JobTransaction) -> None:
        self._child = job
        self._inner = inner

    def __enter__(self) -> Connection[Any]:
        return self._inner.__enter__()

    async def __aenter__(self) -> AsyncConnection[Any]:
        return await self._inner.__aenter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        with self._child._worker.ending(self._child):
            return self._inner.__exit__(kind, error, traceback)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        with self._child._worker.ending(self._child):
            return await self._inner.__aexit__(kind, error, traceback)


class Loop:
    """The event loop of a child, in a thread of its own: what the lifespan opens lives on it.

    The main thread is left to handlers that are not coroutines.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._opened: Future[Any] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._hold()), name="holdfast-loop", daemon=True
        )
        self._thread.start()
        self.resources = self._opened.result()

    def result_of(self, job: ChildJob, returned: Any) -> Any:
        """Return what a handler returned; a coroutine is run on the loop first."""
        if not inspect.iscoroutine(returned):
            return returned
        try:
            return asyncio.run_coroutine_threadsafe(_run_on(job, returned), self._loop).result()
        except CancelledError:
            raise RuntimeError("the handler cancelled itself") from None

    def close(self) -> None:
        """Close what the lifespan opened."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _hold(self) -> None:
        try:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            async with self._app.resources() as resources:
                self._opened.set_result(resources)
                await self._over.wait()
            await self._app.aclose()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)


async def _run_on(job: ChildJob, handler: Coroutine[Any, Any, Any]) -> Any:
    job.runner = asyncio.current_task()
    return await handler


def _run(job: ChildJob, loop: Loop) -> tuple[Settlement | None, bool]:
    """Return how to end the job, and whether this process is not fit for another one."""
    job.resources = loop.resources
    returned, raised = None, None
    try:
        with _limited(job.task.memory):
            returned = loop.result_of(job, call(job))
    except BaseException as error:
        raised = error
    # Outside of the limit: what is decided needs memory, too.
    settlement = settlement_of(job, ending(job, returned, raised))
    if job.log and isinstance(settlement, Failed):
        settlement = replace(settlement, log=job.log.text())
    if settlement and isinstance(settlement.lease, Lease):
        # The worker has the lease with its payload.
        settlement = replace(settlement, lease=(job.id, job.lease.token))
    return settlement, isinstance(raised, MemoryError)


@contextmanager
def _limited(memory: int | None) -> Iterator[None]:
    if memory is None:
        yield
        return
    # Not RLIMIT_AS: that counts what threads only reserve, 64 MB each.
    import resource  # not on Windows, where no such child is started

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        memory = min(memory, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _flush() -> None:
    # What a handler printed is to be read now, also if this process is killed later.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
