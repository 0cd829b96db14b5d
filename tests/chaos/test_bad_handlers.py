"""Handlers that block, hog, vanish, leak and crash, among neighbours that only want to finish."""

import time

from tests.chaos.conftest import Scale
from tests.chaos.stage import Stage

ROUGH = "tests.chaos.rough:app"
LEASE = 2.0


def test_a_handler_that_blocks_the_event_loop_costs_no_lease(stage: Stage) -> None:
    worker = stage.start(8)
    neighbours = stage.enqueue("nap", 4, lease=LEASE, seconds=1.0)
    threads = stage.enqueue("doze", 2, first=10, lease=LEASE, seconds=4.0)
    stage.until(stage.began(6))
    blocking = stage.enqueue("block", 1, first=20, lease=LEASE, seconds=3 * LEASE)
    stage.drained()

    stage.judge()
    assert stage.runs_twice() == []
    assert len(neighbours + threads + blocking) == len(stage.witness.runs())
    assert "block" in worker.said()
    assert "HF301" in worker.said()


def test_a_handler_that_holds_the_interpreter_lets_its_neighbours_finish(stage: Stage) -> None:
    stage.start(8)
    stage.enqueue("nap", 4, seconds=1.0)
    stage.enqueue("doze", 2, first=10, seconds=1.0)
    stage.until(stage.began(6))
    stage.enqueue("clutch", 1, first=20, seconds=3.0)
    stage.drained()

    stage.judge()
    assert stage.runs_twice() == []


def test_leases_of_process_handlers_never_lapse(stage: Stage) -> None:
    stage.start(4, app=ROUGH)
    stage.enqueue("hog", 2, lease=LEASE, seconds=3 * LEASE)
    stage.enqueue("toil", 2, first=10, lease=LEASE, seconds=3 * LEASE)
    stage.drained(60)

    stage.judge()
    assert stage.runs_twice() == []
    assert [run.attempt for run in stage.witness.runs()] == [1, 1, 1, 1]


def test_jobs_that_kill_their_process_die_after_their_attempts_and_cost_nobody_else_anything(
    stage: Stage, scale: Scale
) -> None:
    worker = stage.start(4, app=ROUGH)
    neighbours = scale(60, 400)
    stage.enqueue("toil", neighbours, lease=LEASE, seconds=0.2)
    stage.until(stage.began(20))
    usual = stage.speed(time.time() - 1, time.time())
    poison = [
        *stage.enqueue("vanish", 1, first=1000, lease=LEASE, max_attempts=3),
        *stage.enqueue("die", 1, first=1001, lease=LEASE, max_attempts=3),
        *stage.enqueue("crash", 1, first=1002, lease=LEASE, max_attempts=3),
        *stage.enqueue("leak", 1, first=1003, lease=LEASE, max_attempts=3),
    ]
    began = time.time()
    stage.drained(90)

    stage.judge(dead=len(poison))
    for id in poison:
        tried = stage.rows("select attempt, message from holdfast.attempts(%s)", id)
        assert sorted(attempt for attempt, _ in tried) == [1, 2, 3]
        assert sum(run.job == str(id) for run in stage.witness.runs()) == 3
        kind = stage.value("select kind from holdfast.jobs where id = %s", id)
        stage.facts[f"{kind} said"] = tried[0][1]
    ran = stage.witness.runs("toil")
    assert len(ran) == neighbours
    assert {run.attempt for run in ran} == {1}
    assert worker.code is None
    beside = stage.speed(began, max(run.end or 0 for run in ran))
    stage.facts |= {"usual jobs/s": round(usual, 1), "beside poison jobs/s": round(beside, 1)}


def test_jobs_many_times_longer_than_their_lease_run_once(stage: Stage, scale: Scale) -> None:
    lease, times = scale(2, 3), scale(5, 10)
    stage.start(4)
    stage.start(4)
    stage.start(4, app=ROUGH)
    for kind in ("nap", "doze", "toil"):
        stage.enqueue(kind, 2, first=len(stage.ids), lease=lease, seconds=times * lease)
    stage.drained(60)

    stage.judge()
    assert stage.runs_twice() == []
    assert {run.attempt for run in stage.witness.runs()} == {1}
