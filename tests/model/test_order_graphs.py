"""Random graphs of jobs against a model: what may run, what waits, what was cancelled."""

import os
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.protocol import Leased, Protocol

LONG = "MODEL_LONG" in os.environ

Node = tuple[list[int], str]
"""What a job waits for, by the numbers of jobs before it, and what it does if one of them fails."""


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    size = draw(st.integers(2, 14))
    nodes: list[Node] = []
    for nth in range(size):
        after = draw(st.lists(st.integers(1, nth), unique=True, max_size=8)) if nth else []
        nodes.append((after, draw(st.sampled_from(["wait", "cancel", "run"]))))
    return nodes


class World:
    """What should be true of each job: queued, leased, done, dead or cancelled."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.states = ["queued"] * len(nodes)
        self.stopped_by: dict[int, set[int]] = {}
        # For each, which of those it waits for are behind it for good.
        self.counted: list[set[int]] = [set() for _ in nodes]

    def waits(self, nth: int) -> bool:
        return len(self.counted[nth]) < len(self.nodes[nth][0])

    def end(self, nth: int, state: str) -> None:
        ended, how = {nth}, state
        while ended:
            stopped: dict[int, set[int]] = {}
            for one in ended:
                self.states[one] = how
            for other, (after, policy) in enumerate(self.nodes):
                for one in {n - 1 for n in after} & ended - self.counted[other]:
                    if how == "done" or policy == "run":
                        self.counted[other].add(one)
                    elif policy == "cancel" and self.states[other] == "queued":
                        stopped.setdefault(other, set()).add(one)
            self.stopped_by |= stopped
            ended, how = set(stopped), "cancelled"

    def retry(self, nth: int) -> None:
        todo = [nth]
        while todo:
            one = todo.pop(0)
            self.states[one] = "queued"
            self.stopped_by.pop(one, None)
            for other, by in list(self.stopped_by.items()):
                if one in by and other not in todo:
                    todo.append(other)

    def ready(self) -> set[int]:
        return {
            nth
            for nth, state in enumerate(self.states)
            if state == "queued" and not self.waits(nth)
        }


@pytest.mark.timeout(900)
def test_random_graphs_run_as_their_model_says(db: Protocol) -> None:
    @settings(
        max_examples=1500 if LONG else 25,
        deadline=None,
        derandomize=not LONG,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs(), st.data())
    def run(nodes: list[Node], data: st.DataObject) -> None:
        db.wipe()
        _follow(db, nodes, data)

    db.connection.execute("select set_config('holdfast_test.now', '2030-01-01', false)")
    run()


def _follow(db: Protocol, nodes: list[Node], data: st.DataObject) -> None:
    world = World(nodes)
    rows = db.enqueue(
        *(
            {"kind": "k", **({"after": after, "if_failed": policy} if after else {})}
            for after, policy in nodes
        )
    )
    ids: list[UUID] = [row.id for row in rows]
    held: dict[int, Leased] = {}
    for _ in range(60):
        claimed = db.claim(max_jobs=data.draw(st.integers(1, 4)))
        for job in claimed:
            nth = ids.index(job.id)
            assert nth in world.ready()
            world.states[nth] = "leased"
            held[nth] = job
        if not held:
            failed = [n for n, s in enumerate(world.states) if s in ("dead", "cancelled")]
            if not failed:
                break
            nth = data.draw(st.sampled_from(failed))
            assert db.retry(ids[nth])[0].changed
            world.retry(nth)
        else:
            nth = data.draw(st.sampled_from(sorted(held)))
            _end(db, world, nth, ids[nth], held.pop(nth), data.draw(st.integers(0, 5)))
        _agrees(db, world, ids)
    while claimed := db.claim(max_jobs=20):
        for job in claimed:
            db.ack(job)


def _end(db: Protocol, world: World, nth: int, id: UUID, job: Leased, how: int) -> None:
    if how == 0:
        db.nack(job, final=True)
        world.end(nth, "dead")
    elif how == 1:
        db.cancel(id)
        world.end(nth, "cancelled")
    else:
        db.ack(job)
        world.end(nth, "done")


def _agrees(db: Protocol, world: World, ids: Sequence[UUID]) -> None:
    found: dict[Any, Any] = {row.id: row for row in db.table(_STATES)}
    for nth, state in enumerate(world.states):
        row = found.get(ids[nth])
        assert (row.state if row else "done") == state, nth
        if state == "queued":
            assert (row.waits is not None) == world.waits(nth), nth


_STATES = """
select j.id, case when j.token is null then 'queued' else 'leased' end as state, j.waits
from holdfast.job j
union all
select e.id, e.state, null from holdfast.ended e
"""
