"""A server on a port of its own, in a thread of this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from holdfast.server import Server
from holdfast.server.serve import beside
from tests.plain import NO_TLS


class Serving:
    """A running server and clients to call it with."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url
        self.port = int(url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.Client:
        """A client that is closed with its context."""
        return httpx.Client(base_url=self.url, timeout=30.0, verify=NO_TLS, **options)


@contextmanager
def serving(server: Server) -> Iterator[Serving]:
    """Run a server until the end of the context."""
    with beside(server) as url:
        yield Serving(server, url)
