"""Everything at once, in an order that a seed decides."""

import os
import time
from pathlib import Path

from tests.chaos import plan as plans
from tests.chaos.conftest import Scale
from tests.chaos.producer import Producer
from tests.chaos.stage import Stage

LEASE = 5.0


def test_whatever_comes_nothing_is_lost_and_effects_happen_once(stage: Stage, scale: Scale) -> None:
    plan = plans.draw(stage.rng, scale(8, 240), every=1.0)
    if named := os.environ.get("CHAOS_PLAN"):
        plan = plans.read(Path(named).read_text())
    print(plans.written(plan))
    naps = Producer(stage.url, "nap", backlog=100, lease=LEASE, seconds=0.05)
    books = Producer(stage.url, "book", backlog=100, lease=LEASE, seconds=0.05)
    with stage.proxy() as (proxy, url):
        player = plans.Player(stage, proxy, url, workers=3)
        with naps.running(), books.running():
            player.play(plan)
            time.sleep(2)
        stage.ids += naps.confirmed + books.confirmed
        stage.facts["drained after s"] = round(stage.drained(60), 1)

    stage.judge()
    assert stage.effects() == [(n, 1) for n in range(len(books.confirmed))]
    # 143: told to end before it had started.
    codes = {worker.code for worker in stage.fleet.workers} - {None, 0, -9, -15, 143}
    assert not codes, f"workers ended by themselves: {codes}\n{stage.fleet.said()}"
    stage.facts |= {"faults": len(plan), "ran twice": len(stage.runs_twice())}
