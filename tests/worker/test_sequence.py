"""Sequential queues: one run at a time, in order, retried by themselves."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import App
from holdfast.worker import Worker

Drain = Callable[..., Worker]


@pytest.mark.proves("S2.3", "S2.4")
def test_enqueue_says_whether_a_run_starts_or_behind_which_it_waits(app: App) -> None:
    @app.task(queue="axiom", lane="axiom")
    def price_run(scenario: str) -> None: ...

    first, second, third = (price_run.enqueue(name) for name in ("base", "up", "down"))

    assert first.behind is None
    assert second.behind == first.id
    assert third.behind == second.id or third.behind == first.id

    [lease] = app.client.claim("axiom", worker="a")
    assert price_run.enqueue("again").behind is not None
    app.client.ack([lease])


@pytest.mark.proves("S2.1", "S2.2")
def test_runs_never_overlap_and_keep_their_order(app: App, start: Callable[..., Any]) -> None:
    order: list[int] = []
    now = most = 0
    lock = threading.Lock()
    done = threading.Event()

    @app.task(queue="axiom", lane="axiom")
    def price_run(n: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            order.append(n)
        time.sleep(0.005)
        with lock:
            now -= 1
        if n == 29:
            done.set()

    app.enqueue_many(price_run.call(n) for n in range(30))
    for _ in range(3):
        start(concurrency=4)

    assert done.wait(100)
    assert most == 1
    assert order == list(range(30))


@pytest.mark.proves("S2.7", "S2.19", "S2.20")
def test_a_failed_run_is_tried_again_by_itself_and_at_most_as_often_as_it_may(
    app: App, drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast.worker")
    runs: list[tuple[str, int]] = []

    @app.task(queue="axiom", lane="axiom", retry=0)
    def price_run(scenario: str) -> None:
        runs.append((scenario, holdfast.current().attempt))
        if scenario == "broken" or (scenario == "shaky" and holdfast.current().attempt == 1):
            raise RuntimeError("couldn't find content during run on step 20")

    broken = price_run.options(max_attempts=2).enqueue("broken")
    shaky = price_run.options(max_attempts=5).enqueue("shaky")
    drain()

    assert broken.state() == "dead"
    assert shaky.state() == "done"
    assert sorted(runs) == [("broken", 1), ("broken", 2), ("shaky", 1), ("shaky", 2)]


@pytest.mark.proves("S2.21")
def test_a_stuck_run_is_failed_after_its_own_time_and_the_next_one_starts(
    app: App, start: Callable[..., Any]
) -> None:
    release, ran = threading.Event(), threading.Event()

    @app.task(queue="axiom", lane="axiom", timeout=0.4, max_attempts=1)
    def price_run(scenario: str) -> None:
        if scenario == "stuck":
            release.wait(20)
        else:
            ran.set()

    stuck = price_run.enqueue("stuck")
    price_run.enqueue("next")
    start()

    assert ran.wait(100)
    release.set()
    [attempt] = app.client.jobs.attempts(stuck.id)
    assert (attempt.error_kind, attempt.message) == ("TimedOut", "timed out after 0.4 s")
