"""Generated from aio/cluster_client.py by tools/generate_sync_client.py: edit that."""

from functools import cached_property
from typing import Any, Self

from holdfast.client.sync.client import Client
from holdfast.client.sync.cluster import Cluster
from holdfast.client.sync.cluster_jobs import (
    ClusterActivity,
    ClusterDead,
    ClusterJobs,
    ClusterSteps,
)
from holdfast.client.sync.cluster_operations import ClusterOperations, ClusterWorkflows
from holdfast.client.sync.cluster_queues import ClusterLanes, ClusterQueues
from holdfast.client.sync.cluster_watch import (
    ClusterAnomalies,
    ClusterKinds,
    ClusterSchedules,
    ClusterStrikes,
    ClusterWorkers,
)


class ClusterClient(Client):
    """The nouns of a client, of every node of the cluster that its database is in.

    In a database without Citus each call is that of the client it is made of; that there is no
    cluster is asked once. Enqueueing, claiming and settling are those of the client's own node.
    """

    def __init__(
        self, home: Client, *, pool_size: int = 2, application_name: str = "holdfast"
    ) -> None:
        self.url, self.listen_url = home.url, home.listen_url
        self._door = home._door
        self.cluster = Cluster(home, pool_size=pool_size, application_name=application_name)

    def on(self, connection: Any) -> Self:
        """Return the same client bound to the caller's connection.

        What it changes on other nodes is not part of the caller's transaction.
        """
        bound = super().on(connection)
        bound.cluster = self.cluster.beside(self.cluster.home.on(connection))
        return bound

    def close(self) -> None:
        """Close the connections to all nodes."""
        super().close()
        self.cluster.close()

    def abandon(self) -> None:
        """Drop the connections to all nodes."""
        super().abandon()
        self.cluster.abandon()

    @cached_property
    def jobs(self) -> ClusterJobs:
        """Find and change jobs on the node where they are."""
        return ClusterJobs(self._door, self.cluster)

    @cached_property
    def dead(self) -> ClusterDead:
        """Dead jobs of all nodes by how they failed."""
        return ClusterDead(self._door, self.cluster)

    @cached_property
    def steps(self) -> ClusterSteps:
        """Steps of jobs, on the node where the job is."""
        return ClusterSteps(self._door, self.cluster)

    @cached_property
    def activity(self) -> ClusterActivity:
        """Events of this node, those of one job from its own, and numbers of all nodes."""
        return ClusterActivity(self._door, self.cluster)

    @cached_property
    def queues(self) -> ClusterQueues:
        """Queues with the counts of all nodes; settings of the node where each lives."""
        return ClusterQueues(self._door, self.cluster)

    @cached_property
    def lanes(self) -> ClusterLanes:
        """Lanes of all nodes."""
        return ClusterLanes(self._door, self.cluster)

    @cached_property
    def operations(self) -> ClusterOperations:
        """One verb for many jobs, on all nodes."""
        return ClusterOperations(self._door, self.cluster)

    @cached_property
    def workflows(self) -> ClusterWorkflows:
        """Workflows of all nodes."""
        return ClusterWorkflows(self._door, self.cluster)

    @cached_property
    def workers(self) -> ClusterWorkers:
        """Workers of all nodes."""
        return ClusterWorkers(self._door, self.cluster)

    @cached_property
    def schedules(self) -> ClusterSchedules:
        """Schedules of all nodes."""
        return ClusterSchedules(self._door, self.cluster)

    @cached_property
    def kinds(self) -> ClusterKinds:
        """What workers of all nodes declare."""
        return ClusterKinds(self._door, self.cluster)

    @cached_property
    def strikes(self) -> ClusterStrikes:
        """Strikes of all nodes."""
        return ClusterStrikes(self._door, self.cluster)

    @cached_property
    def anomalies(self) -> ClusterAnomalies:
        """Anomalies of all nodes."""
        return ClusterAnomalies(self._door, self.cluster)
