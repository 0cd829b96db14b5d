"""Programs that own a connection, one for each library, with the same verbs for all.

Each is a context manager that yields a `Caller` while its connection is open. What is asynchronous
runs in one event loop, so that a test reads the same for all.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connections as django_connections
from django.db import transaction as django_transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast import App
from holdfast.app import Handle
from holdfast.client import async_client_on, client_on


@dataclass
class Caller:
    """A connection as its owner uses it; `transaction` and `savepoint` make context managers."""

    conn: Any
    execute: Callable[[str], Any]
    transaction: Callable[[], Any]
    savepoint: Callable[[], Any]
    waits: Callable[[Any], Any] | None = None

    def enqueue(self, task: Any, *args: Any, **options: Any) -> "Handle[Any]":
        """Enqueue a task in the transaction."""
        chosen = task.options(conn=self.conn, **options)
        handle: Handle[Any] = (
            self.waits(chosen.aenqueue(*args)) if self.waits else chosen.enqueue(*args)
        )
        return handle

    def enqueue_many(self, task: Any, calls: Any) -> "list[Handle[Any]]":
        """Enqueue calls in the transaction."""
        app: App = task.app
        if self.waits:
            handles: list[Handle[Any]] = self.waits(app.aenqueue_many(calls, conn=self.conn))
            return handles
        return app.enqueue_many(calls, conn=self.conn)

    def ask(self, verb: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client on this connection."""
        client: Any = async_client_on(self.conn) if self.waits else client_on(self.conn)
        said = getattr(client, verb)(*args, **options)
        return self.waits(said) if self.waits else said


@contextmanager
def calling(library: Callable[[str], Any], url: str) -> Iterator[Caller]:
    """Open the connection of a library; run what it awaits in an event loop."""
    opened = library(url)
    if hasattr(opened, "__enter__"):
        with opened as caller:
            yield caller
        return
    with asyncio.Runner() as runner:

        def wait(made: Any) -> Any:
            async def waiting() -> Any:
                return await made

            return runner.run(waiting()) if inspect.isawaitable(made) else made

        @contextmanager
        def blocking(make: Callable[[], Any]) -> Iterator[Any]:
            manager = make()
            value = wait(manager.__aenter__())
            try:
                yield value
            except BaseException as error:
                if not wait(manager.__aexit__(type(error), error, error.__traceback__)):
                    raise
            else:
                wait(manager.__aexit__(None, None, None))

        with blocking(lambda: opened) as caller:
            yield replace(
                caller,
                execute=lambda sql: wait(caller.execute(sql)),
                transaction=partial(blocking, caller.transaction),
                savepoint=partial(blocking, caller.savepoint),
                waits=wait,
            )


def address(url: str) -> dict[str, Any]:
    """Return the parts of an address, for libraries that do not read libpq's form."""
    info = conninfo_to_dict(url)
    return {name: info.get(name) for name in ("host", "port", "user", "password", "dbname")}


def asyncpg_address(url: str) -> dict[str, Any]:
    """Return the parts of an address by asyncpg's names."""
    of = address(url)
    return {"database": of.pop("dbname"), **of}


def sqlalchemy_address(url: str, driver: str) -> dict[str, Any]:
    """Return the arguments of an engine for an address."""
    of = asyncpg_address(url) if driver == "asyncpg" else address(url)
    return {"url": f"postgresql+{driver}://", "connect_args": of}


@contextmanager
def by_psycopg(url: str) -> Iterator[Caller]:
    with psycopg.connect(url) as conn:
        yield Caller(conn, conn.execute, conn.transaction, conn.transaction)


@asynccontextmanager
async def by_async_psycopg(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as conn:
        yield Caller(conn, conn.execute, conn.transaction, conn.transaction)


@contextmanager
def by_psycopg2(url: str) -> Iterator[Caller]:
    conn = psycopg2.connect(url)

    def execute(sql: str) -> None:
        with conn.cursor() as cursor:
            cursor.execute(sql)

    @contextmanager
    def savepoint() -> Iterator[None]:
        execute("savepoint inner_one")
        try:
            yield
        except BaseException:
            execute("rollback to savepoint inner_one")
            raise
        execute("release savepoint inner_one")

    yield Caller(conn, execute, lambda: conn, savepoint)
    conn.close()


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Caller]:
    conn = await asyncpg.connect(**asyncpg_address(url))
    yield Caller(conn, conn.execute, conn.transaction, conn.transaction)
    await conn.close()


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with (
        asyncpg.create_pool(**asyncpg_address(url), min_size=1, max_size=1) as pool,
        pool.acquire() as conn,
    ):
        yield Caller(conn, conn.execute, conn.transaction, conn.transaction)


def by_sqlalchemy(driver: str, make: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a program whose connection or session is made of an engine."""

    @contextmanager
    def library(url: str) -> Iterator[Caller]:
        engine = sqlalchemy.create_engine(**sqlalchemy_address(url, driver))
        conn = make(engine)
        yield Caller(
            conn, lambda sql: conn.execute(sqlalchemy.text(sql)), conn.begin, conn.begin_nested
        )
        conn.close()
        engine.dispose()

    return library


def by_async_sqlalchemy(driver: str, make: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a program whose asynchronous connection or session is made of an engine."""

    @asynccontextmanager
    async def library(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(**sqlalchemy_address(url, driver))
        conn = make(engine)
        if inspect.isawaitable(conn):
            conn = await conn
        yield Caller(
            conn, lambda sql: conn.execute(sqlalchemy.text(sql)), conn.begin, conn.begin_nested
        )
        await conn.close()
        await engine.dispose()

    return library


@contextmanager
def by_django(url: str) -> Iterator[Caller]:
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}})
        django.setup()
    of = {name: value or "" for name, value in address(url).items()}
    django_connections.settings["queue"] = {
        **django_connections.settings["default"],
        "ENGINE": "django.db.backends.postgresql",
        "NAME": of["dbname"],
        "USER": of["user"],
        "PASSWORD": of["password"],
        "HOST": of["host"],
        "PORT": of["port"],
    }
    conn = django_connections["queue"]

    def execute(sql: str) -> None:
        with conn.cursor() as cursor:
            cursor.execute(sql)

    atomic = partial(django_transaction.atomic, "queue")
    try:
        yield Caller(conn, execute, atomic, atomic)
    finally:
        conn.close()
        del django_connections["queue"]
        del django_connections.settings["queue"]


def _in_this_task(engine: Any) -> Any:
    sessions = sessionmaker(engine, class_=AsyncSession)  # type: ignore[type-var]
    return async_scoped_session(sessions, scopefunc=lambda: None)  # type: ignore[arg-type]


LIBRARIES: dict[str, Callable[[str], Any]] = {
    "psycopg": by_psycopg,
    "psycopg async": by_async_psycopg,
    "psycopg2": by_psycopg2,
    "asyncpg": by_asyncpg,
    "asyncpg pool": by_asyncpg_pool,
    "Session psycopg": by_sqlalchemy("psycopg", Session),
    "Session psycopg2": by_sqlalchemy(
        "psycopg2", lambda engine: scoped_session(sessionmaker(engine))
    ),
    "Connection psycopg2": by_sqlalchemy("psycopg2", lambda engine: engine.connect()),
    "AsyncSession asyncpg": by_async_sqlalchemy("asyncpg", AsyncSession),
    "AsyncSession psycopg": by_async_sqlalchemy("psycopg", _in_this_task),
    "AsyncConnection asyncpg": by_async_sqlalchemy("asyncpg", lambda engine: engine.connect()),
    "Django": by_django,
}
