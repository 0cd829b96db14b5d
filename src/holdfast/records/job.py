"""A job: what is enqueued, and what the database knows about it."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, get_type_hints
from uuid import UUID

from holdfast.records.fields import (
    Attempts,
    Label,
    Moment,
    Name,
    Priority,
    QueueName,
    Span,
    Wait,
    Within,
    says,
)
from holdfast.records.record import Record, decoded_object

State = Literal["queued", "leased", "done", "dead", "cancelled", "archived"]

OnConflict = Literal["skip", "replace", "after"]
IfFailed = Literal["wait", "cancel", "run"]
Awaited = Sequence[UUID | int]


class NewJob(Record, frozen=True, kw_only=True):
    """A job to enqueue. For fields that are None, the queue's settings apply."""

    kind: Annotated[Name, says("selects the handler")]
    payload: Annotated[Any, says("any JSON; an empty object by default")] = None
    queue: Annotated[QueueName, says("the queue it waits in")] = "default"
    priority: Annotated[Priority, says("jobs with priority 9 run first")] = 0
    run_at: Annotated[Moment | None, says("the earliest time at which it may start")] = None
    delay: Annotated[Wait | None, says("how long to wait before it may start")] = None
    expires: Annotated[
        Within | None, says("cancelled if it has not started so long after it was due")
    ] = None
    expires_at: Annotated[Moment | None, says("cancelled if it has not started by then")] = None
    max_attempts: Annotated[Attempts | None, says("dead after this many failed attempts")] = None
    lease: Annotated[Span | None, says("how long a claim holds it")] = None
    key: Annotated[Label | None, says("at most one live job of a queue and kind can have it")] = (
        None
    )
    on_conflict: Annotated[
        OnConflict,
        says("if a live job has the key: skip this one, replace the waiting one, or run after it"),
    ] = "skip"
    lane: Annotated[Name | None, says("jobs of a lane run one at a time, in order")] = None
    tenant: Annotated[Name | None, says("a fair queue serves its tenants in turn")] = None
    subject: Annotated[Label | None, says("what it is about; you can search for it")] = None
    after: Annotated[
        Awaited | None,
        says("jobs that end first: ids, or places in the call from 1"),
    ] = None
    if_failed: Annotated[
        IfFailed,
        says("if one fails: wait, cancel this one, or run it"),
    ] = "wait"
    take: Annotated[
        Mapping[str, Any] | None,
        says("fields of the payload that are results of those, by number, or `all` as a list"),
    ] = None
    workflow: Annotated[
        UUID | None, says("the workflow it belongs to, by its id or that of a job in it")
    ] = None
    child_of: Annotated[
        UUID | None, says("the job of a workflow that it goes with: cancelled if that is")
    ] = None
    headers: Annotated[
        Mapping[str, Any] | None,
        says("a JSON object beside the payload, for example for trace ids"),
    ] = None
    id: Annotated[UUID | None, says("your own id, so that you can repeat the call")] = None


class Enqueued(Record, frozen=True):
    """The result of an enqueue: a new job, or the live job that it duplicates.

    `behind` is the job that a new one waits for, in its lane, because of its queue's limit, or
    because it has the same key; None if there is none. If it is running, `holder` is its worker,
    since `held_since`.
    """

    id: UUID
    created: bool
    duplicate_of: UUID | None = None
    behind: UUID | None = None
    holder: str | None = None
    held_since: datetime | None = None


class Change(Record, frozen=True):
    """The result of an operator's verb for one job: its state now, and why nothing changed.

    `new_id` is set only if the id changed, as by `move`: an id contains the part of its queue.
    """

    id: UUID
    changed: bool
    state: State | None
    detail: str | None = None
    new_id: UUID | None = None


class Given(Record, frozen=True):
    """The fields that a job was enqueued with, common to all records of a stored job."""

    id: UUID
    kind: str
    payload_json: str
    priority: int
    attempt: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    key: str | None
    lane: str | None
    tenant: str | None
    subject: str | None
    headers_json: str | None

    @property
    def payload(self) -> Any:
        """The payload, decoded at each access."""
        return json.loads(self.payload_json)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, decoded at each access."""
        return decoded_object(self.headers_json)


# What whoever enqueued a job may call it by: the fields that are plain texts.
LABELS = tuple(
    name
    for name, kind in get_type_hints(Given).items()
    if kind == str | None and not name.endswith("_json")
)


class Job(Given, frozen=True):
    """Everything the database knows about one job, live or ended.

    `attempt` counts from the last retry; `total_attempts` counts all.
    """

    queue: str
    state: State
    lease_until: datetime | None
    worker: str | None
    error: str | None
    fingerprint: str | None
    reason: str | None
    result_json: str | None
    ended_at: datetime | None
    lease: timedelta | None
    progress_json: str | None = None
    total_attempts: int = 0
    expires_at: datetime | None = None
    workflow: UUID | None = None

    @property
    def result(self) -> Any:
        """What the handler returned, if the queue keeps done jobs."""
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def progress(self) -> dict[str, Any]:
        """The progress that its handler reported in this attempt: done, total, note, at."""
        return decoded_object(self.progress_json)


class JobPage(Record, frozen=True):
    """A page of jobs.

    `searched_to`: the search stopped at this id for lack of time; `searched` jobs were checked.
    """

    jobs: list[Job]
    searched_to: UUID | None
    searched: int


class Count(Record, frozen=True):
    """How many jobs match a filter; `capped`: there may be more."""

    jobs: int
    capped: bool


class Attempt(Record, frozen=True):
    """One attempt at a job that failed or expired, or whose work was found to be done.

    Only some successful attempts (`done`) are kept. `log` is what its handler logged.
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


class Line(Record, frozen=True):
    """One line that a handler logged while its job ran; `nth` counts the lines of the job."""

    nth: int
    attempt: int
    at: datetime
    text: str


class DeadGroup(Record, frozen=True):
    """Dead jobs with similar failures: errors that differ only in numbers and names."""

    fingerprint: str
    kind: str
    queue: str
    error: str | None
    jobs: int
    first_at: datetime
    last_at: datetime


class Receipt(Record, frozen=True):
    """What is still known about the last lease of a deleted job."""

    queue: str
    worker: str
    claimed_at: datetime
    outcome: str
