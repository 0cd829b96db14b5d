"""Generated from aio/joined.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString, Self

from psycopg import Connection, Copy

from holdfast.client.drivers import Driver, driver_of, refusals
from holdfast.client.drivers.text import rows
from holdfast.client.statement import Row, Statement, translate
from holdfast.client.sync.pool import Bound
from holdfast.errors import Misuse


def door_on(connection: Any) -> Bound:
    """Return the door of the caller's connection, whichever library it comes from."""
    if not isinstance(connection, Connection):
        return Joined(connection, driver_of(connection))
    if connection.closed and not connection.broken:
        raise refusals.closed(connection)
    return Bound(connection)


class Joined(Bound):
    """The caller's connection or session of any driver: each call is one statement on it."""

    def __init__(self, connection: Any, driver: Driver) -> None:
        super().__init__(connection)
        self._driver = driver

    def run(self, statement: Statement) -> list[Row]:
        """Make a call once, in whatever transaction the caller is in."""
        try:
            return rows(self._driver.fetch(statement))
        except Exception as error:
            ours = translate(error, self._driver.database())
            if ours is None:
                raise
            raise ours from error

    @contextmanager
    def transaction(self, name: str, *, plain: bool = False) -> Iterator[Self]:
        """Bind itself: the transaction is the caller's to begin."""
        yield self

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Refuse: each library keeps account of its own savepoints."""
        raise Misuse(
            f"attempt cannot set a savepoint on {refusals.named(self.connection)}",
            fix="Set it with the library that the connection comes from.",
        )
        yield

    @contextmanager
    def copying(self, sql: LiteralString) -> Iterator[Copy]:
        """Refuse: COPY is sent by psycopg 3 only."""
        raise Misuse(
            f"copy cannot use {refusals.named(self.connection)}",
            fix="Use enqueue_many(), which takes one statement; or a connection of psycopg 3.",
        )
        yield
