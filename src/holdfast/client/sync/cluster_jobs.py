"""Generated from aio/cluster_jobs.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

from holdfast.client import merging
from holdfast.client.sync.activity import Activity
from holdfast.client.sync.client import Client
from holdfast.client.sync.cluster import Cluster, told
from holdfast.client.sync.dead import Dead
from holdfast.client.sync.jobs import Jobs
from holdfast.client.sync.pool import Bound, Pool
from holdfast.client.sync.steps import Steps
from holdfast.errors import HoldfastError
from holdfast.records import (
    Attempt,
    Change,
    Count,
    DeadGroup,
    Duration,
    EventPage,
    Job,
    JobPage,
    Line,
    Receipt,
    Step,
)

Changes = Sequence[Change]
Changing = Callable[[Client, list[UUID]], Changes]


class ClusterJobs(Jobs):
    """Jobs by id or by filter, on all nodes."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def get(self, id: UUID) -> Job | None:
        """Return a job; None if no node knows it."""
        # Most often it is here, and then nobody else is asked.
        here = self._cluster.home.jobs.get(id)
        if here is not None:
            self._cluster.remember(id, self._cluster.here)
            return here
        if self._cluster.is_alone():
            return None
        for node, found in (self._cluster.ask(lambda one: one.jobs.get(id))).items():
            if found is not None:
                self._cluster.remember(id, node)
                return found
        self._cluster.raise_if_silent(f"job {id}")
        return None

    def receipt(self, id: UUID) -> Receipt | None:
        """Return what is still known about a job that was done and deleted minutes ago."""
        known = self._cluster.ask(lambda one: one.jobs.receipt(id))
        return next((one for one in known.values() if one is not None), None)

    def attempts(self, id: UUID) -> list[Attempt]:
        """Return a job's failed attempts, oldest first."""
        return (self._at(id)).jobs.attempts(id)

    def lines(self, id: UUID, *, after: int = 0, newest: int = 1000) -> list[Line]:
        """Return what a job's handlers logged while they ran, oldest first."""
        return (self._at(id)).jobs.lines(id, after=after, newest=newest)

    def last_lines(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        """Return the number of the last line of each of these jobs that has any."""
        found = self._cluster.ask(lambda one: one.jobs.last_lines(ids))
        return {id: nth for some in found.values() for id, nth in some.items()}

    def explain(self, id: UUID) -> str:
        """Explain in one sentence why a job is not running."""
        return (self._at(id)).jobs.explain(id)

    def find(
        self, filter: str = "", *, limit: int = 1000, before: UUID | None = None
    ) -> Sequence[UUID]:
        """Return the ids of jobs that match a filter, newest first."""
        found = self._cluster.ask(lambda one: one.jobs.find(filter, limit=limit, before=before))
        return merging.newest_ids(found.values(), limit)

    def search(
        self,
        filter: str = "",
        *,
        limit: int = 50,
        before: UUID | None = None,
        patience: Duration = 0.05,
    ) -> JobPage:
        """Return a page of jobs that match a filter, newest first."""
        found = self._cluster.ask(
            lambda one: one.jobs.search(filter, limit=limit, before=before, patience=patience)
        )
        return merging.searched(list(found.values()), limit)

    def count(self, filter: str = "", *, most: int = 10_000, patience: Duration = 0.05) -> Count:
        """Count the jobs that match a filter, up to `most` and for about `patience`."""
        found = self._cluster.ask(lambda one: one.jobs.count(filter, most=most, patience=patience))
        return merging.counted(list(found.values()), most)

    def move(
        self,
        ids: Iterable[UUID],
        queue: str,
        *,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Sequence[Change]:
        """Move jobs to another queue, which must live on the node where they are."""

        def move(one: Client, some: Sequence[UUID]) -> Sequence[Change]:
            return one.jobs.move(some, queue, reason=reason, actor=actor)

        return self._routed(ids, move)

    # Last of the public methods: after it, `list` in this class is the method.
    def list(
        self, filter: str = "", *, limit: int = 100, before: UUID | None = None
    ) -> Sequence[Job]:
        """Return jobs that match a filter, newest first; `before` continues after an id."""
        found = self._cluster.ask(lambda one: one.jobs.list(filter, limit=limit, before=before))
        return merging.newest(found.values(), limit)

    def _at(self, id: UUID) -> Client:
        return self._cluster.reader(self._cluster.place_of(id))

    def _change(
        self,
        verb: LiteralString,
        ids: Iterable[UUID],
        reason: str | None,
        actor: str | None,
        **more: Any,
    ) -> Sequence[Change]:
        def change(one: Client, some: Sequence[UUID]) -> Sequence[Change]:
            return one.jobs._change(verb, some, reason, actor, **more)

        return self._routed(ids, change)

    def _routed(self, ids: Iterable[UUID], change: Changing) -> Sequence[Change]:
        """Change each job where it is. What one node refuses does not stop the others."""
        cluster = self._cluster
        named = [*ids]
        if not named or cluster.is_alone():
            return change(cluster.home, named)
        places = cluster.where(named)
        if not places:
            cluster.raise_if_silent(f"job {named[0]}")
        by_node: dict[int, Any] = {}
        for id in named:
            by_node.setdefault(places.get(id, cluster.here), []).append(id)
        changes: dict[UUID, Change] = {}
        refused: HoldfastError | None = None
        for node, some in sorted(by_node.items()):
            try:
                found = change(cluster.writer(node), some)
            except HoldfastError as error:
                if len(by_node) == 1:
                    raise
                refused = error
                found = [Change(id, False, None, f"node {node}: {error}") for id in some]
            changes.update((one.id, one) for one in found)
        if refused is not None and not any(one.state for one in changes.values()):
            raise refused
        silent = "; ".join(map(told, cluster.silent()))
        for id in named:
            if silent and id not in places:
                changes[id] = Change(id, False, None, silent)
        return [changes[id] for id in named]


class ClusterDead(Dead):
    """Dead jobs of all nodes."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def groups(self) -> Sequence[DeadGroup]:
        """Return dead jobs grouped by how they failed, the largest group first."""
        found = self._cluster.ask(lambda one: one.dead.groups())
        return merging.dead_groups(found.values())

    def list(
        self,
        filter: str = "",
        *,
        limit: int = 100,
        before: Job | tuple[datetime, UUID] | None = None,
    ) -> Sequence[Job]:
        """Return dead jobs that match a filter, the most recent failure first."""
        found = self._cluster.ask(lambda one: one.dead.list(filter, limit=limit, before=before))
        return merging.last_failed(found.values(), limit)

    def oldest(self) -> dict[str, timedelta]:
        """Return how long ago the oldest dead job died, for each queue that has dead jobs."""
        oldest: dict[str, timedelta] = {}
        for ages in (self._cluster.ask(lambda one: one.dead.oldest())).values():
            for queue, age in ages.items():
                oldest[queue] = max(age, oldest.get(queue, age))
        return oldest


class ClusterSteps(Steps):
    """Steps of jobs, on the node where the job is."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def list(self, id: UUID) -> Sequence[Step]:
        """Return the steps of a job, in the order in which they began."""
        node = self._cluster.reader(self._cluster.place_of(id))
        return node.steps.list(id)


class ClusterActivity(Activity):
    """Events, and samples of counters."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def series(
        self,
        metric: str,
        *,
        queues: Sequence[str] | None = None,
        kind: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: Duration = 60.0,
    ) -> Sequence[tuple[datetime, float | None]]:
        """Return a metric over time: counts of all nodes, or the largest of ages and percentiles.

        A percentile of all nodes together is not larger than the largest of theirs.
        """
        found = self._cluster.ask(
            lambda one: one.activity.series(
                metric, queues=queues, kind=kind, since=since, until=until, step=step
            )
        )
        if len(found) == 1:
            return next(iter(found.values()))
        return merging.points(metric, found.values())

    def list(self, *, job: UUID | None = None, **asked: Any) -> EventPage:
        """Return events: of one job those of the node where it is, else those of this node."""
        if job is None:
            return super().list(**asked)
        node = self._cluster.reader(self._cluster.place_of(job))
        if node is self._cluster.home:
            return super().list(job=job, **asked)
        return node.activity.list(job=job, **asked)
