"""How workers hear of work, and how they stop; each way a wake-up could be lost has a test.

Workers here poll once an hour: a job that runs was heard of.
"""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import App
from holdfast.client.sync.workers import Workers
from holdfast.records import Claim
from holdfast.worker import Worker
from holdfast.worker.claiming import Claiming
from holdfast.worker.queue_slots import QueueSlots
from tests.conftest import Connect
from tests.worker.conftest import Running

pytestmark = pytest.mark.usefixtures("hearing")

Start = Callable[..., Running]
HOUR = 3600.0
CUT = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where application_name = 'holdfast listener' and datname = current_database()"
)


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def polls_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.worker.POLL_HEARING", HOUR)
    monkeypatch.setattr("holdfast.worker.claiming.FIRST_LOOK", HOUR)
    monkeypatch.setattr("holdfast.worker.claiming.PATIENCE", 2 * HOUR)


def settled(running: Running) -> None:
    """Wait until a worker would look again only in an hour."""
    queues = running.worker._jobs.claiming.queues
    wait_for(lambda: all(line.look_at > time.monotonic() + HOUR / 2 for line in queues.values()))


def test_a_wake_up_that_arrives_while_the_worker_says_that_it_waits_is_not_forgotten(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    said = Workers.await_work
    woken = Claiming.wake
    heard = threading.Event()

    def wake(claiming: Claiming, queue: str) -> bool:
        answer = woken(claiming, queue)
        heard.set()
        return answer

    def await_work(client: Workers, *args: Any, **kwargs: Any) -> None:
        said(client, *args, **kwargs)
        if not heard.is_set() and kwargs.get("worker") == running.worker.id:
            # It has been said; before the answer arrives, a job comes and the wake-up is heard.
            work.enqueue(0)
            assert heard.wait(100)

    monkeypatch.setattr(Claiming, "wake", wake)
    monkeypatch.setattr(Workers, "await_work", await_work)
    running = start(concurrency=2, upkeep=False)
    wait_for(lambda: ran == [0])
    settled(running)

    work.enqueue(1)

    wait_for(lambda: ran == [0, 1])


def test_a_worker_whose_listener_was_cut_off_asks_again_and_is_woken(
    app: App, start: Start, connect: Connect
) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    running = start(upkeep=False)
    wait_for(lambda: running.worker.hears)
    settled(running)
    before = running.worker._listener.ear  # type: ignore[union-attr]
    connect().execute(CUT)
    wait_for(lambda: running.worker._listener.ear not in (None, before))  # type: ignore[union-attr]
    settled(running)

    work.enqueue(1)

    wait_for(lambda: ran == [1])


def test_a_worker_that_no_longer_hears_looks_soon_by_itself(
    app: App, start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    running = start(upkeep=False)
    wait_for(lambda: running.worker.hears)
    settled(running)
    # It cannot listen again; what it asked for is of no use any more.
    monkeypatch.setattr("holdfast.worker.claiming.FIRST_LOOK", 0.01)
    monkeypatch.setattr("holdfast.upkeep.listener.CHANNEL", "elsewhere")
    connect().execute(CUT)
    wait_for(lambda: not running.worker.hears)

    work.enqueue(1)

    wait_for(lambda: ran == [1])


def test_a_worker_that_left_takes_no_wake_up_with_it(app: App, start: Start) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    old = [start(upkeep=False) for _ in range(3)]
    for one in old:
        wait_for(lambda one=one: one.worker.hears)  # type: ignore[misc]
        settled(one)
    new = start(upkeep=False)
    wait_for(lambda: new.worker.hears)
    settled(new)
    for one in old:
        one.stop()

    for n in range(3):
        work.enqueue(n)
        wait_for(lambda n=n: len(ran) == n + 1)  # type: ignore[misc]

    assert app.client.workers.list()[0].worker == new.worker.id


def test_a_worker_without_a_free_slot_passes_its_wake_up_on(app: App, start: Start) -> None:
    ran: list[int] = []
    go = threading.Event()

    @app.task
    def work(n: int) -> None:
        ran.append(n)
        if n == 0:
            go.wait(100)

    full = start(concurrency=1, upkeep=False)
    wait_for(lambda: full.worker.hears)
    settled(full)
    work.enqueue(0)
    wait_for(lambda: ran == [0])
    free = start(concurrency=1, upkeep=False)
    wait_for(lambda: free.worker.hears)
    settled(free)
    # As after a look that found a job by itself: it is believed to wait, and has no room.
    ear = full.worker._listener.ear  # type: ignore[union-attr]
    app.client.workers.await_work(["default"], worker=full.worker.id, kinds=["work"], ear=ear)

    work.enqueue(1)

    wait_for(lambda: ran == [0, 1])
    go.set()


def test_a_worker_that_is_told_to_stop_passes_its_wake_up_on(app: App, start: Start) -> None:
    ran: list[int] = []
    go = threading.Event()

    @app.task
    def work(n: int) -> None:
        ran.append(n)
        if n == 0:
            go.wait(100)

    stays = start(concurrency=1, upkeep=False)
    wait_for(lambda: stays.worker.hears)
    settled(stays)
    stops = start(concurrency=2, upkeep=False)
    wait_for(lambda: stops.worker.hears)
    settled(stops)
    work.enqueue(0)
    wait_for(lambda: ran == [0])
    settled(stops)
    stops.worker.stop()

    work.enqueue(1)

    wait_for(lambda: ran == [0, 1])
    go.set()


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


def test_what_was_asked_with_another_listener_is_asked_again() -> None:
    ears = iter([1, 1, 2, 2])
    told: list[int | None] = []
    slots = QueueSlots("default", 1, ["work"], dry=True)
    now = {"ear": 1}
    workers = SimpleNamespace(await_work=lambda *_, ear, **__: told.append(ear))
    client: Any = SimpleNamespace(workers=workers)
    claiming = Claiming(
        client,
        [slots],
        worker="ada",
        lease=30.0,
        poll=lambda: HOUR,
        stopping=threading.Event(),
        lock=threading.Lock(),
        bell=threading.Event(),
        ear=lambda: now["ear"],
    )
    claim = Claim("default", "ada", 1, 30.0, ["work"], uuid4())

    for now["ear"] in ears:
        claiming.await_work([claim], time.monotonic())

    assert told == [1, 2]


def test_a_worker_that_looks_rarely_is_never_forgotten_among_those_who_wait(
    app: App, start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.claiming.PATIENCE", 3.0)
    monkeypatch.setattr("holdfast.worker.claiming.SAYS_AGAIN", 2.0)

    @app.task
    def work() -> None: ...

    start(upkeep=False)
    connection = connect()

    def until() -> Any:
        [row] = connection.execute("select max(until) from holdfast.waiter").fetchall()
        return row[0]

    wait_for(lambda: until() is not None)
    first = until()
    wait_for(lambda: until() > first)
    [row] = connection.execute("select clock_timestamp() < %s", [first]).fetchall()

    assert row == (True,), "it said so again after it had been forgotten"


def test_workers_that_were_not_told_are_woken_by_those_who_were(
    app: App, start: Start, database: str
) -> None:
    together = threading.Barrier(4)

    @app.task
    def work(n: int) -> None:
        together.wait(100)

    workers = [start(concurrency=1, upkeep=False) for _ in range(3)]
    for one in workers:
        wait_for(lambda one=one: one.worker.hears)  # type: ignore[misc]
        settled(one)

    with psycopg.connect(database) as connection:
        # As in a transaction that has told fifteen already, and tells no more than sixteen.
        connection.execute("select set_config('holdfast.rung', '{\"default\": 15}', true)")
        app.enqueue_many([work.call(n) for n in range(3)], conn=connection)

    together.wait(100)
