"""`client.operations`: one verb for many jobs, previewed, done in chunks, undone."""

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.records import Operation, Preview


class AsyncOperations(AsyncNoun):
    """Operations by id. They are done by whoever runs upkeep or a server."""

    async def get(self, id: int) -> Operation | None:
        """Return one operation; None if there is none of that id."""
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

        `most`: only so many, the newest. Arguments are `delay` for retry and `queue` for move.
        """
        source: LiteralString = (
            "holdfast.operation_preview(verb => %s, filter => %s, arguments => %s, "
            "most => %s::bigint, reason => %s, actor => %s)"
        )
        given = {name: value for name, value in arguments.items() if value is not None}
        parameters = [verb, filter, wire.settings(given, "arguments"), most, reason, actor]
        return await self._one(Preview, source, parameters)

    async def start(
        self, token: UUID, *, rate: float | None = None, actor: str | None = None
    ) -> Operation | None:
        """Start what was previewed, at most `rate` jobs per second; None if it was never previewed.

        Starting it again changes nothing.
        """
        source: LiteralString = (
            "holdfast.operation_start(token => %s::uuid, rate => %s::float8, actor => %s)"
        )
        return await self._first(Operation, source, [token, rate, actor])

    async def cancel(self, id: int, *, actor: str | None = None) -> Operation | None:
        """Stop an operation after its current chunk; None if there is none of that id."""
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
        """Start to undo an operation that has ended; None if there is none of that id.

        Jobs that are no longer as it left them stay as they are. Asking again returns the undo
        that runs. Deleted jobs are gone for good.
        """
        source: LiteralString = (
            "holdfast.operation_undo(id => %s::bigint, rate => %s::float8, reason => %s, "
            "actor => %s)"
        )
        return await self._first(Operation, source, [id, rate, reason, actor])

    async def step(self, limit: int = 500) -> Operation | None:
        """Do the next chunk of an operation that is due; None if there is none."""
        source: LiteralString = "holdfast.operation_step(max_jobs => %s::int)"
        return await self._first(Operation, source, [limit])

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self, *, limit: int = 100) -> Sequence[Operation]:
        """Return operations that were started, newest first."""
        source: LiteralString = (
            "holdfast.operations where started_at is not null order by id desc limit %s::int"
        )
        return await self._all(Operation, source, [limit], reads=True)
