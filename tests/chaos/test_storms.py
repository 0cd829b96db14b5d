"""What comes back all at once: retries of what failed, and workers after a restart."""

import time
from collections import Counter

from tests.chaos.conftest import Scale
from tests.chaos.stage import Stage


def test_retries_do_not_come_back_all_at_once(stage: Stage, scale: Scale) -> None:
    jobs, down = scale(200, 5000), scale(4, 60)
    stage.client.queues.set("default", backoff=1, backoff_cap=scale(4, 10))
    for _ in range(scale(1, 2)):
        stage.start(50)
    stage.enqueue("depend", jobs, seconds=0.01)
    stage.until(lambda: stage.witness.count("fail") >= jobs, 60)
    time.sleep(down)
    stage.dependency.touch()
    up = time.time()
    stage.drained(60)

    stage.judge()
    began = [fact.at - up for fact in stage.witness.facts() if fact.what == "start"]
    steady = sum(-4 <= at < 0 for at in began) / 4
    peak = max(Counter(int(at) for at in began if at >= 0).values())
    stage.facts |= {"claims/s while down": round(steady), "most claims in 1 s after": peak}
    assert peak <= 2 * steady


def test_workers_do_not_come_back_all_at_once_after_a_restart(stage: Stage, scale: Scale) -> None:
    count, down = scale(5, 20), scale(4, 10)
    with stage.proxy() as (proxy, url):
        workers = [stage.start(2, url=url) for _ in range(count)]
        stage.until(lambda: all(worker.ready for worker in workers))
        stage.enqueue("nap", 5)
        stage.drained()
        sessions = stage.sessions()
        stage.server.stop("fast")
        stopped = time.time()
        time.sleep(down)
        stage.server.start()
        back = time.time()
        stage.enqueue("nap", 20 * count, first=5, seconds=1.0)
        recovered = stage.until(
            lambda: (
                {run.pid for run in stage.witness.runs() if run.start > back}
                == {worker.pid for worker in workers}
            ),
            20,
            "not all workers are back",
        )
        stage.drained()
    stage.judge()

    tries = [at for at in proxy.connects if stopped <= at < back]
    comes = Counter(int(10 * (at - back)) for at in proxy.connects if at >= back)
    stage.facts |= {
        "workers": count,
        "sessions": sessions,
        "tries/s of each session while away": round(len(tries) / down / sessions, 2),
        "back after s": round(recovered, 2),
        "most connects in 0.1 s": max(comes.values()),
    }
    assert all(worker.code is None for worker in workers)
    assert recovered <= 10
    assert len(tries) / down / sessions <= 3
    assert max(comes.values()) <= sessions / 2


def test_handlers_that_work_inside_their_transactions_all_find_a_connection(stage: Stage) -> None:
    stage.start(32)
    stage.enqueue("book_slowly", 16, seconds=4.0)
    stage.enqueue("book_slowly_in_thread", 16, first=16, seconds=4.0)
    stage.facts["drained after s"] = round(stage.drained(60), 1)

    stage.judge()
    assert stage.effects() == [(n, 1) for n in range(32)]
    assert stage.runs_twice() == []


def test_a_rush_of_short_async_and_def_handlers_leaves_none_behind(
    stage: Stage, scale: Scale
) -> None:
    for first in range(0, scale(3_000, 100_000), 200):
        stage.enqueue("nap" if first % 400 else "doze", 200, first=first)
    stage.start(20)
    stage.drained(scale(30, 300))

    stage.judge()
    assert stage.runs_twice() == []
