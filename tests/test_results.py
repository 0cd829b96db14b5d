"""Results are awaited by notification, and by polling where notifications do not arrive."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import holdfast.handle
from holdfast import App
from holdfast.handle import Handle
from holdfast.task import Task

NEVER = 1000.0


@pytest.fixture
def app(database: str) -> Iterator[App]:
    with App(database) as app:
        yield app


@pytest.fixture
def answer(app: App) -> Task[[], int, int]:
    @app.task(keep_result=True)
    def answer() -> int:
        return 42

    return answer


def end(app: App) -> None:
    [lease] = app.client.claim(worker="test")
    app.client.ack([lease], results=[42], keep=True)


def is_sure(app: App, handle: Handle[int], number: int = 1) -> None:
    """Wait until those who wait poll no more."""
    until = time.monotonic() + 60
    while True:
        watches = list(app.ends._watches.get(handle.id, ()))
        if len(watches) == number and all(watch.sure for watch in watches):
            return
        assert time.monotonic() < until, "nobody is sure to be notified"
        time.sleep(0.01)


def test_an_end_is_notified_to_all_who_wait_for_it(
    app: App, answer: Task[[], int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdfast.handle, "LOOK_EVERY", NEVER)
    handle = answer.enqueue()

    async def two() -> list[int]:
        try:
            return await asyncio.gather(handle.aresult(60), handle.aresult(60))
        finally:
            await app.aclient.close()

    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(handle.result, 60), threads.submit(asyncio.run, two())]
        is_sure(app, handle, 3)
        listeners = [t for t in threading.enumerate() if t.name == "holdfast ends"]
        end(app)

        assert [one.result(60) for one in waiting] == [42, [42, 42]]
    assert len(listeners) == 1


def test_a_listener_that_was_cut_off_is_replaced(
    app: App,
    answer: Task[[], int, int],
    connect: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holdfast.handle, "LOOK_EVERY", NEVER)
    handle = answer.enqueue()
    cut = (
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'holdfast results' and datname = current_database()"
    )

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(handle.result, 60)
        is_sure(app, handle)
        [watch] = app.ends._watches[handle.id]
        connect().execute(cut)  # type: ignore[attr-defined]
        until = time.monotonic() + 60
        while watch.sure and time.monotonic() < until:
            time.sleep(0.01)
        is_sure(app, handle)
        end(app)

        assert waiting.result(60) == 42


def test_without_the_right_to_be_notified_it_polls(
    app: App, answer: Task[[], int, int], connect: Callable[..., object]
) -> None:
    connect().execute(  # type: ignore[attr-defined]
        "create or replace function holdfast.await_end("
        " ids uuid[], waiter text, patience interval default '1 minute')"
        " returns void language plpgsql as 'begin raise insufficient_privilege; end'"
    )
    handle = answer.enqueue()

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(handle.result, 60)
        time.sleep(0.2)
        end(app)

        assert waiting.result(60) == 42


def test_a_timeout_is_kept_while_it_waits_for_a_notification(answer: Task[[], int, int]) -> None:
    handle = answer.enqueue()

    with pytest.raises(TimeoutError, match="has not ended within"):
        handle.result(timeout=0.5)
