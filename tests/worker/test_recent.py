"""What a worker has kept for a day of the jobs that it has done."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, NewJob, current
from holdfast.recent import BURST, PER_SECOND, Recent
from tests.conftest import Connect
from tests.worker import handlers

Drain = Callable[..., Any]


def test_a_burst_is_kept_and_then_a_few_a_second() -> None:
    now = [0.0]
    recent = Recent(lambda: now[0])

    kept = [recent.take(1000)]
    for _ in range(80):  # ten seconds of a busy worker
        now[0] += 0.125
        kept.append(recent.take(1000))

    assert kept[0] == BURST
    assert sum(kept[1:]) == 10 * PER_SECOND
    # A second's worth at once: seven calls of eight have nothing to keep.
    assert sum(map(bool, kept[1:])) == 10


def test_what_is_left_of_a_burst_waits_for_a_seconds_worth() -> None:
    now = [0.0]
    recent = Recent(lambda: now[0])

    kept = [recent.take(BURST - 1), recent.take(1000)]
    now[0] += 1 - 1 / PER_SECOND
    kept.append(recent.take(1000))

    assert kept == [BURST - 1, 0, PER_SECOND]


def test_every_job_of_a_quiet_program_is_kept() -> None:
    now = [0.0]
    recent = Recent(lambda: now[0])
    recent.take(BURST)

    kept = []
    for _ in range(30):
        now[0] += 0.21
        kept.append(recent.take(1))

    assert kept == [1] * 30
    now[0] += 3600
    assert recent.take(1000) == BURST


async def wait(nth: int) -> None: ...


def block(nth: int) -> None: ...


def count(nth: int) -> int:
    return nth


def commit(nth: int) -> None:
    with current().transaction():
        pass


async def commit_async(nth: int) -> None:
    async with current().transaction():
        pass


@pytest.mark.parametrize("handler", [wait, block, commit, commit_async])
def test_all_jobs_of_a_worker_that_has_done_few_are_found(
    app: App, drain: Drain, handler: Callable[..., Any]
) -> None:
    task = app.task(handler)
    jobs = [task.enqueue(nth).id for nth in range(5)]

    drain()

    assert {job.id for job in app.client.jobs.list("state:done")} == set(jobs)


def test_jobs_that_end_otherwise_than_by_the_shortest_way_are_found(app: App, drain: Drain) -> None:
    app.task(kind="budget", retry_budget=0.5)(wait)
    app.task(kind="followed")(count)

    @app.task(kind="follows")
    def take(nth: int) -> None: ...

    app.client.enqueue_many(
        [
            NewJob(kind="budget", payload={"nth": 1}),
            NewJob(kind="followed", payload={"nth": 2}),
            NewJob(kind="follows", payload={}, after=[2], take={"nth": 1}),
        ]
    )
    drain()

    found = {job.kind: job.result for job in app.client.jobs.list("state:done")}
    assert found == {"budget": None, "followed": 2, "follows": None}


def test_jobs_that_ran_in_a_child_are_found_too(
    database: str, connect: Connect, tmp_path: Path
) -> None:
    connect().execute("create table seen (pid int)")
    with handlers_on(database) as app:
        (tmp_path / "release").touch()
        jobs = [
            handlers.wait_for.enqueue(str(tmp_path / "told"), str(tmp_path / "release")).id,
            handlers.insert_and_ack.enqueue("seen").id,
        ]
        app.run(until_idle=True)

        assert [job and job.state for job in map(app.client.jobs.get, jobs)] == ["done"] * 2


def test_of_many_jobs_no_more_are_kept_than_a_burst_and_some_a_second(
    app: App, drain: Drain
) -> None:
    @app.task
    async def work(nth: int) -> None: ...

    app.enqueue_many(work.call(nth) for nth in range(1000))
    before = time.monotonic()
    drain()
    seconds = time.monotonic() - before

    kept = len(app.client.jobs.list("state:done", limit=1000))
    queue = app.client.queues.get("default")
    # What is left of a burst, less than a second's worth, waits until it has grown to that.
    assert BURST - PER_SECOND < kept <= BURST + PER_SECOND * (seconds + 1)
    assert queue is not None
    assert queue.done == 1000


def test_a_queue_that_keeps_no_recent_jobs_keeps_none(app: App, drain: Drain) -> None:
    app.queue("private", keep_recent=False)

    @app.task(queue="private")
    async def work(nth: int) -> None: ...

    for nth in range(5):
        work.enqueue(nth)
    drain()

    queue = app.client.queues.get("private")
    assert app.client.jobs.list("state:done") == []
    assert queue is not None
    assert (queue.done, queue.keep_recent) == (5, False)


@contextmanager
def handlers_on(database: str) -> Iterator[App]:
    handlers.app.use(database)
    handlers.app.recent = Recent()
    try:
        yield handlers.app
    finally:
        handlers.app.close()
