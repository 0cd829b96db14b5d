"""The worker: claims jobs, runs their handlers, renews their leases, and settles them."""

import asyncio
import logging
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from holdfast import __version__, budget, conninfo
from holdfast.app import App, Task
from holdfast.client import Client
from holdfast.errors import HoldfastError, Misuse, Unavailable, UnknownOutcome
from holdfast.jitter import random_between
from holdfast.outcome import Stop, seconds
from holdfast.records import Duration
from holdfast.upkeep.listener import Listener
from holdfast.upkeep.loop import DoneWhen, Upkeep
from holdfast.watch.meter import Address, Meter
from holdfast.worker.allowance import Allowance
from holdfast.worker.asyncs import STUBBORN, AsyncRunner
from holdfast.worker.cancelling import stopped_in_order
from holdfast.worker.health import LATE as LATE_LEASES
from holdfast.worker.health import served
from holdfast.worker.lease_clock import USUAL_LEASE
from holdfast.worker.leases import Keeper, LoopWatch
from holdfast.worker.logs import capture_logs
from holdfast.worker.loop import JobLoop, Runner
from holdfast.worker.process.runner import ProcessRunner
from holdfast.worker.process.source import find_source
from holdfast.worker.process.spawned import refuse_off_unix
from holdfast.worker.queue_slots import QueueSlots
from holdfast.worker.settling import Counts
from holdfast.worker.strange_queues import warn_of_strange_queues
from holdfast.worker.threads import ThreadRunner

__all__ = ["Worker", "refuse_in_loop"]

log = logging.getLogger("holdfast.worker")

BEAT_EVERY = 15.0
# A beat that took longer shows a clock that is behind, which another at once puts right.
LATE = 1.0
# How long after the grace period leases may still be released.
OVERTIME = 4.0
GRACE = 25.0
# How long a worker that is leaving still waits for notifications sent before.
LAST_WORDS = 0.5
# With jitter, even the longer one finds jobs of a dead worker within five seconds.
POLL_HEARING, POLL_DEAF = 3.5, 1.0


class Worker:
    """Runs the jobs of an app in this process until it is stopped.

    `queues` says how many handlers of each queue run at once; by default `concurrency` for every
    queue that a task names. It claims only the kinds it has. `poll` is how often it looks at a
    queue that has been empty for a while; by default every 3.5 seconds, and every second if nothing
    tells it of work. `metrics` is a port, or an address and a port, where Prometheus can read what
    it measures. `lease` is how long its leases are, renewed while handlers run; without it, what
    the queue says. A job with a lease of its own keeps that. `timeout` is how long its calls of the
    database may take; the app's by default. `health` is a port, or an address and a port, where a
    service manager can ask `/livez` and `/readyz`.
    """

    def __init__(
        self,
        app: App,
        *,
        queues: Mapping[str, int] | None = None,
        concurrency: int = 8,
        kinds: Iterable[str] | None = None,
        lease: Duration | None = None,
        grace: Duration = GRACE,
        until_idle: bool = False,
        max_jobs: int | Allowance | None = None,
        poll: Duration | None = None,
        upkeep: bool = True,
        metrics: str | int | None = None,
        timeout: Duration | None = None,
        health: str | int | None = None,
    ) -> None:
        self.app = app
        self.id = f"{socket.gethostname().split('.')[0][:40]}-{uuid4().hex[:8]}"
        self.kinds = _kinds(app, kinds)
        for kind in self.kinds:
            if app.handlers[kind].runs == "process":
                refuse_off_unix(f"task {kind!r} has process=True")
        self.queues = _queues(app, self.kinds, queues, concurrency)
        self._lease = None if lease is None else seconds(lease)
        self._grace = seconds(grace)
        self._timeout = app.timeout if timeout is None else timeout
        self._upkeep = upkeep
        self._metrics = None if metrics is None else Address.read(metrics)
        self._meter = None if metrics is None else Meter()
        self._health = None if health is None else Address.read(health)
        self._looks_every = None if poll is None else seconds(poll)
        self._until_idle = until_idle
        self._allowance = Allowance(max_jobs) if isinstance(max_jobs, int) else max_jobs
        self._stop_asked = threading.Event()
        self.counts = Counts()
        self._listener: Listener | None = None
        self._over = threading.Event()
        self._gone = threading.Event()
        self._woken = threading.Event()
        self._owns_process = False
        # Due from the start: a worker that is stopped early may beat before it has declared itself.
        self._beat_at = 0.0
        self._failure: BaseException | None = None
        self._keeping: Keeper | None = None
        self._wake_main: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Work until stopped by a signal or `stop`; raises if any part of it fails."""
        refuse_in_loop()
        self._owns_process = True
        # Of the two loops of Windows, psycopg can use only this one.
        windows = sys.platform == "win32"
        loop = asyncio.SelectorEventLoop() if windows else asyncio.new_event_loop()
        with _signals(self._signalled):
            try:
                loop.run_until_complete(self.run_async())
            finally:
                _close(loop)

    @property
    def connections(self) -> budget.Budget:
        """How many connections this process may open, and what for; not those of its children."""
        sorts = sum(self._runs(sort) for sort in ("async", "thread"))
        return budget.of_worker(sum(self.queues.values()), sorts)

    @property
    def hears(self) -> bool:
        """Whether notifications of new jobs arrive; otherwise it polls."""
        return self._listener is not None and self._listener.up

    def stop(self) -> None:
        """Stop claiming, let handlers finish within the grace period, then release the rest."""
        self._stop_asked.set()

    async def run_async(self) -> None:
        """Like `run`, on the running event loop, without handling signals; cancelling stops it."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        url = self.app.url
        self.app.make_room(sum(self.queues.values()))
        name = f"holdfast {self.id}"
        listen_url = os.environ.get(conninfo.LISTEN_VARIABLE)
        # Renewals have their own connection, with a timeout shorter than the leases, and past the
        # pooler where there is one: handlers that hold transactions may hold all that it has.
        patience = max(0.5, min((self._lease or USUAL_LEASE) / 6, 3.0))
        with (
            capture_logs(),
            Client(
                url,
                pool_size=budget.OWN,
                timeout=self._timeout,
                application_name=name,
                listen_url=listen_url,
            ) as client,
            Client(
                client.listen_url, pool_size=1, timeout=patience, application_name=name
            ) as renewals,
            ExitStack() as opened,
        ):
            self._listener = listener = Listener(
                client, worker=self.id, heard=self._heard, changed=self._listen_again
            )
            self._client = client
            self._jobs = jobs = JobLoop(
                self.app,
                client,
                [QueueSlots(name, slots, self.kinds) for name, slots in self.queues.items()],
                worker=self.id,
                counts=self.counts,
                lease=self._lease,
                poll=self._poll,
                stopping=self._stop_asked,
                ear=lambda: listener.ear,
                doubt=listener.doubt,
                until_idle=self._until_idle,
                allowance=self._allowance,
                meter=self._meter,
            )
            self._watch = LoopWatch(jobs, loop, threading.get_ident())
            self._watch_itself()
            opened.enter_context(self._measured())
            opened.enter_context(self._answering())
            opened.callback(self._gone.set)
            self._keeper = keeper = Keeper(jobs, renewals, self._watch)
            asyncs, threads = AsyncRunner(loop, jobs.finish), ThreadRunner(jobs.finish)
            runners: dict[str, Runner] = {"async": asyncs, "thread": threads}
            processes = None
            if self._runs("process"):
                processes = ProcessRunner(find_source(self.app), jobs.finish, self._fail)
                runners["process"] = processes
            # In threads: the loop may belong to a web application, which a database that does not
            # answer must not stop.
            await asyncio.to_thread(self._insist, partial(self._prepare, client))
            async with self._resources() as resources:
                asyncs.resources = threads.resources = resources
                work: dict[str, Callable[[], None]] = {
                    "keeper": lambda: keeper.run(self._over, lambda: self._beat(renewals)),
                    "watch": lambda: keeper.watch(self._over),
                }
                if self._upkeep:
                    upkeep = Upkeep(
                        client,
                        holder=self.id,
                        checks=_checks(self.app),
                        detectors=self.app.detectors,
                        queues=list(self.queues),
                        empty=jobs.claiming.seen_empty,
                    )
                    work["upkeep"] = lambda: upkeep.run(self._over)
                    if self._until_idle:
                        # It may be the only worker: overdue jobs count as work.
                        await asyncio.to_thread(self._insist, upkeep.turn)
                parts = [self._part(name, part) for name, part in work.items()]
                # It listens until the end: notifications that arrive while it leaves are passed on.
                hearing = self._part("listener", lambda: listener.run(self._gone))
                working = self._part("loop", lambda: jobs.run(runners, keeper))
                self._tell_started(keeper)
                closing = partial(self._close_down, jobs, working, parts)
                closer = threading.Thread(target=closing, name="holdfast-closer", daemon=True)
                self._wake_main = partial(_set_soon, loop, ended)
                closer.start()
                cancelled = await stopped_in_order(ended, self.stop)
                self._woken.set()
                threads.close()
                if processes:
                    processes.close()
            if not working.is_alive():
                with suppress(HoldfastError):  # else its row says when it was seen last
                    await asyncio.to_thread(self._leave, renewals, jobs)
                    await asyncio.to_thread(listener.catch_up, LAST_WORDS)
            self._gone.set()
            await asyncio.to_thread(hearing.join, LAST_WORDS)
        if error := self._failure or cancelled:
            raise error

    def _leave(self, client: Client, jobs: JobLoop) -> None:
        client.workers.beat(self.id, measured=jobs.settling.measured(), **self._facts())
        client.workers.leave(self.id)

    def _tell_started(self, keeper: Keeper) -> None:
        keeper.looked = monotonic()
        self._keeping = keeper
        facts = {"worker": self.id, "queues": self.queues, "kinds": self.kinds}
        log.info("worker started", extra={**facts, "connections": self.connections.total})

    def _watch_itself(self) -> None:
        if self._meter is None:
            return
        watch = self._meter.watch
        watch("listen_up", "Whether notifications arrive; else it polls", lambda: self.hears)
        watch("loop_lag_seconds", "How late the event loop answered last", lambda: self._watch.lag)

    @contextmanager
    def _measured(self) -> Iterator[None]:
        if self._meter is None or self._metrics is None:
            yield
            return
        with self._meter.served(self._metrics):
            log.info("metrics", extra={"worker": self.id, "address": str(self._metrics)})
            yield

    @contextmanager
    def _answering(self) -> Iterator[None]:
        if self._health is None:
            yield
            return
        with served(self._health, self.why_dead, self.why_not_ready):
            log.info("health", extra={"worker": self.id, "address": str(self._health)})
            yield

    def why_dead(self) -> str:
        """Say why this worker should be killed; nothing while it keeps its leases."""
        if self._keeping is None or self._over.is_set():
            return ""
        late = monotonic() - self._keeping.looked
        return f"leases have not been kept for {late:.0f} s" if late > LATE_LEASES else ""

    def why_not_ready(self) -> str:
        """Say why this worker does not claim; nothing while it does."""
        if self._stop_asked.is_set():
            return "stopping"
        return "starting" if self._keeping is None else ""

    def _runs(self, *sorts: str) -> bool:
        return any(self.app.handlers[kind].runs in sorts for kind in self.kinds)

    def _resources(self) -> AbstractAsyncContextManager[Any]:
        # Child processes open their own; without other handlers nothing here would use them.
        return self.app.resources() if self._runs("async", "thread") else nullcontext()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stop_asked.set()

    def _part(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Run a part of the worker in a thread; none of them may end before the worker does."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                log.critical("worker part failed", exc_info=error, extra={"part": name})
                self._failure = self._failure or error
            # Also if the part of the jobs has ended because it has done enough.
            self._stop_asked.set()

        thread = threading.Thread(target=guarded, name=f"holdfast-{name}", daemon=True)
        thread.start()
        return thread

    def _close_down(
        self, jobs: JobLoop, working: threading.Thread, parts: Sequence[threading.Thread]
    ) -> None:
        """Wait for the end, then shut down in order; needs no event loop, which may be blocked."""
        self._stop_asked.wait()
        jobs.give_back_waiting()
        working.join(self._grace)
        for job in jobs.running():
            jobs.stop(job, Stop.SHUTDOWN)
        # Even if handlers or the database hang, stopping takes no longer than this.
        over = monotonic() + OVERTIME
        working.join(OVERTIME)
        self._over.set()
        for part in parts:
            part.join(max(over - monotonic(), 0.1))
        self._wake_main()
        # Everything is settled: a handler that blocks the event loop must not keep the process.
        if self._owns_process and not self._woken.wait(STUBBORN):
            log.warning("worker leaves a handler behind", extra={"worker": self.id})
            os._exit(1 if self._failure else 0)

    def _signalled(self, number: int) -> None:
        if self._stop_asked.is_set():
            os._exit(128 + number)
        log.info("worker stops", extra={"worker": self.id})
        self.stop()

    def _heard(self, queue: str) -> None:
        if queue:
            if not self._jobs.claiming.wake(queue):
                # The notification would be lost with this worker: another may have a free slot.
                with suppress(HoldfastError):
                    self._client.workers.pass_on(queue)
        else:
            for job in list(self._jobs.held):
                job.renew_at = 0.0
            # It may have to stop, which its beat will show.
            self._beat_at = 0.0
            self._keeper.renew_soon()

    def _listen_again(self) -> None:
        self._jobs.claiming.listen_again()
        if self.hears:
            self._heard("")  # a notification about leases may have been missed, too

    def _poll(self) -> float:
        usual = POLL_HEARING if self.hears else POLL_DEAF
        return random_between(0.8, 1.2) * (self._looks_every or usual)

    def _insist(self, call: Callable[[], object]) -> None:
        """Repeat a call until it succeeds, or the worker has to stop."""
        while not self._stop_asked.is_set():
            try:
                call()
                return
            except (Unavailable, UnknownOutcome):
                self._stop_asked.wait(random_between(0.1, 1.0))

    def _prepare(self, client: Client) -> None:
        self._warn_of_strange_queues(client)
        self._declare(client)

    def _warn_of_strange_queues(self, client: Client) -> None:
        warn_of_strange_queues(self.app, client, self.queues)

    def _declare(self, client: Client) -> None:
        """Declare kinds, their checks, and schedules to the database."""
        handlers = {kind: self.app.handlers[kind] for kind in self.kinds}
        client.kinds.declare([_about(kind, task) for kind, task in handlers.items()])
        if self.app.queues:
            for declared in client.queues.declare(self.app.queues):
                if declared.outcome != "same":
                    log.info("queue set up as declared", extra={"queue": declared.name})
        # Even if there are none: those that were deleted from the code must not fire any more.
        client.schedules.declare(
            self.app.schedules,
            owner=self.app.name,
            origin=None
            if self.app.name
            else {"module": self.app.module, "kinds": [*self.app.tasks]},
        )
        # Before it claims: expired jobs are checked by workers that are known to be alive.
        shapes = {kind: task.arguments.shape for kind, task in handlers.items()}
        client.workers.beat(self.id, shapes=shapes, **self._facts())
        self._beat_at = monotonic() + BEAT_EVERY

    def _beat(self, client: Client) -> None:
        now = monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + BEAT_EVERY * random_between(0.8, 1.0)
        try:
            # Measurements are lost with a beat that fails: if sent twice, they would count twice.
            asked_to_stop = client.workers.beat(
                self.id, measured=self._jobs.settling.measured(), **self._facts()
            )
        except HoldfastError:
            return
        if monotonic() - now > LATE:
            self._beat_at = 0.0
        if asked_to_stop:
            self.stop()

    def _facts(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "python": platform.python_version(),
            "queues": list(self.queues),
            "kinds": list(self.kinds),
            "slots": sum(self.queues.values()),
            "busy": len(self._jobs.running()),
            "rss": _rss(),
            "loop_lag": round(self._watch.lag, 3),
            "claimed": counts.claimed,
            "acked": counts.acked,
            "failed": counts.failed,
            "lost": counts.lost,
            "busy_time": round(counts.busy_time, 3),
            "claimed_at": counts.claims[0] if counts.claims else None,
            "acked_at": counts.acked_at,
            "claims": list(counts.claims),
            "clock": datetime.now(UTC).isoformat(),
            "listens": self.hears,
        }


def _queues(
    app: App, kinds: Iterable[str], queues: Mapping[str, int] | None, concurrency: int
) -> dict[str, int]:
    if queues and not isinstance(queues, Mapping):
        raise Misuse(
            f"queues is {queues!r}", fix='Give the slots of each:  queues={"mail": 4, "reports": 1}'
        )
    chosen = dict(queues) if queues else {app.handlers[kind].queue: concurrency for kind in kinds}
    for name, slots in chosen.items():
        if slots < 1:
            raise Misuse(f"queue {name!r} must have at least 1 slot, not {slots}")
    if not chosen:
        raise Misuse("the app has no tasks", fix="Declare one with @app.task, and import it.")
    return chosen


def refuse_in_loop() -> None:
    """Raise Misuse inside a running event loop, which a worker of its own would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Misuse(
        "a worker cannot be run inside a running event loop",
        fix="await Worker(app).run_async()     or call  app.run()  outside of async functions",
    )


def _kinds(app: App, kinds: Iterable[str] | None) -> Sequence[str]:
    if kinds is None:
        return sorted(app.handlers)
    chosen = set(kinds)
    if unknown := sorted(kind for kind in chosen if kind not in app.handlers):
        raise Misuse(
            f"the app has no task of kind {unknown[0]!r}",
            fix=f"Its kinds are: {', '.join(sorted(app.tasks))}.",
        )
    # A task that is chosen by its name runs what it was called before, too.
    aliases = {name for kind in chosen & app.tasks.keys() for name in app.tasks[kind].aliases}
    return sorted(chosen | aliases)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End what handlers left running, without waiting for what does not end."""
    if left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=1.0))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@contextmanager
def _signals(heard: Callable[[int], None]) -> Iterator[None]:
    """Report SIGTERM and SIGINT from a thread, so that a blocked event loop does not delay them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    numbers = (signal.SIGTERM, signal.SIGINT)

    def tell() -> None:
        while number := ours.recv(1):
            # The program may have handlers for others.
            if number[0] in numbers:
                heard(number[0])

    before = [signal.signal(number, lambda *_: None) for number in numbers]
    fd_before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    telling = threading.Thread(target=tell, name="holdfast-signals", daemon=True)
    telling.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        theirs.close()
        telling.join(1.0)
        ours.close()


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed: nothing waits
        loop.call_soon_threadsafe(event.set)


def _about(kind: str, task: Task[..., Any, Any]) -> dict[str, Any]:
    return {
        "kind": kind,
        "done_when": task.check is not None,
        "queue": task.queue,
        "runs": task.runs,
        "doc": (task.fn.__doc__ or "").strip(),
        "schema": task.arguments.schema(),
    }


def _checks(app: App) -> dict[str, DoneWhen]:
    return {
        kind: task.check if task.codec is None else _opened(task, task.check)
        for kind, task in app.handlers.items()
        if task.check
    }


def _opened(task: Task[..., Any, Any], check: DoneWhen) -> DoneWhen:
    """Give a check the payload as it was enqueued."""

    def opened(conn: Any, job: Any, /) -> bool:
        text = task.arguments.opened(job.payload_json)
        told = text if isinstance(text, str) else text.decode()
        return check(conn, replace(job, payload_json=told))

    return opened


def _rss() -> int:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
