"""`client.strikes`: rules that keep jobs from running."""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.records import Duration, Strike


class AsyncStrikes(AsyncNoun):
    """Strikes by number."""

    async def add(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        payload: Mapping[str, Any] | None = None,
        mode: str = "hold",
        reason: str | None = None,
        expires: Duration | None = None,
        actor: str | None = None,
    ) -> Strike:
        """Stop jobs of this queue and kind whose payload contains this one.

        Claims made after this call do not return such jobs. Running jobs finish.
        """
        source: LiteralString = (
            "holdfast.strike_add(mode => %s, queue => %s, kind => %s, payload => %s::jsonb, "
            "reason => %s, expires => %s::interval, actor => %s)"
        )
        wanted = None if payload is None else wire.encoded(payload, "payload").decode()
        parameters = [mode, queue, kind, wanted, reason, wire.interval(expires), actor]
        return await self._one(Strike, source, parameters, repeatable=False)

    async def lift(
        self, number: int, *, reason: str | None = None, actor: str | None = None
    ) -> Strike | None:
        """Let the jobs of a strike run again; None if no strike has this number."""
        source: LiteralString = (
            "holdfast.strike_lift(number => %s::bigint, reason => %s, actor => %s)"
        )
        return await self._first(Strike, source, [number, reason, actor])

    async def list(self, *, all: bool = False) -> Sequence[Strike]:
        """Return the strikes that are in force, newest first; `all`: also those that have ended.

        Strikes are deleted 90 days after they end.
        """
        source: LiteralString = (
            "holdfast.strikes where in_force or %s::boolean order by number desc"
        )
        return await self._all(Strike, source, [all], reads=True)
