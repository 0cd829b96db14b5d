"""After each fault idle workers hear of jobs as they did before: at once, not by their polls."""

import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.chaos.conftest import Scale, at_full_length
from tests.chaos.fleet import Worker
from tests.chaos.plan import FAULTS
from tests.chaos.stage import Stage

WORKERS = 3
# Those who asked to be woken and whose listeners live: nobody else can have their locks.
HEARING = """
select distinct w.worker
from holdfast.waiter w
where w.queue = 'default' and w.until > holdfast.now() + interval '1 second'
  and w.ear is not null and not pg_try_advisory_xact_lock_shared(4917, w.ear)
"""
SHORT = ("kill", "terminate", "restart immediate", "end backends")


class Fleet:
    """Idle workers behind a proxy, and what may be done to them."""

    def __init__(self, stage: Stage, scale: Scale) -> None:
        self.stage = stage
        self._proxied = stage.proxy()
        self.proxy, self._url = self._proxied.__enter__()
        self._lasts = scale(1, 3)
        self.workers: list[Worker] = []
        self.fill_up()

    def close(self) -> None:
        self._proxied.__exit__(None, None, None)

    def fill_up(self) -> None:
        """Start as many workers as are missing, and wait until all of them wait for work."""
        self.workers = [worker for worker in self.workers if worker.code is None]
        while len(self.workers) < WORKERS:
            self.workers.append(self.stage.start(4, "--grace", "1s", url=self._url))
        self.stage.until(lambda: len(self.hearing()) == WORKERS, 40, "not all workers wait")

    def hearing(self) -> set[str]:
        return {name for (name,) in self.stage.rows(HEARING)}

    def suffer(self, fault: str) -> None:
        """Let the fault begin and end; afterwards the database is up."""
        server, stage = self.stage.server, self.stage
        match fault.split():
            case ["kill"]:
                self.workers[-1].kill()
            case ["terminate"]:
                for worker in self.workers[1:]:
                    worker.terminate()
                    worker.wait()
            case ["freeze"]:
                self.workers[-1].stop()
                time.sleep(self._lasts)
                self.workers[-1].cont()
            case ["restart", how]:
                server.stop(how)
                time.sleep(self._lasts)
                server.start()
            case ["end", "backends"]:
                server.end_backends(stage.url, all=True, rng=stage.rng)
            case ["read-only"]:
                with server.read_only():
                    server.end_backends(stage.url, all=True, rng=stage.rng)
                    time.sleep(self._lasts)
            case ["full"]:
                with server.full():
                    self.proxy.cut_all()
                    time.sleep(self._lasts)
            case ["cut"]:
                self.proxy.cut_all()
            case ["dark"]:
                self.proxy.go_dark()
                time.sleep(self._lasts)
                self.proxy.go_dark(False)
            case unknown:
                raise ValueError(unknown)
        stage.value("select 1")


@pytest.fixture
def fleet(stage: Stage, scale: Scale) -> Iterator[Fleet]:
    fleet = Fleet(stage, scale)
    yield fleet
    fleet.close()


@pytest.mark.parametrize("fault", SHORT)
def test_after_a_fault_every_living_worker_waits_again_and_is_told_of_the_next_job(
    stage: Stage, fleet: Fleet, fault: str
) -> None:
    fleet.suffer(fault)
    living = sum(worker.code is None for worker in fleet.workers)
    stage.until(lambda: len(fleet.hearing()) == living, 40, "not all who live wait again")

    for n in range(2 * WORKERS):
        stage.until(lambda: len(fleet.hearing()) == living, 40, "not all who live wait again")
        names = fleet.hearing()
        with psycopg.connect(stage.url, autocommit=True) as watcher:
            watcher.execute("listen holdfast")
            stage.enqueue("nap", 1, first=n)
            told = [
                notice.payload.partition("\n")[2]
                for notice in watcher.notifies(timeout=20, stop_after=1)
                if notice.payload.startswith("default\n")
            ]
        # Told to one who lives, and not spent on one who is gone.
        assert told, "nobody was told"
        assert set(told) <= names
        stage.until(stage.began(n + 1), 20, "the job was not picked up")
    stage.drained()
    stage.judge()


@at_full_length
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_second_after_a_fault_99_of_100_jobs_are_picked_up_within_50_ms(
    stage: Stage, fleet: Fleet, fault: str
) -> None:
    jobs = 200
    before = pick_ups(stage, jobs, 0)
    fleet.suffer(fault)
    up = time.time()
    time.sleep(1.0)
    after = pick_ups(stage, jobs, jobs)
    stage.drained()

    stage.judge()
    stage.facts |= {
        "p50 before ms": round(1000 * before[jobs // 2], 1),
        "p99 before ms": round(1000 * before[int(0.99 * jobs)], 1),
        "p50 after ms": round(1000 * after[jobs // 2], 1),
        "p99 after ms": round(1000 * after[int(0.99 * jobs)], 1),
        "slowest after ms": round(1000 * after[-1], 1),
        "measured for s": round(time.time() - up - 1.0, 1),
    }
    assert after[int(0.99 * jobs)] < 0.05


def pick_ups(stage: Stage, jobs: int, first: int) -> list[float]:
    """Enqueue jobs one by one; returns how long each waited for its handler, sorted."""
    stored = {}
    for n in range(first, first + jobs):
        [id] = stage.enqueue("nap", 1, first=n)
        stored[str(id)] = time.time()
        time.sleep(stage.rng.uniform(0.005, 0.04))
    stage.until(stage.began(first + jobs), 30, "jobs were not picked up")
    began = {run.job: run.start for run in stage.witness.runs()}
    return sorted(began[id] - at for id, at in stored.items())
