"""Claims that wait: held until there is a job, and given back when the client has gone.

All waiting claims of a server share one listener. Of several that wait for a queue one is woken at
a time, the longest waiting first; when it got something, the next one looks as well.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID, uuid4

from starlette.requests import Request

from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.records import Claim, Lease
from holdfast.server.http.direct import DIRECT, Direct
from holdfast.server.http.inputs import NewClaim
from holdfast.server.http.problems import SOON, Problem
from holdfast.server.live.bells import rung
from holdfast.server.live.together import Calls, claimed

# How often a waiting claim polls: while notifications arrive, and while they do not.
LOOK_EVERY = 5.0
POLL_EVERY = 1.0
# How long this server stays on the database's list of waiting workers.
PATIENCE = 60.0
# With more queues than this, those without waiting claims are removed.
FORGOTTEN = 1000


@dataclass(slots=True, eq=False)
class _Place:
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False


class Waits:
    """The claims that wait in one server, by queue."""

    def __init__(self, client: AsyncClient, calls: Calls, *, server: str, most: int) -> None:
        # What the server listens with, if it hears.
        self.ear: Callable[[], int | None] = lambda: None
        self._client = client
        self._calls = calls
        self._server = server
        self._most = most
        self.count = 0
        self._each: Counter[str] = Counter()
        self._places: dict[str, deque[_Place]] = {}
        self._awaited: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._closed = False

    async def claim(
        self,
        request: Request,
        client: AsyncClient,
        wanted: NewClaim,
        token: UUID | None = None,
        *,
        caller: str = "",
    ) -> list[Lease]:
        """Lease jobs for a client; an empty list when its time is up."""
        leases = await self._look(client, wanted, token)
        if leases or not wanted.wait:
            if leases and _has_gone(request):
                await self._give_back(client, leases)
            return leases
        if self.count >= self._most:
            raise Problem(
                503,
                "HF429",
                f"{self._most} claims wait already",
                headers=SOON,
                fix="Ask again later, or with wait=0.",
            )
        if caller and self._each[caller] >= max(self._most // 2, 1):
            raise Problem(
                429,
                "HF429",
                f"{self._each[caller]} claims of yours wait already",
                headers=SOON,
                fix="Ask for several jobs in one claim, or with wait=0.",
            )
        self.count += 1
        self._each[caller] += 1
        try:
            return await self._wait(request, client, wanted, token)
        finally:
            self.count -= 1
            self._each[caller] -= 1
            if not self._each[caller]:
                del self._each[caller]

    def ring(self, queue: str) -> bool:
        """Let the longest-waiting claim of a queue try again. False if none waits."""
        self._awaited.pop(queue, None)
        self._wake(queue)
        return queue in self._places

    def listen_again(self) -> None:
        """Request notifications again, because they start or stop arriving."""
        self._awaited.clear()
        for queue in list(self._places):
            self._wake(queue)

    def close(self) -> None:
        """End all waiting claims without jobs."""
        self._closed = True
        for places in self._places.values():
            for place in places:
                place.bell.set()

    async def poll(self) -> None:
        """Let one claim of each queue poll now and then: a notification is only a hint."""
        while True:
            await asyncio.sleep(POLL_EVERY / 2)
            every = POLL_EVERY if self.ear() is None else LOOK_EVERY
            for queue in list(self._places):
                if monotonic() - self._looked.get(queue, 0.0) >= every:
                    self._wake(queue)

    async def _wait(
        self, request: Request, client: AsyncClient, wanted: NewClaim, token: UUID | None
    ) -> list[Lease]:
        until = monotonic() + wanted.wait
        async with self._place(request, wanted.queues) as place:
            while not place.gone:
                place.bell.clear()
                await self._be_told(wanted.queues)
                leases = await self._look(client, wanted, token)
                if leases and place.gone:
                    await self._give_back(client, leases)
                left = until - monotonic()
                if leases or left <= 0 or self._closed:
                    return leases
                await rung(place.bell, left)
        return []

    async def _look(self, client: AsyncClient, wanted: NewClaim, token: UUID | None) -> list[Lease]:
        leases: list[Lease] = []
        for queue in wanted.queues:
            if len(self._looked) > FORGOTTEN:
                self._looked = {one: at for one, at in self._looked.items() if one in self._places}
            self._looked[queue] = monotonic()
            claim = Claim(
                queue,
                wanted.worker,
                wanted.limit - len(leases),
                wanted.lease,
                wanted.kinds,
                token or uuid4(),
            )
            if client is self._client and token is None:
                some = await self._calls.claim(claim)
            else:
                some = await claimed(client, claim)
            if some:
                self._wake(queue)  # there may be more
            leases += some
            # More than that if a claim was sent twice, since its first reply was lost.
            if len(leases) >= wanted.limit:
                break
        return leases

    async def _be_told(self, queues: Sequence[str]) -> None:
        now, ear = monotonic(), self.ear()
        untold = [queue for queue in queues if self._awaited.get(queue, 0.0) < now]
        if not untold or ear is None:
            return
        if len(self._awaited) > FORGOTTEN:
            self._awaited = {one: until for one, until in self._awaited.items() if until > now}
        self._awaited |= dict.fromkeys(untold, now + PATIENCE - 10.0)
        try:
            await self._client.workers.await_work(
                untold, worker=self._server, patience=PATIENCE, ear=ear
            )
        except BaseException:
            for queue in untold:
                self._awaited.pop(queue, None)
            raise

    async def _give_back(self, client: AsyncClient, leases: list[Lease]) -> None:
        with suppress(HoldfastError):
            await client.release(leases)
        leases.clear()

    def _wake(self, queue: str) -> None:
        for place in self._places.get(queue, ()):
            if not place.bell.is_set():
                place.bell.set()
                return

    @asynccontextmanager
    async def _place(self, request: Request, queues: Sequence[str]) -> AsyncIterator[_Place]:
        place = _Place()
        watching = asyncio.create_task(_watch(request, place))
        for queue in queues:
            self._places.setdefault(queue, deque()).append(place)
        try:
            yield place
        finally:
            watching.cancel()
            for queue in queues:
                self._places[queue].remove(place)
                if not self._places[queue]:
                    del self._places[queue]
                elif place.bell.is_set():
                    self._wake(queue)  # the bell it did not answer is the next one's


def _has_gone(request: Request) -> bool:
    """Whether the client has hung up, without waiting for it: the next message, if it is there."""
    direct: Direct | None = request.scope.get(DIRECT)
    if direct is not None:
        return direct.gone()
    receiving = request.receive()
    try:
        receiving.send(None)  # type: ignore[attr-defined]
    except StopIteration as received:
        return bool(received.value["type"] == "http.disconnect")
    receiving.close()  # type: ignore[attr-defined]
    return False


async def _watch(request: Request, place: _Place) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    place.gone = True
    place.bell.set()
