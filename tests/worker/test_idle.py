"""What a worker asks of the database while nobody wants anything of it.

The time of the worker and of the database is moved by hand: what is counted depends on no machine.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from holdfast import App, Client, NewJob
from holdfast.upkeep.loop import Upkeep
from holdfast.worker import Worker
from holdfast.worker.claiming import Claiming
from holdfast.worker.loop import JobLoop
from holdfast.worker.queue_slots import QueueSlots
from holdfast.worker.settling import Ended
from tests.conftest import Clock

EAR = 1


class Life:
    """A worker whose parts are called in turn, each when it says that it is due."""

    def __init__(self, app: App, client: Client, clock: Clock, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.sent: Counter[str] = Counter()
        self._clock = clock
        for part in ("claiming", "loop", "worker"):
            patch.setattr(f"holdfast.worker.{part}.monotonic", lambda: self.now)
        self.worker: Any = Worker(app)
        self.jobs = self.worker._jobs = JobLoop(
            app,
            client,
            [QueueSlots("default", 8, self.worker.kinds)],
            worker=self.worker.id,
            counts=self.worker.counts,
            lease=None,
            poll=self.worker._poll,
            stopping=threading.Event(),
            ear=lambda: EAR,
        )
        self.worker._listener = SimpleNamespace(up=True)
        self.worker._watch = SimpleNamespace(lag=0.0)
        self._client = client
        self.upkeep: Upkeep | None = Upkeep(
            client,
            holder=self.worker.id,
            queues=["default"],
            empty=self.jobs.claiming.seen_empty,
        )
        self._tend_at = self.now
        self._count(patch)

    def live(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            if claims := self.jobs.claiming.next():
                self.jobs._exchange(Ended(), claims)
            if self.upkeep and self.now >= self._tend_at:
                self._tend_at = self.now + self.upkeep._tend(None)
            self.worker._beat(self._client)
            dues = [self.now + self.jobs.claiming.pause(), self.worker._beat_at, end]
            dues += [self._tend_at] if self.upkeep else []
            self._pass(max(min(dues) - self.now, 0.001))

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self._clock.advance(seconds=seconds)

    def _count(self, patch: pytest.MonkeyPatch) -> None:
        execute = psycopg.Cursor.execute

        def counted(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
            if cursor.connection.info.parameter_status("application_name") == "idle":
                name = str(query).partition("holdfast.")[2].partition("(")[0]
                self.sent[name or str(query)] += 1
            return execute(cursor, query, *args, **options)

        patch.setattr(psycopg.Cursor, "execute", counted)


@pytest.fixture
def life(app: App, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    @app.task
    def work() -> None: ...

    with Client(app.url, application_name="idle") as client:
        yield Life(app, client, clock, monkeypatch)


def test_an_idle_worker_that_does_the_upkeep_makes_less_than_one_transaction_a_second(
    life: Life,
) -> None:
    life.live(20)
    life.sent.clear()

    life.live(60)

    assert life.sent.total() < 48, life.sent
    # All of them are needed, and none is made instead of another.
    assert life.sent["tend"] >= 29
    assert life.sent["detect"] >= 5
    assert life.sent["beat"] >= 4
    assert life.sent["await_work"] >= 1
    # Only with the renewal of its place on the list of those who wait, so that nothing is missed.
    assert life.sent["claim"] <= 2


def test_a_worker_whose_upkeep_stands_still_polls_again_within_five_seconds(life: Life) -> None:
    life.live(20)
    life.upkeep = None
    life.sent.clear()

    life.live(5)

    assert life.sent["claim"] >= 1


@pytest.mark.parametrize("what", ["ready", "in a lane behind another"])
def test_a_worker_polls_a_queue_that_upkeep_does_not_find_empty(
    life: Life, app: App, what: str
) -> None:
    life.live(20)
    kind: Any = {"kind": "of nobody", "lane": "a" if what != "ready" else None}
    client = app.client
    client.enqueue_many([NewJob(**kind), NewJob(**kind)])
    if what != "ready":
        client.claim("default", worker="another", lease=timedelta(hours=1))
    life.sent.clear()

    life.live(20)

    assert life.sent["claim"] >= 4


@pytest.mark.parametrize("ear", [EAR, None], ids=["hearing", "deaf"])
def test_a_worker_can_be_idle_for_a_day(ear: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("holdfast.worker.claiming.monotonic", lambda: now[0])
    slots = QueueSlots("default", 1, ["work"])
    client: Any = SimpleNamespace(workers=SimpleNamespace(await_work=lambda *_, **__: None))
    claiming = Claiming(
        client,
        [slots],
        worker="ada",
        lease=30.0,
        poll=lambda: 3.5,
        stopping=threading.Event(),
        lock=threading.Lock(),
        bell=threading.Event(),
        ear=lambda: ear,
    )
    looks: list[float] = []
    while now[0] < 86_400:
        for claim in claiming.next():
            claiming.await_work([claim], now[0])
            claiming.note(claim, 0, told=False)
            looks.append(now[0])
        now[0] += max(claiming.pause(), 0.001)

    assert max(after - before for before, after in pairwise(looks)) <= 3.51
