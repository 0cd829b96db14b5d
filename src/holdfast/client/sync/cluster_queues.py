"""Generated from aio/cluster_queues.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

from holdfast.client import merging
from holdfast.client.sync.client import Client
from holdfast.client.sync.cluster import Cluster
from holdfast.client.sync.lanes import Lanes
from holdfast.client.sync.pool import Bound, Pool
from holdfast.client.sync.queues import Queues
from holdfast.records import (
    Depth,
    Duration,
    Forecast,
    Job,
    Lane,
    LaneReleased,
    Queue,
    QueueOptions,
    Success,
)


class ClusterQueues(Queues):
    """Queues by name, wherever they live."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def get(self, queue: str) -> Queue | None:
        """Return one queue with the counts of all nodes; None if none has jobs or settings."""
        answers = self._cluster.ask(lambda one: one.queues.get(queue))
        found = {node: one for node, one in answers.items() if one is not None}
        if not found:
            self._cluster.raise_if_silent(f"queue {queue!r}")
            return None
        home = None if len(answers) == 1 else (self._cluster.homes([queue]))[queue]
        return merging.queue(found, home)

    def set(
        self, queue: str, *, actor: str | None = None, **settings: Unpack[QueueOptions]
    ) -> Queue:
        """Change settings of a queue, on its node."""
        return (self._writer(queue)).queues.set(queue, actor=actor, **settings)

    def pause(
        self,
        queue: str,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> Queue:
        """Start no new jobs of a queue; what is left of it on other nodes runs on."""
        node = self._writer(queue)
        return node.queues.pause(queue, reason=reason, until=until, actor=actor)

    def resume(self, queue: str, *, actor: str | None = None) -> Queue:
        """Start jobs of a paused queue again."""
        return (self._writer(queue)).queues.resume(queue, actor=actor)

    def explain(self, queue: str) -> str:
        """Explain in one sentence the state of a queue on its node, and what holds it up."""
        return (self._reader(queue)).queues.explain(queue)

    def upcoming(self, queue: str = "default", *, limit: int = 100) -> Sequence[Job]:
        """Return the jobs that wait on the queue's node, in the order in which they will run."""
        return (self._reader(queue)).queues.upcoming(queue, limit=limit)

    def sort_some(self, queue: str, *, after: UUID | None = None, limit: int = 2000) -> UUID | None:
        """Prepare a queue for `by_kind`, some of its jobs at a time, after those up to `after`."""
        return (self._writer(queue)).queues.sort_some(queue, after=after, limit=limit)

    def depth(self) -> Sequence[Depth]:
        """Return how many jobs there are by queue, kind and state, from counters of all nodes."""
        found = self._cluster.ask(lambda one: one.queues.depth())
        return merging.depths(found.values())

    def forecast(
        self,
        queue: str | None = None,
        *,
        target: Duration | None = None,
        span: Duration = 300.0,
    ) -> Sequence[Forecast]:
        """Return for each queue, or one, when it will be empty, as its node sees it."""
        answers = self._cluster.ask(
            lambda one: one.queues.forecast(queue, target=target, span=span)
        )
        if len(answers) == 1:
            return next(iter(answers.values()))
        homes = self._cluster.homes(one.queue for some in answers.values() for one in some)
        return sorted(
            (
                one
                for node, some in answers.items()
                for one in some
                if homes[one.queue] == node or (homes[one.queue] not in answers)
            ),
            key=lambda one: one.queue,
        )

    def success(self, queue: str | None = None, *, span: Duration = 3600.0) -> Sequence[Success]:
        """Return which share of attempts succeeded in the last `span`, by queue and kind."""
        found = self._cluster.ask(lambda one: one.queues.success(queue, span=span))
        return merging.successes(found.values())

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self) -> Sequence[Queue]:
        """Return every queue with its settings and the counts of all nodes, by name."""
        answers = self._cluster.ask(lambda one: one.queues.list())
        if len(answers) == 1 and not self._cluster.silent():
            return next(iter(answers.values()))
        homes = self._cluster.homes(one.queue for some in answers.values() for one in some)
        return merging.queues(answers, homes)

    def _reader(self, queue: str) -> Client:
        return self._cluster.reader(self._cluster.home_of(queue))

    def _writer(self, queue: str) -> Client:
        return self._cluster.writer(self._cluster.home_of(queue))


class ClusterLanes(Lanes):
    """Lanes by queue and name, wherever their queues live."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def list(self, *, limit: int = 500) -> list[Lane]:
        """Return lanes that are in use or have settings, the longest waiting first."""
        answers = self._cluster.ask(lambda one: one.lanes.list(limit=limit))
        found = [one for some in answers.values() for one in some]
        if len(answers) > 1:
            found.sort(key=lambda one: (one.queue, one.lane))
            found.sort(key=lambda one: -(one.oldest.total_seconds() if one.oldest else -1.0))
        return found[:limit]

    def set(self, queue: str, lane: str, *, actor: str | None = None, **settings: Any) -> None:
        """Change settings of one lane: limit, on_failure, rate_limit, rate_period."""
        node = self._cluster.writer(self._cluster.home_of(queue))
        node.lanes.set(queue, lane, actor=actor, **settings)

    def release(self, queue: str, lane: str, *, actor: str | None = None) -> LaneReleased:
        """Unblock a lane that is halted, or whose worker has not been seen for a minute.

        On every node that has the lane: jobs with a lane do not follow a queue that is placed.
        """
        answers = self._cluster.ask(
            lambda one: one.lanes.release(queue, lane, actor=actor), changes=True
        )
        found = merging.lane_released(answers.values())
        if found.outcome in ("unknown", "free"):
            self._cluster.raise_if_silent(f"lane {lane!r} of queue {queue!r}")
        return found

    def explain(self, queue: str, lane: str) -> str:
        """Explain in one sentence which job holds a lane, and which is next."""
        node = self._cluster.reader(self._cluster.home_of(queue))
        return node.lanes.explain(queue, lane)
