"""Workers that speak HTTP, as rows among the others.

They are seen when they claim and counted as they settle; written down every few seconds, not with
each request.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.model import Ack, Lease, Nack, Settled, Settlement
from holdfast.server.bodies import NewClaim

if TYPE_CHECKING:
    from holdfast.server.call import Call

EVERY = 5.0
# Leases whose worker is remembered, to know who acked.
REMEMBERED = 20_000
# Workers that are written down; more than these are somebody making up names.
MOST = 1000


class Consumers:
    """What this server knows of its consumers and has not yet written down."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._facts: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._holders: OrderedDict[UUID, str] = OrderedDict()
        self.stopped: set[str] = set()

    def claimed(self, call: "Call", wanted: NewClaim, leases: Sequence[Lease]) -> None:
        """Note who asked and what they got."""
        if len(self._facts) >= MOST and wanted.worker not in self._facts:
            return
        address = call.request.client
        self._facts[wanted.worker] = {
            "host": address.host if address else None,
            "version": call.request.headers.get("user-agent", "")[:200] or None,
            "queues": wanted.queues,
            "kinds": wanted.kinds or [],
        }
        if leases:
            self._count(wanted.worker, "claimed", len(leases))
            # Those of one queue have one token.
            self._holders |= dict.fromkeys((lease.token for lease in leases), wanted.worker)
            while len(self._holders) > REMEMBERED:
                self._holders.popitem(last=False)

    def settled(self, settlement: Settlement, settled: Settled) -> None:
        """Note how a lease ended."""
        assert isinstance(settlement.lease, tuple)
        worker = self._holders.get(settlement.lease[1])
        if worker is None or settled.outcome == "already":
            return
        if not settled.held:
            self._count(worker, "lost")
        elif isinstance(settlement, Ack):
            self._count(worker, "acked")
        elif isinstance(settlement, Nack):
            self._count(worker, "failed")

    def touched(self, token: UUID) -> None:
        """Note that whoever holds a lease is there."""
        if worker := self._holders.get(token):
            self._facts.setdefault(worker, {})

    async def run(self) -> None:
        """Write it down now and then, for ever."""
        while True:
            await asyncio.sleep(EVERY)
            with contextlib.suppress(HoldfastError):
                await self.write()

    async def write(self) -> None:
        """Write down what is not yet."""
        facts, self._facts = self._facts, {}
        counts, self._counts = self._counts, {}
        for worker in facts.keys() | counts.keys():
            known = {name: value for name, value in facts.get(worker, {}).items() if value}
            stop = await self._client.tell(worker, known, counts.get(worker, {}))
            (self.stopped.add if stop else self.stopped.discard)(worker)

    def _count(self, worker: str, what: str, number: int = 1) -> None:
        self._counts.setdefault(worker, Counter())[what] += number
