"""A worker that stood still for longer than its leases, and goes on as if nothing had been."""

import signal
import time

import pytest

from tests.chaos.conftest import Scale
from tests.chaos.proxy import Fault
from tests.chaos.stage import Stage

LEASE = 2.0
ROUGH = "tests.chaos.rough:app"


@pytest.mark.proves("S1.1")
def test_a_worker_that_slept_over_its_leases_writes_and_acks_nothing(
    stage: Stage, scale: Scale
) -> None:
    rounds, jobs = scale(1, 8), 4
    for _ in range(rounds):
        zombie = stage.start(4 * jobs)
        for kind in ("book", "book_in_thread", "nap", "doze"):
            stage.enqueue(kind, jobs, first=len(stage.ids), lease=LEASE, seconds=1.0)
        stage.until(lambda: len(stage.runs_of(zombie)) == 4 * jobs)  # noqa: B023
        time.sleep(stage.rng.uniform(0, 0.8))
        zombie.stop()
        heir = stage.start(4 * jobs)
        time.sleep(2 * LEASE)
        stage.until(lambda: stage.runs_of(heir), 60, "nobody took over")  # noqa: B023
        zombie.cont()
        stage.drained()
        zombie.kill()
        heir.kill()
    stage.judge()

    effects = [n for n, _ in stage.effects()]
    assert stage.effects() == [(n, 1) for n in effects]
    assert len(effects) == rounds * 2 * jobs
    # Who wrote the effect was the last to begin.
    written = {token for (token,) in stage.rows("select token::text from chaos.effect")}
    twice = stage.runs_twice()
    assert len(twice) >= rounds * jobs
    assert all(run.token not in written for runs in twice for run in runs[:-1])
    stage.facts |= {"stops": rounds, "taken over": len(twice), "effects": len(effects)}


@pytest.mark.parametrize("kind", ["nap", "book"])
def test_an_ack_that_arrives_when_another_has_the_job_is_refused(stage: Stage, kind: str) -> None:
    with stage.proxy() as (proxy, url):
        late = Fault("ack", "hold", seconds=3 * LEASE)
        proxy.faults.append(late)
        zombie = stage.start(1, url=url)
        # At its second attempt it runs for longer than the ack of the first is under way.
        stage.enqueue(kind, 1, lease=LEASE, seconds=0.1, again=3 * LEASE)
        stage.until(lambda: late.done_at)
        zombie.stop()
        heir = stage.start(1)

        def taken_over() -> bool:
            stage.client.upkeep.reap()
            return bool(stage.runs_of(heir))

        stage.until(taken_over, 60, "nobody took over")
        assert late.done_at
        assert time.time() < late.done_at + late.seconds, "the ack was not late enough"
        stage.drained()
        zombie.cont()
        time.sleep(1)

    stage.judge()
    assert len(stage.effects()) == (kind == "book")


def test_a_worker_that_slept_works_on(stage: Stage) -> None:
    worker = stage.start(8)
    stage.enqueue("nap", 1)
    stage.drained()
    worker.stop()
    time.sleep(2 * LEASE)
    worker.cont()

    stage.enqueue("nap", 20, first=1)

    assert stage.drained(5) < 5
    assert stage.runs_twice() == []


@pytest.mark.parametrize("family", [True, False])
def test_a_process_handler_whose_worker_slept_over_its_lease_writes_nothing(
    stage: Stage, family: bool
) -> None:
    zombie = stage.start(4, app=ROUGH)
    stage.enqueue("book_in_process", 4, lease=LEASE, seconds=3 * LEASE)
    stage.until(stage.began(4))
    # Alone: the children run on, with nobody to renew their leases.
    zombie.send(signal.SIGSTOP, family=family)
    heir = stage.start(4, app=ROUGH)
    stage.until(stage.began(8), 60, "nobody took over")
    time.sleep(2 * LEASE)
    zombie.cont()
    stage.drained(60)

    stage.judge()
    assert stage.effects() == [(n, 1) for n in range(4)]
    assert heir.code is None
