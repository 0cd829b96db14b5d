"""Whatever was done to a connection, a job is enqueued on it, or the caller is told why not."""

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import psycopg2.pool
import pytest
import sqlalchemy
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import holdfast.client
from holdfast import App, Client
from holdfast.client import async_client_on, client_on
from holdfast.errors import InvalidJob, Misuse
from holdfast.records import Enqueued, NewJob
from tests.client.callers import asyncpg_address, by_django, sqlalchemy_address

PAYLOAD = {
    "text": "%s %% %(a)s :name ::x $1 $$ ' '' \" \\ \\' {} \u2028 \U0001f600 é\t\n ? --",
    "%s": [None],
}


class Busy:
    """A lane that is held: an answer about it has a value of each type."""

    def __init__(self, url: str) -> None:
        with Client(url) as client:
            self.first = client.enqueue("greet", lane="till").id
            assert client.claim(worker="adé")
        self.url = url

    def check(self, answer: Enqueued) -> None:
        with Client(self.url) as client:
            expected = client.enqueue("greet", lane="till")
            stored = client.jobs.get(answer.id)
        assert stored is not None
        assert stored.payload == PAYLOAD
        assert type(answer.id) is UUID
        assert (answer.created, answer.behind, answer.holder) == (True, self.first, "adé")
        assert answer.held_since == expected.held_since is not None


@pytest.fixture
def busy(database: str) -> Busy:
    return Busy(database)


def enqueued_on(conn: Any) -> Enqueued:
    return client_on(conn).enqueue("greet", PAYLOAD, lane="till", key="%s:a$1'\\")


async def aenqueued_on(conn: Any) -> Enqueued:
    return await async_client_on(conn).enqueue("greet", PAYLOAD, lane="till", key="%s:a$1'\\")


async def strange_asyncpg(url: str) -> Any:
    conn = await asyncpg.connect(**asyncpg_address(url), statement_cache_size=0)
    for name in ("json", "jsonb"):
        await conn.set_type_codec(
            name, encoder=json.dumps, decoder=lambda _: "mine", schema="pg_catalog"
        )
    for name in ("uuid", "timestamptz", "bool", "bytea"):
        await conn.set_type_codec(
            name, encoder=str, decoder=lambda _: "mine", schema="pg_catalog", format="text"
        )
    return conn


SETTINGS = (
    "set datestyle = 'German'",
    "set intervalstyle = 'sql_standard'",
    "set timezone = 'Asia/Kathmandu'",
    "set bytea_output = 'escape'",
    "set standard_conforming_strings = off",
    "create schema mine",
    "create function mine.encode(bytea, text) returns text return 'mine'",
    "set search_path = mine, pg_catalog",
)


def test_codecs_of_asyncpg_do_not_matter(busy: Busy) -> None:
    async def main() -> None:
        conn = await strange_asyncpg(busy.url)
        for setting in SETTINGS:
            await conn.execute(setting)
        busy.check(await aenqueued_on(conn))
        await conn.close()

    asyncio.run(main())


def test_loaders_of_psycopg_do_not_matter(busy: Busy) -> None:
    with psycopg.connect(busy.url, autocommit=True) as conn:
        for setting in SETTINGS:
            conn.execute(setting)
        set_json_loads(lambda _: "mine", conn)
        for name in ("uuid", "bool"):
            conn.adapters.register_loader(name, TextLoader)

        busy.check(enqueued_on(conn))


def test_cursors_and_types_of_psycopg2_do_not_matter(busy: Busy) -> None:
    conn = psycopg2.connect(busy.url, cursor_factory=psycopg2.extras.RealDictCursor)
    conn.autocommit = True
    with conn.cursor() as cursor:
        for setting in SETTINGS:
            cursor.execute(setting)
    conn.set_client_encoding("WIN1252")
    conn.set_client_encoding("UTF8")
    psycopg2.extras.register_default_jsonb(conn, loads=lambda _: "mine")

    busy.check(enqueued_on(conn))
    conn.close()


def test_an_encoding_of_the_connection_is_read_as_such(busy: Busy) -> None:
    conn = psycopg2.connect(busy.url)
    conn.set_client_encoding("WIN1252")

    answer = client_on(conn).enqueue("greet", {"text": "é"}, lane="till")
    read = client_on(conn).jobs.get(answer.id)

    assert answer.holder == "adé"
    assert read is not None
    assert read.payload == {"text": "é"}
    conn.close()


def test_options_of_sqlalchemy_do_not_matter(busy: Busy) -> None:
    engine = sqlalchemy.create_engine(
        **sqlalchemy_address(busy.url, "psycopg"),
        isolation_level="AUTOCOMMIT",
        json_serializer=lambda _: "mine",
        json_deserializer=lambda _: "mine",
    )
    with engine.connect() as conn:
        for setting in SETTINGS:
            conn.exec_driver_sql(setting)
        conn.execution_options(stream_results=True, yield_per=1)
        busy.check(enqueued_on(conn))
    engine.dispose()


def test_options_of_async_sqlalchemy_do_not_matter(busy: Busy) -> None:
    async def main() -> None:
        engine = create_async_engine(
            **sqlalchemy_address(busy.url, "asyncpg"),
            json_deserializer=lambda _: "mine",
            execution_options={"stream_results": True},
        )
        async with AsyncSession(engine) as session:
            answer = await aenqueued_on(session)
            again = await session.run_sync(
                lambda inner: client_on(inner).enqueue("greet", key="%s:a$1'\\")
            )
            assert again.duplicate_of == answer.id
            await session.commit()
        await engine.dispose()
        busy.check(answer)

    asyncio.run(main())


def test_every_verb_works_on_a_connection_of_asyncpg(database: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(**asyncpg_address(database))
        client = async_client_on(conn)
        async with conn.transaction():
            job = await client.enqueue("greet", PAYLOAD, headers={"a": "1"}, max_attempts=3)
            await client.queues.set("default", max_attempts=7)
            [lease] = await client.claim(worker="ada", lease=90.5, kinds=["greet", "%s"])
            [settled] = await client.nack([lease], message="no", delay=0)
            [edited] = await client.jobs.edit([job.id], priority=3)
            [cancelled] = await client.jobs.cancel([job.id])
            [retried] = await client.jobs.retry([job.id], delay=5)
            found = await client.jobs.get(job.id)
            [queue] = await client.queues.list()
        assert (lease.id, lease.payload, lease.headers) == (job.id, PAYLOAD, {"a": "1"})
        assert lease.length.total_seconds() == 90.5
        assert settled.outcome == "queued"
        assert (edited.changed, cancelled.changed, retried.state) == (True, True, "queued")
        assert found is not None
        assert (found.priority, found.payload, queue.max_attempts) == (3, PAYLOAD, 7)
        await conn.close()

    asyncio.run(main())


def test_jobs_of_one_statement_are_duplicates_of_each_other(database: str) -> None:
    text = {"text": "\x1e \x1f, ]\n['\\x1e"}
    jobs = [NewJob(kind="greet", payload=text, key=str(n % 10_001)) for n in range(10_002)]
    conn = psycopg2.connect(database)

    answers = client_on(conn).enqueue_many(jobs)
    stored = client_on(conn).jobs.get(answers[-1].id)

    assert [answer.created for answer in answers] == [True] * 10_001 + [False]
    assert answers[-1].duplicate_of == answers[0].id
    assert stored is not None
    assert stored.payload == text
    conn.close()


def test_a_proxy_that_says_what_it_wraps_is_taken_for_it(busy: Busy) -> None:
    """Tracing tools hand out such connections."""

    class Traced:
        def __init__(self, wrapped: Any) -> None:
            self.wrapped = wrapped

        @property
        def __class__(self) -> Any:
            return type(self.wrapped)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.wrapped, name)

    conn = psycopg2.connect(busy.url)

    answer = enqueued_on(Traced(conn))
    conn.commit()

    busy.check(answer)
    conn.close()


def test_a_connection_given_to_the_client_as_an_option_is_answered_with_what_to_type(
    database: str,
) -> None:
    with Client(database) as client, pytest.raises(InvalidJob, match="unknown option") as caught:
        client.enqueue("greet", conn=None)  # type: ignore[call-arg]

    assert "client.on(connection).enqueue(…)" in caught.value.fix


# What is not a connection.


def test_what_cannot_carry_a_job_is_named(database: str) -> None:
    task = App(database).task(kind="greet")(lambda: None)
    open = psycopg.connect(database)
    closed = psycopg.connect(database)
    closed.close()
    closed2 = psycopg2.connect(database)
    closed2.close()
    lite = sqlalchemy.create_engine("sqlite://")
    engine = sqlalchemy.create_engine(**sqlalchemy_address(database, "psycopg"))
    ended = engine.connect()
    ended.close()
    pool = psycopg2.pool.SimpleConnectionPool(0, 1, database)
    aiopg = type("Connection", (), {"__module__": "aiopg.connection"})()
    wrong = {
        "a str": database,
        "a sqlite3.Connection": sqlite3.connect(":memory:"),
        "an aiopg.connection.Connection": aiopg,
        "a psycopg.Connection, which is closed": closed,
        "a psycopg2.extensions.connection, which is closed": closed2,
        "a sqlalchemy.engine.base.Connection, which is closed": ended,
        "a psycopg.Cursor": open.cursor(),
        "a psycopg2.pool.SimpleConnectionPool": pool,
        "a sqlalchemy.engine.base.Engine": engine,
        "a sqlalchemy.orm.session.sessionmaker": sessionmaker(engine),
        "a sqlalchemy.orm.session.Session that is not bound to one engine": Session(),
        "a sqlalchemy.orm.session.Session to sqlite, not to PostgreSQL": Session(lite),
        "a type": psycopg.Connection,
    }

    for name, conn in wrong.items():
        with pytest.raises(Misuse) as caught:
            task.options(conn=conn).enqueue()
        assert caught.value.what.startswith(f"conn is {name}")
        assert __file__.rpartition("/")[2] in caught.value.why
        assert caught.value.fix
    assert "psycopg2 or asyncpg; a Session or Connection" in caught.value.fix
    for conn in (open, wrong["a sqlite3.Connection"], lite, engine):
        getattr(conn, "dispose", conn.close if hasattr(conn, "close") else None)()


def test_what_cannot_carry_a_job_is_named_in_async_code_too(database: str) -> None:
    task = App(database).task(kind="greet")(lambda: None)

    async def main() -> None:
        closed = await asyncpg.connect(**asyncpg_address(database))
        await closed.close()
        engine = create_async_engine(**sqlalchemy_address(database, "asyncpg"))
        async with (
            asyncpg.create_pool(**asyncpg_address(database), min_size=0) as pool,
            await psycopg.AsyncConnection.connect(database) as conn,
        ):
            wrong = {
                "an asyncpg.pool.Pool": pool,
                "an asyncpg.connection.Connection, which is closed": closed,
                "a sqlalchemy.ext.asyncio.engine.AsyncEngine": engine,
                "a sqlalchemy.ext.asyncio.session.async_sessionmaker": async_sessionmaker(engine),
                "a psycopg.AsyncCursor": conn.cursor(),
                "a sqlalchemy.ext.asyncio.session.AsyncSession that is not bound": AsyncSession(),
            }
            for name, given in wrong.items():
                with pytest.raises(Misuse) as caught:
                    await task.options(conn=given).aenqueue()
                assert caught.value.what.startswith(f"conn is {name}")
            for given in (conn, AsyncSession(engine)):
                with pytest.raises(Misuse, match="enqueue cannot use an asynchronous connection"):
                    task.options(conn=given).enqueue()
            async with pool.acquire() as lent:
                with pytest.raises(Misuse, match="enqueue cannot use an asynchronous connection"):
                    task.options(conn=lent).enqueue()
            with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
                await task.options(conn=lent).aenqueue()
        with psycopg.connect(database) as blocking:
            for given in (blocking, Session(engine.sync_engine)):
                with pytest.raises(Misuse, match="aenqueue cannot use a synchronous connection"):
                    await task.options(conn=given).aenqueue()
        await engine.dispose()

    asyncio.run(main())


# What is not about the job.


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("set transaction read only", "in a read-only transaction"),
        ("select 1 / 0", "current transaction is aborted"),
    ],
)
def test_the_drivers_own_error_shows_what_is_wrong_with_the_transaction(
    database: str, before: str, told: str
) -> None:
    conn = psycopg2.connect(database)
    engine = sqlalchemy.create_engine(**sqlalchemy_address(database, "psycopg"))

    with suppress(psycopg2.errors.DivisionByZero):
        conn.cursor().execute(before)
    with pytest.raises(psycopg2.Error, match=told):
        enqueued_on(conn)

    with Session(engine) as session:
        with suppress(sqlalchemy.exc.DataError):
            session.connection().exec_driver_sql(before)
        with pytest.raises(sqlalchemy.exc.DBAPIError, match=told):
            enqueued_on(session)

    async def main() -> None:
        conn = await asyncpg.connect(**asyncpg_address(database))
        transaction = conn.transaction()
        await transaction.start()
        with suppress(asyncpg.DivisionByZeroError):
            await conn.execute(before)
        with pytest.raises(asyncpg.PostgresError, match=told):
            await aenqueued_on(conn)
        await transaction.rollback()
        await conn.close()

    asyncio.run(main())
    conn.close()
    engine.dispose()


@pytest.mark.direct_only("the process number is the pooler's")
def test_a_connection_that_broke_fails_as_its_driver_says(database: str, connect: Any) -> None:
    conn = psycopg2.connect(database)
    connect().execute("select pg_terminate_backend(%s, 60000)", [conn.info.backend_pid])

    for _ in range(2):
        with pytest.raises(psycopg2.Error):
            enqueued_on(conn)


def test_no_driver_is_imported_for_a_connection_of_another(database: str) -> None:
    script = """
import sys, psycopg
from holdfast import App
with psycopg.connect(sys.argv[1]) as conn:
    App().task(kind="greet")(lambda: None).options(conn=conn).enqueue()
print([name for name in ("asyncpg", "django", "psycopg2", "sqlalchemy") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, database], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_a_parameter_of_a_call_that_is_not_a_text_has_a_cast(connect: Any) -> None:
    """Any driver sends it as a text, which PostgreSQL converts only if it is told to what."""
    takes = {
        (function, name): type
        for function, name, type in connect().execute(
            """
            select p.proname, p.proargnames[a.nth], format_type(a.type, null)
            from pg_proc p, unnest(p.proargtypes::oid[]) with ordinality a(type, nth)
            where p.pronamespace = 'holdfast'::regnamespace
            """
        )
    }
    sent = re.compile(r"holdfast\.(\w+)\(|(\w+) => %s(::)?")
    client = Path(holdfast.client.__file__).parent

    bare = []
    for file in [*client.glob("*.py"), *client.glob("aio/*.py")]:
        function = ""
        for name, argument, cast in sent.findall(file.read_text("utf-8")):
            function = name or function
            if argument and not cast and takes.get((function, argument), "text") != "text":
                bare.append(f"{file.name}: {function}({argument} => %s)")

    assert bare == []
    assert takes["enqueue", "items"] == "jsonb"


def test_a_driver_of_sqlalchemy_that_is_not_known_is_refused(database: str) -> None:
    engine = sqlalchemy.create_engine(**sqlalchemy_address(database, "psycopg"))
    engine.dialect.driver = "pg8000"

    with engine.connect() as conn, pytest.raises(Misuse, match="that uses pg8000") as caught:
        enqueued_on(conn)

    assert "postgresql+asyncpg" in caught.value.fix
    engine.dispose()


def test_django_of_another_database_and_in_async_code_is_refused(database: str) -> None:
    with by_django(database) as caller:
        caller.conn.vendor = "sqlite"
        with pytest.raises(Misuse, match=r"conn is a django\..* to sqlite, not to PostgreSQL"):
            enqueued_on(caller.conn)
        del caller.conn.vendor
        with pytest.raises(Misuse, match="aenqueue cannot use a synchronous connection") as caught:
            async_client_on(caller.conn)
    assert "sync_to_async" in caught.value.fix
