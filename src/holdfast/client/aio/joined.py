"""The caller's connection of another driver than psycopg 3."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString, Self

from psycopg import AsyncConnection, AsyncCopy

from holdfast.client.aio.pool import AsyncBound
from holdfast.client.drivers import AsyncDriver, async_driver_of, refusals
from holdfast.client.drivers.text import rows
from holdfast.client.statement import Row, Statement, translate
from holdfast.errors import Misuse


def door_on(connection: Any) -> AsyncBound:
    """Return the door of the caller's connection, whichever library it comes from."""
    if not isinstance(connection, AsyncConnection):
        return AsyncJoined(connection, async_driver_of(connection))
    if connection.closed and not connection.broken:
        raise refusals.closed(connection)
    return AsyncBound(connection)


class AsyncJoined(AsyncBound):
    """The caller's connection or session of any driver: each call is one statement on it."""

    def __init__(self, connection: Any, driver: AsyncDriver) -> None:
        super().__init__(connection)
        self._driver = driver

    async def run(self, statement: Statement) -> list[Row]:
        """Make a call once, in whatever transaction the caller is in."""
        try:
            return rows(await self._driver.fetch(statement))
        except Exception as error:
            ours = translate(error, self._driver.database())
            if ours is None:
                raise
            raise ours from error

    @asynccontextmanager
    async def transaction(self, name: str, *, plain: bool = False) -> AsyncIterator[Self]:
        """Bind itself: the transaction is the caller's to begin."""
        yield self

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Refuse: each library keeps account of its own savepoints."""
        raise Misuse(
            f"attempt cannot set a savepoint on {refusals.named(self.connection)}",
            fix="Set it with the library that the connection comes from.",
        )
        yield

    @asynccontextmanager
    async def copying(self, sql: LiteralString) -> AsyncIterator[AsyncCopy]:
        """Refuse: COPY is sent by psycopg 3 only."""
        raise Misuse(
            f"copy cannot use {refusals.named(self.connection)}",
            fix="Use enqueue_many(), which takes one statement; or a connection of psycopg 3.",
        )
        yield
