"""The kit with asyncpg, alone and below SQLAlchemy: faults at its commits, and its connections."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from holdfast import App, resource
from holdfast.errors import Misuse
from holdfast.testing import Kit
from tests.testing.test_faults import INSERT

Insert = Callable[[str, int], Any]


@pytest.fixture
def app(holdfast: Kit) -> Iterator[App]:
    with App() as app:
        yield app


def of_sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+asyncpg://", 1)


async def by_block(url: str, order_id: int) -> None:
    conn = await asyncpg.connect(url)
    try:
        async with conn.transaction():
            async with conn.transaction():  # a savepoint: not a commit
                await conn.execute("select 1")
            await conn.execute(INSERT.replace("%s", "$1"), order_id)
    finally:
        conn.terminate()


async def by_hand(url: str, order_id: int) -> None:
    conn = await asyncpg.connect(url)
    try:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute(INSERT.replace("%s", "$1"), order_id)
        await transaction.commit()
    finally:
        conn.terminate()


async def by_sqlalchemy(url: str, order_id: int) -> None:
    engine = create_async_engine(of_sqlalchemy(url), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(sqlalchemy.text(INSERT.replace("%s", ":id")), {"id": order_id})


def paid(holdfast: Kit) -> int:
    with psycopg.connect(holdfast.url) as conn:
        return len(conn.execute("select from payment").fetchall())


@pytest.mark.parametrize("insert", [by_block, by_hand, by_sqlalchemy])
@pytest.mark.parametrize(("at", "stored"), [("before_commit", 0), ("after_commit", 1)])
def test_a_worker_crashes_at_a_commit_of_asyncpg(
    holdfast: Kit, app: App, insert: Insert, at: str, stored: int
) -> None:
    @app.task
    async def pay(order_id: int) -> None:
        await insert(app.url, order_id)

    pay.enqueue(1)
    holdfast.crash_next(pay, at=at)

    assert [ran.ended for ran in holdfast.drain()] == ["crashed"]
    assert paid(holdfast) == stored


@pytest.mark.parametrize("insert", [by_block, by_hand, by_sqlalchemy])
@pytest.mark.parametrize("committed", [True, False])
def test_the_reply_of_a_commit_of_asyncpg_is_lost(
    holdfast: Kit, app: App, insert: Insert, committed: bool
) -> None:
    @app.task(max_attempts=1)
    async def pay(order_id: int) -> None:
        await insert(app.url, order_id)

    pay.enqueue(1)
    holdfast.drop_connection_at("commit", task=pay, committed=committed)

    [ran] = holdfast.drain(raises=False)
    assert (ran.ended, paid(holdfast)) == ("dead", int(committed))
    assert ran.error is not None


def test_what_another_loop_has_opened_is_explained(holdfast: Kit, app: App) -> None:
    engine = create_async_engine(of_sqlalchemy(app.url))
    sessions = async_sessionmaker(engine)

    @app.task(max_attempts=1)
    async def look() -> None:
        async with sessions() as session:
            await session.execute(sqlalchemy.text("select 1"))

    async def test() -> Any:
        try:
            await look()
            await look.aenqueue()
            holdfast.crash_next(look)
            with pytest.raises(RuntimeError) as caught:
                await holdfast.adrain()
            return caught.value.__notes__
        finally:
            await engine.dispose()

    assert "@app.lifespan" in str(asyncio.run(test()))


def test_what_the_lifespan_yields_is_of_the_loop_that_crashes(holdfast: Kit, app: App) -> None:
    @app.lifespan
    @asynccontextmanager
    async def opened(app: App) -> AsyncIterator[Any]:
        engine = create_async_engine(of_sqlalchemy(app.url))
        yield async_sessionmaker(engine)
        await engine.dispose()

    @app.task
    async def pay(order_id: int, sessions: async_sessionmaker[AsyncSession] = resource) -> None:
        async with sessions.begin() as session:
            await session.execute(sqlalchemy.text(INSERT.replace("%s", ":id")), {"id": order_id})

    async def test() -> Any:
        await pay.aenqueue(1)
        holdfast.crash_next(pay, at="before_commit")
        return await holdfast.adrain(wait=True)

    assert [ran.ended for ran in asyncio.run(test())] == ["crashed", "done"]
    assert paid(holdfast) == 1


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "sqlalchemy"])
def test_a_job_on_a_connection_to_another_database_is_refused(
    holdfast: Kit, app: App, postgres: Any, driver: str
) -> None:
    @app.task
    def greet() -> None: ...

    with connected(driver, postgres.url) as conn, pytest.raises(Misuse, match=r"holdfast\.url"):
        greet.options(conn=conn).enqueue()
    with connected(driver, holdfast.url) as conn:
        greet.options(conn=conn).enqueue()
        app.enqueue_many([greet.call()], conn=conn)
    greet.enqueue()


def test_an_async_job_on_a_connection_to_another_database_is_refused(
    holdfast: Kit, app: App, postgres: Any
) -> None:
    @app.task
    def greet() -> None: ...

    async def test() -> None:
        conn = await asyncpg.connect(postgres.url)
        with pytest.raises(Misuse, match="the test's database"):
            await greet.options(conn=conn).aenqueue()
        await conn.close()
        conn = await asyncpg.connect(holdfast.url)
        await greet.options(conn=conn).aenqueue()
        await conn.close()

    asyncio.run(test())
    holdfast.assert_enqueued(greet, count=1)


def connected(driver: str, url: str) -> Any:
    match driver:
        case "psycopg":
            return psycopg.connect(url)
        case "psycopg2":
            return psycopg2.connect(url)
    address = url.replace("postgresql://", "postgresql+psycopg://", 1)
    return sqlalchemy.create_engine(address, poolclass=NullPool).connect()
