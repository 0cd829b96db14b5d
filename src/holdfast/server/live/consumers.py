"""HTTP consumers, as rows in the table of workers.

They are seen when they claim and counted when they settle; stored every few seconds, not with each
request.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.records import Done, Failed, Lease, Settled, Settlement
from holdfast.server.http.inputs import NewClaim
from holdfast.watch.measures import Measures

if TYPE_CHECKING:
    from holdfast.server.http.request import Request

EVERY = 5.0
# How many claim times are reported.
RECENT = 10
# Leases whose worker is remembered, to know who acked.
REMEMBERED = 20_000
# How many workers are stored; with more, a client is probably inventing names.
MOST = 1000
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Claimed:
    """One claim: by which worker, when, and the queue and kind of each of its jobs."""

    worker: str
    at: float
    jobs: dict[UUID, tuple[str, str]]


class Consumers:
    """What this server knows about its consumers and has not yet stored."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._facts: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, dict[str, float]] = {}
        self._claims: dict[str, list[datetime]] = {}
        self._holders: OrderedDict[UUID, _Claimed] = OrderedDict()
        self._measures: dict[str, Measures] = {}
        self.stopped: set[str] = set()

    def claimed(self, request: "Request", wanted: NewClaim, leases: Sequence[Lease]) -> None:
        """Record a claim and its jobs."""
        if len(self._facts) >= MOST and wanted.worker not in self._facts:
            return
        address = request.http.client
        self._facts[wanted.worker] = self._facts.get(wanted.worker, {}) | {
            "host": address.host if address else None,
            "version": request.http.headers.get("user-agent", "")[:200] or None,
            "queues": wanted.queues,
            "kinds": wanted.kinds or [],
        }
        if leases:
            now = datetime.now(UTC)
            known = self._facts[wanted.worker]
            known["claimed_at"] = now
            self._claims.setdefault(wanted.worker, []).insert(0, now)
            del self._claims[wanted.worker][RECENT:]
            self._count(wanted.worker, "claimed", len(leases))
            # Those of one queue have one token.
            for token, some in groupby(leases, key=lambda lease: lease.token):
                jobs = {lease.id: (lease.queue, lease.kind) for lease in some}
                self._holders[token] = _Claimed(wanted.worker, monotonic(), jobs)
            self._note_waits(wanted, leases)
            while len(self._holders) > REMEMBERED:
                self._holders.popitem(last=False)

    def settled(self, settlement: Settlement, settled: Settled) -> None:
        """Record how a lease ended."""
        assert isinstance(settlement.lease, tuple)
        claimed = self._holders.get(settlement.lease[1])
        if claimed is None or settled.outcome == "already":
            return
        worker = claimed.worker
        if not settled.held:
            self._count(worker, "lost")
            return
        if isinstance(settlement, Done):
            self._count(worker, "acked")
            self._facts.setdefault(worker, {})["acked_at"] = datetime.now(UTC)
        elif isinstance(settlement, Failed):
            self._count(worker, "failed")
        about = claimed.jobs.pop(settlement.lease[0], None)
        if not claimed.jobs:
            del self._holders[settlement.lease[1]]
        if about:
            ran = monotonic() - claimed.at
            self._measures.setdefault(worker, Measures()).ran(*about, ran)
            self._count(worker, "busy_time", ran)

    def acked(self, leases: Sequence[tuple[UUID, UUID]], others: Mapping[int, Settled]) -> None:
        """Record that many leases ended with success, except some, which are given by place."""
        if others:
            for nth, lease in enumerate(leases):
                self.settled(Done(lease), others.get(nth) or Settled(lease[0], "done"))
            return
        now = monotonic()
        for token, some in groupby(leases, key=itemgetter(1)):
            claimed = self._holders.get(token)
            if claimed is None:
                continue
            ids = [id for id, _ in some]
            self._count(claimed.worker, "acked", len(ids))
            self._facts.setdefault(claimed.worker, {})["acked_at"] = datetime.now(UTC)
            known = [about for id in ids if (about := claimed.jobs.pop(id, None))]
            if not claimed.jobs:
                del self._holders[token]
            ran = now - claimed.at
            measures = self._measures.setdefault(claimed.worker, Measures())
            for about in known:
                measures.ran(*about, ran)
            self._count(claimed.worker, "busy_time", ran * len(known))

    def touched(self, token: UUID) -> None:
        """Record that the holder of a lease is alive."""
        if claimed := self._holders.get(token):
            self._facts.setdefault(claimed.worker, {})

    async def run(self) -> None:
        """Store it every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            with contextlib.suppress(HoldfastError):
                await self.write()

    async def write(self) -> None:
        """Write down what is not yet."""
        facts, self._facts = self._facts, {}
        counts, self._counts = self._counts, {}
        claims, self._claims = self._claims, {}
        measures, self._measures = self._measures, {}
        for worker in facts.keys() | counts.keys():
            known = {name: value for name, value in facts.get(worker, {}).items() if value}
            if worker in claims:
                known["claims"] = claims[worker]
            measured = measures[worker].take() if worker in measures else None
            stop = await self._client.workers.tell(worker, known, counts.get(worker, {}), measured)
            (self.stopped.add if stop else self.stopped.discard)(worker)

    def _note_waits(self, wanted: NewClaim, leases: Sequence[Lease]) -> None:
        measures = self._measures.setdefault(wanted.worker, Measures())
        for lease in leases:
            waited = lease.lease_until - lease.length - lease.run_at
            measures.waited(lease.queue, lease.kind, waited // _MICROSECOND)

    def _count(self, worker: str, what: str, number: float = 1) -> None:
        counts = self._counts.setdefault(worker, {})
        counts[what] = counts.get(what, 0) + number
