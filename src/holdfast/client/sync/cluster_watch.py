"""Generated from aio/cluster_watch.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from holdfast.client import merging
from holdfast.client.sync.anomalies import Anomalies
from holdfast.client.sync.client import Client
from holdfast.client.sync.cluster import Cluster
from holdfast.client.sync.cluster_operations import far_id, near_id
from holdfast.client.sync.kinds import Kinds
from holdfast.client.sync.pool import Bound, Pool
from holdfast.client.sync.schedules import Schedules
from holdfast.client.sync.strikes import Strikes
from holdfast.client.sync.workers import Workers
from holdfast.errors import Misuse
from holdfast.records import Anomaly, Duration, Kind, Mute, Schedule, Slot, Strike, WorkerRow


class ClusterWorkers(Workers):
    """Workers by name; each is on one node."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def stop(self, worker: str, *, actor: str | None = None) -> bool:
        """Request a worker to finish its jobs and exit; False if no worker has this name."""
        found = self._cluster.ask(lambda one: one.workers.stop(worker, actor=actor), changes=True)
        return any(found.values())

    def list(self) -> Sequence[WorkerRow]:
        """Return the workers of the last day, last seen first."""
        found = self._cluster.ask(lambda one: one.workers.list())
        workers = [one for some in found.values() for one in some]
        workers.sort(key=lambda one: one.worker)
        workers.sort(key=lambda one: one.seen_at, reverse=True)
        return workers


class ClusterKinds(Kinds):
    """Kinds by name, as workers of any node declare them."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def list(self) -> list[Kind]:
        """Return the kinds that workers declared, by name."""
        found: dict[str, Kind] = {}
        for kinds in (self._cluster.ask(lambda one: one.kinds.list())).values():
            for one in kinds:
                found.setdefault(one.kind, one)
        return [found[name] for name in sorted(found)]


class ClusterSchedules(Schedules):
    """Schedules by name, each on the node where it was made; a new one is made on this node."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def get(self, name: str) -> Schedule | None:
        """Return one schedule; None if no schedule has this name."""
        return (self._found(name))[1]

    def slots(self, name: str, *, limit: int = 100) -> Sequence[Slot]:
        """Return the outcome of a schedule's last slots, newest first; a thousand are kept."""
        node = self._cluster.reader(self._node_of(name))
        return node.schedules.slots(name, limit=limit)

    def set(self, name: str, *, actor: str | None = None, **settings: Any) -> Schedule:
        """Create or change a schedule: kind, cron or every, tz, missed, overlap, queue …"""
        return (self._writer(name)).schedules.set(name, actor=actor, **settings)

    def run(self, name: str, *, actor: str | None = None) -> Slot:
        """Enqueue one job of a schedule now, even if it is paused."""
        return (self._writer(name)).schedules.run(name, actor=actor)

    def pause(self, name: str, *, reason: str | None = None, actor: str | None = None) -> Schedule:
        """Fire no more slots of a schedule until it is resumed."""
        return (self._writer(name)).schedules.pause(name, reason=reason, actor=actor)

    def resume(self, name: str, *, actor: str | None = None) -> Schedule:
        """Fire again from the next slot on; slots during the pause are not fired."""
        return (self._writer(name)).schedules.resume(name, actor=actor)

    def delete(self, name: str, *, actor: str | None = None) -> bool:
        """Delete a schedule; its jobs stay. False if it did not exist."""
        return (self._writer(name)).schedules.delete(name, actor=actor)

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self) -> Sequence[Schedule]:
        """Return every schedule, by name."""
        found = self._cluster.ask(lambda one: one.schedules.list())
        return sorted((one for some in found.values() for one in some), key=lambda one: one.name)

    def _found(self, name: str) -> tuple[int, Schedule | None]:
        # Also for who makes one: beside one of its name on a node that is away it would fire twice.
        return self._cluster.find(lambda one: one.schedules.get(name), f"schedule {name!r}")

    def _writer(self, name: str) -> Client:
        return self._cluster.writer(self._node_of(name))

    def _node_of(self, name: str) -> int:
        if self._cluster.is_alone():
            return self._cluster.here
        return (self._found(name))[0]


class ClusterStrikes(Strikes):
    """Strikes by number; each is on the node of its queue, one without a queue on every node."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def add(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        payload: Mapping[str, Any] | None = None,
        mode: str = "hold",
        reason: str | None = None,
        expires: Duration | None = None,
        actor: str | None = None,
    ) -> Strike:
        """Stop jobs of this queue and kind whose payload contains this one."""
        cluster = self._cluster
        about: dict[str, Any] = {"queue": queue, "kind": kind, "payload": payload, "mode": mode}
        about |= {"reason": reason, "expires": expires, "actor": actor}
        if queue is not None:
            node = cluster.home_of(queue)
            return self._called((cluster.writer(node)).strikes.add(**about), node)
        nodes = [one.node for one in cluster.members() if not one.here]
        # Refused as long as a node is away: on that one such jobs would run.
        others = [cluster.writer(node) for node in nodes]
        made = cluster.home.strikes.add(**about)
        for one in others:
            one.strikes.add(**about)
        return made

    def lift(
        self, number: int, *, reason: str | None = None, actor: str | None = None
    ) -> Strike | None:
        """Let the jobs of a strike run again; None if no strike has this number."""
        node, there = near_id(number, self._cluster.here)
        if not self._cluster.has(node):
            return None
        one = self._cluster.writer(node)
        lifted = one.strikes.lift(there, reason=reason, actor=actor)
        return lifted and self._called(lifted, node)

    def list(self, *, all: bool = False) -> Sequence[Strike]:
        """Return the strikes that are in force, newest first; `all`: also those that have ended."""
        found = self._cluster.ask(lambda one: one.strikes.list(all=all))
        if len(found) == 1:
            return next(iter(found.values()))
        strikes = [self._called(one, node) for node, some in found.items() for one in some]
        return sorted(strikes, key=lambda one: (one.created_at, one.number), reverse=True)

    def _called(self, strike: Strike, node: int) -> Strike:
        return replace(strike, number=far_id(node, self._cluster.here, strike.number))


class ClusterAnomalies(Anomalies):
    """Anomalies by id; each node detects its own."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def get(self, id: str) -> Anomaly | None:
        """Return one anomaly; None if no anomaly has this id."""
        return (self._cluster.find(lambda one: one.anomalies.get(id), f"anomaly {id!r}"))[1]

    def ack(self, id: str, *, note: str | None = None, actor: str | None = None) -> Anomaly | None:
        """Acknowledge an anomaly; None if no anomaly has this id."""
        return (
            self._cluster.find(
                lambda one: one.anomalies.ack(id, note=note, actor=actor),
                f"anomaly {id!r}",
                changes=True,
            )
        )[1]

    def mute(
        self,
        code: str,
        *,
        until: datetime | None = None,
        queue: str | None = None,
        subject: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Stop notifications of a detector on all nodes that know it, in all queues or one."""
        about: dict[str, Any] = {"until": until, "queue": queue, "subject": subject}
        about |= {"reason": reason, "actor": actor}

        def mute(one: Client) -> list[Misuse]:
            try:
                one.anomalies.mute(code, **about)
            except Misuse as error:
                return [error]
            return []

        _raise_if_all(self._cluster.ask(mute, changes=True))

    def unmute(
        self,
        code: str,
        *,
        queue: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Start notifications again; False if it was not muted."""
        about: dict[str, Any] = {"queue": queue, "subject": subject, "actor": actor}

        unmuted = []

        def unmute(one: Client) -> list[Misuse]:
            try:
                unmuted.append(one.anomalies.unmute(code, **about))
            except Misuse as error:
                return [error]
            return []

        _raise_if_all(self._cluster.ask(unmute, changes=True))
        return any(unmuted)

    def mutes(self) -> Sequence[Mute]:
        """Return what is muted."""
        found: dict[tuple[str, str, str], Mute] = {}
        for mutes in (self._cluster.ask(lambda one: one.anomalies.mutes())).values():
            for one in mutes:
                found.setdefault((one.code, one.queue, one.subject), one)
        return [found[name] for name in sorted(found)]

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self, *, over: bool = False, limit: int = 500) -> Sequence[Anomaly]:
        """Return current anomalies, the worst and newest first; `over`: those of the last week."""
        found = self._cluster.ask(lambda one: one.anomalies.list(over=over, limit=limit))
        if len(found) == 1:
            return next(iter(found.values()))
        return merging.anomalies(found.values(), limit)


def _raise_if_all(refusals: Mapping[int, Sequence[Misuse]]) -> None:
    """Raise what all nodes refused: a detector of one's own is known to some of them only."""
    if all(refusals.values()):
        raise next(iter(refusals.values()))[0]
