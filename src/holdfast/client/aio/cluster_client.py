"""A client of a whole Citus cluster, for operators: lists are of all nodes, changes find theirs."""

from functools import cached_property
from typing import Any, Self

from holdfast.client.aio.client import AsyncClient
from holdfast.client.aio.cluster import AsyncCluster
from holdfast.client.aio.cluster_jobs import (
    AsyncClusterActivity,
    AsyncClusterDead,
    AsyncClusterJobs,
    AsyncClusterSteps,
)
from holdfast.client.aio.cluster_operations import AsyncClusterOperations, AsyncClusterWorkflows
from holdfast.client.aio.cluster_queues import AsyncClusterLanes, AsyncClusterQueues
from holdfast.client.aio.cluster_watch import (
    AsyncClusterAnomalies,
    AsyncClusterKinds,
    AsyncClusterSchedules,
    AsyncClusterStrikes,
    AsyncClusterWorkers,
)


class AsyncClusterClient(AsyncClient):
    """The nouns of a client, of every node of the cluster that its database is in.

    In a database without Citus each call is that of the client it is made of; that there is no
    cluster is asked once. Enqueueing, claiming and settling are those of the client's own node.
    """

    def __init__(
        self, home: AsyncClient, *, pool_size: int = 2, application_name: str = "holdfast"
    ) -> None:
        self.url, self.listen_url = home.url, home.listen_url
        self._door = home._door
        self.cluster = AsyncCluster(home, pool_size=pool_size, application_name=application_name)

    def on(self, connection: Any) -> Self:
        """Return the same client bound to the caller's connection.

        What it changes on other nodes is not part of the caller's transaction.
        """
        bound = super().on(connection)
        bound.cluster = self.cluster.beside(self.cluster.home.on(connection))
        return bound

    async def close(self) -> None:
        """Close the connections to all nodes."""
        await super().close()
        await self.cluster.close()

    def abandon(self) -> None:
        """Drop the connections to all nodes."""
        super().abandon()
        self.cluster.abandon()

    @cached_property
    def jobs(self) -> AsyncClusterJobs:
        """Find and change jobs on the node where they are."""
        return AsyncClusterJobs(self._door, self.cluster)

    @cached_property
    def dead(self) -> AsyncClusterDead:
        """Dead jobs of all nodes by how they failed."""
        return AsyncClusterDead(self._door, self.cluster)

    @cached_property
    def steps(self) -> AsyncClusterSteps:
        """Steps of jobs, on the node where the job is."""
        return AsyncClusterSteps(self._door, self.cluster)

    @cached_property
    def activity(self) -> AsyncClusterActivity:
        """Events of this node, those of one job from its own, and numbers of all nodes."""
        return AsyncClusterActivity(self._door, self.cluster)

    @cached_property
    def queues(self) -> AsyncClusterQueues:
        """Queues with the counts of all nodes; settings of the node where each lives."""
        return AsyncClusterQueues(self._door, self.cluster)

    @cached_property
    def lanes(self) -> AsyncClusterLanes:
        """Lanes of all nodes."""
        return AsyncClusterLanes(self._door, self.cluster)

    @cached_property
    def operations(self) -> AsyncClusterOperations:
        """One verb for many jobs, on all nodes."""
        return AsyncClusterOperations(self._door, self.cluster)

    @cached_property
    def workflows(self) -> AsyncClusterWorkflows:
        """Workflows of all nodes."""
        return AsyncClusterWorkflows(self._door, self.cluster)

    @cached_property
    def workers(self) -> AsyncClusterWorkers:
        """Workers of all nodes."""
        return AsyncClusterWorkers(self._door, self.cluster)

    @cached_property
    def schedules(self) -> AsyncClusterSchedules:
        """Schedules of all nodes."""
        return AsyncClusterSchedules(self._door, self.cluster)

    @cached_property
    def kinds(self) -> AsyncClusterKinds:
        """What workers of all nodes declare."""
        return AsyncClusterKinds(self._door, self.cluster)

    @cached_property
    def strikes(self) -> AsyncClusterStrikes:
        """Strikes of all nodes."""
        return AsyncClusterStrikes(self._door, self.cluster)

    @cached_property
    def anomalies(self) -> AsyncClusterAnomalies:
        """Anomalies of all nodes."""
        return AsyncClusterAnomalies(self._door, self.cluster)
