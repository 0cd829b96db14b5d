"""How workers hear of work, and how they stop; each way a wake-up could be lost has a test."""

from collections.abc import Callable

import pytest

from holdfast import App
from holdfast.worker import Worker
from tests.worker.conftest import Running

Start = Callable[..., Running]


def test_a_worker_stopped_before_it_has_declared_itself_ends_without_an_error(app: App) -> None:
    @app.task
    def work() -> None: ...

    worker = Worker(app)
    worker.stop()

    worker.run()


@pytest.mark.parametrize("wait", [0.0, 0.001, 0.005, 0.02])
def test_a_worker_may_be_stopped_at_any_moment_of_its_start(
    app: App, start: Start, wait: float
) -> None:
    @app.task
    def work() -> None: ...

    running = start()
    running.worker._over.wait(wait)

    running.stop()
