"""Starlette with psycopg: an order and its job commit together.

uvicorn examples.web.starlette_shop:web
"""

import psycopg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from holdfast import App, current
from holdfast.asgi import lifespan
from holdfast.server import Server, User

queue = App(name="shop")


@queue.task(key=lambda order: f"order-{order}")
async def ship(order: int) -> None:
    async with current().transaction() as conn:  # the work and its ack commit together, too
        await conn.execute("update orders set shipped = true where id = %s", [order])


async def place(request: Request) -> JSONResponse:
    order = request.path_params["order"]
    async with await psycopg.AsyncConnection.connect(queue.url) as conn:
        await conn.execute("create table if not exists orders (id int primary key, shipped bool)")
        await conn.execute("insert into orders values (%s, false)", [order])
        job = await ship.options(conn=conn).aenqueue(order)
    return JSONResponse({"job": str(job.id)})


def signed_in(request: Request) -> User | None:
    """Who may see the dashboard: ask your own sign-in here."""
    return User.of("ada", "operator") if request.cookies.get("session") == "ada" else None


web = Starlette(
    routes=[
        Route("/orders/{order:int}", place, methods=["POST"]),
        Mount("/queue", Server(queue, auth=signed_in)),
    ],
    lifespan=lifespan(queue, worker=True),
)
