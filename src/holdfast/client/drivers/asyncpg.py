"""asyncpg: its connections, and those that its pools lend."""

from typing import Any

from holdfast.client.drivers import refusals
from holdfast.client.drivers.text import question
from holdfast.client.statement import Statement


class Asyncpg:
    """A connection of asyncpg."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement) -> list[str]:
        """Run a statement; outside of `transaction()`, it is its own transaction."""
        sql, parameters = question(statement, "numeric")
        return [row[0] for row in await self._connection.fetch(sql, *parameters)]

    def database(self) -> str:
        """Return nothing: asyncpg does not tell."""
        return ""


def adapter(conn: Any) -> Asyncpg | None:
    """Return the adapter of a connection; a pool or anything else has none."""
    if not (hasattr(conn, "is_in_transaction") and hasattr(conn, "fetch")):
        return None
    if conn.is_closed():
        raise refusals.closed(conn)
    return Asyncpg(conn)
