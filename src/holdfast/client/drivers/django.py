"""Django: `django.db.connection`, and those of `django.db.connections`."""

from typing import Any

from holdfast.client.drivers import refusals
from holdfast.client.drivers.text import question
from holdfast.client.statement import Statement


class Django:
    """A connection of Django to PostgreSQL; calls join `atomic()`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def fetch(self, statement: Statement) -> list[str]:
        """Run a statement by Django's own cursor, which knows of broken transactions."""
        sql, parameters = question(statement, "format")
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return [row[0] for row in cursor.fetchall()]

    def database(self) -> str:
        """Return the name of the database."""
        return str(self._connection.settings_dict.get("NAME") or "")


def adapter(conn: Any) -> Django | None:
    """Return the adapter of a connection; anything else has none."""
    if not (hasattr(conn, "vendor") and hasattr(conn, "in_atomic_block")):
        return None
    if conn.vendor != "postgresql":
        raise refusals.not_a_connection(
            conn,
            f" to {conn.vendor}, not to PostgreSQL",
            fix="Give connections['…'] of PostgreSQL.",
        )
    return Django(conn)
