"""One lane, many workers, some of which are killed: one at a time, in order."""

import random
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

import psycopg
import pytest

from holdfast import Client
from holdfast.errors import HoldfastError
from tests.chaos.conftest import Scale
from tests.chaos.stage import Stage

LEASE = 1.0


@dataclass
class Held:
    """The time during which one holder acted on one job of the lane."""

    n: int
    start: float
    end: float = float("inf")


@dataclass
class Hands:
    """Workers that speak the protocol by hand, each in a thread with a connection of its own.

    Who is killed stops in the middle of a job: it says nothing more and its lease runs out.
    """

    url: str
    seed: int
    acts: list[Held] = field(default_factory=list)
    kills: int = 0
    to_kill: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, name: str) -> None:
        rng = random.Random(f"{self.seed} {name}")
        with (
            Client(self.url, application_name="chaos", pool_size=1) as client,
            psycopg.connect(self.url, autocommit=True) as connection,
        ):
            while not self.done.is_set():
                leases = client.claim(
                    "lanes", worker=name, limit=rng.choice((1, 2, 5)), lease=LEASE
                )
                assert len(leases) <= 1, "a lane gave two jobs at once"
                if not leases:
                    self.done.wait(rng.uniform(0.02, 0.3))
                    continue
                [lease] = leases
                act = Held(lease.payload["n"], time.time())
                self.acts.append(act)
                with self.lock:
                    killed = self.to_kill > 0
                    self.to_kill -= killed
                if killed:
                    self.kills += 1
                    act.end = time.time()
                    self.done.wait(2 * LEASE)  # the machine is gone; another takes its place
                    continue
                time.sleep(rng.uniform(0, 0.004))
                act.end = time.time()
                try:
                    with connection.transaction():
                        connection.execute(
                            "insert into chaos.effect (n, job, token, attempt, worker) "
                            "values (%s, %s, %s, %s, %s)",
                            [act.n, lease.id, lease.token, lease.attempt, name],
                        )
                        [settled] = client.on(connection).ack([lease])
                        settled.raise_if_lost()
                except HoldfastError:
                    pass  # rolled back with its effect


ACTED = "select count(*) from chaos.effect"


@pytest.mark.proves("S2.2")
def test_fifty_workers_on_one_lane_act_one_at_a_time_and_in_order(
    stage: Stage, scale: Scale
) -> None:
    seconds = scale(8, 30)
    # An attempt that fails is repeated before the lane goes on.
    stage.client.queues.set("lanes", lane_on_failure="retry")
    stage.enqueue(
        "step", scale(3000, 12_000), queue="lanes", lane="one", lease=LEASE, max_attempts=1000
    )
    hands = Hands(stage.url, stage.rng.randrange(10**9))
    threads = [threading.Thread(target=hands.work, args=[f"hand-{n}"]) for n in range(50)]
    for thread in threads:
        thread.start()
    # However slow the machine: a score of effects says something about their order.
    end, latest = time.time() + seconds, time.time() + seconds + 120
    while (now := time.time()) < end or (now < latest and stage.value(ACTED) <= 20):
        time.sleep(1.5)
        hands.to_kill += now < end
    hands.done.set()
    for thread in threads:
        thread.join()

    order = [n for (n,) in stage.rows("select n from chaos.effect order by nth")]
    together = [
        (a, b) for a, b in pairwise(sorted(hands.acts, key=lambda x: x.start)) if b.start < a.end
    ]
    stage.facts |= {
        "workers": 50,
        "kills": hands.kills,
        "acts": len(hands.acts),
        "effects": len(order),
        "together": len(together),
    }
    assert hands.kills >= scale(2, 10)
    assert len(order) > 20
    assert not together
    assert order == list(range(len(order)))


def test_worker_processes_on_one_lane_that_are_killed_keep_its_order(
    stage: Stage, scale: Scale
) -> None:
    jobs = scale(60, 400)
    stage.client.queues.set("lanes", lane_on_failure="retry")
    stage.enqueue(
        "step", jobs, queue="lanes", lane="one", lease=LEASE, max_attempts=1000, seconds=0.02
    )
    workers = [stage.start(1) for _ in range(scale(3, 6))]
    for _ in range(scale(2, 10)):
        done = len(stage.effects())
        stage.until(lambda: len(stage.effects()) > min(done + 5, jobs - 1))  # noqa: B023
        victim = workers.pop(stage.rng.randrange(len(workers)))
        victim.kill()
        workers.append(stage.start(1))
    stage.drained(90)

    order = [n for (n,) in stage.rows("select n from chaos.effect order by nth")]
    assert order == list(range(jobs))
    stage.judge()
