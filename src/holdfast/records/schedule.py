"""Schedules, their slots, and what became of them."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from holdfast.records.record import Duration, Record, decoded_object

Missed = Literal["skip", "once", "all"]

Overlap = Literal["queue", "skip", "cancel"]


class NewSchedule(Record, frozen=True, kw_only=True):
    """A schedule as code declares it: a kind, and a cron expression or an interval.

    Slots that passed while nobody was there are `missed`: skip them, make up for the newest once,
    or for all. `overlap` says what a slot does whose predecessor still waits or runs: queue its job
    all the same, skip the slot, or cancel the predecessor. `options` are further fields of NewJob:
    priority, max_attempts, lease, key, on_conflict, lane, tenant, subject, headers.
    """

    name: str
    kind: str
    cron: str | None = None
    every: Duration | None = None
    anchor: datetime | None = None
    tz: str = "UTC"
    missed: Missed = "once"
    overlap: Overlap = "queue"
    queue: str = "default"
    payload: Any = None
    options: Mapping[str, Any] | None = None


class Declared(Record, frozen=True):
    """What became of one declaration; `edited`: as before, and as a person changed it since."""

    name: str
    outcome: Literal["created", "changed", "same", "edited"]


class Schedule(Record, frozen=True):
    """A schedule: its rule, what it enqueues, and where it stands.

    `next_at` is None until upkeep has found the next slot. A schedule is `withdrawn` when the
    program that declared it, its `owner`, does so no more.
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
        """The payload of its jobs, decoded anew at each access."""
        return json.loads(self.payload_json)

    @property
    def options(self) -> dict[str, Any]:
        """The other fields of its jobs, decoded anew at each access."""
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
