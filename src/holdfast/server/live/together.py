"""Requests that share one call of the database, if they arrive while another call is under way.

A request that finds nothing under way makes its own call at once. Those that arrive meanwhile wait
for its end, and then make one call together: one statement and one commit for all of them, instead
of one each. No request is delayed to gather more.

Each gets its own answer. If a shared call fails, nothing of it was stored, and each request makes
its own call: an error reaches only the request that caused it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

from holdfast.client import AsyncClient, wire
from holdfast.errors import HoldfastError, Unavailable, UnknownOutcome
from holdfast.recent import Recent
from holdfast.records import Claim, Enqueued, Lease, NewJob, Settled
from holdfast.watch import tracing

Q = TypeVar("Q")
A = TypeVar("A")
Asked = list[tuple[Q, "asyncio.Future[A]"]]

# Requests in one call.
MOST = 100
# Requests whose calls may be under way before others gather: few clients wait for each other only
# as long as the disk makes them.
AT_ONCE = 4
# Nobody waits longer than this for the end of a call that is not theirs: it may be held up by a
# lock.
PATIENCE = 0.05
# Claims of more jobs than this are made alone: they are a group already.
FEW = 10

Proof = tuple[UUID, UUID]


class Together(Generic[Q, A]):
    """One sort of call: `alone` makes it for one request, `many` for several.

    Requests are gathered by a key; two that are `same` never share a call. `unwanted` gets answers
    whose requests were cancelled while the call was under way.
    """

    def __init__(
        self,
        alone: Callable[[Q], Awaitable[A]],
        many: Callable[[Sequence[Q]], Awaitable[Sequence[A]]],
        *,
        same: Callable[[Q], Hashable] = id,
        unwanted: Callable[[Sequence[A]], Awaitable[None]] | None = None,
    ) -> None:
        self._alone = alone
        self._many = many
        self._same = same
        self._unwanted = unwanted
        self._lines: dict[Hashable, _Line[Q, A]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, one: Q, key: Hashable = None) -> A:
        """Return the answer to one request, from a call of its own or a shared one."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        if line.leads or line.waiting or line.under_way >= AT_ONCE:
            line.waiting.append((one, answer))
            if line.timer is None:
                self._watch(key, line)
            return await answer
        line.under_way += 1
        line.leads = True
        try:
            # Those that have arrived at the same moment come along.
            await asyncio.sleep(0)
            line.leads = False
            if not line.waiting:
                return await self._alone(one)
            line.waiting.appendleft((one, answer))
        finally:
            line.leads = False
            self._ended(key, line, 1)
        return await answer

    def _watch(self, key: Hashable, line: "_Line[Q, A]") -> None:
        """Let those that wait now go ahead in a while, whatever is under way."""
        loop = asyncio.get_running_loop()
        line.timer = loop.call_later(PATIENCE, self._overdue, key, line)

    def _overdue(self, key: Hashable, line: "_Line[Q, A]") -> None:
        line.timer = None
        self._start(key, line)
        if line.waiting:
            self._watch(key, line)

    def _ended(self, key: Hashable, line: "_Line[Q, A]", many: int) -> None:
        line.under_way -= many
        if line.waiting and line.under_way < AT_ONCE:
            self._start(key, line)
        if not line.waiting and line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if not line.waiting and not line.under_way:
            self._lines.pop(key, None)

    def _start(self, key: Hashable, line: "_Line[Q, A]") -> None:
        some: Asked[Q, A] = []
        seen: set[Hashable] = set()
        while line.waiting and len(some) < MOST:
            one, answer = line.waiting[0]
            if not answer.done():  # it was cancelled
                if (what := self._same(one)) in seen:
                    break
                seen.add(what)
                some.append((one, answer))
            line.waiting.popleft()
        if some:
            line.under_way += len(some)
            call = asyncio.ensure_future(self._call(key, line, some))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, key: Hashable, line: "_Line[Q, A]", some: "Asked[Q, A]") -> None:
        try:
            await self._answer(some)
        finally:
            for _, answer in some:
                answer.cancel()  # of those without an answer: the server stops
            self._ended(key, line, len(some))

    async def _answer(self, some: "Asked[Q, A]") -> None:
        try:
            if len(some) == 1:
                found: Sequence[A] = [await self._alone(some[0][0])]
            else:
                found = await self._many([one for one, _ in some])
        except Exception as error:
            # In halves, until the one that is to blame is alone. Not if the database is away: that
            # is not due to one of them.
            if len(some) == 1 or isinstance(error, Unavailable | UnknownOutcome):
                for _, answer in some:
                    if not answer.done():
                        answer.set_exception(error)
                return
            half = len(some) // 2
            await asyncio.gather(self._answer(some[:half]), self._answer(some[half:]))
            return
        left = []
        for (_, answer), one in zip(some, found, strict=True):
            if answer.done():  # it was cancelled
                left.append(one)
            else:
                answer.set_result(one)
        if left and self._unwanted is not None:
            await self._unwanted(left)


class _Line(Generic[Q, A]):
    """Requests that wait to make one call, and how many have one under way."""

    def __init__(self) -> None:
        self.under_way = 0
        # Whether one of those under way has not begun yet, so that others can join it.
        self.leads = False
        self.waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self.timer: asyncio.TimerHandle | None = None


class Calls:
    """The calls that requests of one server share: single acks, plain jobs, and small claims."""

    def __init__(self, client: AsyncClient, recent: Recent) -> None:
        self._client = client
        self._recent = recent
        self._acks: Together[Proof, Settled] = Together(
            self._ack, self._ack_together, same=lambda proof: proof[0]
        )
        self._jobs: Together[NewJob, Enqueued] = Together(self._enqueue, client.enqueue_many)
        self._claims: Together[Claim, list[Lease]] = Together(
            partial(claimed, client), client.together.claim, unwanted=self._give_back
        )

    async def ack(self, lease: Proof) -> Settled:
        """End a lease with success."""
        return await self._acks.ask(lease)

    async def enqueue(self, job: NewJob) -> Enqueued:
        """Store a job. One that the database has to decide on is stored alone."""
        if tracing.enabled() or not wire.are_plain([job]):
            return await self._enqueue(job)
        return await self._jobs.ask(job)

    async def claim(self, claim: Claim) -> list[Lease]:
        """Lease jobs, together with others who want the same."""
        if claim.limit > FEW:
            return await claimed(self._client, claim)
        kinds = None if claim.kinds is None else tuple(claim.kinds)
        return await self._claims.ask(claim, (claim.queue, claim.lease, kinds))

    async def _ack(self, lease: Proof) -> Settled:
        [settled] = await self._client.ack([lease], recent=self._recent.take(1))
        return settled

    async def _ack_together(self, leases: Sequence[Proof]) -> list[Settled]:
        recent = self._recent.take(len(leases))
        return await self._client.together.ack(leases, recent=recent)

    async def _enqueue(self, job: NewJob) -> Enqueued:
        [stored] = await self._client.enqueue_many([job])
        return stored

    async def _give_back(self, claims: Sequence[list[Lease]]) -> None:
        leases = [lease for some in claims for lease in some]
        with suppress(HoldfastError):
            await self._client.release(leases)


async def claimed(client: AsyncClient, claim: Claim) -> list[Lease]:
    """Make a claim by itself."""
    return await client.claim(
        claim.queue,
        worker=claim.worker,
        limit=claim.limit,
        lease=claim.lease,
        kinds=claim.kinds,
        token=claim.token,
    )
