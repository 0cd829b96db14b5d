"""PostgreSQL crashes just after a claim: who was let in stays in, and nobody comes beside him."""

import time

import pytest

from holdfast import Client
from tests.chaos.conftest import Scale
from tests.chaos.stage import Stage
from tests.chaos.witness import overlaps


@pytest.mark.parametrize("bound_by", ["lane", "limit", "rate"])
def test_a_crash_just_after_a_claim_does_not_forget_who_was_let_in(
    stage: Stage, bound_by: str
) -> None:
    if bound_by == "limit":
        stage.client.queues.set("lanes", limit=1)
    elif bound_by == "rate":
        stage.client.queues.set("lanes", rate_limit=1, rate_period=3600)
    stage.enqueue("step", 2, queue="lanes", lane="one" if bound_by == "lane" else None)
    with Client(stage.url, application_name="chaos") as client:
        # On the client's own connections: such a claim need not wait for the disk.
        [first] = client.claim("lanes", worker="first", limit=2)

        stage.server.stop("immediate")
        stage.server.start()

        assert client.claim("lanes", worker="second", limit=2) == []
        [touched] = client.touch([first])
        assert touched.held


def test_no_lane_has_two_handlers_however_often_postgresql_crashes_just_after_a_claim(
    stage: Stage, scale: Scale
) -> None:
    crashes = scale(3, 210)
    for _ in range(3):
        stage.start(1)
    stage.enqueue("nap", crashes + 2, queue="lanes", lane="one", lease=30.0, seconds=0.7)
    crashed, away = [], []
    for n in range(1, crashes + 1):
        _until_begun(stage, n)
        crashed.append(time.time())
        stage.server.stop("immediate")
        stopped = time.time()
        stage.server.start()
        away.append(time.time() - stopped)
    stage.drained(120)

    runs = stage.witness.runs("nap")
    after = sorted(at - run.start for at, run in zip(crashed, runs, strict=False))
    just_after = sum(seconds < 0.1 for seconds in after)
    stage.facts |= {
        "crashes": crashes,
        "runs": len(runs),
        "together": len(overlaps(runs, {})),
        "claim to crash p50 ms": round(1000 * after[len(after) // 2], 1),
        "just after a claim": just_after,
        "longest outage s": round(max(away), 2),
    }
    assert overlaps(runs, {}) == []
    assert stage.runs_twice() == []
    # A crash that came when the handler had ended would prove nothing.
    assert just_after >= scale(0, 200)
    stage.judge()


def _until_begun(stage: Stage, count: int) -> None:
    # Not by Stage.until, which looks at workers as well and would be late.
    deadline = time.monotonic() + 60
    while len(stage.witness.runs("nap")) < count:
        assert time.monotonic() < deadline, stage.told()
        time.sleep(0.002)
