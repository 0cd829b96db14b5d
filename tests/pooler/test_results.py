"""Behind a pooler nobody is notified of the end of a job, and results are polled for."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import App
from tests.client.test_pgbouncer import BINARY, Pooled

pytestmark = pytest.mark.skipif(BINARY is None, reason="pgbouncer is not installed")


def test_a_result_is_polled_for(pooled: Pooled, database: str) -> None:
    with App(pooled(database)) as app:
        asked = threading.Event()

        @app.task(keep_result=True)
        def answer() -> int:
            return 42

        handle = answer.enqueue()
        ask = app.client.jobs.await_end
        app.client.jobs.await_end = lambda *a, **k: (ask(*a, **k), asked.set())  # type: ignore[assignment,method-assign]
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(handle.result, 60)
            assert asked.wait(60)
            [lease] = app.client.claim(worker="test")
            app.client.ack([lease], results=[42], keep=True)

            assert waiting.result(60) == 42
