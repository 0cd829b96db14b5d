"""psycopg2: its connections."""

from importlib import import_module
from typing import Any

from holdfast.client.drivers import refusals
from holdfast.client.drivers.text import question
from holdfast.client.statement import Statement


class Psycopg2:
    """A connection of psycopg2."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # Its own cursor, whatever factory the caller has chosen for rows.
        self._cursor = import_module("psycopg2.extensions").cursor

    def fetch(self, statement: Statement) -> list[str]:
        """Run a statement in the connection's transaction."""
        sql, parameters = question(statement, "format")
        with self._connection.cursor(cursor_factory=self._cursor) as cursor:
            cursor.execute(sql, parameters)
            return [row[0] for row in cursor.fetchall()]

    def database(self) -> str:
        """Return the name of the database."""
        return str(self._connection.info.dbname)


def adapter(conn: Any) -> Psycopg2 | None:
    """Return the adapter of a connection; a cursor, a pool or anything else has none."""
    if not hasattr(conn, "get_transaction_status"):
        return None
    if conn.closed == 1:  # 2 means that it broke: the driver tells why
        raise refusals.closed(conn)
    if conn.async_:
        raise refusals.not_a_connection(
            conn, " in its asynchronous mode", fix=f"Connect without async. {refusals.TAKEN}"
        )
    return Psycopg2(conn)
