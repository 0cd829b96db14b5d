"""Queues, their lanes and the strikes that hold jobs back."""

import json
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from holdfast.records import defaults
from holdfast.records.fields import Attempts, says
from holdfast.records.job import State
from holdfast.records.record import Record

LaneOnFailure = Literal["skip", "retry", "halt"]

ActivityLevel = Literal["off", "failures", "all"]

# Up to a year, and up to a hundred, of 360 days as PostgreSQL compares intervals.
Pause = Annotated[timedelta, Meta(ge=0, le=31_104_000)]

Length = Annotated[timedelta, Meta(gt=0, le=31_104_000)]

Age = Annotated[timedelta, Meta(ge=0, le=3_110_400_000)]

Days = Annotated[timedelta, Meta(ge=86_400, le=2_592_000)]

# `extra` tells it apart from other numbers: people may type 1MB.
BYTES = Meta(ge=1, extra={"unit": "byte"})
Bytes = Annotated[int, BYTES]

Most = Annotated[int, Meta(ge=1)]

Parts = Annotated[int, Meta(ge=1, le=64)]


class Strike(Record, frozen=True):
    """A rule that stops jobs of its queue and kind whose payload contains its own.

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
        """What a payload must contain, decoded at each access."""
        return None if self.payload_json is None else json.loads(self.payload_json)


class QueueSettings(Record, frozen=True, kw_only=True):
    """What can be set on a queue. A queue without settings has these defaults."""

    max_attempts: Annotated[
        Attempts, says("a job is dead after this many failed attempts, unless it has its own limit")
    ] = defaults.MAX_ATTEMPTS
    lease: Annotated[
        Length, says("how long a lease lasts, unless the claim or the job sets it")
    ] = defaults.LEASE
    keep_done: Annotated[
        Age, says("how long all done jobs are kept with their results; with 0, see `keep_recent`")
    ] = defaults.KEEP_DONE
    payload_limit: Annotated[
        Bytes, says("the largest payload with its headers, and the largest result")
    ] = defaults.PAYLOAD_LIMIT
    backoff: Annotated[
        Pause, says("the longest wait before the second attempt; it doubles with each further one")
    ] = defaults.BACKOFF
    backoff_cap: Annotated[Pause, says("the longest wait of all")] = defaults.BACKOFF_CAP
    limit: Annotated[
        Most | None, says("how many of its jobs may be leased at once, by all workers together")
    ] = None
    rate_limit: Annotated[
        Most | None, says("how many jobs may start within `rate_period`; set both, or neither")
    ] = None
    rate_period: Annotated[Length | None, says("the period of `rate_limit`")] = None
    fair: Annotated[bool, says("tenants take turns, one job each, within each priority")] = (
        defaults.FAIR
    )
    by_kind: Annotated[
        bool, says("keep a ready order for each kind, so that claims of one kind stay fast")
    ] = defaults.BY_KIND
    lane_limit: Annotated[Most, says("how many jobs of one lane may run at once")] = (
        defaults.LANE_LIMIT
    )
    lane_on_failure: Annotated[
        LaneOnFailure, says("what a failed attempt does to its lane: skip, retry or halt")
    ] = defaults.LANE_ON_FAILURE
    fanout: Annotated[
        Parts,
        says("how many parts the queue is spread over; order holds within a part; can only grow"),
    ] = defaults.FANOUT
    activity: Annotated[
        ActivityLevel, says("what the activity log records: off, failures or all")
    ] = defaults.ACTIVITY
    keep_activity: Annotated[Days, says("the shortest time for which the activity log is kept")] = (
        defaults.KEEP_ACTIVITY
    )
    archive_dead: Annotated[Age | None, says("archive dead jobs after this long")] = None
    archive_done: Annotated[
        Age | None, says("archive done jobs after this long; needs `keep_done`")
    ] = None
    keep_recent: Annotated[
        bool, says("workers keep a few done jobs a second for a day, even if `keep_done` is 0")
    ] = defaults.KEEP_RECENT


class Queue(QueueSettings, frozen=True, kw_only=True):
    """A queue: its settings, whether it is paused, and its counts."""

    queue: str
    part: int
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
    reconciled: int
    enqueued: int
    failed: int


class Success(Record, frozen=True):
    """How many attempts succeeded and failed within a span, in a queue, of one kind or of all.

    `rate` is the share that succeeded. `kind` is None for the whole queue.
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
    on_failure: LaneOnFailure
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
    """The outcome of releasing a lane; `alive`: its worker is alive, and nothing changed."""

    outcome: Literal["released", "resumed", "alive", "free", "unknown"]
    job: UUID | None = None
    worker: str | None = None


class Forecast(Record, frozen=True):
    """How many jobs arrive and finish per second, and when the queue will be empty.

    `drained_at` is None if never at this pace; `arriving` and `finishing` are None if nothing is
    known yet. `slots_needed` busy slots would keep up, or empty it within the target.
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
