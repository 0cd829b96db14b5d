"""The lifespan of a web application: what it opens, runs and closes."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic, sleep
from typing import Any

import pytest

from holdfast import App, NotMigrated
from holdfast.asgi import lifespan


def test_the_worker_runs_on_the_loop_of_the_site_within_its_own_lifespan(database: str) -> None:
    app, seen = App(database), list[Any]()

    @asynccontextmanager
    async def own(host: str) -> AsyncIterator[asyncio.Event]:
        seen.append(f"opened for {host}")
        yield asyncio.Event()
        seen.append("closed")

    begin = lifespan(app, worker=True, also=own)

    @app.task  # declared after the lifespan, as modules with routes are
    async def late() -> None:
        seen.append(asyncio.get_running_loop())
        done.set()

    async def site() -> None:
        nonlocal done
        async with begin("web") as done:
            await late.aenqueue()
            await asyncio.wait_for(done.wait(), 60)
            seen.append(asyncio.get_running_loop())

    done = asyncio.Event()
    asyncio.run(site())

    opened, loop_of_job, loop_of_site, closed = seen
    assert (opened, closed) == ("opened for web", "closed")
    assert loop_of_job is loop_of_site
    assert (app._client, app._aclients) == (None, {})


def test_a_site_goes_on_if_its_worker_fails_and_logs_why(
    empty_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(empty_database)
    app.task(print, kind="print")

    async def site() -> None:
        async with lifespan(app, worker=True)(None):
            while not caplog.messages:
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.CRITICAL, "holdfast.worker"), pytest.raises(NotMigrated):
        asyncio.run(asyncio.wait_for(site(), 60))

    [record] = caplog.records
    assert re.match("worker failed: HF110 .*\n.*holdfast migrate", record.getMessage())
    assert record.exc_info is None  # it says what to type; a traceback would hide that


def test_a_site_answers_while_its_worker_waits_for_the_database(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(database)
    app.task(print, kind="print")
    turns = 0

    def slow(*_: Any) -> None:
        """Wait until the loop has gone on, which it could not if it waited for this."""
        deadline = monotonic() + 60
        while turns < 10:
            assert monotonic() < deadline
            sleep(0.01)

    monkeypatch.setattr("holdfast.worker.worker.Worker._declare", slow)

    async def site() -> None:
        nonlocal turns
        async with lifespan(app, worker=True)(None):
            while turns < 20:
                turns += 1
                await asyncio.sleep(0.01)

    asyncio.run(site())
