"""Workflows of one job, many side by side and one, while workers and PostgreSQL are killed."""

import time
from collections.abc import Sequence
from datetime import timedelta

from holdfast.records import NewJob
from tests.chaos.conftest import Scale, at_full_length
from tests.chaos.stage import Stage

# Numbers of a workflow's jobs: its first, then its parts, and its last at the end.
SPAN = 1000
LEASE = timedelta(seconds=2)


def test_the_last_job_of_each_workflow_has_its_effect_once_whoever_is_killed(
    stage: Stage, scale: Scale
) -> None:
    flows, width = scale(10, 1000), scale(20, 100)
    _start(stage, flows, width, "part", seconds=0.05)

    if scale.long:
        took = _hurt(stage, ["crash"] * 3, kill_every=2.0, workers=3, slots=64)
    else:
        took = _hurt(stage, ["kill", "crash"], workers=1, slots=16)

    firsts = [(flow * SPAN, 1) for flow in range(flows)]
    lasts = [(flow * SPAN + SPAN - 1, 1) for flow in range(flows)]
    assert stage.effects() == sorted(firsts + lasts)
    _nothing_is_left(stage, flows, width, took)


@at_full_length
def test_every_job_of_ten_thousand_workflows_has_its_effect_once(stage: Stage) -> None:
    flows, width = 10_000, 3
    _start(stage, flows, width, "part_booked", seconds=0.0)

    took = _hurt(stage, ["crash"] * 10, kill_every=2.0, workers=3, slots=64)

    places = (0, *range(1, width + 1), SPAN - 1)
    assert stage.effects() == [(flow * SPAN + n, 1) for flow in range(flows) for n in places]
    _nothing_is_left(stage, flows, width, took)


def _start(stage: Stage, flows: int, width: int, kind: str, *, seconds: float) -> None:
    """Store workflows of 1 → width → 1; what each part returns reaches the last in its order."""
    about = {"lease": LEASE, "max_attempts": 1000}
    for flow in range(flows):
        zero = flow * SPAN
        parts = range(zero + 1, zero + width + 1)
        jobs = [NewJob(kind="opens", payload={"n": zero}, **about)]
        jobs += [
            NewJob(
                kind=kind,
                payload={"n": n, "seconds": seconds},
                after=[1],
                take={"opened": 1},
                **about,
            )
            for n in parts
        ]
        wanted = {"n": zero + SPAN - 1, "wanted": [zero + n for n in parts]}
        after = list(range(2, width + 2))
        last = NewJob(kind="closes", payload=wanted, after=after, take={"parts": "all"}, **about)
        started = stage.client.workflows.start("fan", [*jobs, last], key=str(flow))
        stage.ids += [job.id for job in started.jobs]


def _hurt(
    stage: Stage,
    faults: Sequence[str],
    *,
    kill_every: float = float("inf"),
    workers: int,
    slots: int,
) -> float:
    """Let workers work until no job is left, and hurt them meanwhile; returns how long it took.

    Each fault comes when one more share of the jobs has ended: a crash of PostgreSQL, as by a power
    cut, or a worker killed. And one is killed every so many seconds, if it had time to begin: on
    a busy machine nothing would be done otherwise. Each has one in its place at once.
    """
    began = killed_at = time.monotonic()
    fleet = [stage.start(slots) for _ in range(workers)]
    done = {"kill": 0, "crash": 0}
    left = list(faults)
    share = len(stage.ids) // (len(faults) + 1)
    while (live := stage.live()) or left:
        ended = len(stage.ids) - live
        fault = left.pop(0) if left and ended >= share * (len(faults) - len(left) + 1) else None
        if fault == "crash":
            stage.server.stop("immediate")
            stage.server.start()
        elif time.monotonic() > killed_at + kill_every and fleet[0].ready:
            fault = "kill"
        if fault == "kill":
            fleet.pop(0).kill()
            fleet.append(stage.start(slots))
            killed_at = time.monotonic()
        if fault:
            done[fault] += 1
        assert not stage.fleet.fallen(), f"a worker ended by itself\n{stage.told()}"
        assert time.monotonic() < began + 1700, stage.told()
        time.sleep(0.02)
    stage.facts |= {"workers killed": done["kill"], "PostgreSQL stopped": done["crash"]}
    return time.monotonic() - began


def _nothing_is_left(stage: Stage, flows: int, width: int, took: float) -> None:
    stage.judge()
    assert stage.value("select coalesce(sum(jobs), 0) from holdfast.countdown") == 0
    states = stage.rows("select state, count(*) from holdfast.workflows group by state")
    assert states == [("done", flows)]
    stage.facts |= {
        "workflows": flows,
        "width": width,
        "drained s": round(took, 1),
        "jobs that ran twice": len(stage.runs_twice()),
    }
