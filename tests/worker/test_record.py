"""What a worker tells of its work: attempts with their logs, times, and statistics of its own."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

import holdfast
from holdfast import App
from holdfast.worker import Worker
from holdfast.worker.logs import LONGEST, Log

Drain = Callable[..., Worker]


@pytest.mark.parametrize("sort", ["async", "thread"])
def test_what_a_failed_handler_logged_is_kept_with_its_attempt(
    app: App, drain: Drain, sort: str
) -> None:
    log = logging.getLogger("shop")

    def fail(n: int) -> None:
        log.warning("card %s was refused", n)
        raise ValueError("no money")

    if sort == "async":

        @app.task(kind="pay", max_attempts=1)
        async def pay_async(n: int) -> None:
            fail(n)
    else:
        app.task(kind="pay", max_attempts=1)(fail)
    ids = [app.client.enqueue("pay", {"n": n}, max_attempts=1).id for n in (1, 2)]
    worker = drain()

    for n, id in enumerate(ids, 1):
        [attempt] = app.client.jobs.attempts(id)
        assert attempt.log is not None
        assert attempt.log.endswith(f"WARNING shop: card {n} was refused")
        assert attempt.host
        assert attempt.version == holdfast.__version__
        assert attempt.worker == worker.id


def test_a_handler_that_logs_nothing_has_no_log(app: App, drain: Drain) -> None:
    @app.task(max_attempts=1)
    def fail() -> None:
        raise ValueError

    handle = fail.enqueue()
    logging.getLogger("shop").warning("outside")
    drain()

    assert app.client.jobs.attempts(handle.id)[0].log is None


def test_of_a_long_log_the_beginning_and_the_end_are_left() -> None:
    log = Log()
    for n in range(10_000):
        log.add(f"line {n} " + "x" * 50)
    log.add("y" * 100_000)

    lines = log.text().splitlines()
    assert len(log.text().encode()) <= LONGEST
    assert lines[0].startswith("line 0 ")
    assert lines[-1].startswith("yyy")
    assert any("lines left out" in line for line in lines)


def test_one_in_a_hundred_attempts_that_ended_well_is_kept(app: App, drain: Drain) -> None:
    @app.task
    async def fine() -> None:
        logging.getLogger("shop").warning("as usual")

    app.enqueue_many(fine.call() for _ in range(250))
    drain()

    with psycopg.connect(app.url) as connection:
        kept = connection.execute(
            "select outcome, log, ended_at >= started_at from holdfast.attempt"
        ).fetchall()
    assert len(kept) == 2
    assert all(row[0] == "done" and "as usual" in row[1] and row[2] for row in kept)


@pytest.mark.proves("S4.12")
def test_a_worker_tells_how_long_jobs_waited_and_ran(app: App, drain: Drain) -> None:
    @app.task
    def work() -> None:
        never.wait(0.05)

    never = threading.Event()
    app.enqueue_many(work.call() for _ in range(4))
    worker = drain(concurrency=4)
    app.client.upkeep.run()

    assert worker.counts.busy_time >= 0.2
    assert worker.counts.acked_at is not None
    assert worker.counts.claims
    # In one step of ten seconds or in two; a busy machine wakes nobody in time.
    step = timedelta(seconds=10)
    ran = [value for _, value in app.client.activity.series("run_p50", step=step) if value]
    assert ran
    assert all(0.03 <= value < 20 for value in ran)
    assert any(value for _, value in app.client.activity.series("pickup_p99", step=step))
    [left] = app.client.activity.list(event="worker_left").events
    assert left.worker == worker.id
    assert left.detail["acked"] == 4
