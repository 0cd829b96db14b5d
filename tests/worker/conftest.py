"""An app on the test's database, and workers that end with the test."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import App
from holdfast.worker import Worker
from tests.pgbouncer import POOLED

PATIENCE = 20.0


@pytest.fixture
def app(database: str) -> Iterator[App]:
    """An app without tasks on a fresh database."""
    app = App(database)
    yield app
    app.close()


@pytest.fixture
def hearing(direct: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets workers hear behind a pooler too, by an address past it.

    The others have none there: they poll, and renew leases through the pooler.
    """
    if POOLED:
        monkeypatch.setenv("HOLDFAST_LISTEN_URL", direct)


@pytest.fixture
def drain(app: App) -> Callable[..., Worker]:
    """Runs a worker here until nothing is left to do; returns it."""

    def run(**options: Any) -> Worker:
        worker = Worker(app, until_idle=True, **options)
        worker.run()
        return worker

    return run


class Running:
    """A worker that runs in a thread beside the test."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self.worker.run_async())
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        """Wait for its end; raise what it raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the worker did not end"
        if self.error:
            raise self.error

    def stop(self) -> None:
        """Ask it to stop and wait for its end."""
        self.worker.stop()
        self.join()


@pytest.fixture
def start(app: App) -> Iterator[Callable[..., Running]]:
    """Starts workers beside the test; stops those that still run at its end."""
    running: list[Running] = []

    def begin(**options: Any) -> Running:
        running.append(Running(Worker(app, **options)))
        return running[-1]

    yield begin
    for one in running:
        if one.error is None:
            one.stop()
