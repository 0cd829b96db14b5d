"""The examples on the test's database, and a server for those that speak HTTP."""

import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from holdfast import App
from holdfast.server import Server, Settings
from tests.docs import pages
from tests.server.serving import Serving, serving

Use = Callable[[App], App]


@pytest.fixture
def use(database: str) -> Iterator[Use]:
    """Points the app of an example to the test's database, and closes it at the end."""
    used: list[App] = []

    def point(app: App) -> App:
        app.use(database)
        used.append(app)
        return app

    yield point
    for app in used:
        app.close()


@pytest.fixture
def server(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """A server that the examples find by HOLDFAST_API."""
    with serving(Server(database, settings=Settings(fresh=0.0))) as started:
        monkeypatch.setenv("HOLDFAST_API", started.url)
        yield started


@pytest.fixture
def api(server: Serving) -> Iterator[httpx.Client]:
    """A client of the server."""
    with server.client() as client:
        yield client


def shows(example: str, printed: str) -> bool:
    """Whether the page of an example shows what it printed, up to numbers."""
    page = pages.ROOT / "examples" / example / "README.md"
    shown = [block.text for block in pages.blocks(page) if not block.text.startswith("$ ")]
    return pages.agrees(_NUMBER.sub("…", shown[0]), printed)


_NUMBER = re.compile(r"\d[\d.:]*")
