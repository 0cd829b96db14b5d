"""`client.steps`: what jobs have done so far, and what they wait for."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, LiteralString
from uuid import UUID

from psycopg import AsyncConnection

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.statement import Statement
from holdfast.records import Awaited, Held, NewStep, Step

_STORE: LiteralString = "select outcome, detail from holdfast.step(items => %s::jsonb) order by ord"


class AsyncSteps(AsyncNoun):
    """Steps of jobs by id; what they are stored with is the lease."""

    async def store(self, done: Sequence[tuple[Held, NewStep]]) -> list[tuple[str, str | None]]:
        """Store the results of steps, of one job or many; each outcome is stored, already or lost.

        Results are in the order given, each with the reason if it is lost.
        """
        if not done:
            return []
        rows = await self._door.run(Statement("step", _STORE, [wire.steps(done)]))
        return [(outcome, detail) for outcome, detail in rows]

    async def await_event(
        self, lease: Held, step: str, event: str, *, key: str | None = None, nth: int = 0
    ) -> Awaited:
        """Return what has become of an event that a leased job waits for, or is about to.

        What it received, or that it was too late, is stored as the step with this name.
        """
        id, token = wire.id_and_token(lease)
        source: LiteralString = (
            "holdfast.await_event(id => %s::uuid, token => %s::uuid, step => %s::text, "
            "event => %s::text, key => %s::text, nth => %s::int)"
        )
        return await self._one(Awaited, source, [id, token, step, event, key, nth])

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Yield a connection in a transaction, to store a step together with what it did."""
        async with self._door.transaction("step", plain=True) as door:
            yield door.connection

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self, id: UUID) -> Sequence[Step]:
        """Return the steps of a job, in the order in which they began."""
        return await self._all(Step, "holdfast.steps(id => %s::uuid)", [id], reads=True)
