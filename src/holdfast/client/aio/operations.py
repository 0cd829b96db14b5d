"""`client.operations`: one verb for many jobs; preview, run in chunks, undo."""

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.records import Operation, Preview


class AsyncOperations(AsyncNoun):
    """Operations by id. Workers, servers and `holdfast upkeep` run them."""

    async def get(self, id: int) -> Operation | None:
        """Return one operation; None if no operation has this id."""
        source: LiteralString = "holdfast.operations where id = %s::bigint"
        return await self._first(Operation, source, [id], reads=True)

    async def preview(
        self,
        verb: str,
        filter: str,
        *,
        most: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        **arguments: Any,
    ) -> Preview:
        """Count the jobs that a verb would be applied to: retry, cancel, archive, delete or move.

        `most` limits it to the newest. Arguments: `delay`, `fresh` for retry, `queue` for move.
        """
        source: LiteralString = (
            "holdfast.operation_preview(verb => %s, filter => %s, arguments => %s::jsonb, "
            "most => %s::bigint, reason => %s, actor => %s)"
        )
        given = {name: value for name, value in arguments.items() if value is not None}
        parameters = [verb, filter, wire.settings(given, "arguments"), most, reason, actor]
        return await self._one(Preview, source, parameters)

    async def start(
        self, token: UUID, *, rate: float | None = None, actor: str | None = None
    ) -> Operation | None:
        """Start a previewed operation, at `rate` jobs per second at most; None without a preview.

        Starting it again changes nothing.
        """
        source: LiteralString = (
            "holdfast.operation_start(token => %s::uuid, rate => %s::float8, actor => %s)"
        )
        return await self._first(Operation, source, [token, rate, actor])

    async def cancel(self, id: int, *, actor: str | None = None) -> Operation | None:
        """Stop an operation after its current chunk; None if no operation has this id."""
        source: LiteralString = "holdfast.operation_cancel(id => %s::bigint, actor => %s)"
        return await self._first(Operation, source, [id, actor])

    async def undo(
        self,
        id: int,
        *,
        rate: float | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Operation | None:
        """Start to undo an operation that has ended; None if no operation has this id.

        Jobs that have changed since stay as they are. A second call returns the running undo.
        Deleted jobs cannot be restored.
        """
        source: LiteralString = (
            "holdfast.operation_undo(id => %s::bigint, rate => %s::float8, reason => %s, "
            "actor => %s)"
        )
        return await self._first(Operation, source, [id, rate, reason, actor])

    async def step(self, limit: int = 500) -> Operation | None:
        """Run the next chunk of an operation that is due; None if none is due."""
        source: LiteralString = "holdfast.operation_step(max_jobs => %s::int)"
        return await self._first(Operation, source, [limit])

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self, *, limit: int = 100) -> Sequence[Operation]:
        """Return operations that were started, newest first."""
        source: LiteralString = (
            "holdfast.operations where started_at is not null order by id desc limit %s::int"
        )
        return await self._all(Operation, source, [limit], reads=True)
