"""Connections of other drivers than psycopg 3: one statement is sent on whatever the caller has.

A library is recognised by the modules of the object's class, so that none is imported that the
caller does not use. Each has one short adapter here: ask this question, return its answers.
"""

from typing import Any, Protocol

import psycopg

from holdfast.client.drivers import asyncpg, django, psycopg2, refusals, sqlalchemy
from holdfast.client.statement import Statement


class Driver(Protocol):
    """The caller's connection or session."""

    def fetch(self, statement: Statement) -> list[str]:
        """Run a statement in the caller's transaction; returns what answers its question."""

    def database(self) -> str:
        """Return the name of the database, or nothing if the driver does not tell."""


class AsyncDriver(Protocol):
    """What `Driver` is, for a connection whose calls are awaited."""

    async def fetch(self, statement: Statement) -> list[str]:
        """Run a statement in the caller's transaction; returns what answers its question."""

    def database(self) -> str:
        """Return the name of the database, or nothing if the driver does not tell."""


def driver_of(conn: Any) -> Driver:
    """Return how to speak on a synchronous connection; raises Misuse for anything else."""
    if found := _synchronous(conn):
        return found
    if _asynchronous(conn) or isinstance(conn, psycopg.AsyncConnection):
        raise refusals.asynchronous(conn)
    raise refusals.not_a_connection(conn)


def async_driver_of(conn: Any) -> AsyncDriver:
    """Return how to speak on an asynchronous connection; raises Misuse for anything else."""
    if found := _asynchronous(conn):
        return found
    if _synchronous(conn) or isinstance(conn, psycopg.Connection):
        raise refusals.synchronous(conn)
    raise refusals.not_a_connection(conn)


def _synchronous(conn: Any) -> Driver | None:
    match _library(conn):
        case "psycopg2":
            return psycopg2.adapter(conn)
        case "sqlalchemy":
            return sqlalchemy.adapter(conn)
        case "django":
            return django.adapter(conn)
    return None


def _asynchronous(conn: Any) -> AsyncDriver | None:
    match _library(conn):
        case "asyncpg":
            return asyncpg.adapter(conn)
        case "sqlalchemy":
            return sqlalchemy.async_adapter(conn)
    return None


def _library(conn: Any) -> str:
    # Not type(): tracing tools hand out proxies that say they are of the class they wrap.
    roots = (kind.__module__.partition(".")[0] for kind in conn.__class__.__mro__)
    return next((root for root in roots if root in _LIBRARIES), "")


_LIBRARIES = ("asyncpg", "django", "psycopg2", "sqlalchemy")
