"""What a drain runs, in which order, and what it reports."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import psycopg
import pytest

from holdfast import App, Cancel, Release, Retry, current
from holdfast.errors import Misuse, ResultNotKept
from holdfast.testing import Kit


@pytest.fixture
def app(holdfast: Kit) -> Iterator[App]:
    with App() as app:
        yield app


def test_all_that_is_due_runs_and_what_it_enqueues(holdfast: Kit, app: App) -> None:
    greeted = []

    @app.task
    def greet(name: str) -> None:
        greeted.append(name)
        if name == "Ada":
            greet.options(queue="another").enqueue("Bob")

    greet.enqueue("Ada")
    greet.options(delay=60).enqueue("later")

    drained = holdfast.drain()

    assert greeted == ["Ada", "Bob"]
    assert [(ran.kind, ran.attempt) for ran in drained.done] == [("greet", 1), ("greet", 1)]
    assert [job.payload for job in holdfast.enqueued()] == [{"name": "later"}]


def test_handlers_get_what_a_worker_gives_them(holdfast: Kit, app: App) -> None:
    seen = {}

    @app.lifespan
    @contextmanager
    def opened(app: App) -> Iterator[str]:
        yield "a resource"
        seen["closed"] = True

    @app.task(keep_result=True)
    def work(at: datetime) -> timedelta:
        job = current()
        job.progress(1, 2, "half")
        seen.update(resources=job.resources, held=job.held(), progress=app.client.jobs.get(job.id))
        return timedelta(seconds=at.second)

    handle = work.enqueue(datetime(2030, 1, 1, 0, 0, 7))
    holdfast.drain()

    assert seen["resources"] == "a resource"
    assert seen["held"]
    assert seen["closed"]
    assert seen["progress"].progress["note"] == "half"
    assert handle.result(timeout=5) == timedelta(seconds=7)


def test_the_error_of_a_handler_is_raised_when_all_have_run(holdfast: Kit, app: App) -> None:
    ran = []

    @app.task(max_attempts=2, retry=3600)
    def work(name: str) -> None:
        ran.append(name)
        if name != "good":
            raise ValueError(name)

    for name in ("bad", "good", "worse"):
        work.enqueue(name)

    with pytest.raises(ValueError, match="bad") as caught:
        holdfast.drain()

    assert ran == ["bad", "good", "worse"]
    assert caught.traceback[-1].name == "work"
    [note] = caught.value.__notes__
    assert "attempt 1: failed" in note
    assert "ValueError: worse" in note


def test_a_drain_that_waits_runs_every_retry(holdfast: Kit, app: App) -> None:
    @app.task(max_attempts=3, retry=3600)
    def work() -> None:
        raise ValueError(current().attempt)

    work.enqueue()

    drained = holdfast.drain(raises=False, wait=True)

    assert [(ran.attempt, ran.ended) for ran in drained] == [
        (1, "failed"),
        (2, "failed"),
        (3, "dead"),
    ]
    assert [error.args for error in drained.errors] == [(1,), (2,), (3,)]
    assert str(drained).splitlines()[0] == "2 failed, 1 dead"


def test_a_handler_that_steers_raises_nothing(holdfast: Kit, app: App) -> None:
    @app.task
    def work(how: str) -> None:
        raise {"retry": Retry(60), "release": Release(60), "cancel": Cancel()}[how]

    for how in ("retry", "release", "cancel"):
        work.enqueue(how)

    assert [ran.ended for ran in holdfast.drain()] == ["failed", "released", "cancelled"]


def test_what_is_written_in_the_transaction_of_the_job_commits_with_its_end(
    holdfast: Kit, app: App
) -> None:
    @app.task
    def pay(order_id: int) -> None:
        with current().transaction() as conn:
            conn.execute("insert into payment values (%s)", [order_id])

    @app.task
    async def apay(order_id: int) -> None:
        async with current().transaction() as conn:
            await conn.execute("insert into payment values (%s)", [order_id])

    pay.enqueue(1)
    apay.enqueue(2)
    drained = holdfast.drain()

    assert [ran.ended for ran in drained] == ["done", "done"]
    with psycopg.connect(holdfast.url) as conn:
        assert conn.execute("select order_id from payment order by 1").fetchall() == [(1,), (2,)]


def test_a_task_that_releases_itself_for_ever_is_refused(holdfast: Kit, app: App) -> None:
    @app.task
    def spin() -> None:
        raise Release

    spin.enqueue()

    with pytest.raises(Misuse, match="20 attempts have run"):
        holdfast.drain(limit=20)


def test_a_drain_inside_a_handler_leaves_the_rest_to_the_one_around_it(
    holdfast: Kit, app: App
) -> None:
    order = []

    @app.task
    def outer() -> None:
        inner.enqueue()
        assert len(holdfast.drain()) == 0
        order.append("outer")

    @app.task
    def inner() -> None:
        order.append("inner")

    outer.enqueue()
    holdfast.drain()

    assert order == ["outer", "inner"]


def test_in_an_event_loop_a_drain_is_awaited(holdfast: Kit, app: App) -> None:
    threads = []

    @app.task
    async def work(name: str) -> None:
        threads.append(asyncio.get_running_loop())
        await nested.aenqueue()

    @app.task
    def nested() -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        threads.append(None)

    async def test() -> None:
        await work.aenqueue("Ada")
        with pytest.raises(Misuse, match=r"await holdfast\.adrain"):
            holdfast.drain()
        drained = await holdfast.adrain()
        assert [ran.kind for ran in drained.done] == ["work", "nested"]
        assert threads == [asyncio.get_running_loop(), None]

    asyncio.run(test())


def test_two_apps_with_one_kind_have_to_be_told_apart(holdfast: Kit, app: App) -> None:
    other = App()
    ran = []

    for one in (app, other):

        @one.task(kind="work")
        def work() -> None:
            ran.append(current().app)

    app.tasks["work"].enqueue()
    holdfast.drain()  # the app that was used
    assert ran == [app]

    other.tasks["work"].enqueue()
    with pytest.raises(Misuse, match="several apps have a task of the kind 'work'"):
        holdfast.drain()
    holdfast.drain(apps=[other])
    assert ran == [app, other]


def test_a_result_that_is_not_kept_is_refused_as_ever(holdfast: Kit, app: App) -> None:
    @app.task
    def work() -> None: ...

    handle = work.enqueue()
    holdfast.drain()

    with pytest.raises(ResultNotKept):
        handle.result(timeout=5)


def test_a_drain_that_waits_outlasts_a_rate_and_gives_up_on_a_pause(
    holdfast: Kit, app: App
) -> None:
    @app.task
    def work() -> None: ...

    holdfast.client.queues.set("default", rate_limit=2, rate_period=600)
    for _ in range(5):
        work.enqueue()
    assert len(holdfast.drain().done) == 2
    assert len(holdfast.drain(wait=True).done) == 3

    holdfast.client.queues.pause("default")
    work.enqueue()
    assert len(holdfast.drain(wait=True)) == 0


def test_a_drain_keeps_to_the_settings_that_an_app_declares_for_its_queues(
    holdfast: Kit, app: App
) -> None:
    app.queue("mail", rate_limit=2, rate_period=60)

    @app.task(queue="mail")
    def send() -> None: ...

    for _ in range(5):
        send.enqueue()

    assert len(holdfast.drain().done) == 2
    holdfast.travel(seconds=61)
    assert len(holdfast.drain().done) == 2
