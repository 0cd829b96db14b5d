# mypy: disable-error-code="valid-type"
# To mypy, types derived from records are variables.
"""The responses of the server: every document of /v1, field by field.

Most are records as `render.record` writes them. An optional field has the default UNSET. The
contract and the dashboard's types are generated from these declarations, and the tests of the
contract compare them with the real responses.
"""

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import records
from holdfast.records import Scope, State
from holdfast.records.fields import Moment, says
from holdfast.server.http.derive import answer
from holdfast.server.http.inputs import Metric, Verb

_Object = dict[str, Any]


class Enqueued(Struct, kw_only=True):
    """The job that was stored, or the live job that has its key."""

    id: UUID
    state: Literal["queued"]
    created: bool
    run_at: Moment | UnsetType = UNSET
    duplicate_of: UUID | UnsetType = UNSET
    behind: Annotated[UUID | UnsetType, says("the job it waits for")] = UNSET
    holder: Annotated[str | UnsetType, says("the worker that runs that job")] = UNSET
    held_since: Annotated[Moment | UnsetType | None, says("when that worker claimed it")] = UNSET


class StoredJob(Struct, kw_only=True):
    """One job of many that was stored, or skipped as a duplicate."""

    index: int
    id: UUID
    created: bool
    duplicate_of: UUID | UnsetType = UNSET


class RefusedItem(Struct, kw_only=True):
    """One job of many that could not be stored, by its index in the request."""

    index: int
    code: str
    detail: str
    fix: str | UnsetType = UNSET


class Stored(Struct, kw_only=True):
    """The outcome for each job."""

    created: int
    skipped: Annotated[int, says("jobs that were skipped, because a live job has their key")]
    jobs: list[StoredJob]
    errors: list[RefusedItem]


class LeaseMore(Struct, kw_only=True):
    """Fields of a lease that are present only if the job has them."""

    token: Annotated[UUID, says("proves the lease; pass it with every call about the lease")]
    length: Annotated[float, says("seconds that the lease lasts; a touch renews it for as long")]
    error: Annotated[str | UnsetType, says("the error of the previous attempt")] = UNSET
    followed: Annotated[bool | UnsetType, says("other jobs may wait for its result")] = UNSET
    headers: _Object | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET


Lease = answer(
    records.Lease,
    "A job that a worker holds.",
    leave_out=("lease",),
    optional=records.LABELS,
    more=LeaseMore,
)


class Leases(Struct, kw_only=True):
    """The leases; the list is empty if no job is ready."""

    leases: list[Lease]
    paused: Annotated[bool | UnsetType, says("all requested queues are paused")] = UNSET
    stop: Annotated[bool | UnsetType, says("the worker should stop")] = UNSET


class Settled(Struct, kw_only=True):
    """The lease has ended; `state` is the state of the job."""

    id: UUID
    state: Literal["done", "queued", "dead", "cancelled", "leased", "already"]
    already: Annotated[bool | UnsetType, says("this token ended the lease before")] = UNSET
    attempt: int | UnsetType = UNSET
    run_at: Moment | UnsetType = UNSET
    group: Annotated[str | UnsetType, says("identifies dead jobs with similar failures")] = UNSET


class TouchedLease(Struct, kw_only=True):
    """How long the lease lasts now."""

    id: UUID
    lease_until: Moment
    extended: Annotated[bool, says("false if the lease already lasts longer than requested")]
    detail: str | UnsetType = UNSET


class SettledItem(Struct, kw_only=True):
    """The outcome for one lease of many."""

    ok: bool
    id: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    already: bool | UnsetType = UNSET
    status: int | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType | None = UNSET


class SettledItems(Struct, kw_only=True):
    """One result for each item, in order."""

    results: list[SettledItem]


class Progress(Struct, kw_only=True):
    """The progress of a job in its current attempt, as its handler reported it."""

    done: float | UnsetType = UNSET
    total: float | UnsetType = UNSET
    note: str | UnsetType = UNSET
    at: Moment | UnsetType = UNSET
    attempt: int | UnsetType = UNSET


Attempt = answer(records.Attempt)
Step = answer(records.Step)
Line = answer(records.Line)


class Lines(Struct, kw_only=True):
    """What the handlers of a job logged while they ran, oldest first."""

    lines: list[Line]


class Sent(Struct, kw_only=True):
    """An event that was sent."""

    sent: str


class EventMore(Struct, kw_only=True):
    """Fields of an event that its record does not have."""

    id: Annotated[str, says("its position in the log")]
    jobs: Annotated[int, says("how many jobs it is about, if `job` is null")]
    detail: _Object | None


Event = answer(records.Event, "One event of the activity log.", leave_out=("seq",), more=EventMore)


class JobMore(Struct, kw_only=True):
    """Fields of a job that its record does not have.

    Lists leave out large JSON: then the field is null, and there are `_preview` and `_size`.
    """

    headers: _Object | None
    progress: Progress | None
    payload_preview: str | UnsetType = UNSET
    payload_size: int | UnsetType = UNSET
    headers_preview: str | UnsetType = UNSET
    headers_size: int | UnsetType = UNSET
    result_preview: str | UnsetType = UNSET
    result_size: int | UnsetType = UNSET
    explain: Annotated[str | UnsetType, says("why it is not running")] = UNSET
    attempts: list[Attempt] | UnsetType = UNSET
    events: list[Event] | UnsetType = UNSET
    steps: list[Step] | UnsetType = UNSET


Job = answer(
    records.Job,
    "A job. In a list, payload, headers and result are null if they are large; the beginning is "
    "then in `payload_preview` and so on.",
    more=JobMore,
)


class JobPage(Struct, kw_only=True):
    """A page of jobs; `cursor` is null on the last one."""

    jobs: list[Job]
    cursor: str | None
    searched_to: Annotated[
        Moment | UnsetType,
        says("the search stopped here for lack of time; the cursor continues it"),
    ] = UNSET
    searched: Annotated[int | UnsetType, says("with searched_to: how many were searched")] = UNSET
    count: Annotated[int | UnsetType, says("how many match, up to 10,000")] = UNSET
    capped: Annotated[bool | UnsetType, says("there may be more than `count`")] = UNSET


class Changed(Struct, kw_only=True):
    """The job's id, which is a new one if it moved to another queue, and its state now."""

    id: UUID
    state: State | None


class DeadGroupMore(Struct, kw_only=True):
    """Fields of a group that its record does not have."""

    group: str


DeadGroup = answer(records.DeadGroup, "Dead jobs with similar failures.", more=DeadGroupMore)


class DeadGroups(Struct, kw_only=True):
    """The groups, the largest first."""

    groups: list[DeadGroup]


class Preview(Struct, kw_only=True):
    """How many jobs an operation would change, and some of them."""

    op: Verb
    q: Annotated[str, says("the filter, with the states that the verb applies to")]
    count: int
    capped: Annotated[bool, says("there may be more than `count`")]
    as_of: Moment
    sample: list[UUID]
    preview_token: str


class OperationMore(Struct, kw_only=True):
    """Fields of an operation that its record does not have."""

    id: str
    arguments: _Object | None
    done: Annotated[int, says("how many jobs were processed")]
    undoable: Annotated[int, says("how many of the changes can be undone")]


Operation = answer(
    records.Operation, "One verb for many jobs, and its progress.", more=OperationMore
)


class Operations(Struct, kw_only=True):
    """The operations, the newest first."""

    operations: list[Operation]


class Rate(Struct, kw_only=True):
    """The share of attempts that succeeded; `kind` is null for the whole queue."""

    kind: str | None
    done: int
    failed: int
    rate: Annotated[float, Meta(ge=0, le=1)]


class Success(Struct, kw_only=True):
    """The shares of attempts that succeeded, in the last hour and the last day."""

    hour: list[Rate]
    day: list[Rate]


class KindCount(Struct, kw_only=True):
    """How many jobs of a kind are in a state."""

    kind: str
    state: State
    jobs: int


class QueueMore(Struct, kw_only=True):
    """Fields of a queue that its record does not have; lists leave them out."""

    kinds: list[KindCount] | UnsetType = UNSET
    success: Success | UnsetType = UNSET


Queue = answer(records.Queue, more=QueueMore)


class Queues(Struct, kw_only=True):
    """The queues."""

    queues: list[Queue]


class QueueExplained(Struct, kw_only=True):
    """One sentence about the queue."""

    queue: str
    explain: str


class Kind(Struct, kw_only=True):
    """A kind: what workers declared about it, who handles it, and how many jobs it has."""

    kind: str
    declared: bool
    workers: list[str]
    jobs: dict[str, int]
    schema: Annotated[_Object | UnsetType | None, says("the JSON schema of its payload")] = UNSET
    queue: str | UnsetType | None = UNSET
    doc: str | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET


class Kinds(Struct, kw_only=True):
    """The kinds."""

    kinds: list[Kind]


Lane = answer(records.Lane)


class Lanes(Struct, kw_only=True):
    """The lanes, the longest waiting first."""

    lanes: list[Lane]


class LaneReleased(Struct, kw_only=True):
    """The outcome for the lane."""

    queue: str
    lane: str
    outcome: Literal["released", "resumed", "free"]
    job: UUID | None
    worker: str | None


class LaneExplained(Struct, kw_only=True):
    """One sentence about the lane."""

    queue: str
    lane: str
    explain: str


Slot = answer(records.Slot)


class ScheduleMore(Struct, kw_only=True):
    """Fields of a schedule that its record does not have; lists leave out slots."""

    options: _Object
    declared: _Object | None
    explain: Annotated[str | None, says("its rule in English")]
    next: Annotated[list[Moment] | UnsetType, says("its next ten slots")] = UNSET
    slots: Annotated[list[Slot] | UnsetType, says("its last slots")] = UNSET


Schedule = answer(records.Schedule, more=ScheduleMore)


class Schedules(Struct, kw_only=True):
    """The schedules."""

    schedules: list[Schedule]


class ScheduleDeleted(Struct, kw_only=True):
    """The schedule is deleted."""

    name: str
    deleted: bool


class ScheduleRunMore(Struct, kw_only=True):
    """The name of the schedule."""

    name: str


ScheduleRun = answer(
    records.Slot,
    "The job that was enqueued; `outcome` says if the queue refused it.",
    name="ScheduleRun",
    more=ScheduleRunMore,
)
Worker = answer(records.WorkerRow, name="Worker")


class Workers(Struct, kw_only=True):
    """The workers."""

    workers: list[Worker]


class WorkerStopping(Struct, kw_only=True):
    """The worker will stop."""

    worker: str
    stopping: bool


class AnomalyMore(Struct, kw_only=True):
    """Fields of an anomaly that are JSON."""

    evidence: _Object
    suggestion: Annotated[str | None, says("what to type")]


Anomaly = answer(records.Anomaly, more=AnomalyMore)


class AnomalyPage(Struct, kw_only=True):
    """The anomalies, the worst first."""

    anomalies: list[Anomaly]


class DetectorMore(Struct, kw_only=True):
    """Fields of a detector that are JSON."""

    thresholds: _Object
    queues: Annotated[_Object | None, says("settings of queues that differ")]


Detector = answer(records.Detector, more=DetectorMore)


class Detectors(Struct, kw_only=True):
    """The detectors."""

    detectors: list[Detector]


Forecast = answer(records.Forecast, name="QueueForecast")


class Forecasts(Struct, kw_only=True):
    """One forecast for each queue."""

    forecasts: list[Forecast]


Checkup = answer(records.Checkup)


class Checkups(Struct, kw_only=True):
    """The checks of the doctor."""

    checks: list[Checkup]


class EventPage(Struct, kw_only=True):
    """A page of events; `cursor` is null on the last one."""

    events: list[Event]
    cursor: str | None


class StrikeMore(Struct, kw_only=True):
    """Fields of a strike that have an explanation."""

    held: Annotated[int, says("waiting jobs that it holds back, counted up to 10,000")]


Strike = answer(records.Strike, more=StrikeMore)


class StrikeList(Struct, kw_only=True):
    """The strikes, the newest first."""

    strikes: list[Strike]


class Series(Struct, kw_only=True):
    """A metric over time: points of unix time and value."""

    metric: Metric
    queue: str | None
    step: int
    points: list[Annotated[list[float | None], Meta(min_length=2, max_length=2)]]


Relation = answer(records.Relation)


class DatabaseMore(Struct, kw_only=True):
    """Fields of the database that have an explanation."""

    schema: Annotated[int, says("the number of its newest migration")]
    release: Annotated[str, says("the version of Holdfast that migrated it last")]
    size: Annotated[int, says("bytes of the whole database")]
    oldest_transaction: Annotated[
        float | None, says("seconds; an old one keeps vacuum from removing rows")
    ]
    relations: Annotated[list[Relation], says("the largest first; tables of one log are one")]


Database = answer(records.System, name="Database", more=DatabaseMore)


class Standby(Struct, kw_only=True):
    """The standby that reads go to."""

    behind: Annotated[
        float | None, says("seconds by which it is late; null while the primary answers for it")
    ]


class System(Struct, kw_only=True):
    """The database and the settings of the server, a few seconds old at most."""

    version: Annotated[str, says("of Holdfast, on this server")]
    database: Database
    standby: Annotated[Standby | None, says("null if the server has none")]
    settings: Annotated[_Object, says("of the server, without secrets and addresses")]


class TokenMore(Struct, kw_only=True):
    """The secret, which is returned only once."""

    secret: Annotated[str | UnsetType, says("returned only when the token is created")] = UNSET


Token = answer(records.ApiToken, "A token of a program.", name="Token", more=TokenMore)


class Tokens(Struct, kw_only=True):
    """The tokens, without their secrets."""

    tokens: list[Token]


class TokenRevoked(Struct, kw_only=True):
    """The token is revoked."""

    id: str
    revoked: bool


class SignedIn(Struct, kw_only=True):
    """A session cookie is set."""

    user: str
    scopes: list[Scope]


class Me(Struct, kw_only=True):
    """The caller; `user` is null if they are not signed in."""

    user: str | None
    via: str
    scopes: list[Scope]
    queues: list[str] | None
    read_only: bool
    name: str
    color: str
    version: str
    mode: Literal["live", "polling"]
    oidc: Annotated[str | None, says("the name of the identity provider for signing in")]


class Well(Struct, kw_only=True):
    """The server works."""

    status: Literal["ok"]
    version: str | UnsetType = UNSET


class ErrorTitle(Struct, kw_only=True):
    """What an error code means."""

    code: str
    title: str


class Contract(Struct, kw_only=True):
    """This contract, as OpenAPI 3.1."""

    openapi: str
    info: _Object
    servers: list[_Object]
    tags: list[_Object]
    security: list[_Object]
    paths: _Object
    components: _Object
