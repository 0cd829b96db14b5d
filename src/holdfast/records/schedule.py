"""Schedules, their slots, and the outcomes of these."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from holdfast.records.fields import Moment, Name, QueueName, Span, says
from holdfast.records.record import Record, decoded_object

Missed = Literal["skip", "once", "all"]

Overlap = Literal["queue", "skip", "cancel"]

CronText = Annotated[str, Meta(max_length=200)]

ZoneName = Annotated[str, Meta(max_length=100)]


class NewSchedule(Record, frozen=True, kw_only=True):
    """A schedule as a program declares it: a kind, and a cron expression or an interval."""

    name: Annotated[Name, says("the name to find, pause and run it by")]
    kind: Annotated[Name, says("the kind of its jobs")]
    cron: Annotated[CronText | None, says("when, as in `0 6 * * mon-fri`")] = None
    every: Annotated[Span | None, says("how often, instead of cron")] = None
    anchor: Annotated[Moment | None, says("a time that `every` counts from")] = None
    tz: Annotated[ZoneName, says("the time zone of cron")] = "UTC"
    missed: Annotated[
        Missed,
        says("slots that passed while nothing ran: skip them, run the newest once, or run all"),
    ] = "once"
    overlap: Annotated[
        Overlap,
        says("if the previous job is still queued or running: queue, skip, or cancel that one"),
    ] = "queue"
    queue: Annotated[QueueName, says("the queue of its jobs")] = "default"
    payload: Annotated[Any, says("the payload of its jobs")] = None
    options: Annotated[
        Mapping[str, Any] | None, says("other fields of its jobs, such as priority and lane")
    ] = None


class Declared(Record, frozen=True):
    """The outcome of one declaration; `edited`: an operator has changed the schedule."""

    name: str
    outcome: Literal["created", "changed", "same", "edited"]


class Schedule(Record, frozen=True):
    """A schedule: its rule, what it enqueues, and its state.

    `next_at` is None until upkeep has computed the next slot. A schedule is `withdrawn` if the
    program that declared it, its `owner`, no longer declares it.
    """

    name: str
    state: Literal["active", "paused", "withdrawn"]
    kind: str
    queue: str
    cron: str | None
    every: timedelta | None
    anchor: datetime | None
    tz: str
    missed: Missed
    overlap: Overlap
    payload_json: str
    options_json: str
    next_at: datetime | None
    last_at: datetime | None
    last_job: UUID | None
    fired: int
    skipped: int
    problem: str | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    owner: str | None
    withdrawn_at: datetime | None
    declared_json: str | None
    edited: bool
    created_at: datetime
    updated_at: datetime
    updated_by: str | None

    @property
    def payload(self) -> Any:
        """The payload of its jobs, decoded at each access."""
        return json.loads(self.payload_json)

    @property
    def options(self) -> dict[str, Any]:
        """The other fields of its jobs, decoded at each access."""
        return decoded_object(self.options_json)


class DueSchedule(Record, frozen=True):
    """A schedule with something to decide, as `now`, the time of the database, saw it.

    `next_at` is the slot that has come; None if its first slot after `since` is still to be found.
    """

    name: str
    revision: int
    cron: str | None
    every: timedelta | None
    anchor: datetime | None
    tz: str
    missed: Missed
    next_at: datetime | None
    since: datetime
    now: datetime


class Slot(Record, frozen=True):
    """One instant of a schedule and what became of it.

    `run` is a job a person asked for outside the rule; `duplicate`: a live job had its key;
    `refused`: its queue would not take the job, the schedule's `problem` says why.
    """

    slot: datetime
    outcome: Literal["fired", "skipped", "duplicate", "refused", "run"]
    job: UUID | None
