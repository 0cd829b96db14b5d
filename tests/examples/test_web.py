"""Web applications: an order and its job commit together, and the site itself runs the job."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from time import monotonic, sleep
from typing import Any

import pytest
from starlette.testclient import TestClient

from holdfast import App, start_processor
from tests.conftest import Connect
from tests.docs.test_snippets import address
from tests.examples.conftest import Use

SHIPPED = "select id, shipped from orders"


@contextmanager
def asgi(module: Any) -> Iterator[Any]:
    with TestClient(module.web, raise_server_exceptions=False) as client:
        yield client


@contextmanager
def flask(module: Any) -> Iterator[Any]:
    with start_processor(module.queue), module.web.test_client() as client:
        yield client
    module.engine().dispose()


@pytest.mark.parametrize(
    ("name", "open_site"),
    [("fastapi", asgi), ("starlette", asgi), ("litestar", asgi), ("flask", flask)],
)
def test_a_site_stores_an_order_with_its_job_and_ships_it(
    name: str, open_site: Any, use: Use, database: str, connect: Connect
) -> None:
    module = import_module(f"examples.web.{name}_shop")
    app: App = use(module.queue)
    app.use(address(database))
    database_now = connect()
    with open_site(module) as site:
        stored = site.post("/orders/42")
        wait_until(lambda: database_now.execute(SHIPPED).fetchall() == [(42, True)])
        again = site.post("/orders/42")

        assert (stored.status_code // 100, again.status_code) == (2, 500)
        if name != "flask":
            assert site.get("/queue/v1/queues").status_code == 401
            site.cookies.set("session", "ada")
            assert site.get("/queue/v1/queues").json()["queues"][0]["queue"] == "default"
            assert "<html" in site.get("/queue/", headers={"accept": "text/html"}).text
    assert connect().execute("select enqueued from holdfast.queues").fetchall() == [(1,)]


def wait_until(comes: Callable[[], bool]) -> None:
    deadline = monotonic() + 60
    while not comes():
        assert monotonic() < deadline
        sleep(0.02)
