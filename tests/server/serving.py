"""A server on a port of its own, in a thread of this process."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvloop

from holdfast.server import Server
from holdfast.server.listen import _config, _Uvicorn


class Serving:
    """A running server and clients to call it with."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def client(self, **options: Any) -> httpx.Client:
        """A client that is closed with its context."""
        return httpx.Client(base_url=self.url, timeout=30.0, **options)


@contextmanager
def serving(server: Server) -> Iterator[Serving]:
    """Run a server until the end of the context."""
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    uvicorn = _Uvicorn(_config(server), server)
    thread = threading.Thread(target=lambda: uvloop.run(uvicorn.serve([bound])))
    thread.start()
    try:
        _wait(uvicorn, thread)
        yield Serving(server, port)
    finally:
        uvicorn.should_exit = True
        thread.join(20)
        bound.close()
    assert not thread.is_alive()


def _wait(uvicorn: _Uvicorn, thread: threading.Thread) -> None:
    async def started() -> None:
        while not uvicorn.started and thread.is_alive():
            await asyncio.sleep(0.01)

    asyncio.run(started())
    assert uvicorn.started
