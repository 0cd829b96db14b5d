"""What else is looked at in a cluster: workers, schedules, kinds, strikes, anomalies."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from holdfast.client import merging
from holdfast.client.aio.anomalies import AsyncAnomalies
from holdfast.client.aio.client import AsyncClient
from holdfast.client.aio.cluster import AsyncCluster
from holdfast.client.aio.cluster_operations import far_id, near_id
from holdfast.client.aio.kinds import AsyncKinds
from holdfast.client.aio.pool import AsyncBound, AsyncPool
from holdfast.client.aio.schedules import AsyncSchedules
from holdfast.client.aio.strikes import AsyncStrikes
from holdfast.client.aio.workers import AsyncWorkers
from holdfast.errors import Misuse
from holdfast.records import Anomaly, Duration, Kind, Mute, Schedule, Slot, Strike, WorkerRow


class AsyncClusterWorkers(AsyncWorkers):
    """Workers by name; each is on one node."""

    def __init__(self, door: AsyncPool | AsyncBound, cluster: AsyncCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    async def stop(self, worker: str, *, actor: str | None = None) -> bool:
        """Request a worker to finish its jobs and exit; False if no worker has this name."""
        found = await self._cluster.ask(
            lambda one: one.workers.stop(worker, actor=actor), changes=True
        )
        return any(found.values())

    async def list(self) -> Sequence[WorkerRow]:
        """Return the workers of the last day, last seen first."""
        found = await self._cluster.ask(lambda one: one.workers.list())
        workers = [one for some in found.values() for one in some]
        workers.sort(key=lambda one: one.worker)
        workers.sort(key=lambda one: one.seen_at, reverse=True)
        return workers


class AsyncClusterKinds(AsyncKinds):
    """Kinds by name, as workers of any node declare them."""

    def __init__(self, door: AsyncPool | AsyncBound, cluster: AsyncCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    async def list(self) -> list[Kind]:
        """Return the kinds that workers declared, by name."""
        found: dict[str, Kind] = {}
        for kinds in (await self._cluster.ask(lambda one: one.kinds.list())).values():
            for one in kinds:
                found.setdefault(one.kind, one)
        return [found[name] for name in sorted(found)]


class AsyncClusterSchedules(AsyncSchedules):
    """Schedules by name, each on the node where it was made; a new one is made on this node."""

    def __init__(self, door: AsyncPool | AsyncBound, cluster: AsyncCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    async def get(self, name: str) -> Schedule | None:
        """Return one schedule; None if no schedule has this name."""
        return (await self._found(name))[1]

    async def slots(self, name: str, *, limit: int = 100) -> Sequence[Slot]:
        """Return the outcome of a schedule's last slots, newest first; a thousand are kept."""
        node = await self._cluster.reader(await self._node_of(name))
        return await node.schedules.slots(name, limit=limit)

    async def set(self, name: str, *, actor: str | None = None, **settings: Any) -> Schedule:
        """Create or change a schedule: kind, cron or every, tz, missed, overlap, queue …"""
        return await (await self._writer(name)).schedules.set(name, actor=actor, **settings)

    async def run(self, name: str, *, actor: str | None = None) -> Slot:
        """Enqueue one job of a schedule now, even if it is paused."""
        return await (await self._writer(name)).schedules.run(name, actor=actor)

    async def pause(
        self, name: str, *, reason: str | None = None, actor: str | None = None
    ) -> Schedule:
        """Fire no more slots of a schedule until it is resumed."""
        return await (await self._writer(name)).schedules.pause(name, reason=reason, actor=actor)

    async def resume(self, name: str, *, actor: str | None = None) -> Schedule:
        """Fire again from the next slot on; slots during the pause are not fired."""
        return await (await self._writer(name)).schedules.resume(name, actor=actor)

    async def delete(self, name: str, *, actor: str | None = None) -> bool:
        """Delete a schedule; its jobs stay. False if it did not exist."""
        return await (await self._writer(name)).schedules.delete(name, actor=actor)

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self) -> Sequence[Schedule]:
        """Return every schedule, by name."""
        found = await self._cluster.ask(lambda one: one.schedules.list())
        return sorted((one for some in found.values() for one in some), key=lambda one: one.name)

    async def _found(self, name: str) -> tuple[int, Schedule | None]:
        # Also for who makes one: beside one of its name on a node that is away it would fire twice.
        return await self._cluster.find(lambda one: one.schedules.get(name), f"schedule {name!r}")

    async def _writer(self, name: str) -> AsyncClient:
        return await self._cluster.writer(await self._node_of(name))

    async def _node_of(self, name: str) -> int:
        if await self._cluster.is_alone():
            return self._cluster.here
        return (await self._found(name))[0]


class AsyncClusterStrikes(AsyncStrikes):
    """Strikes by number; each is on the node of its queue, one without a queue on every node."""

    def __init__(self, door: AsyncPool | AsyncBound, cluster: AsyncCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    async def add(
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
            node = await cluster.home_of(queue)
            return self._called(await (await cluster.writer(node)).strikes.add(**about), node)
        nodes = [one.node for one in await cluster.members() if not one.here]
        # Refused as long as a node is away: on that one such jobs would run.
        others = [await cluster.writer(node) for node in nodes]
        made = await cluster.home.strikes.add(**about)
        for one in others:
            await one.strikes.add(**about)
        return made

    async def lift(
        self, number: int, *, reason: str | None = None, actor: str | None = None
    ) -> Strike | None:
        """Let the jobs of a strike run again; None if no strike has this number."""
        node, there = near_id(number, self._cluster.here)
        if not await self._cluster.has(node):
            return None
        one = await self._cluster.writer(node)
        lifted = await one.strikes.lift(there, reason=reason, actor=actor)
        return lifted and self._called(lifted, node)

    async def list(self, *, all: bool = False) -> Sequence[Strike]:
        """Return the strikes that are in force, newest first; `all`: also those that have ended."""
        found = await self._cluster.ask(lambda one: one.strikes.list(all=all))
        if len(found) == 1:
            return next(iter(found.values()))
        strikes = [self._called(one, node) for node, some in found.items() for one in some]
        return sorted(strikes, key=lambda one: (one.created_at, one.number), reverse=True)

    def _called(self, strike: Strike, node: int) -> Strike:
        return replace(strike, number=far_id(node, self._cluster.here, strike.number))


class AsyncClusterAnomalies(AsyncAnomalies):
    """Anomalies by id; each node detects its own."""

    def __init__(self, door: AsyncPool | AsyncBound, cluster: AsyncCluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    async def get(self, id: str) -> Anomaly | None:
        """Return one anomaly; None if no anomaly has this id."""
        return (await self._cluster.find(lambda one: one.anomalies.get(id), f"anomaly {id!r}"))[1]

    async def ack(
        self, id: str, *, note: str | None = None, actor: str | None = None
    ) -> Anomaly | None:
        """Acknowledge an anomaly; None if no anomaly has this id."""
        return (
            await self._cluster.find(
                lambda one: one.anomalies.ack(id, note=note, actor=actor),
                f"anomaly {id!r}",
                changes=True,
            )
        )[1]

    async def mute(
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

        async def mute(one: AsyncClient) -> list[Misuse]:
            try:
                await one.anomalies.mute(code, **about)
            except Misuse as error:
                return [error]
            return []

        _raise_if_all(await self._cluster.ask(mute, changes=True))

    async def unmute(
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

        async def unmute(one: AsyncClient) -> list[Misuse]:
            try:
                unmuted.append(await one.anomalies.unmute(code, **about))
            except Misuse as error:
                return [error]
            return []

        _raise_if_all(await self._cluster.ask(unmute, changes=True))
        return any(unmuted)

    async def mutes(self) -> Sequence[Mute]:
        """Return what is muted."""
        found: dict[tuple[str, str, str], Mute] = {}
        for mutes in (await self._cluster.ask(lambda one: one.anomalies.mutes())).values():
            for one in mutes:
                found.setdefault((one.code, one.queue, one.subject), one)
        return [found[name] for name in sorted(found)]

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self, *, over: bool = False, limit: int = 500) -> Sequence[Anomaly]:
        """Return current anomalies, the worst and newest first; `over`: those of the last week."""
        found = await self._cluster.ask(lambda one: one.anomalies.list(over=over, limit=limit))
        if len(found) == 1:
            return next(iter(found.values()))
        return merging.anomalies(found.values(), limit)


def _raise_if_all(refusals: Mapping[int, Sequence[Misuse]]) -> None:
    """Raise what all nodes refused: a detector of one's own is known to some of them only."""
    if all(refusals.values()):
        raise next(iter(refusals.values()))[0]
