"""A database that goes away and comes back under workers that are busy."""

import time
from collections.abc import Callable

import pytest

from tests.chaos.conftest import Scale, at_full_length
from tests.chaos.producer import Producer
from tests.chaos.stage import Stage

LEASE = 30.0
Outage = Callable[[Stage, float], None]


def stopped_fast(stage: Stage, seconds: float) -> None:
    stage.server.stop("fast")
    time.sleep(seconds)
    stage.server.start()


def stopped_immediately(stage: Stage, seconds: float) -> None:
    stage.server.stop("immediate")
    time.sleep(seconds)
    stage.server.start()


def backends_ended(stage: Stage, seconds: float) -> None:
    with stage.server.ending_backends(stage.url, rate=10, rng=stage.rng) as ended:
        time.sleep(seconds)
    stage.facts["backends ended"] = ended()


def read_only(stage: Stage, seconds: float) -> None:
    with stage.server.read_only():
        stage.server.end_backends(stage.url, all=True, rng=stage.rng)
        time.sleep(seconds)


def full(stage: Stage, seconds: float) -> None:
    with stage.server.full():
        stage.server.end_backends(stage.url, all=True, rng=stage.rng)
        time.sleep(seconds)


@pytest.mark.parametrize(
    "outage",
    [
        stopped_immediately,
        backends_ended,
        read_only,
        pytest.param(stopped_fast, marks=at_full_length),
        pytest.param(full, marks=at_full_length),
    ],
)
def test_workers_are_back_at_full_speed_within_ten_seconds(
    stage: Stage, scale: Scale, outage: Outage
) -> None:
    workers = [stage.start(20), stage.start(20)]
    producer = Producer(stage.url, "nap", backlog=2000, lease=LEASE, seconds=0.1)
    with producer.running():
        stage.until(lambda: len({run.pid for run in stage.witness.runs()}) == 2)
        time.sleep(scale(2, 10))
        usual = stage.speed(time.time() - scale(1, 8), time.time())
        outage(stage, scale(2, 10))
        back = time.time()
        recovery = stage.recovery(0.9 * usual, since=back, patience=20)
    stage.ids += producer.confirmed
    stage.drained(60)

    stage.judge()
    stage.facts |= {"usual jobs/s": round(usual), "recovered after s": round(recovery, 1)}
    assert [worker.code for worker in workers] == [None, None]
    assert recovery <= 10


def test_an_outage_is_told_once_and_so_is_the_recovery(stage: Stage) -> None:
    worker = stage.start(4)
    stage.enqueue("nap", 1)
    stage.drained()

    stopped_fast(stage, 4)
    stage.enqueue("nap", 1, first=1)
    stage.drained()

    assert worker.said().count("database unreachable") == 1, worker.said()
    assert worker.said().count("database reachable again") == 1, worker.said()


def test_a_worker_that_starts_while_the_database_is_away_waits_for_it(stage: Stage) -> None:
    stage.enqueue("nap", 3)
    stage.server.stop("fast")
    worker = stage.start(4)
    time.sleep(2.5)
    assert worker.code is None, worker.said()

    stage.server.start()

    assert stage.drained(10) < 10
    stage.judge()


def test_a_worker_that_starts_while_every_connection_is_taken_waits_for_one(stage: Stage) -> None:
    stage.enqueue("nap", 3)
    with stage.server.full():
        worker = stage.start(4)
        time.sleep(2.5)
        assert worker.code is None, worker.said()

    assert stage.drained(10) < 10
    stage.judge()


def test_jobs_in_flight_go_on_through_an_outage_longer_than_their_lease_and_run_once(
    stage: Stage,
) -> None:
    stage.start(8)
    stage.start(8)
    stage.enqueue("nap", 10, lease=3.0, seconds=7.0)
    # These want to write while the database is away, and are let in after their leases' ends.
    stage.enqueue("book", 3, first=10, lease=3.0, seconds=2.0)
    stage.enqueue("book_in_thread", 3, first=13, lease=3.0, seconds=2.0)
    stage.until(stage.began(16))
    # A crash forgets claims that are not on disk yet; whoever commits waits for what came before.
    stage.client.queues.set("default", keep_done=86400)

    stage.server.stop("immediate")
    time.sleep(4)
    stage.server.start()
    stage.drained()

    stage.judge()
    assert stage.runs_twice() == []
    assert stage.effects() == [(n, 1) for n in range(10, 16)]


def test_a_network_that_swallows_everything_is_survived(stage: Stage, scale: Scale) -> None:
    with stage.proxy() as (proxy, url):
        worker = stage.start(8, url=url)
        stage.enqueue("nap", 200, lease=LEASE, seconds=0.05)
        stage.until(stage.began(50))
        proxy.go_dark()
        time.sleep(scale(3, 15))
        proxy.go_dark(False)
        proxy.cut_all()
        stage.facts["drained after s"] = round(stage.drained(15), 1)

    stage.judge()
    assert worker.code is None
