"""Generated from aio/upkeep.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.statement import Statement
from holdfast.client.sync.noun import Noun
from holdfast.records import Doubtful, Duration, Held, Reaped, Settled, Tended


class Upkeep(Noun):
    """Steps that are safe to run at any time, by any number of callers at once."""

    def run(self, steps: Sequence[str] | None = None) -> dict[str, Any]:
        """Do all housekeeping once, or some steps of it; returns what was done.

        For whoever runs no worker. A turn does a bounded amount: `more` says that another would
        find work at once.
        """
        named = None if steps is None else [*steps]
        done = self._value("holdfast.upkeep(steps => %s::text[])", [named], reads=True)
        return wire.decoded_object(done)

    def steps(self) -> list[str]:
        """Return the names of the steps of upkeep, in their order."""
        sql: LiteralString = "select name from holdfast.upkeep_steps() order by nth"
        return [name for (name,) in self._door.run(Statement("upkeep_steps", sql))]

    def lead(self, holder: str, *, length: Duration = 5.0) -> bool:
        """Return whether `holder` is the one that does upkeep, for `length` from now.

        This saves work; nothing depends on it: two that lead do nothing twice.
        """
        function: LiteralString = "holdfast.lead(holder => %s, length => %s)"
        return bool(self._value(function, [holder, wire.interval(length)]))

    def tend(
        self,
        holder: str,
        *,
        length: Duration = 5.0,
        steps: Sequence[str] | None = None,
        failed: Mapping[str, str] | None = None,
    ) -> Tended:
        """Do all housekeeping once, or some steps, if `holder` leads; see `lead` and `run`.

        `failed` records, by step, what kept the caller from doing it.
        """
        sql: LiteralString = (
            "select leads, done, next_slot, doubtful, operating, detecting, delivering "
            "from holdfast.tend(holder => %s, length => %s, steps => %s::text[], failed => %s)"
        )
        named = None if steps is None else [*steps]
        recorded = None if failed is None else wire.settings(failed, "failed")
        # Idempotent: a turn that takes too long is cancelled, not left to run on beside the next.
        statement = Statement(
            "tend", sql, [holder, wire.interval(length), named, recorded], reads=True
        )
        [(leads, done, *rest)] = self._door.run(statement)
        return Tended(leads, done and wire.decoded_object(done), *rest)

    def reap(self, limit: int = 1000) -> list[Reaped]:
        """Take jobs back from workers that let their leases expire."""
        return self._all(Reaped, "holdfast.reap(max_jobs => %s::int)", [limit])

    def promote(self, limit: int = 1000) -> int:
        """Let due and unblocked jobs into the ready order; returns how many."""
        return int(self._value("holdfast.promote(max_jobs => %s::int)", [limit]))

    def raise_floors(self, patience: Duration = 10.0) -> int:
        """Let claims start behind finished jobs; returns how many floors rose."""
        function: LiteralString = "holdfast.raise_floors(patience => %s)"
        return int(self._value(function, [wire.interval(patience)]))

    def fold(self) -> int:
        """Fold counter deltas into totals; returns how many."""
        return int(self._value("holdfast.fold()"))

    def doubtful(self, kinds: Sequence[str] | None = None, *, limit: int = 100) -> list[Doubtful]:
        """Return jobs of these kinds whose worker vanished and whose work may be done."""
        source: LiteralString = "holdfast.doubtful(kinds => %s::text[], max_jobs => %s::int)"
        return self._all(Doubtful, source, [None if kinds is None else [*kinds], limit])

    def reconcile(self, found: Sequence[tuple[Held, bool]]) -> list[Settled]:
        """Answer for doubtful jobs whether their work is done: they end, or are run again.

        `lost` is the outcome for one whose worker came back in between.
        """
        if not found:
            return []
        sql: LiteralString = (
            "select id, outcome, detail from holdfast.reconcile("
            "ids => %s::uuid[], tokens => %s::uuid[], done => %s::bool[])"
        )
        held = wire.held_arrays([held for held, _ in found])
        statement = Statement("reconcile", sql, [*held, [done for _, done in found]])
        return [Settled(*row) for row in self._door.run(statement)]
