"""Workers that are told to end, at any moment."""

import signal
import time

from tests.chaos.conftest import Scale
from tests.chaos.stage import Stage

GRACE = 1.0
ROUGH = "tests.chaos.rough:app"


def test_a_worker_told_to_end_loses_nothing_and_charges_nobody(stage: Stage, scale: Scale) -> None:
    rounds = scale(3, 200)
    waits: list[float] = []
    slowest = 0.0
    worker = stage.start(20, "--grace", f"{GRACE}s")
    stage.until(lambda: worker.ready)

    for _ in range(rounds):
        first = len(stage.ids)
        stage.enqueue("nap", 3, first=first, seconds=0.3)
        stage.enqueue("doze", 1, first=first + 3, seconds=0.5)
        # Too long for any of them: they are handed on from worker to worker.
        if stage.live() < 10:
            stage.enqueue("nap", 4, first=first + 4, seconds=5.0)
        heir = stage.start(20, "--grace", f"{GRACE}s")
        stage.until(lambda: heir.ready)  # noqa: B023
        time.sleep(stage.rng.uniform(0, 1.0))
        worker.terminate()
        assert worker.wait(GRACE + 10) == 0, worker.said()
        slowest = max(slowest, worker.gone_at - worker.signalled_at)
        # What it had begun and not ended was given back: somebody else begins it at once.
        ends = [run for run in stage.runs_of(worker) if run.end is None]
        given_back = {run.job for run in ends}
        since = max((run.start for run in ends), default=0.0)
        again = stage.started_again(given_back, since=since, patience=10)
        waits += [since + waited - worker.gone_at for waited in again.values()]
        worker = heir
    stage.drained(60)

    stage.judge()
    assert {run.attempt for run in stage.witness.runs()} == {1}
    assert stage.rows("select * from holdfast.attempt") == []
    stage.facts |= {
        "rounds": rounds,
        "given back": len(waits),
        "slowest end s": round(slowest, 2),
        "slowest restart s": round(max(waits), 2),
    }
    assert max(waits) < 5  # and not a lease later
    assert slowest < 4.5  # they are given back after a second; the longest would take five


def test_handlers_that_end_within_the_grace_are_let_end(stage: Stage) -> None:
    worker = stage.start(4, "--grace", "10s")
    stage.enqueue("nap", 4, seconds=1.0)
    stage.enqueue("nap", 4, first=4, seconds=1.0)
    stage.until(stage.began(4))
    worker.terminate()

    assert worker.wait(8) == 0
    assert stage.live() == 4
    assert len(stage.witness.runs()) == stage.witness.count("finish") == 4


def test_a_second_signal_ends_a_worker_at_once(stage: Stage) -> None:
    worker = stage.start(4, "--grace", "30s")
    stage.enqueue("nap", 4, seconds=20.0, lease=2.0)
    stage.until(stage.began(4))
    worker.terminate()
    time.sleep(0.5)
    assert worker.code is None

    worker.terminate()

    worker.wait(10)
    stage.start(4)
    assert stage.started_again(set(map(str, stage.ids)), since=worker.gone_at, patience=10)


def test_a_second_signal_ends_a_worker_whose_event_loop_is_blocked(stage: Stage) -> None:
    worker = stage.start(4, "--grace", "30s")
    stage.enqueue("block", 1, seconds=15.0)
    stage.until(stage.began(1))
    worker.terminate()
    time.sleep(0.5)
    worker.terminate()

    worker.wait(10)


def test_a_worker_told_to_end_claims_nothing_more_though_its_loop_is_blocked(stage: Stage) -> None:
    worker = stage.start(4, "--grace", "1s")
    stage.enqueue("block", 1, seconds=4.0)
    stage.until(stage.began(1))
    worker.terminate()
    time.sleep(0.2)
    stage.enqueue("doze", 8, first=1)

    worker.wait(15)

    assert stage.witness.runs("doze") == []


def test_a_thread_that_cannot_be_stopped_does_not_hold_up_the_end(stage: Stage) -> None:
    worker = stage.start(4, "--grace", "1s")
    stage.enqueue("doze", 2, seconds=20.0)
    stage.until(stage.began(2))
    worker.terminate()

    assert worker.wait(15) == 0
    assert stage.value("select count(*) from holdfast.job where token is null") == 2


def test_a_worker_told_to_end_while_the_database_is_away_ends(stage: Stage) -> None:
    worker = stage.start(4, "--grace", "1s")
    stage.enqueue("nap", 2, seconds=0.5, lease=2.0)
    stage.until(stage.began(2))
    stage.server.stop("fast")
    worker.send(signal.SIGTERM)
    try:
        worker.wait(30)
    finally:
        stage.server.start()
    stage.start(4)
    stage.drained()
    stage.judge()


def test_process_handlers_are_given_back_at_the_end_of_the_grace(stage: Stage) -> None:
    worker = stage.start(4, "--grace", f"{GRACE}s", app=ROUGH)
    stage.enqueue("toil", 2, seconds=20.0)
    stage.enqueue("toil", 2, first=2, seconds=0.5)
    stage.until(stage.began(4))
    family = worker.pids()
    worker.terminate()

    assert worker.wait(GRACE + 14) == 0, worker.said()
    # A moment more for what only serves the others and ends when they have.
    stage.until(lambda: not [pid for pid in family if stage.alive(pid)], 20)
    left = stage.rows("select attempt, token from holdfast.job")
    assert left == [(0, None), (0, None)]
