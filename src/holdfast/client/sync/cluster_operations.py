"""Generated from aio/cluster_operations.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Sequence
from functools import partial
from typing import Any, LiteralString
from uuid import UUID, uuid4

from msgspec.structs import asdict, replace

from holdfast.client import merging, wire
from holdfast.client.statement import Statement
from holdfast.client.sync.client import Client
from holdfast.client.sync.cluster import Cluster
from holdfast.client.sync.operations import Operations
from holdfast.client.sync.pool import Bound, Pool
from holdfast.client.sync.workflows import Workflows
from holdfast.records import (
    Operation,
    Preview,
    Workflow,
    WorkflowGroup,
    WorkflowJob,
    WorkflowState,
    WorkflowTally,
)

# Each node numbers its own: that of another node is called by its number behind the node's.
FAR = 10**12
# How many ids are asked for at a time, to know how many of the newest jobs are on each node.
_PAGE = 10_000


class _Part(Operation, frozen=True):
    """What one node has of an operation; the token is that of all."""

    token: UUID


_PARTS: LiteralString = f"select {wire.columns(_Part)} from holdfast.operations "
_FIND: LiteralString = (
    "select holdfast.find(filter => holdfast.operation_filter(%s, %s), max_jobs => %s::int, "
    "before => %s::uuid)"
)
_PREVIEW: LiteralString = (
    f"select {wire.columns(Preview)} from holdfast.operation_preview(verb => %s, filter => %s, "
    "arguments => %s::jsonb, most => %s::bigint, reason => %s, actor => %s, as_token => %s::uuid)"
)
_UNDO: LiteralString = (
    "select id from holdfast.operation_undo(id => %s::bigint, rate => %s::float8, reason => %s, "
    "actor => %s, as_token => %s::uuid)"
)


def far_id(node: int, here: int, id: int) -> int:
    """Return what a number of a node is called here."""
    return id if node == here else (node + 1) * FAR + id


def near_id(id: int, here: int) -> tuple[int, int]:
    """Return the node and the number there of what is called `id` here."""
    return (id // FAR - 1, id % FAR) if id >= FAR else (here, id)


class ClusterOperations(Operations):
    """Operations by id: that on this node, or else on the first that has a part of it."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def get(self, id: int) -> Operation | None:
        """Return one operation with the progress of all nodes; None if none has this id."""
        if self._cluster.is_alone():
            return super().get(id)
        parts = self._parts_of(id)
        return self._whole(parts, id) if parts else None

    def preview(
        self,
        verb: str,
        filter: str,
        *,
        most: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        **arguments: Any,
    ) -> Preview:
        """Count the jobs of all nodes that a verb would be applied to."""
        cluster = self._cluster
        if cluster.is_alone():
            about: dict[str, Any] = {"most": most, "reason": reason, "actor": actor}
            return super().preview(verb, filter, **about, **arguments)
        token = uuid4()
        given = {name: value for name, value in arguments.items() if value is not None}
        further = wire.settings(given, "arguments")

        def ask(one: Client, limits: dict[Client, int] | None) -> Preview | None:
            limit = most if limits is None else limits.get(one, 0)
            if limit == 0:
                return None
            parameters = [verb, filter, further, limit, reason, actor, token]
            statement = Statement("operation_preview", _PREVIEW, parameters)
            [row] = one._door.run(statement)
            return Preview(*row)

        if most is None:
            answers = cluster.ask(lambda one: ask(one, None), changes=True)
            return merging.previews([one for one in answers.values() if one is not None])
        # Of a limited number each node takes those of its own that are among the newest of all.
        first = super().preview(verb, filter, reason=reason, actor=actor, **arguments)
        shares = self._shares(verb, first.selects, most)
        limits = {cluster.writer(node): share for node, share in shares.items()}
        answers = cluster.ask(lambda one: ask(one, limits), changes=True)
        parts = [one for one in answers.values() if one is not None]
        return merging.previews(parts) if parts else replace(first, total=0, sample=[])

    def start(
        self, token: UUID, *, rate: float | None = None, actor: str | None = None
    ) -> Operation | None:
        """Start a previewed operation on every node that has counted its jobs."""
        cluster = self._cluster
        if cluster.is_alone():
            return super().start(token, rate=rate, actor=actor)
        parts = self._parts(token)
        total = sum(one.total for one in parts.values())
        for node, part in parts.items():
            # Together they are as fast as was asked for.
            share = None if rate is None else rate * (part.total / total if total else 1)
            if rate is None or share or not total:
                one = cluster.writer(node)
                one.operations.start(token, rate=share, actor=actor)
        begun = {node: one for node, one in (self._parts(token)).items() if one.started_at}
        return self._whole(begun) if begun else None

    def cancel(self, id: int, *, actor: str | None = None) -> Operation | None:
        """Stop an operation on every node; None if no operation has this id."""
        cluster = self._cluster
        if cluster.is_alone():
            return super().cancel(id, actor=actor)
        for node, part in (self._parts_of(id)).items():
            (cluster.writer(node)).operations.cancel(part.id, actor=actor)
        return self.get(id)

    def undo(
        self,
        id: int,
        *,
        rate: float | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Operation | None:
        """Start to undo an operation on every node where it changed jobs."""
        cluster = self._cluster
        if cluster.is_alone():
            return super().undo(id, rate=rate, reason=reason, actor=actor)
        parts = self._parts_of(id)
        some = {node: one for node, one in parts.items() if one.undoable} or parts
        total = sum(one.undoable for one in some.values())
        token = uuid4()
        undos: dict[int, Operation] = {}
        for node, part in some.items():
            share = None if rate is None else rate * (part.undoable / total if total else 1)
            one = cluster.writer(node)
            parameters = [part.id, share, reason, actor, token]
            [(undo,)] = one._door.run(Statement("operation_undo", _UNDO, parameters))
            found = one.operations.get(undo)
            assert found is not None
            undos[node] = found
        return self._whole(undos) if undos else None

    def step(self, limit: int = 500) -> Operation | None:
        """Run the next chunk on each node where one is due; None if none is due anywhere."""
        done = self._cluster.ask(lambda one: one.operations.step(limit), changes=True)
        parts = {node: one for node, one in done.items() if one is not None}
        return self._whole(parts) if parts else None

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self, *, limit: int = 100) -> Sequence[Operation]:
        """Return operations that were started, newest first."""
        if self._cluster.is_alone():
            return super().list(limit=limit)
        sql = _PARTS + "where started_at is not null order by id desc limit %s::int"
        statement = Statement("operations", sql, [limit], reads=True)
        wholes: dict[UUID, dict[int, _Part]] = {}
        for node, rows in (self._cluster.ask(lambda one: one._door.run(statement))).items():
            for row in rows:
                part = _Part(*row)
                wholes.setdefault(part.token, {})[node] = part
        found = [self._whole(parts) for parts in wholes.values()]
        found.sort(key=lambda one: (one.created_at, one.id), reverse=True)
        return found[:limit]

    def _shares(self, verb: str, filter: str, most: int) -> dict[int, int]:
        """Return how many of the newest `most` jobs are on each node."""
        found: dict[int, Any] = {}
        before: dict[Client, UUID | None] = {}
        left = most

        def ask(one: Client) -> Any:
            parameters = [verb, filter, min(most, _PAGE), before.get(one)]
            statement = Statement("find", _FIND, parameters, reads=True)
            if one in before and before[one] is None:
                return []
            [(ids,)] = one._door.run(statement)
            before[one] = ids[-1] if len(ids) == min(most, _PAGE) else None
            return ids

        while left > 0:
            pages = self._cluster.ask(ask)
            if not any(pages.values()):
                break
            for node, ids in pages.items():
                found.setdefault(node, []).extend(ids)
            left -= _PAGE
        return merging.split(most, found)

    def _parts(self, token: UUID) -> dict[int, _Part]:
        statement = Statement("operations", _PARTS + "where token = %s::uuid", [token], reads=True)
        rows = self._cluster.ask(lambda one: one._door.run(statement))
        return {node: _Part(*some[0]) for node, some in rows.items() if some}

    def _parts_of(self, id: int) -> dict[int, _Part]:
        node, number = near_id(id, self._cluster.here)
        statement = Statement("operations", _PARTS + "where id = %s::bigint", [number], reads=True)
        if not self._cluster.has(node):
            return {}
        one = self._cluster.reader(node)
        rows = one._door.run(statement)
        return self._parts(_Part(*rows[0]).token) if rows else {}

    def _whole(self, parts: "dict[int, Any]", id: int | None = None) -> Operation:
        here = self._cluster.here
        first = here if here in parts else min(parts)
        ordered = [parts.pop(first), *parts.values()]
        plain = [Operation(**{name: asdict(one)[name] for name in _FIELDS}) for one in ordered]
        whole = merging.operation(plain)
        return replace(whole, id=far_id(first, here, whole.id) if id is None else id)


_FIELDS = Operation.__struct_fields__


class ClusterWorkflows(Workflows):
    """Workflows by id, on the node where their jobs are."""

    def __init__(self, door: Pool | Bound, cluster: Cluster) -> None:
        super().__init__(door)
        self._cluster = cluster

    def get(self, id: UUID, *, queues: Sequence[str] | None = None) -> Workflow | None:
        """Return a workflow, by its own id or by that of one of its jobs; None if there is none."""
        get = partial(_got, id=id, queues=queues)
        return (self._cluster.find(get, f"workflow {id}"))[1]

    def within(self, id: UUID, queues: Sequence[str]) -> bool:
        """Return whether a workflow, by its id or a job's, has jobs, and all in these queues."""
        return any((self._cluster.ask(lambda one: one.workflows.within(id, queues))).values())

    def groups(self, id: UUID, *, limit: int = 1000) -> Sequence[WorkflowGroup]:
        """Return the jobs of a workflow by groups: those of one kind that wait for the same."""
        node = self._cluster.reader(self._node_of(id))
        return node.workflows.groups(id, limit=limit)

    def jobs(
        self,
        id: UUID,
        *,
        group: str | None = None,
        state: str | None = None,
        limit: int = 50,
        past: int = 0,
    ) -> Sequence[WorkflowJob]:
        """Return the jobs of a workflow, in the order in which they were added."""
        node = self._cluster.reader(self._node_of(id))
        return node.workflows.jobs(id, group=group, state=state, limit=limit, past=past)

    def cancel(
        self,
        id: UUID,
        *,
        reason: str | None = None,
        actor: str | None = None,
        queues: Sequence[str] | None = None,
    ) -> Operation | None:
        """Cancel a workflow by an operation on its node."""
        at = self._node_of(id)
        node = self._cluster.writer(at)
        begun = node.workflows.cancel(id, reason=reason, actor=actor, queues=queues)
        return self._called(begun, at)

    def retry(
        self,
        id: UUID,
        *,
        from_job: UUID | None = None,
        reason: str | None = None,
        actor: str | None = None,
        queues: Sequence[str] | None = None,
    ) -> Operation | None:
        """Retry the dead and cancelled jobs of a workflow by an operation on its node."""
        at = self._node_of(id)
        retry = (self._cluster.writer(at)).workflows.retry
        begun = retry(id, from_job=from_job, reason=reason, actor=actor, queues=queues)
        return self._called(begun, at)

    def tally(self) -> Sequence[WorkflowTally]:
        """Count workflows by name: those that are live, and how others ended in the last hour."""
        found = self._cluster.ask(lambda one: one.workflows.tally())
        return merging.tallies(found.values())

    def find(self, digits: str, *, limit: int = 2) -> Sequence[UUID]:
        """Return the workflows whose ids end in these digits, or that of the job with this id."""
        found = self._cluster.ask(lambda one: one.workflows.find(digits, limit=limit))
        return merging.newest_ids(found.values(), limit)

    # Last of the public methods: after it, `list` in this class is the method.
    def list(
        self,
        *,
        name: str | None = None,
        key: str | None = None,
        state: WorkflowState | None = None,
        limit: int = 50,
        before: UUID | None = None,
        queues: Sequence[str] | None = None,
    ) -> Sequence[Workflow]:
        """Return workflows, the newest first; `before` is the last id of the previous page."""
        chosen: dict[str, Any] = {"name": name, "key": key, "state": state, "before": before}
        found = self._cluster.ask(partial(_listed, limit=limit, queues=queues, chosen=chosen))
        return sorted(
            (one for some in found.values() for one in some), key=lambda one: one.id, reverse=True
        )[:limit]

    def _node_of(self, id: UUID) -> int:
        if self._cluster.is_alone():
            return self._cluster.here
        get = partial(_got, id=id, queues=None)
        return (self._cluster.find(get, f"workflow {id}"))[0]

    def _called(self, begun: Operation | None, node: int) -> Operation | None:
        return begun and replace(begun, id=far_id(node, self._cluster.here, begun.id))


def _got(one: Client, *, id: UUID, queues: Sequence[str] | None) -> Workflow | None:
    return one.workflows.get(id, queues=queues)


def _listed(
    one: Client, *, limit: int, queues: Sequence[str] | None, chosen: dict[str, Any]
) -> Sequence[Workflow]:
    return one.workflows.list(limit=limit, queues=queues, **chosen)
