"""FastAPI with SQLAlchemy and asyncpg: an order and its job commit together.

uvicorn examples.web.fastapi_shop:web
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from holdfast import App, AsyncClient
from holdfast.asgi import lifespan
from holdfast.server import Server, User

queue = App(name="shop")
sessions = async_sessionmaker[AsyncSession]()


@queue.task(key=lambda order: f"order-{order}")
async def ship(order: int) -> None:
    async with sessions.begin() as session:
        await session.execute(
            text("update orders set shipped = true where id = :id"), {"id": order}
        )


@asynccontextmanager
async def database(web: FastAPI) -> AsyncIterator[None]:
    engine = create_async_engine(queue.url.replace("postgresql://", "postgresql+asyncpg://"))
    sessions.configure(bind=engine)
    async with sessions.begin() as session:
        await session.execute(
            text("create table if not exists orders (id int primary key, shipped bool)")
        )
    yield
    await engine.dispose()


async def in_transaction() -> AsyncIterator[AsyncSession]:
    async with sessions.begin() as session:
        yield session


async def queue_client() -> AsyncClient:
    return queue.aclient


Session = Annotated[AsyncSession, Depends(in_transaction, scope="function")]
Client = Annotated[AsyncClient, Depends(queue_client)]
web = FastAPI(lifespan=lifespan(queue, worker={"concurrency": 2}, also=database))


@web.post("/orders/{order}")
async def place(order: int, session: Session) -> dict[str, str]:
    await session.execute(text("insert into orders values (:id, false)"), {"id": order})
    job = await ship.options(conn=session).aenqueue(order)
    return {"job": str(job.id)}


@web.get("/orders/{order}")
async def look(order: int, session: Session) -> dict[str, bool]:
    found = await session.execute(text("select shipped from orders where id = :id"), {"id": order})
    return {"shipped": bool(found.scalar_one())}


@web.get("/waiting")
async def waiting(client: Client) -> dict[str, int]:
    return {one.queue: one.queued for one in await client.queues.list()}


def signed_in(request: Request) -> User | None:
    """Who may see the dashboard: here, whoever has the cookie of your sign-in."""
    return User.of("ada", "operator") if request.cookies.get("session") == "ada" else None


web.mount("/queue", Server(queue, auth=signed_in))
