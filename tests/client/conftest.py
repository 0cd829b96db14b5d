"""Both clients behind one face, and a connection that can be made to fail at a chosen moment."""

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import AsyncClient, Client
from holdfast.client.aio.noun import AsyncNoun
from tests.ports import free_port

MakeClient = Callable[..., Any]


class Blocking:
    """An AsyncClient, or one of its nouns, that is called as if it were synchronous."""

    def __init__(self, client: Any, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if isinstance(attribute, AsyncNoun):
            return Blocking(attribute, self._runner)
        if not inspect.iscoroutinefunction(attribute):
            return attribute
        return lambda *args, **kwargs: self._runner.run(attribute(*args, **kwargs))


@pytest.fixture(params=["sync", "async"])
def make_client(request: pytest.FixtureRequest, database: str) -> Iterator[MakeClient]:
    """Makes clients of the test's database, by default; closes them at the end."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())

        def make(url: str | None = None, **options: Any) -> Any:
            client: Any
            if request.param == "sync":
                client = Client(url or database, **options)
            else:
                client = Blocking(AsyncClient(url or database, **options), runner)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def client(make_client: MakeClient) -> Any:
    """A client of the test's database; every test that asks for it runs with both kinds."""
    return make_client()


class Proxy:
    """Stands between a client and the server, and fails when told to."""

    def __init__(self, url: str) -> None:
        info = conninfo_to_dict(url)
        host, port = str(info["host"]), int(str(info.get("port") or 5432))
        self._server = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self._replies_left: int | None = None
        self._swallowed = b""
        self._times = 0
        self._silent = threading.Event()
        self._port = free_port()
        self.up()
        self.url = make_conninfo(url, host="127.0.0.1", port=self._port, sslmode="disable")

    def up(self) -> None:
        """Accept connections."""
        self._listener = socket.create_server(("127.0.0.1", self._port), reuse_port=True)
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def down(self) -> None:
        """Cut every connection and refuse new ones."""
        # Shut down first: closing alone would leave the accepting thread in accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            _cut(*link)
        self._links.clear()

    def swallow_reply(self, after: int = 0, *, with_: bytes = b"", times: int = 1) -> None:
        """Let a statement reach the server, and cut the connection instead of its reply.

        That is the first reply after so many that holds these bytes, and then as many more.
        """
        self._replies_left = after
        self._swallowed = with_
        self._times = times

    def go_silent(self) -> None:
        """Let nothing more come back, as a network does that drops packets."""
        self._silent.set()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            family = socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET
            server = socket.socket(family)
            server.connect(self._server)
            self._links.append((client, server))
            threading.Thread(target=self._requests, args=[client, server], daemon=True).start()
            threading.Thread(target=self._replies, args=[client, server], daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        _cut(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if self._replies_left == 0 and self._swallowed in data:
                    self._times -= 1
                    if not self._times:
                        self._replies_left = None
                    break
                if self._replies_left:
                    self._replies_left -= 1
                if not self._silent.is_set():
                    client.sendall(data)
        _cut(client, server)


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    """A way to the test's database that can be made to fail."""
    proxy = Proxy(database)
    yield proxy
    proxy.down()
