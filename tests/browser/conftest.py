"""A real Chromium before a real server on a real database."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from psycopg import connect, sql
from psycopg.conninfo import make_conninfo

from holdfast.client import Client
from holdfast.server import Server, Settings
from tests.browser import chromium
from tests.browser.stage import set_stage

# As patient as a busy machine needs; what comes sooner is not waited for.
expect.set_options(timeout=40_000)

Serve = Callable[..., str]
Open = Callable[..., Page]


@pytest.fixture(scope="session")
def staged(postgres: Any, template: str) -> Iterator[str]:
    """The name of a database where a shop is at work."""
    with _copied(postgres.url, template) as name:
        url = make_conninfo(postgres.url, dbname=name)
        set_stage(url)
        # Nobody beats here: the workers have to be alive for as long as the tests take.
        with connect(url) as connection:
            connection.execute("update holdfast.worker set seen_at = seen_at + interval '1 hour'")
        yield name


@pytest.fixture
def shop(postgres: Any, staged: str) -> Iterator[str]:
    """The address of a copy of the shop's database."""
    with _copied(postgres.url, staged) as name:
        yield make_conninfo(postgres.url, dbname=name)


@pytest.fixture(scope="session")
def viewing(postgres: Any, staged: str) -> Iterator[str]:
    """The address of a server for looking only: everybody shares its database."""
    with _copied(postgres.url, staged) as name:
        url = make_conninfo(postgres.url, dbname=name)
        with serving(url, Settings(name="prod", read_only=True)) as address:
            yield address


@pytest.fixture(scope="session")
def empty(postgres: Any, template: str) -> Iterator[str]:
    """The address of a server whose database holds nothing."""
    with _copied(postgres.url, template) as name:
        url = make_conninfo(postgres.url, dbname=name)
        with serving(url, Settings()) as address:
            yield address


@pytest.fixture
def client(shop: str) -> Iterator[Client]:
    """A client of the shop's database."""
    with Client(shop) as opened:
        yield opened


@contextmanager
def serving(url: str, settings: Settings) -> Iterator[str]:
    """Serve a database on a free port of this machine."""
    with running(Server(url, settings=settings)) as address:
        yield address


@contextmanager
def running(application: Any) -> Iterator[str]:
    """Run an ASGI application on a free port of this machine."""
    config = uvicorn.Config(application, port=0, log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.force_exit = server.should_exit = True
        thread.join(100)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves databases until the end of the test; keywords are settings."""
    with ExitStack() as stack:
        yield lambda url, **settings: stack.enter_context(serving(url, Settings(**settings)))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The one browser of the run."""
    program, environment = chromium.find()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program, env={**os.environ, **environment}, args=["--no-sandbox"]
        )
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens pages; whatever one of them complains about fails the test."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # An answer that is no success is the page's business; what the browser refuses is ours.
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    with ExitStack() as stack:

        def open_one(address: str, *, width: int = 1280, theme: str = "light") -> Page:
            context = browser.new_context(
                viewport={"width": width, "height": 860},
                color_scheme=theme,  # type: ignore[arg-type]
                permissions=["clipboard-read", "clipboard-write"],
                locale="en-GB",
                timezone_id="Europe/Paris",
                reduced_motion="reduce",
            )
            stack.callback(context.close)
            context.set_default_timeout(40_000)
            page = context.new_page()
            page.on("console", note)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(address)
            return page

        yield open_one
    assert complaints == []


@pytest.fixture
def page(shop: str, serve: Serve, open_page: Open) -> Page:
    """The shop's overview."""
    return open_page(serve(shop, name="prod"))


@contextmanager
def _copied(url: str, original: str) -> Iterator[str]:
    name = sql.Identifier(f"holdfast_shop_{uuid4().hex}")
    create = sql.SQL("create database {} template {} strategy file_copy").format(
        name, sql.Identifier(original)
    )
    drop = sql.SQL("drop database if exists {} with (force)").format(name)
    with connect(url, autocommit=True) as connection:
        connection.execute(create)
    try:
        yield name.as_string().strip('"')
    finally:
        with connect(url, autocommit=True) as connection:
            connection.execute(drop)
