"""A worker that is killed with jobs in its hands."""

import time

import pytest

from tests.chaos.conftest import Scale
from tests.chaos.stage import Stage

LEASE = 3.0


@pytest.mark.proves("S1.1")
def test_jobs_of_a_killed_worker_run_again_within_a_lease_and_five_seconds(
    stage: Stage, scale: Scale
) -> None:
    kills = scale(1, 20)
    stage.start(4)
    delays: list[float] = []

    for _ in range(kills):
        stage.enqueue("nap", 16, first=len(stage.ids), lease=LEASE, seconds=2.0)
        victim = stage.start(8)
        stage.until(lambda: len(stage.runs_of(victim)) >= 4)  # noqa: B023
        time.sleep(stage.rng.uniform(0, 1.6))
        victim.kill()
        orphans = stage.held_by(victim)
        assert orphans
        delays += stage.started_again(orphans, since=victim.gone_at, patience=LEASE + 20).values()
    stage.drained(60)

    stage.judge()
    stage.facts |= {"kills": kills, "in flight": len(delays), "slowest s": round(max(delays), 2)}
    assert max(delays) <= LEASE + 5


def test_a_worker_killed_alone_leaves_no_process_behind(stage: Stage) -> None:
    worker = stage.start(2, app="tests.chaos.rough:app")
    stage.enqueue("toil", 2, lease=LEASE, seconds=60.0)
    stage.until(stage.began(2))
    family = worker.pids()

    worker.kill_alone()

    stage.until(lambda: not [pid for pid in family if stage.alive(pid)], 5.0, "orphans go on")
