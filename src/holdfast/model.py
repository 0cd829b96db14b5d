"""The records Holdfast hands in and out. Plain values: nothing here knows a database.

JSON columns are kept as the text PostgreSQL gave and decoded on access, so that one payload nobody
can decode never spoils the batch it came with, and a handler can decode straight into its types.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import md5
from typing import Any, Literal, Self, TypedDict
from uuid import UUID, uuid4

from holdfast.errors import LeaseLost, UnknownJob

State = Literal["queued", "leased", "done", "dead", "cancelled", "archived"]
OnConflict = Literal["skip", "replace", "after"]
Missed = Literal["skip", "once", "all"]
Overlap = Literal["queue", "skip", "cancel"]
Duration = timedelta | float  # a plain number is seconds

PARTS = 64
# What no name may hold, as it stands in a character class: control characters, and those that are
# invisible or turn the direction of text. Joiners of letters and of emoji are fine.
UNSEEN = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb"
)


@lru_cache(1024)
def queue_part(queue: str) -> int:
    """Return the part a queue lives in; `holdfast.queue_part` in SQL says the same."""
    return int(md5(queue.encode(), usedforsecurity=False).hexdigest()[:8], 16) % PARTS


def part_of(id: UUID) -> int:
    """Return the part an id carries."""
    return (id.int >> 64) & 0xFFF


def stamp(id: UUID, part: int) -> UUID:
    """Return the same id, carrying another part."""
    return UUID(int=id.int & ~(0xFFFF << 64) | ((8 << 12 | part) << 64))


def new_id(queue: str = "default") -> UUID:
    """Make the id of a job to be: a UUIDv8 of the time, the queue's part and 62 random bits.

    With an id of its own making a caller can repeat an enqueue whose outcome it does not know.
    """
    milliseconds = time.time_ns() // 1_000_000
    high = (milliseconds << 16) | (8 << 12) | queue_part(queue)
    return UUID(int=(high << 64) | (0b10 << 62) | secrets.randbits(62))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
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


@dataclass(frozen=True, slots=True)
class Enqueued:
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


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one worker to run one job until `lease_until`, proven by `token`."""

    id: UUID
    kind: str
    payload_json: str
    priority: int
    attempt: int
    max_attempts: int
    lease_until: datetime
    run_at: datetime
    created_at: datetime
    key: str | None
    lane: str | None
    tenant: str | None
    subject: str | None
    headers_json: str | None
    token: UUID
    queue: str
    worker: str
    # The job's own, if it has one; else the lease is as long as the claim's, or the queue's.
    lease: timedelta | None = None
    # How long it is, whoever said so, and by how much a touch renews it.
    length: timedelta = timedelta(seconds=30)
    # What the attempt before this one failed of; a retried job begins without.
    error: str | None = None

    @property
    def payload(self) -> Any:
        """The payload, decoded anew at each access."""
        return json.loads(self.payload_json)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, decoded anew at each access."""
        return _object(self.headers_json)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What proves a lease that was handed over: with it, somebody outside acks or nacks the job."""

    id: UUID
    token: UUID
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """What a worker asks for: up to `limit` jobs of one queue, under a token made for this call."""

    queue: str
    worker: str
    limit: int = 1
    lease: Duration | None = None
    kinds: Sequence[str] | None = None
    token: UUID = field(default_factory=uuid4)


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A job whose worker vanished, and whose work may be done nevertheless."""

    id: UUID
    token: UUID
    queue: str
    kind: str
    payload_json: str
    headers_json: str | None
    subject: str | None
    key: str | None
    attempt: int
    worker: str

    @property
    def payload(self) -> Any:
        """The payload, decoded anew at each access."""
        return json.loads(self.payload_json)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, decoded anew at each access."""
        return _object(self.headers_json)


# A lease, or only what proves it: (id, token).
Held = Lease | Ticket | Doubtful | tuple[UUID, UUID]


@dataclass(frozen=True, slots=True)
class Ack:
    """End a lease with success; `keep` puts the job into the history whatever its queue does."""

    lease: Held
    result: Any = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Nack:
    """End a lease with failure: the job is tried again after `delay`, or dies; `final`: dies."""

    lease: Held
    error_kind: str | None = None
    message: str | None = None
    traceback: str | None = None
    delay: Duration | None = None
    final: bool = False
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back unused: the attempt does not count."""

    lease: Held
    delay: Duration | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a lease, and with it its job, as cancelled: there is nothing left to do."""

    lease: Held
    reason: str | None = None


Settlement = Ack | Nack | Release | Cancel


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one lease.

    `already` is the answer to a repeat of one's own call. `lost` means that the job was given to
    somebody else, or ended, before: whatever was done under this lease must count as not done.
    """

    id: UUID
    outcome: Literal["done", "queued", "dead", "cancelled", "leased", "already", "lost", "unknown"]
    detail: str | None = None
    lease_until: datetime | None = None

    @property
    def held(self) -> bool:
        """Whether the lease was still the caller's."""
        return self.outcome not in ("lost", "unknown")

    def raise_if_lost(self) -> Self:
        """Return itself if the lease was held; raise LeaseLost or UnknownJob if it was not."""
        if self.outcome == "lost":
            raise LeaseLost(self.id, self.detail or "")
        if self.outcome == "unknown":
            raise UnknownJob(self.id)
        return self


@dataclass(frozen=True, slots=True)
class Reaped:
    """A job taken back from a worker that let its lease expire."""

    id: UUID
    queue: str
    kind: str
    worker: str
    outcome: Literal["queued", "dead"]


@dataclass(frozen=True, slots=True)
class Change:
    """The answer of an operator's verb for one job: its state now, and why nothing changed.

    `new_id` is set by `move` alone: an id carries the part of its queue.
    """

    id: UUID
    changed: bool
    state: State | None
    detail: str | None = None
    new_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Job:
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
        return _object(self.headers_json)

    @property
    def result(self) -> Any:
        """What the handler returned, if the queue keeps done jobs."""
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def progress(self) -> dict[str, Any]:
        """What its handler said of its work in this attempt: done, total, note, and when (at)."""
        return _object(self.progress_json)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of jobs.

    `searched_to`: nothing older than this id was looked at, for want of time; `searched` were.
    """

    jobs: list[Job]
    searched_to: UUID | None
    searched: int


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs match a filter; `capped`: there may be more."""

    jobs: int
    capped: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table of the schema with its indexes, or all tables of one sort together.

    `rows` and `dead` are PostgreSQL's estimates: live rows, and rows that vacuum has yet to remove.
    """

    name: str
    size: int
    rows: int
    dead: int
    vacuumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class System:
    """The database: its schema, its server, how large it is, and its oldest open transaction."""

    schema: int
    release: str
    postgresql: str
    size: int
    connections: int
    max_connections: int
    oldest_transaction: timedelta | None
    relations: list[Relation]


@dataclass(frozen=True, slots=True)
class Attempt:
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


@dataclass(frozen=True, slots=True)
class Event:
    """One fact of the activity log: the past tense of a verb, or a deed of an operator.

    `state` is that of the job since. `jobs` is how many it speaks of where `job` names none; 0 for
    what concerns no job. `seq` is its place in the log.
    """

    seq: int
    at: datetime
    event: str
    job: UUID | None
    queue: str | None
    kind: str | None
    state: State | None
    attempt: int | None
    jobs: int
    worker: str | None
    actor: str | None
    reason: str | None
    detail_json: str | None

    @property
    def detail(self) -> dict[str, Any]:
        """What else there is to say, decoded anew at each access."""
        return _object(self.detail_json)


@dataclass(frozen=True, slots=True)
class Activity:
    """A page of events. `searched_to`: nothing beyond this place was looked at in time."""

    events: list[Event]
    searched_to: int | None


@dataclass(frozen=True, slots=True)
class Watched:
    """A queue (None: every one) whose every event is noted until then.

    It has been without a break since `since`, when the log had come to `place`.
    """

    queue: str | None
    since: datetime
    place: int
    until: datetime


@dataclass(frozen=True, slots=True)
class LogState:
    """Where the activity log begins and ends, and which open transactions may write to it."""

    first: int | None
    last: int
    writers: list[str]


@dataclass(frozen=True, slots=True)
class Strike:
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


@dataclass(frozen=True, slots=True)
class Queue:
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


@dataclass(frozen=True, slots=True)
class Success:
    """How many attempts ended well and failed within a span, in a queue, of one kind or of all.

    `rate` is the share that ended well. `kind` is None for the whole queue.
    """

    queue: str
    kind: str | None
    done: int
    failed: int
    rate: float


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs of one kind are in one state."""

    queue: str
    kind: str
    state: State
    jobs: int


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead jobs that failed alike: the same kind of error, whatever numbers and names are in it."""

    fingerprint: str
    kind: str
    queue: str
    error: str | None
    jobs: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as it described itself by its last beat; `alive` if that was within a minute.

    The four counts and `busy_time` are of its life so far, `rss` is in bytes, `loop_lag` and
    `busy_time` in seconds. `claims` are the times of its last claims, the newest first. `skew` is
    how many seconds its clock is ahead; `listens`, whether notifications reach it.
    """

    worker: str
    alive: bool
    seen_at: datetime
    started_at: datetime
    host: str | None
    pid: int | None
    version: str | None
    python: str | None
    queues: list[str]
    kinds: list[str]
    slots: int
    busy: int
    rss: int | None
    loop_lag: float | None
    claimed: int
    acked: int
    failed: int
    lost: int
    stop_at: datetime | None
    stop_by: str | None
    busy_time: float = 0.0
    claimed_at: datetime | None = None
    acked_at: datetime | None = None
    claims: list[datetime] = field(default_factory=list)
    skew: float | None = None
    listens: bool | None = None


@dataclass(frozen=True, slots=True)
class Tended:
    """A turn of upkeep: whether it was the caller's, what was done, how long till the next slot.

    `doubtful`: jobs wait for somebody to look whether they are done. `operating`: an operation
    waits for its next step. `detecting`: detectors are due. `delivering`: anomalies wait to be
    told.
    """

    leads: bool
    done: dict[str, Any] | None
    next_slot: timedelta | None
    doubtful: bool
    operating: bool = False
    detecting: bool = False
    delivering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
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


@dataclass(frozen=True, slots=True)
class Declared:
    """What became of one declaration; `edited`: as before, and as a person changed it since."""

    name: str
    outcome: Literal["created", "changed", "same", "edited"]


@dataclass(frozen=True, slots=True)
class Schedule:
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
        return _object(self.options_json)


@dataclass(frozen=True, slots=True)
class DueSchedule:
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


@dataclass(frozen=True, slots=True)
class Slot:
    """One instant of a schedule and what became of it.

    `run` is a job a person asked for outside the rule; `duplicate`: a live job had its key;
    `refused`: its queue would not take the job, the schedule's `problem` says why.
    """

    slot: datetime
    outcome: Literal["fired", "skipped", "duplicate", "refused", "run"]
    job: UUID | None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind as its workers declared it; `about` has its queue, doc, JSON schema, and more."""

    kind: str
    done_when: bool
    about_json: str
    declared_at: datetime

    @property
    def about(self) -> dict[str, Any]:
        """What was declared of it, decoded anew at each access."""
        return _object(self.about_json)


@dataclass(frozen=True, slots=True)
class Lane:
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


@dataclass(frozen=True, slots=True)
class LaneReleased:
    """What became of a lane that was to go on; `alive`: its holder lives, and nothing was done."""

    outcome: Literal["released", "resumed", "alive", "free", "unknown"]
    job: UUID | None = None
    worker: str | None = None


Scope = Literal["read", "produce", "consume", "operate", "admin"]


@dataclass(frozen=True, slots=True)
class ApiToken:
    """Who may call the server by a secret, what they may do, and in which queues (None: all)."""

    id: str
    sort: Literal["token", "link", "session"]
    name: str
    scopes: list[Scope]
    queues: list[str] | None
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token just made. `secret` is told this once; only its hash is kept."""

    token: ApiToken
    secret: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a secret stands for; `id` is that of the token."""

    id: str
    name: str
    scopes: list[Scope]
    queues: list[str] | None
    sort: Literal["token", "link", "session"]
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is still known of the last lease of a job that is gone."""

    queue: str
    worker: str
    claimed_at: datetime
    outcome: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What an operation would be done to; `token` starts it within ten minutes.

    `selects` is the filter with the states that its verb is meant for. Jobs that come to match
    after `as_of` are left alone. `total` is counted up to a million: `capped` says there are more.
    """

    id: int
    token: UUID
    selects: str
    as_of: datetime
    total: int
    capped: bool
    sample: list[UUID]


@dataclass(frozen=True, slots=True)
class Operation:
    """One verb for many jobs, and how far it has come: `seen` of `total`, `changed` of those.

    `undoable` of these can be undone, for seven days. An undo is an operation itself, and names
    the one it is of in `arguments`.
    """

    id: int
    state: Literal["previewed", "running", "done", "cancelled", "failed"]
    verb: Literal["retry", "cancel", "archive", "purge", "move", "undo"]
    filter: str
    arguments_json: str
    most: int | None
    as_of: datetime
    total: int
    capped: bool
    rate: float | None
    reason: str | None
    actor: str | None
    seen: int
    changed: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ended_by: str | None
    problem: str | None
    undoable: int

    @property
    def arguments(self) -> dict[str, Any]:
        """Its further arguments, decoded anew at each access."""
        return _object(self.arguments_json)


Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks wrong, as a detector of one's own says it.

    `subject` tells findings of one detector apart: what has the same queue and subject is the same
    anomaly. `suggestion` is what to type.
    """

    title: str
    subject: str = ""
    queue: str | None = None
    severity: Severity = "warning"
    since: datetime | None = None
    detail: str | None = None
    suggestion: str | None = None
    evidence: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that looks or looked wrong: what, since when, by what evidence, and what to type.

    `times` says how often it came back soon after it was over. It is `muted` if nobody is told.
    """

    id: str
    code: str
    severity: Severity
    queue: str | None
    subject: str
    title: str
    detail: str | None
    suggestion: str | None
    evidence_json: str
    since: datetime
    raised_at: datetime
    seen_at: datetime
    times: int
    resolved_at: datetime | None
    acked_at: datetime | None
    acked_by: str | None
    note: str | None
    muted: bool

    @property
    def evidence(self) -> dict[str, Any]:
        """The numbers and names it was told by, decoded anew at each access."""
        return _object(self.evidence_json)


@dataclass(frozen=True, slots=True)
class AnomalyChange:
    """What became of an anomaly; `failed` is a detector that broke, and its title says how."""

    id: str | None
    code: str
    change: Literal["raised", "worsened", "resolved", "failed"]
    severity: Severity
    queue: str | None
    subject: str
    title: str
    muted: bool


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector: how closely it looks, and how its last look went.

    `queues` has the settings of queues that are looked at in another way.
    """

    code: str
    enabled: bool
    severity: Severity | None
    every: timedelta | None
    thresholds_json: str
    about: str | None
    queues_json: str | None
    run_at: datetime | None
    took: timedelta | None
    problem: str | None

    @property
    def thresholds(self) -> dict[str, Any]:
        """Its thresholds by name, decoded anew at each access."""
        return _object(self.thresholds_json)

    @property
    def queues(self) -> dict[str, Any]:
        """Settings by queue, decoded anew at each access."""
        return _object(self.queues_json)


@dataclass(frozen=True, slots=True)
class Mute:
    """What nobody is told of; an empty queue or subject means all of them."""

    code: str
    queue: str
    subject: str
    until: datetime | None
    muted_at: datetime
    muted_by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Webhook:
    """Who is told of anomalies by HTTP: of this severity and worse, of some codes and queues."""

    name: str
    url: str
    severity: Severity
    codes: list[str] | None
    queues: list[str] | None
    created_at: datetime
    created_by: str | None


@dataclass(frozen=True, slots=True)
class Forecast:
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


@dataclass(frozen=True, slots=True)
class Checkup:
    """One thing the doctor looked at: what was found, why it matters, what to type."""

    name: str
    level: Literal["ok", "warn", "fail"]
    what: str
    why: str
    fix: str | None


def _object(text: str | None) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(text) if text else {}
    return decoded
