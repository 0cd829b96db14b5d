"""Workflows: jobs that belong together, under a name."""

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from holdfast.records.job import Enqueued, IfFailed
from holdfast.records.record import Record

WorkflowState = Literal["running", "waiting", "done", "failed", "cancelled"]


class JobCounts(Record, frozen=True):
    """How many jobs are in which state; `waiting` is for other jobs, an event, or a time."""

    total: int = 0
    waiting: int = 0
    queued: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0


class Workflow(Record, frozen=True):
    """A workflow, and how it is doing.

    `waiting`: nothing goes on until a person retries what failed, or an event comes. `failed`: it
    has ended, and a job of it is dead. `parent` is the job that it goes with.
    """

    id: UUID
    name: str
    key: str | None
    state: WorkflowState
    created_at: datetime
    created_by: str | None
    deadline: datetime | None
    ended_at: datetime | None
    reason: str | None
    parent: UUID | None
    jobs_json: str

    @property
    def jobs(self) -> JobCounts:
        """How many jobs it has, by state."""
        return msgspec.json.decode(self.jobs_json, type=JobCounts)


class WorkflowGroup(Record, frozen=True):
    """Jobs of a workflow that have the same kind and queue and wait for the same groups.

    `job` is set if it is only one. `child_of` is the group of the jobs whose children they are.
    """

    group: str
    kind: str
    queue: str
    after: list[str]
    if_failed: IfFailed | None
    jobs_json: str
    job: UUID | None
    began_at: datetime | None
    ended_at: datetime | None
    child_of: str | None

    @property
    def jobs(self) -> JobCounts:
        """How many jobs it has, by state."""
        return msgspec.json.decode(self.jobs_json, type=JobCounts)


class WorkflowJob(Record, frozen=True):
    """A job of a workflow; `nth` is its place in the order in which they were added.

    `after` has the first twenty of the `waits_for` jobs that it waits for, or has waited for.
    `waits`: for them, for an event, or for a time. `parent` is the job whose child it is.
    """

    nth: int
    id: UUID
    kind: str
    queue: str
    state: Literal["queued", "leased", "done", "dead", "cancelled"]
    waits: bool
    attempt: int
    created_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    group: str
    parent: UUID | None
    after: list[UUID]
    waits_for: int


class WorkflowTally(Record, frozen=True):
    """How many workflows of a name are live, or ended in this state within the last hour."""

    name: str
    state: Literal["live", "done", "failed", "cancelled"]
    workflows: int


class Started(Record, frozen=True):
    """A workflow that was started; or the live one that has its key, and then no jobs."""

    id: UUID
    created: bool
    jobs: list[Enqueued]
