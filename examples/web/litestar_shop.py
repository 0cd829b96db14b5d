"""Litestar with asyncpg: an order and its job commit together.

uvicorn examples.web.litestar_shop:web
"""

from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import unquote

import asyncpg
from litestar import Litestar, asgi, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import Receive, Scope, Send
from starlette.requests import Request

from holdfast import App, AsyncClient, current
from holdfast.asgi import lifespan
from holdfast.server import Server, User

queue = App(name="shop")


@queue.task(key=lambda order: f"order-{order}")
async def ship(order: int) -> None:
    async with current().transaction() as conn:  # the work and its ack commit together, too
        await conn.execute("update orders set shipped = true where id = %s", [order])


async def connection() -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(queue.url)
    try:
        async with conn.transaction():
            yield conn
    finally:
        await conn.close()


async def queue_client() -> AsyncClient:
    return queue.aclient


@post("/orders/{order:int}")
async def place(order: FromPath[int], conn: NamedDependency[asyncpg.Connection]) -> dict[str, str]:
    await conn.execute("create table if not exists orders (id int primary key, shipped bool)")
    await conn.execute("insert into orders values ($1, false)", order)
    job = await ship.options(conn=conn).aenqueue(order)
    return {"job": str(job.id)}


def signed_in(request: Request) -> User | None:
    """Who may see the dashboard: ask your own sign-in here."""
    return User.of("ada", "operator") if request.cookies.get("session") == "ada" else None


server = Server(queue, auth=signed_in)


@asgi("/queue", is_mount=True, copy_scope=True)
async def dashboard(scope: Scope, receive: Receive, send: Send) -> None:
    # As ASGI has it, the path is the whole one; Litestar cuts it and adds a slash.
    whole: Any = {**scope, "root_path": "/queue", "path": unquote(scope["raw_path"])}
    await server(whole, cast("Any", receive), cast("Any", send))


web = Litestar(
    [place, dashboard],
    dependencies={"conn": connection, "client": queue_client},
    lifespan=[lifespan(queue, worker=True)],
    logging_config=None,
)
