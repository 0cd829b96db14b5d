"""The parts of a running server: its clients, its listener, its upkeep, and waiting requests."""

import asyncio
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast import schema
from holdfast.client import AsyncClient, AsyncClusterClient, Client
from holdfast.errors import HoldfastError
from holdfast.recent import Recent
from holdfast.records import (
    Anomaly,
    DeadGroup,
    Depth,
    Kind,
    Lane,
    Queue,
    Schedule,
    System,
    WorkerRow,
    WorkflowTally,
)
from holdfast.server.api.prometheus import Totals
from holdfast.server.doors.access import Gate
from holdfast.server.http.redaction import Redaction
from holdfast.server.live.consumers import Consumers
from holdfast.server.live.feed import Feed
from holdfast.server.live.operations import Operations
from holdfast.server.live.standby import Standby
from holdfast.server.live.together import Calls
from holdfast.server.live.waits import Waits
from holdfast.server.settings import Settings
from holdfast.upkeep.listener import Listener
from holdfast.upkeep.loop import Upkeep

if TYPE_CHECKING:
    from holdfast.server.doors.oidc import Provider

T = TypeVar("T")

# Callers of whom it is remembered when they last changed something.
CALLERS = 1000
# When the caller of this request last changed something: older cached answers must not be used.
_not_before: ContextVar[float] = ContextVar("not_before", default=0.0)


class Live:
    """The running parts of a server, in the event loop that first called it.

    Nothing needs to be started or stopped from outside: a server that is mounted in another
    application may never hear of its start and end.
    """

    def __init__(
        self, url: str, settings: Settings, gate: Gate, redaction: Redaction, *, source: str = ""
    ) -> None:
        self.settings = settings
        self.gate = gate
        self.redaction = redaction
        self.id = f"server {socket.gethostname()} {os.getpid()} {secrets.token_hex(3)}"
        home = AsyncClient(
            url,
            pool_size=settings.pool_size,
            listen_url=settings.listen_url,
            application_name="holdfast server",
            source=source,
        )
        self.client = AsyncClusterClient(
            home, pool_size=settings.read_pool_size, application_name="holdfast server"
        )
        reads: dict[str, Any] = {
            "pool_size": settings.read_pool_size,
            "timeout": settings.look,
            "application_name": "holdfast server reads",
        }
        self.standby = (
            Standby(settings.read_url, primary=url, source=source, **reads)
            if settings.read_url
            else None
        )
        self.reads = AsyncClusterClient(
            self.standby or AsyncClient(url, source=source, **reads),
            pool_size=settings.read_pool_size,
            application_name="holdfast server reads",
        )
        self.oidc = _provider(settings)
        self.recent = Recent()
        self.calls = Calls(self.client, self.recent)
        self.waits = Waits(self.client, self.calls, server=self.id, most=settings.waits)
        self.consumers = Consumers(self.client)
        # Each node has somebody who runs its own.
        self.operations = Operations(home)
        self.totals = Totals()
        self.feed = Feed(self, most=settings.streams, most_per_address=settings.streams_per_address)
        self._shared = _Shared(settings.fresh)
        self._slow = _Shared(5.0)
        self._written: dict[str, float] = {}
        self._errands: dict[str, asyncio.Future[None]] = {}
        self._url = url
        self._stop = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._passing: set[asyncio.Future[None]] = set()
        self._threads: list[threading.Thread] = []
        self._loop = asyncio.get_running_loop()
        self._start()

    async def stop(self) -> None:
        """End all waiting requests and close the connections."""
        self._stop.set()
        self.hang_up()
        ending = [*self._tasks, *self._errands.values()]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self.consumers.write()
        await self.client.close()
        await self.reads.close()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, 5.0)

    def abandon(self) -> None:
        """Drop the connections: the event loop has ended."""
        self._stop.set()
        self.client.abandon()
        self.reads.abandon()

    def hang_up(self) -> None:
        """End streams and claims that wait."""
        self.waits.close()
        self.feed.close()

    def note_change(self, *queues: str) -> None:
        """Signal that something was changed through this server."""
        self.feed.hint()

    def wrote(self, caller: str) -> None:
        """Record that a caller changed something: their reads must not be older than that."""
        now = monotonic()
        if len(self._written) >= CALLERS:
            old = now - self.settings.fresh
            self._written = {who: at for who, at in self._written.items() if at > old}
        self._written[caller] = now

    def look_as(self, caller: str) -> None:
        """Let the reads of this request show what its caller wrote before."""
        _not_before.set(self._written.get(caller, 0.0))

    def beside(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something in the background, once at a time under one name, until the server stops."""
        if name not in self._errands:
            task = asyncio.ensure_future(work())
            self._errands[name] = task
            task.add_done_callback(lambda _: self._errands.pop(name, None))

    async def read_only(self) -> bool:
        """Whether nothing can be changed: by setting, or since the database is a standby."""
        return self.settings.read_only or await self._slow.get("standby", self.client.read_only)

    async def ready(self) -> None:
        """Raise what is wrong with the database or its schema, as it was within a second."""
        await self._shared.get("schema", lambda: asyncio.to_thread(schema.check, self._url))

    async def queues(self) -> Sequence[Queue]:
        """Return all queues, as they were within a second."""
        return await self._shared.get("queues", self.reads.queues.list)

    async def depth(self) -> Sequence[Depth]:
        """Return the counters, as they were within a second."""
        return await self._shared.get("depth", self.reads.queues.depth)

    async def dead_oldest(self) -> dict[str, timedelta]:
        """Return the ages of the oldest dead jobs, as they were within a second."""
        return await self._shared.get("dead_oldest", self.reads.dead.oldest)

    async def dead_groups(self) -> Sequence[DeadGroup]:
        """Return the groups of dead jobs, as they were within a second."""
        return await self._shared.get("dead_groups", self.reads.dead.groups)

    async def workers(self) -> Sequence[WorkerRow]:
        """Return the workers, as they were within a second."""
        return await self._shared.get("workers", self.reads.workers.list)

    async def schedules(self) -> Sequence[Schedule]:
        """Return the schedules, as they were within a second."""
        return await self._shared.get("schedules", self.reads.schedules.list)

    async def kinds(self) -> Sequence[Kind]:
        """Return the kinds, as they were within a second."""
        return await self._shared.get("kinds", self.reads.kinds.list)

    async def lanes(self) -> Sequence[Lane]:
        """Return the lanes, as they were within a second."""
        return await self._shared.get("lanes", self.reads.lanes.list)

    async def workflows(self) -> Sequence[WorkflowTally]:
        """Return how many workflows there are, as it was within a second."""
        return await self._shared.get("workflows", self.reads.workflows.tally)

    async def system(self) -> System:
        """Return versions and sizes of the database, some seconds old: sizes are expensive."""
        return await self._slow.get("system", self.reads.system)

    async def anomalies(self) -> Sequence[Anomaly]:
        """Return the anomalies, as they were within a second."""
        return await self._shared.get("anomalies", self.reads.anomalies.list)

    def _start(self) -> None:
        loops = [self.waits.poll(), self.feed.run(), self.feed.lives.run()]
        if not self.settings.read_only:
            loops += [self.consumers.run(), self.operations.run()]
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        self._threads = [threading.Thread(target=self._listen, daemon=True)]
        if self.settings.upkeep and not self.settings.read_only:
            self._threads.append(threading.Thread(target=self._tend, daemon=True))
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        with Client(
            self._url,
            pool_size=1,
            listen_url=self.settings.listen_url,
            application_name="holdfast server",
        ) as client:
            listener = Listener(client, worker=self.id, heard=self._heard, changed=self._changed)
            self.feed.hears = lambda: listener.up
            self.waits.ear = lambda: listener.ear
            listener.run(self._stop)

    def _heard(self, queue: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ring, queue)

    def _changed(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.waits.listen_again)

    def _ring(self, queue: str) -> None:
        self.feed.hint()
        if queue and not self.waits.ring(queue):
            passing = asyncio.ensure_future(self._pass_on(queue))
            self._passing.add(passing)
            passing.add_done_callback(self._passing.discard)

    async def _pass_on(self, queue: str) -> None:
        with contextlib.suppress(HoldfastError):
            await self.client.workers.pass_on(queue)

    def _tend(self) -> None:
        with Client(self._url, pool_size=1, application_name="holdfast server upkeep") as client:
            every = self.settings.upkeep_every
            Upkeep(client, holder=self.id, every=every).run(self._stop)


class _Shared:
    """Answers shared by requests at the same moment, so that fifty tabs cost one query."""

    def __init__(self, fresh: float) -> None:
        self._fresh = fresh
        self._known: dict[Any, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: Any, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the recent answer of `ask`, or call it."""
        at, asked = self._known.get(key, (0.0, None))
        old = monotonic() - at > self._fresh or at <= _not_before.get()
        if asked is None or old or (asked.done() and asked.exception()):
            asked = asyncio.ensure_future(ask())
            self._known[key] = monotonic(), asked
        if asked.done():
            return asked.result()  # type: ignore[no-any-return]
        # A request that is cancelled must not cancel the answer for the others.
        result: T = await asyncio.shield(asked)
        return result


def _provider(settings: Settings) -> "Provider | None":
    if settings.oidc is None:
        return None
    # Brought by an extra, which servers without it need not have.
    from holdfast.server.doors.oidc import Provider

    return Provider(settings.oidc)
