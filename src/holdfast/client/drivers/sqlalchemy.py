"""SQLAlchemy 2: sessions and connections, asynchronous or not, whatever driver they use."""

from typing import Any

from holdfast.client.drivers import refusals
from holdfast.client.drivers.text import Style, question
from holdfast.client.statement import Statement

# A connection may have been told to stream its results.
_AT_ONCE = {"stream_results": False, "yield_per": None}
_STYLES: dict[str, Style] = {
    "asyncpg": "numeric",
    "psycopg": "format",
    "psycopg_async": "format",
    "psycopg2": "format",
}


class Sqlalchemy:
    """A Session or Connection."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._database = ""

    def fetch(self, statement: Statement) -> list[str]:
        """Run a statement in the transaction, which the session or connection may begin first."""
        try:
            conn = self._conn.connection() if _is_session(self._conn) else self._conn
        except Exception as error:
            _refuse_unbound(self._conn, error)
            raise
        self._database = conn.engine.url.database or ""
        sql, parameters = question(statement, _style(self._conn, conn.dialect))
        result = conn.exec_driver_sql(sql, tuple(parameters), execution_options=_AT_ONCE)
        return list(result.scalars())

    def database(self) -> str:
        """Return the name of the database."""
        return self._database


class AsyncSqlalchemy:
    """An AsyncSession or AsyncConnection."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._database = ""

    async def fetch(self, statement: Statement) -> list[str]:
        """Run a statement in the transaction, which the session or connection may begin first."""
        try:
            conn = await self._conn.connection() if _is_session(self._conn) else self._conn
        except Exception as error:
            _refuse_unbound(self._conn, error)
            raise
        self._database = conn.engine.url.database or ""
        sql, parameters = question(statement, _style(self._conn, conn.dialect))
        result = await conn.exec_driver_sql(sql, tuple(parameters), execution_options=_AT_ONCE)
        return list(result.scalars())

    def database(self) -> str:
        """Return the name of the database."""
        return self._database


def adapter(conn: Any) -> Sqlalchemy | None:
    """Return the adapter of what is synchronous; an engine or anything else has none."""
    match _class(conn):
        case "scoped_session":
            return Sqlalchemy(conn())
        case "Session":
            return Sqlalchemy(conn)
        case "Connection":
            return Sqlalchemy(_open(conn))
    return None


def async_adapter(conn: Any) -> AsyncSqlalchemy | None:
    """Return the adapter of what is asynchronous; an engine or anything else has none."""
    match _class(conn):
        case "async_scoped_session":
            return AsyncSqlalchemy(conn())
        case "AsyncSession":
            return AsyncSqlalchemy(conn)
        case "AsyncConnection":
            return AsyncSqlalchemy(_open(conn))
    return None


def _class(conn: Any) -> str:
    """Return SQLAlchemy's own name for a class that may be derived from it."""
    names = (k.__name__ for k in conn.__class__.__mro__ if k.__module__.startswith("sqlalchemy."))
    return next(names, "")


def _open(conn: Any) -> Any:
    if conn.closed:
        raise refusals.closed(conn)
    return conn


def _refuse_unbound(conn: Any, error: Exception) -> None:
    """Refuse a session that does not know which of its engines is meant."""
    if type(error).__name__ == "UnboundExecutionError":
        raise refusals.not_a_connection(
            conn,
            " that is not bound to one engine",
            fix='Give what you write on:  session.connection(bind_arguments={"mapper": Order})',
        ) from error


def _is_session(conn: Any) -> bool:
    return hasattr(conn, "get_bind")


def _style(conn: Any, dialect: Any) -> Style:
    if dialect.name != "postgresql":
        raise refusals.not_a_connection(conn, f" to {dialect.name}, not to PostgreSQL")
    if dialect.driver not in _STYLES:
        raise refusals.not_a_connection(
            conn,
            f" that uses {dialect.driver}",
            fix="Use postgresql+psycopg, postgresql+psycopg2 or postgresql+asyncpg.",
        )
    return _STYLES[dialect.driver]
