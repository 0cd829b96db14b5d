"""`client.upkeep`: regular maintenance, which workers and servers do."""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.statement import Statement
from holdfast.records import Doubtful, Duration, Held, Reaped, Settled, Tended


class AsyncUpkeep(AsyncNoun):
    """Steps that are safe to run at any time, by several callers at once."""

    async def run(self, steps: Sequence[str] | None = None) -> dict[str, Any]:
        """Run all steps of upkeep once, or some; returns what was done.

        For programs without a worker. A call does a limited amount: `more` means that there is
        more to do at once.
        """
        named = None if steps is None else [*steps]
        done = await self._value("holdfast.upkeep(steps => %s::text[])", [named], reads=True)
        return wire.decoded_object(done)

    async def steps(self) -> list[str]:
        """Return the names of the steps of upkeep, in order."""
        sql: LiteralString = "select name from holdfast.upkeep_steps() order by nth"
        return [name for (name,) in await self._door.run(Statement("upkeep_steps", sql))]

    async def lead(self, holder: str, *, length: Duration = 5.0) -> bool:
        """Return whether `holder` is the one that does upkeep, for `length` from now.

        This saves work and is not a lock: if two processes lead, nothing is done twice.
        """
        function: LiteralString = "holdfast.lead(holder => %s, length => %s::interval)"
        return bool(await self._value(function, [holder, wire.interval(length)]))

    async def tend(
        self,
        holder: str,
        *,
        length: Duration = 5.0,
        steps: Sequence[str] | None = None,
        failed: Mapping[str, str] | None = None,
        queues: Sequence[str] | None = None,
    ) -> Tended:
        """Run all steps of upkeep once, or some, if `holder` leads; see `lead` and `run`.

        `failed` records, by step, why the caller could not do it. The result says whether `queues`
        are empty.
        """
        sql: LiteralString = (
            "select leads, done, next_slot, doubtful, operating, detecting, delivering, empty "
            "from holdfast.tend(holder => %s, length => %s::interval, "
            "steps => %s::text[], failed => %s::jsonb, queues => %s::text[])"
        )
        named = None if steps is None else [*steps]
        recorded = None if failed is None else wire.settings(failed, "failed")
        # Idempotent: a call that takes too long is cancelled, so that it does not run beside the
        # next.
        asked = None if queues is None else [*queues]
        values = [holder, wire.interval(length), named, recorded, asked]
        statement = Statement("tend", sql, values, reads=True)
        [(leads, done, *rest)] = await self._door.run(statement)
        return Tended(leads, done and wire.decoded_object(done), *rest)

    async def reap(self, limit: int = 1000) -> list[Reaped]:
        """Reclaim jobs whose leases have expired."""
        return await self._all(Reaped, "holdfast.reap(max_jobs => %s::int)", [limit])

    async def promote(self, limit: int = 1000) -> int:
        """Add due and unblocked jobs to the ready order; returns how many."""
        return int(await self._value("holdfast.promote(max_jobs => %s::int)", [limit]))

    async def raise_floors(self, patience: Duration = 10.0) -> int:
        """Let claims start after finished jobs; returns how many floors were raised."""
        function: LiteralString = "holdfast.raise_floors(patience => %s::interval)"
        return int(await self._value(function, [wire.interval(patience)]))

    async def fold(self) -> int:
        """Fold counter deltas into totals; returns how many."""
        return int(await self._value("holdfast.fold()"))

    async def doubtful(
        self, kinds: Sequence[str] | None = None, *, limit: int = 100
    ) -> list[Doubtful]:
        """Return jobs of these kinds whose worker disappeared and whose work may be done."""
        source: LiteralString = "holdfast.doubtful(kinds => %s::text[], max_jobs => %s::int)"
        return await self._all(Doubtful, source, [None if kinds is None else [*kinds], limit])

    async def reconcile(self, found: Sequence[tuple[Held, bool]]) -> list[Settled]:
        """Report whether the work of doubtful jobs is done: they end, or run again.

        The outcome is `lost` if the job's worker came back in between.
        """
        if not found:
            return []
        sql: LiteralString = (
            "select id, outcome, detail from holdfast.reconcile("
            "ids => %s::uuid[], tokens => %s::uuid[], done => %s::bool[])"
        )
        held = wire.held_arrays([held for held, _ in found])
        statement = Statement("reconcile", sql, [*held, [done for _, done in found]])
        return [Settled(*row) for row in await self._door.run(statement)]
