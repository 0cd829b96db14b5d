"""The server inside other applications: at any path, with nobody to start or stop it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import App, Client
from holdfast.server import Server, Settings, User


@contextmanager
def hosted(app: Any) -> Iterator[str]:
    """Run any ASGI application under a plain uvicorn; returns its address."""
    config = uvicorn.Config(app, port=0, log_level="critical", loop="asyncio")
    host = uvicorn.Server(config)
    thread = Thread(target=host.run)
    thread.start()
    while not host.started:
        assert thread.is_alive()
    port = host.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        host.should_exit = True
        thread.join(100)


def starlette(server: Server) -> Any:
    return Starlette(routes=[Mount("/tools/queue", server)])


def fastapi(server: Server) -> Any:
    app = FastAPI()
    app.mount("/tools/queue", server)
    return app


@pytest.mark.parametrize("host", [starlette, fastapi])
def test_the_whole_api_works_under_a_path(host: Any, database: str, client: Client) -> None:
    server = Server(database)
    with hosted(host(server)) as url, httpx.Client(base_url=f"{url}/tools/queue") as api:
        stored = api.post("/v1/jobs", json={"kind": "a", "queue": "mail/x"})
        lease = api.post("/v1/claims", json={"worker": "w", "queues": ["mail/x"]}).json()["leases"][
            0
        ]
        acked = api.post(f"/v1/jobs/{lease['id']}/ack", json={"token": lease["token"]})
        problem = api.get(f"/v1/jobs/{lease['id']}x").json()
        contract = api.get("/openapi.json").json()
        client.enqueue("a")
        preview = api.post("/v1/operations:preview", json={"op": "cancel", "q": "kind:a"}).json()
        started = api.post("/v1/operations", json={"preview_token": preview["preview_token"]})
        queue = api.get("/v1/queues/mail%2Fx")
        relayed = api.post("/api/queue/message", json={"payload": {}})

    assert (stored.status_code, acked.status_code, relayed.status_code) == (201, 200, 201)
    assert problem["type"] == "/tools/queue/errors/HF310"
    assert contract["servers"] == [{"url": "/tools/queue"}]
    assert started.headers["location"].startswith("/tools/queue/v1/operations/")
    assert queue.json()["queue"] == "mail/x"


def test_waiting_claims_and_streams_work_without_a_lifespan(database: str, client: Client) -> None:
    client.queues.set("mail")
    server = Server(database)
    with hosted(starlette(server)) as url, httpx.Client(base_url=f"{url}/tools/queue") as api:
        with api.stream("GET", "/v1/events/stream") as stream:
            lines = stream.iter_lines()
            while not next(lines).startswith("event: hello"):
                pass
            client.enqueue("a", queue="mail")
            while not next(lines).startswith("event: tick"):
                pass
        leases = api.post("/v1/claims", json={"worker": "w", "queues": ["mail"], "wait": 5}).json()[
            "leases"
        ]

    assert len(leases) == 1


def test_the_application_says_who_calls_and_its_app_which_database(database: str) -> None:
    with App(database) as app:

        def signed_in(request: Any) -> User | None:
            return User.of("ada", "viewer") if request.headers.get("x-user") == "ada" else None

        server = Server(app, auth=signed_in, settings=Settings(name="shop"))
        with hosted(fastapi(server)) as url, httpx.Client(base_url=f"{url}/tools/queue") as api:
            nobody = api.get("/v1/queues")
            viewer = api.get("/v1/queues", headers={"X-User": "ada"})
            change = api.post("/v1/jobs", json={"kind": "a"}, headers={"X-User": "ada"})
            me = api.get("/v1/me", headers={"X-User": "ada"}).json()

    assert [one.status_code for one in (nobody, viewer, change)] == [401, 200, 403]
    assert me["name"] == "shop"


def test_one_server_serves_one_event_loop_after_another(database: str) -> None:
    server = Server(database, settings=Settings(insecure=True))

    async def ask() -> int:
        transport = httpx.ASGITransport(server, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as api:
            answer = await api.post("/v1/jobs", json={"kind": "a"})
        await server.stop()
        return answer.status_code

    assert [asyncio.run(ask()), asyncio.run(ask())] == [201, 201]


def test_a_server_of_an_app_ends_with_it(database: str) -> None:
    app = App("postgresql://nobody@nowhere/x")
    server = Server(app, settings=Settings(insecure=True))
    app.use(database)  # its address is asked for with the first request

    async def ask() -> int:
        transport = httpx.ASGITransport(server, client=("127.0.0.1", 1))
        async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost") as api:
            return (await api.post("/v1/jobs", json={"kind": "a"})).status_code

    assert asyncio.run(ask()) == 201
    assert server._live == {}


def test_a_websocket_is_turned_away(database: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    asyncio.run(Server(database)({"type": "websocket", "path": "/"}, receive, send))

    assert sent == [{"type": "websocket.close", "code": 1000}]
