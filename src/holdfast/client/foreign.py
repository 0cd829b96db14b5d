"""Clients on the caller's own connection, whichever library wraps it.

Libraries are recognised by attributes, so that only what the caller uses is imported.
"""

from typing import Any

import psycopg

from holdfast.callsite import caller
from holdfast.client import AsyncClient, Client
from holdfast.errors import Misuse


def client_on(conn: Any) -> Client:
    """Return a client on a connection of psycopg, SQLAlchemy or Django."""
    found = _inside(conn)
    if isinstance(found, psycopg.AsyncConnection) or _is_async_sqlalchemy(found):
        raise Misuse(
            "enqueue cannot use an asynchronous connection",
            why=caller(),
            fix="Use  await ….aenqueue(…)",
        )
    if not isinstance(found, psycopg.Connection):
        raise _no_connection(conn, found)
    return _CLIENT.on(found)


async def async_client_on(conn: Any) -> AsyncClient:
    """Return a client on an asynchronous connection of psycopg or SQLAlchemy."""
    found = await _async_inside(conn)
    if isinstance(found, psycopg.Connection):
        raise Misuse(
            "aenqueue cannot use a synchronous connection", why=caller(), fix="Use  ….enqueue(…)"
        )
    if not isinstance(found, psycopg.AsyncConnection):
        raise _no_connection(conn, found)
    return _ASYNC_CLIENT.on(found)


def _inside(conn: Any) -> Any:
    if isinstance(conn, psycopg.Connection | psycopg.AsyncConnection) or _is_async_sqlalchemy(conn):
        return conn
    # Django connects when its connection is first used.
    if hasattr(conn, "ensure_connection"):
        conn.ensure_connection()
        return conn.connection
    # SQLAlchemy: a session has a connection, which has one of its pool, which has the driver's.
    if hasattr(conn, "get_bind") and callable(getattr(conn, "connection", None)):
        conn = conn.connection()
    pooled = getattr(conn, "connection", conn)
    return getattr(pooled, "driver_connection", conn)


async def _async_inside(conn: Any) -> Any:
    if hasattr(conn, "sync_session"):
        conn = await conn.connection()
    if hasattr(conn, "get_raw_connection"):
        pooled = await conn.get_raw_connection()
        return pooled.driver_connection
    return _inside(conn)


def _is_async_sqlalchemy(conn: Any) -> bool:
    return hasattr(conn, "sync_session") or hasattr(conn, "get_raw_connection")


def _no_connection(conn: Any, found: Any) -> Misuse:
    inside = "" if found is conn else f", which holds a {_name(found)}"
    return Misuse(
        f"conn is a {_name(conn)}{inside}",
        why=caller(),
        fix="Give a connection of psycopg 3, or one of SQLAlchemy or Django that uses it.",
    )


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# They never connect; they are only used to be bound.
_CLIENT = Client("postgresql://")
_ASYNC_CLIENT = AsyncClient("postgresql://")
