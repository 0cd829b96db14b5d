"""Queues and lanes of a cluster: counted on every node, set on the one where the queue lives."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

from holdfast.client import merging
from holdfast.client.aio.client import AsyncClient
from holdfast.client.aio.cluster import AsyncCluster
from holdfast.client.aio.lanes import AsyncLanes
from holdfast.client.aio.pool import AsyncBound, AsyncPool
from holdfast.client.aio.queues import AsyncQueues
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


class AsyncClusterQueues(AsyncQueues):
    """Queues by name, wherever they live."""

    def __init__(self, door: AsyncPool | AsyncBound, cluster: AsyncCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    async def get(self, queue: str) -> Queue | None:
        """Return one queue with the counts of all nodes; None if none has jobs or settings."""
        answers = await self._cluster.ask(lambda one: one.queues.get(queue))
        found = {node: one for node, one in answers.items() if one is not None}
        if not found:
            self._cluster.raise_if_silent(f"queue {queue!r}")
            return None
        home = None if len(answers) == 1 else (await self._cluster.homes([queue]))[queue]
        return merging.queue(found, home)

    async def set(
        self, queue: str, *, actor: str | None = None, **settings: Unpack[QueueOptions]
    ) -> Queue:
        """Change settings of a queue, on its node."""
        return await (await self._writer(queue)).queues.set(queue, actor=actor, **settings)

    async def pause(
        self,
        queue: str,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> Queue:
        """Start no new jobs of a queue; what is left of it on other nodes runs on."""
        node = await self._writer(queue)
        return await node.queues.pause(queue, reason=reason, until=until, actor=actor)

    async def resume(self, queue: str, *, actor: str | None = None) -> Queue:
        """Start jobs of a paused queue again."""
        return await (await self._writer(queue)).queues.resume(queue, actor=actor)

    async def explain(self, queue: str) -> str:
        """Explain in one sentence the state of a queue on its node, and what holds it up."""
        return await (await self._reader(queue)).queues.explain(queue)

    async def upcoming(self, queue: str = "default", *, limit: int = 100) -> Sequence[Job]:
        """Return the jobs that wait on the queue's node, in the order in which they will run."""
        return await (await self._reader(queue)).queues.upcoming(queue, limit=limit)

    async def sort_some(
        self, queue: str, *, after: UUID | None = None, limit: int = 2000
    ) -> UUID | None:
        """Prepare a queue for `by_kind`, some of its jobs at a time, after those up to `after`."""
        return await (await self._writer(queue)).queues.sort_some(queue, after=after, limit=limit)

    async def depth(self) -> Sequence[Depth]:
        """Return how many jobs there are by queue, kind and state, from counters of all nodes."""
        found = await self._cluster.ask(lambda one: one.queues.depth())
        return merging.depths(found.values())

    async def forecast(
        self,
        queue: str | None = None,
        *,
        target: Duration | None = None,
        span: Duration = 300.0,
    ) -> Sequence[Forecast]:
        """Return for each queue, or one, when it will be empty, as its node sees it."""
        answers = await self._cluster.ask(
            lambda one: one.queues.forecast(queue, target=target, span=span)
        )
        if len(answers) == 1:
            return next(iter(answers.values()))
        homes = await self._cluster.homes(one.queue for some in answers.values() for one in some)
        return sorted(
            (
                one
                for node, some in answers.items()
                for one in some
                if homes[one.queue] == node or (homes[one.queue] not in answers)
            ),
            key=lambda one: one.queue,
        )

    async def success(
        self, queue: str | None = None, *, span: Duration = 3600.0
    ) -> Sequence[Success]:
        """Return which share of attempts succeeded in the last `span`, by queue and kind."""
        found = await self._cluster.ask(lambda one: one.queues.success(queue, span=span))
        return merging.successes(found.values())

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self) -> Sequence[Queue]:
        """Return every queue with its settings and the counts of all nodes, by name."""
        answers = await self._cluster.ask(lambda one: one.queues.list())
        if len(answers) == 1 and not self._cluster.silent():
            return next(iter(answers.values()))
        homes = await self._cluster.homes(one.queue for some in answers.values() for one in some)
        return merging.queues(answers, homes)

    async def _reader(self, queue: str) -> AsyncClient:
        return await self._cluster.reader(await self._cluster.home_of(queue))

    async def _writer(self, queue: str) -> AsyncClient:
        return await self._cluster.writer(await self._cluster.home_of(queue))


class AsyncClusterLanes(AsyncLanes):
    """Lanes by queue and name, wherever their queues live."""

    def __init__(self, door: AsyncPool | AsyncBound, cluster: AsyncCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    async def list(self, *, limit: int = 500) -> list[Lane]:
        """Return lanes that are in use or have settings, the longest waiting first."""
        answers = await self._cluster.ask(lambda one: one.lanes.list(limit=limit))
        found = [one for some in answers.values() for one in some]
        if len(answers) > 1:
            found.sort(key=lambda one: (one.queue, one.lane))
            found.sort(key=lambda one: -(one.oldest.total_seconds() if one.oldest else -1.0))
        return found[:limit]

    async def set(
        self, queue: str, lane: str, *, actor: str | None = None, **settings: Any
    ) -> None:
        """Change settings of one lane: limit, on_failure, rate_limit, rate_period."""
        node = await self._cluster.writer(await self._cluster.home_of(queue))
        await node.lanes.set(queue, lane, actor=actor, **settings)

    async def release(self, queue: str, lane: str, *, actor: str | None = None) -> LaneReleased:
        """Unblock a lane that is halted, or whose worker has not been seen for a minute.

        On every node that has the lane: jobs with a lane do not follow a queue that is placed.
        """
        answers = await self._cluster.ask(
            lambda one: one.lanes.release(queue, lane, actor=actor), changes=True
        )
        found = merging.lane_released(answers.values())
        if found.outcome in ("unknown", "free"):
            self._cluster.raise_if_silent(f"lane {lane!r} of queue {queue!r}")
        return found

    async def explain(self, queue: str, lane: str) -> str:
        """Explain in one sentence which job holds a lane, and which is next."""
        node = await self._cluster.reader(await self._cluster.home_of(queue))
        return await node.lanes.explain(queue, lane)
