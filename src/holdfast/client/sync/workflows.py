"""Generated from aio/workflows.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString
from uuid import UUID

from msgspec.structs import replace

from holdfast.client import wire
from holdfast.client.enqueue_log import log_enqueued
from holdfast.client.statement import Statement
from holdfast.client.sync.noun import Noun
from holdfast.client.sync.storing import enqueue
from holdfast.records import (
    Duration,
    Enqueued,
    NewJob,
    Operation,
    Started,
    Workflow,
    WorkflowGroup,
    WorkflowJob,
    WorkflowState,
    WorkflowTally,
    new_id,
)
from holdfast.watch import tracing

_START: LiteralString = (
    "select workflow, started, job, created, duplicate_of, behind, holder, held_since "
    "from holdfast.workflow_start(name => %s, items => %s::jsonb, key => %s, "
    "deadline => %s::interval, child_of => %s::uuid, id => %s::uuid, repeat => %s::bool, "
    "actor => %s) order by ord"
)
# How many jobs are stored with the workflow, in one call.
_MANY = 5000


class Workflows(Noun):
    """Workflows by id; the id of a job stands for its workflow."""

    def start(
        self,
        name: str,
        jobs: Iterable[NewJob] = (),
        *,
        key: str | None = None,
        deadline: Duration | None = None,
        child_of: UUID | None = None,
        actor: str | None = None,
    ) -> Started:
        """Start a workflow with jobs, all in one transaction.

        One live workflow of a name can have the same key: otherwise nothing is stored, and the
        result has the id of that one. What is not done after `deadline` is cancelled. `child_of`
        is a job that the workflow goes with: if that is cancelled, so is the workflow.
        """
        jobs = list(jobs)
        ids = wire.ids_of(jobs)
        jobs = wire.by_ids(jobs, ids)
        id = new_id()
        more: list[Any] = [key, wire.interval(deadline), child_of, id]
        with tracing.enqueueing(jobs, ids, workflow=(id, name)) as traced:
            if len(jobs) <= _MANY:
                items = wire.items(traced, ids)
                again = Statement("workflow_start", _START, [name, items, *more, True, actor])
                statement = Statement(
                    "workflow_start", _START, [name, items, *more, False, actor], again=again
                )
                rows = self._door.run(statement)
                stored = [Enqueued(*row[2:]) for row in rows if row[2] is not None]
            else:
                with self._door.transaction("workflow_start") as bound:
                    first = [name, "[]", *more, False, actor]
                    rows = bound.run(Statement("workflow_start", _START, first))
                    mine = [replace(job, workflow=id) for job in traced] if rows[0][1] else []
                    stored = enqueue(bound, mine, ids, repeat=False) if mine else []
        log_enqueued(jobs[: len(stored)], stored)
        return Started(UUID(str(rows[0][0])), rows[0][1], stored)

    def get(self, id: UUID, *, queues: Sequence[str] | None = None) -> Workflow | None:
        """Return a workflow, by its own id or by that of one of its jobs; None if there is none.

        `queues`: None as well if it has jobs in others.
        """
        source: LiteralString = (
            "holdfast.workflows where id = holdfast.workflow_of(id => %s::uuid) "
            "and holdfast.workflow_within(id, %s::text[])"
        )
        return self._first(Workflow, source, [id, _names(queues)], reads=True)

    def within(self, id: UUID, queues: Sequence[str]) -> bool:
        """Return whether a workflow, by its id or a job's, has jobs, and all in these queues."""
        function: LiteralString = (
            "holdfast.workflow_within(holdfast.workflow_of(id => %s::uuid), %s::text[])"
        )
        return bool(self._value(function, [id, [*queues]], reads=True))

    def groups(self, id: UUID, *, limit: int = 1000) -> Sequence[WorkflowGroup]:
        """Return the jobs of a workflow by groups: those of one kind that wait for the same."""
        source: LiteralString = (
            "holdfast.workflow_groups(workflow => %s::uuid, most => %s::int) with ordinality"
        )
        return self._all(WorkflowGroup, source, [id, limit], reads=True)

    def jobs(
        self,
        id: UUID,
        *,
        group: str | None = None,
        state: str | None = None,
        limit: int = 50,
        past: int = 0,
    ) -> Sequence[WorkflowJob]:
        """Return the jobs of a workflow, in the order in which they were added.

        `past` is the `nth` of the last job of the previous page.
        """
        source: LiteralString = (
            "holdfast.workflow_jobs(workflow => %s::uuid, of_group => %s, of_state => %s, "
            "max_jobs => %s::int, past => %s::bigint) order by nth"
        )
        return self._all(WorkflowJob, source, [id, group, state, limit, past], reads=True)

    def cancel(
        self,
        id: UUID,
        *,
        reason: str | None = None,
        actor: str | None = None,
        queues: Sequence[str] | None = None,
    ) -> Operation | None:
        """Cancel a workflow: it takes no more jobs, and an operation cancels those that it has.

        Workers, servers and `holdfast upkeep` run it; `operations.undo` undoes it. Returns None if
        the workflow does not exist, or if any of its jobs is in a queue that is not in `queues`.
        """
        source: LiteralString = (
            "holdfast.workflow_cancel(id => %s::uuid, reason => %s, actor => %s, "
            "queues => %s::text[])"
        )
        return self._first(Operation, source, [id, reason, actor, _names(queues)])

    def retry(
        self,
        id: UUID,
        *,
        from_job: UUID | None = None,
        reason: str | None = None,
        actor: str | None = None,
        queues: Sequence[str] | None = None,
    ) -> Operation | None:
        """Retry the dead and cancelled jobs of a workflow, by an operation, as `cancel` does.

        `from_job`: only that job and those that follow it, directly or not.
        """
        source: LiteralString = (
            "holdfast.workflow_retry(id => %s::uuid, from_job => %s::uuid, reason => %s, "
            "actor => %s, queues => %s::text[])"
        )
        given = [id, from_job, reason, actor, _names(queues)]
        return self._first(Operation, source, given)

    def tally(self) -> Sequence[WorkflowTally]:
        """Count workflows by name: those that are live, and how others ended in the last hour."""
        source: LiteralString = (
            "(select w.name, coalesce(w.state, 'live') as state, count(*) as workflows "
            "from holdfast.workflow w where w.ended_at is null "
            "or w.ended_at > holdfast.now() - interval '1 hour' group by 1, 2) t"
        )
        return self._all(WorkflowTally, source, [], reads=True)

    def find(self, digits: str, *, limit: int = 2) -> Sequence[UUID]:
        """Return the workflows whose ids end in these digits, or that of the job with this id."""
        function: LiteralString = "holdfast.workflow_find(digits => %s, most => %s::int)"
        found: Sequence[UUID] = self._value(function, [digits, limit], reads=True)
        return found

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
        """Return workflows, the newest first; `before` is the last id of the previous page.

        `queues`: only those whose jobs are all in these.
        """
        source: LiteralString = (
            "holdfast.workflows where (%s::text is null or name = %s) "
            "and (%s::text is null or key = %s) and (%s::text is null or state = %s) "
            "and (%s::uuid is null or id < %s::uuid) "
            "and holdfast.workflow_within(id, %s::text[]) order by id desc limit %s::int"
        )
        chosen = [name, name, key, key, state, state, before, before]
        given = [*chosen, _names(queues), limit]
        return self._all(Workflow, source, given, reads=True)


def _names(queues: Sequence[str] | None) -> list[str] | None:
    return None if queues is None else [*queues]
