"""A job: what is enqueued, and what the database knows of it."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import UUID

from holdfast.records.record import Duration, Record, decoded_object

State = Literal["queued", "leased", "done", "dead", "cancelled", "archived"]

OnConflict = Literal["skip", "replace", "after"]


class NewJob(Record, frozen=True, kw_only=True):
    """A job to enqueue. What is None is decided by the queue's settings.

    `payload` is anything JSON can say; None stands for an empty object. `key` makes it the only
    live job of its queue and kind with that key; `on_conflict` says what a second one does: `skip`
    it, `replace` the waiting one, or run `after` the running one. Jobs of a `lane` run in order.
    """

    kind: str
    payload: Any = None
    queue: str = "default"
    priority: int = 0
    run_at: datetime | None = None
    delay: Duration | None = None
    max_attempts: int | None = None
    lease: Duration | None = None
    key: str | None = None
    on_conflict: OnConflict = "skip"
    lane: str | None = None
    tenant: str | None = None
    subject: str | None = None
    headers: Mapping[str, Any] | None = None
    id: UUID | None = None


class JobOptions(TypedDict, total=False):
    """The fields of NewJob behind kind and payload, as keywords of `enqueue`."""

    queue: str
    priority: int
    run_at: datetime | None
    delay: Duration | None
    max_attempts: int | None
    lease: Duration | None
    key: str | None
    on_conflict: OnConflict
    lane: str | None
    tenant: str | None
    subject: str | None
    headers: Mapping[str, Any] | None
    id: UUID | None


class Enqueued(Record, frozen=True):
    """The job that stands for what was enqueued: a new one, or the one it is a duplicate of.

    `behind` is the job that a new one waits for, in its lane, under its queue's limit, or because
    it has the same key; None if there is none. If it runs, `holder` is the worker that holds it,
    since `held_since`.
    """

    id: UUID
    created: bool
    duplicate_of: UUID | None = None
    behind: UUID | None = None
    holder: str | None = None
    held_since: datetime | None = None


class Change(Record, frozen=True):
    """The answer of an operator's verb for one job: its state now, and why nothing changed.

    `new_id` is set by `move` alone: an id carries the part of its queue.
    """

    id: UUID
    changed: bool
    state: State | None
    detail: str | None = None
    new_id: UUID | None = None


class Job(Record, frozen=True):
    """Everything the database knows of one job, live or ended.

    `attempt` is that of its present life; `total_attempts` counts those of the lives before too.
    """

    id: UUID
    queue: str
    kind: str
    state: State
    priority: int
    attempt: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    lease_until: datetime | None
    worker: str | None
    key: str | None
    lane: str | None
    tenant: str | None
    subject: str | None
    headers_json: str | None
    payload_json: str
    error: str | None
    fingerprint: str | None
    reason: str | None
    result_json: str | None
    ended_at: datetime | None
    lease: timedelta | None
    progress_json: str | None = None
    total_attempts: int = 0

    @property
    def payload(self) -> Any:
        """The payload, decoded anew at each access."""
        return json.loads(self.payload_json)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, decoded anew at each access."""
        return decoded_object(self.headers_json)

    @property
    def result(self) -> Any:
        """What the handler returned, if the queue keeps done jobs."""
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def progress(self) -> dict[str, Any]:
        """What its handler said of its work in this attempt: done, total, note, and when (at)."""
        return decoded_object(self.progress_json)


class JobPage(Record, frozen=True):
    """A page of jobs.

    `searched_to`: nothing older than this id was looked at, for want of time; `searched` were.
    """

    jobs: list[Job]
    searched_to: UUID | None
    searched: int


class Count(Record, frozen=True):
    """How many jobs match a filter; `capped`: there may be more."""

    jobs: int
    capped: bool


class Attempt(Record, frozen=True):
    """One attempt at a job that failed or expired, or whose work was found done.

    Of attempts that ended well (`done`) only some are kept. `log` is what its handler logged.
    """

    attempt: int
    outcome: str
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    error_kind: str | None
    message: str | None
    traceback: str | None
    fingerprint: str | None
    host: str | None = None
    version: str | None = None
    log: str | None = None


class DeadGroup(Record, frozen=True):
    """Dead jobs that failed alike: the same kind of error, whatever numbers and names are in it."""

    fingerprint: str
    kind: str
    queue: str
    error: str | None
    jobs: int
    first_at: datetime
    last_at: datetime


class Receipt(Record, frozen=True):
    """What is still known of the last lease of a job that is gone."""

    queue: str
    worker: str
    claimed_at: datetime
    outcome: str
