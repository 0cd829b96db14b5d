"""A server on the test's database, and clients in every role."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from holdfast import Client
from holdfast.server import Auth, Server, Settings
from tests.protocol import shared_database
from tests.server.serving import Serving, serving

Serve = Callable[..., Serving]
Api = httpx.Client


@pytest.fixture(scope="module")
def shared(postgres: Any, template: str) -> Iterator[str]:
    """One database for tests that do not get into each other's way."""
    with shared_database(postgres.url, template) as url:
        yield url


@pytest.fixture
def serve(database: str) -> Iterator[Serve]:
    """Starts servers on the test's database; keywords are Settings, and `auth`."""
    with ExitStack() as stack:

        def start(url: str | None = None, *, auth: Auth | None = None, **settings: Any) -> Serving:
            server = Server(url or database, auth=auth, settings=Settings(**settings))
            return stack.enter_context(serving(server))

        yield start


@pytest.fixture
def server(serve: Serve) -> Serving:
    """A server that lets this machine in, whose answers are never older than the question.

    It leaves upkeep to the test. If both did it, a step that the server is at would be skipped when
    the test asks for it, and what the test then looks at would be as it was.
    """
    return serve(fresh=0.0, upkeep=False)


@pytest.fixture
def api(server: Serving) -> Iterator[Api]:
    """A client of the server."""
    with server.client() as client:
        yield client


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    """The same database without the server in between."""
    with Client(database) as opened:
        yield opened
