"""Queues, their lanes and the strikes that hold jobs back."""

import json
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from holdfast.records.job import State
from holdfast.records.record import Record


class Strike(Record, frozen=True):
    """A rule by which jobs do not run: those of its queue and kind whose payload contains its own.

    `hold` keeps them waiting, `skip` cancels them. `held` is how many wait, counted to 10,000.
    """

    number: int
    mode: Literal["hold", "skip"]
    queue: str | None
    kind: str | None
    payload_json: str | None
    reason: str | None
    actor: str | None
    created_at: datetime
    expires_at: datetime | None
    in_force: bool
    ended_at: datetime | None
    ended_by: str | None
    held: int

    @property
    def payload(self) -> Any:
        """What a payload must contain, decoded anew at each access."""
        return None if self.payload_json is None else json.loads(self.payload_json)


class Queue(Record, frozen=True):
    """A queue: its settings, whether it is paused, and how much waits in it."""

    queue: str
    part: int
    max_attempts: int
    lease: timedelta
    keep_done: timedelta
    payload_limit: int
    limit: int | None
    rate_limit: int | None
    rate_period: timedelta | None
    fair: bool
    by_kind: bool
    lane_limit: int
    lane_on_failure: Literal["skip", "retry", "halt"]
    backoff: timedelta
    backoff_cap: timedelta
    fanout: int
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    paused_until: datetime | None
    queued: int
    leased: int
    dead: int
    done: int
    cancelled: int
    archived: int
    oldest: timedelta | None
    reconciled: int = 0
    activity: Literal["off", "failures", "all"] = "failures"
    keep_activity: timedelta = timedelta(days=7)
    enqueued: int = 0
    failed: int = 0
    archive_dead: timedelta | None = None
    archive_done: timedelta | None = None


class Success(Record, frozen=True):
    """How many attempts ended well and failed within a span, in a queue, of one kind or of all.

    `rate` is the share that ended well. `kind` is None for the whole queue.
    """

    queue: str
    kind: str | None
    done: int
    failed: int
    rate: float


class Depth(Record, frozen=True):
    """How many jobs of one kind are in one state."""

    queue: str
    kind: str
    state: State
    jobs: int


class Lane(Record, frozen=True):
    """A lane: its settings, the job that holds it, how many run, and how many wait (up to 1000)."""

    queue: str
    lane: str
    limit: int
    on_failure: Literal["skip", "retry", "halt"]
    rate_limit: int | None
    rate_period: timedelta | None
    halted_by: UUID | None
    job: UUID | None
    worker: str | None
    lease_until: datetime | None
    running: int
    waiting: int
    oldest: timedelta | None


class LaneReleased(Record, frozen=True):
    """What became of a lane that was to go on; `alive`: its holder lives, and nothing was done."""

    outcome: Literal["released", "resumed", "alive", "free", "unknown"]
    job: UUID | None = None
    worker: str | None = None


class Forecast(Record, frozen=True):
    """What comes into a queue and is finished per second, and when it will have drained.

    `drained_at` is None if never at this pace; `arriving` and `finishing` are None if nothing is
    known yet. `slots_needed` would have to be at work to keep up, or to drain it within the target.
    """

    queue: str
    waiting: int
    leased: int
    arriving: float | None
    finishing: float | None
    drained_at: datetime | None
    slots_needed: int | None
    seconds: float
    sentence: str
