"""Random graphs of jobs against a model: what may run, what waits, what was cancelled.

Workers hold jobs and crash: the clock moves past their leases, and `reap` takes the jobs back. Jobs
are added behind others that live or have ended; some are moved to another queue, or deleted.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.protocol import Leased, Protocol

LONG = "MODEL_LONG" in os.environ
START = datetime(2030, 1, 1, tzinfo=UTC)
QUEUES = ("default", "other")
STEPS = 60

Node = tuple[list[int], str, int]
"""What a job waits for, by the numbers of jobs before it, what it does if one of them fails, and
after how many failed attempts it is dead."""

POLICIES = ("wait", "cancel", "run")


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    size = draw(st.integers(2, 14))
    nodes: list[Node] = []
    for nth in range(size):
        after = draw(st.lists(st.integers(1, nth), unique=True, max_size=8)) if nth else []
        nodes.append((after, draw(st.sampled_from(POLICIES)), draw(st.integers(1, 3))))
    return nodes


class World:
    """What should be true of each job: queued, leased, done, dead, cancelled or deleted."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: list[Node] = []
        self.states: list[str] = []
        self.attempts: list[int] = []
        self.stopped_by: dict[int, set[int]] = {}
        # For each, which of those it waits for are behind it for good.
        self.counted: list[set[int]] = []
        self.add(nodes)

    def add(self, nodes: Sequence[Node]) -> None:
        """Store more jobs; what they wait for may have ended."""
        first = len(self.nodes)
        self.nodes += nodes
        self.states += ["queued"] * len(nodes)
        self.attempts += [0] * len(nodes)
        self.counted += [set() for _ in nodes]
        for how in ("done", "dead", "cancelled"):
            ended = {nth for nth, state in enumerate(self.states[:first]) if state == how}
            self._count(ended, how, range(first, len(self.nodes)))
        failed = {nth for nth in range(first) if self.states[nth] in ("dead", "cancelled")}
        stopped: dict[int, set[int]] = {}
        for nth in range(first, len(self.nodes)):
            after, policy, _ = self.nodes[nth]
            if policy == "cancel" and (by := {n - 1 for n in after} & failed):
                stopped[nth] = by
        self._stop(stopped)

    def waits(self, nth: int) -> bool:
        return len(self.counted[nth]) < len(self.nodes[nth][0])

    def end(self, nth: int, state: str) -> None:
        self._spread({nth}, state)

    def fail(self, nth: int) -> str:
        """An attempt has failed; returns what becomes of the job."""
        _, _, most = self.nodes[nth]
        if self.attempts[nth] >= most:
            self.end(nth, "dead")
        else:
            self.states[nth] = "queued"
        return self.states[nth]

    def retry(self, nth: int) -> None:
        todo = [nth]
        while todo:
            one = todo.pop(0)
            self.states[one] = "queued"
            self.attempts[one] = 0
            self.stopped_by.pop(one, None)
            for other, by in list(self.stopped_by.items()):
                if one in by and other not in todo:
                    todo.append(other)

    def ready(self) -> set[int]:
        return {nth for nth in self.those("queued") if not self.waits(nth)}

    def those(self, *states: str) -> list[int]:
        return [nth for nth, state in enumerate(self.states) if state in states]

    def _spread(self, ended: set[int], how: str) -> None:
        for one in ended:
            self.states[one] = how
            if how == "deleted":
                self.stopped_by.pop(one, None)
        self._count(ended, how, range(len(self.nodes)))
        stopped: dict[int, set[int]] = {}
        for other, (after, policy, _) in enumerate(self.nodes):
            by = {n - 1 for n in after} & ended - self.counted[other]
            if by and policy == "cancel" and self.states[other] == "queued":
                stopped[other] = by
        self._stop(stopped)

    def _count(self, ended: set[int], how: str, others: Iterable[int]) -> None:
        for other in others:
            after, policy, _ = self.nodes[other]
            if how == "done" or policy == "run":
                self.counted[other] |= {n - 1 for n in after} & ended

    def _stop(self, stopped: dict[int, set[int]]) -> None:
        """What failed cancels these, each because of others, and so on."""
        self.stopped_by |= stopped
        if stopped:
            self._spread(set(stopped), "cancelled")


@pytest.mark.timeout(900)
def test_random_graphs_run_as_their_model_says(db: Protocol) -> None:
    @settings(
        max_examples=1500 if LONG else 40,
        deadline=None,
        derandomize=not LONG,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs(), st.booleans(), st.randoms(use_true_random=True))
    def run(nodes: list[Node], keeps: bool, random: Random) -> None:
        _Story(db, random, keeps=keeps).follow(nodes)

    run()


class _Story:
    """One graph, and what happens to it.

    What is chosen does not come from Hypothesis: which of several followers is claimed first is up
    to their ids, and with that what there is to choose from.
    """

    def __init__(self, db: Protocol, random: Random, *, keeps: bool) -> None:
        self.db = db
        self.random = random
        self.held: dict[int, Leased] = {}
        self.ids: list[UUID] = []
        self.now = START
        self._later(timedelta())
        db.wipe()
        for queue in QUEUES:
            db.queue_set(queue, backoff=0, keep_done=86400 if keeps else 0)

    def follow(self, nodes: list[Node]) -> None:
        self.world = World(nodes)
        self._store(nodes)
        self._agrees()
        turns: list[Callable[[], None]] = [
            *[self._end] * 6,
            *[self._claim] * 3,
            *[self._crash] * 2,
            self._retry,
            self._add,
            self._move,
            self._delete,
        ]
        for _ in range(STEPS):
            self.random.choice(turns)()
            self._agrees()
        self._finish()

    def _store(self, nodes: Sequence[Node]) -> None:
        first = len(self.ids)
        items = [
            {
                "kind": "k",
                "queue": self.random.choice(QUEUES),
                "max_attempts": most,
                "after": [n - first if n > first else str(self.ids[n - 1]) for n in after],
                "if_failed": policy,
            }
            for after, policy, most in nodes
        ]
        self.ids += [row.id for row in self.db.enqueue(*items)]

    def _claim(self) -> None:
        queue = self.random.choice(QUEUES)
        most = self.random.randint(1, 4)
        claimed = self.db.claim(queue, max_jobs=most, lease=LEASE)
        for job in claimed:
            nth = self.ids.index(job.id)
            assert nth in self.world.ready()
            self.world.states[nth] = "leased"
            self.world.attempts[nth] += 1
            assert job.attempt == self.world.attempts[nth]
            self.held[nth] = job

    def _end(self) -> None:
        if not self.held:
            self._claim()
            return
        nth = self.random.choice(sorted(self.held))
        job = self.held.pop(nth)
        how = self.random.randint(0, 6)
        if how == 0:
            self.db.nack(job, final=True)
            self.world.end(nth, "dead")
        elif how == 1:
            self.db.cancel(self.ids[nth])
            self.world.end(nth, "cancelled")
        elif how == 2:
            [answer] = self.db.nack(job)
            assert answer.outcome == self.world.fail(nth)
        else:
            self.db.ack(job)
            self.world.end(nth, "done")

    def _crash(self) -> None:
        """Some of those who hold jobs renew their leases; the others are gone."""
        living = {nth for nth in sorted(self.held) if self.random.random() < 0.4}
        self._later(LEASE / 2)
        self.db.touch(*(self.held[nth] for nth in living), lease=LEASE)
        self._later(LEASE / 2 + timedelta(seconds=1))
        most = self.random.randint(1, 4)
        gone = set(self.held) - living
        # A reap of jobs that die takes no others back after them: they have their turn in the next.
        while reaped := self.db.reap(max_jobs=most):
            for job in reaped:
                nth = self.ids.index(job.id)
                assert nth in gone
                gone.remove(nth)
                del self.held[nth]
                assert job.outcome == self.world.fail(nth)
            self._agrees()
        assert not gone

    def _retry(self) -> None:
        if failed := self.world.those("dead", "cancelled"):
            nth = self.random.choice(failed)
            assert self.db.retry(self.ids[nth])[0].changed
            self.world.retry(nth)

    def _add(self) -> None:
        known = [n + 1 for n in self.world.those(*LIVE, "dead", "cancelled", "done")]
        nodes: list[Node] = []
        for nth in range(self.random.randint(1, 3)):
            among = [*known, *range(len(self.ids) + 1, len(self.ids) + nth + 1)]
            size = min(self.random.choice([0, 1, 2, 8]), len(among))
            after = self.random.sample(among, size)
            nodes.append((after, self.random.choice(POLICIES), self.random.randint(1, 3)))
        self.world.add(nodes)
        self._store(nodes)

    def _move(self) -> None:
        if movable := self.world.those("queued", "dead"):
            nth = self.random.choice(movable)
            [answer] = self.db.move(self.ids[nth], queue=self.random.choice(QUEUES))
            self.ids[nth] = answer.new_id or self.ids[nth]

    def _delete(self) -> None:
        if there := self.world.those("queued", "dead", "cancelled"):
            nth = self.random.choice(there)
            assert self.db.delete(self.ids[nth])[0].changed
            self.world.end(nth, "deleted")

    def _finish(self) -> None:
        """All that can run does."""
        while self.held or self.world.ready():
            for queue in QUEUES:
                for job in self.db.claim(queue, max_jobs=20):
                    self.held[self.ids.index(job.id)] = job
            assert self.held
            for nth, job in self.held.items():
                self.db.ack(job)
                self.world.end(nth, "done")
            self.held.clear()
            self._agrees()

    def _later(self, by: timedelta) -> None:
        self.now += by
        self.db.connection.execute(
            "select set_config('holdfast_test.now', %s, false)", [self.now.isoformat()]
        )

    def _agrees(self) -> None:
        found: dict[Any, Any] = {row.id: row for row in self.db.table(_STATES)}
        for nth, state in enumerate(self.world.states):
            row = found.get(self.ids[nth])
            assert state == row.state if row else state in ("done", "deleted"), nth
            if state == "queued":
                assert (row.waits is not None) == self.world.waits(nth), nth


LEASE = timedelta(seconds=30)
LIVE = ("queued", "leased")
_STATES = """
select j.id, case when j.token is null then 'queued' else 'leased' end as state, j.waits
from holdfast.job j
union all
select e.id, e.state, null from holdfast.ended e
"""
