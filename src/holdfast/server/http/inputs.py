"""What requests may say, field by field; anything else is refused by name."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from holdfast import records
from holdfast.records import Scope
from holdfast.records.fields import Moment, Name, QueueName, Text
from holdfast.server.http.derive import Body, body, changes

Seconds = Annotated[float, Meta(ge=0, le=3_153_600_000)]
LeaseSeconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Verb = Literal["retry", "cancel", "archive", "purge", "move"]

NewJob = body(records.NewJob, "A job to enqueue.")


class NewClaim(Body):
    """Up to `limit` leases for a worker; `wait` holds the request until there is one."""

    worker: Name
    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=100)] = field(
        default_factory=lambda: ["default"]
    )
    kinds: Annotated[list[Name], Meta(min_length=1, max_length=1000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1
    lease: LeaseSeconds | None = None
    wait: Annotated[float, Meta(ge=0, le=60)] = 0


class Failure(Body):
    """What went wrong in an attempt."""

    kind: Annotated[str, Meta(max_length=200)] | None = None
    message: str | None = None
    traceback: str | None = None


class Acked(Body):
    """The end of a lease with success."""

    token: str
    result: msgspec.Raw | UnsetType = UNSET
    keep: bool = False


class Nacked(Body):
    """The end of a lease with failure."""

    token: str
    error: Failure | str | None = None
    retry_in: Seconds | None = None
    final: bool = False


class Released(Body):
    """A lease given back unused."""

    token: str
    delay: Seconds | None = None


class Progress(Body):
    """How far a job has come."""

    done: float | None = None
    total: float | None = None
    note: str | None = None


class Touched(Body):
    """A lease held for longer."""

    token: str
    lease: LeaseSeconds | None = None
    progress: Progress | None = None


class SettleItem(Body):
    """One of many leases to end."""

    id: str
    token: str
    verb: Literal["ack", "nack", "release", "cancel"]
    result: msgspec.Raw | UnsetType = UNSET
    keep: bool = False
    error: Failure | str | None = None
    retry_in: Seconds | None = None
    delay: Seconds | None = None
    final: bool = False
    reason: Text | None = None


class Settlements(Body):
    """Many leases to end, each in its own way."""

    items: Annotated[list[msgspec.Raw], Meta(max_length=1000)]


class Page(Body):
    """What a list is asked for."""

    q: Annotated[str, Meta(max_length=2000)] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: Annotated[str, Meta(max_length=200)] = ""
    count: bool = False


class DeadPage(Page):
    """What a list of dead jobs is asked for: newest first, or those that failed last first."""

    order: Literal["enqueued", "failed"] = "enqueued"


class Upcoming(Body):
    """How many of those that run next."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class OneJob(Body):
    """What else to tell of a job."""

    include: str = ""


class Reason(Body):
    """Why something is done, for the record."""

    reason: Text | None = None


EDITABLE = ("payload", "priority", "run_at", "max_attempts", "lease", "headers")
Edited = changes(
    records.NewJob,
    "Changes of a waiting or dead job; another queue gives it another id.",
    only=(*EDITABLE, "queue"),
    more=Reason,
)


class Retried(Body):
    """Another life for an ended job."""

    reason: Text | None = None
    delay: Seconds | None = None


class Paused(Body):
    """A pause, for good or for a while."""

    reason: Text | None = None
    until: Moment | None = None
    seconds: LeaseSeconds | None = None


class Nothing(Body):
    """No field at all."""


class Watch(Body):
    """Which jobs to tell of, by their ids; and whether of all that happens, in which queue."""

    job: str = ""
    watch: Annotated[str, Meta(max_length=4000)] = ""
    activity: bool = False
    queue: Annotated[str, Meta(max_length=120)] = ""


class Told(Body):
    """Of which queue to tell; of all if none is named."""

    queue: Annotated[str, Meta(max_length=120)] = ""


class Pausing(Reason):
    """Whether a schedule is paused."""

    paused: bool | UnsetType = UNSET


NewSchedule = body(records.NewSchedule, "A schedule, whole.", leave_out=("name",))
ChangedSchedule = changes(
    records.NewSchedule,
    "What to change of a schedule, and whether it is paused.",
    leave_out=("name",),
    never_null=("cron", "every", "anchor", "options"),
    more=Pausing,
)


class LaneOf(Body):
    """The queue that a lane is of."""

    queue: QueueName = "default"


class Anomalies(Body):
    """Which anomalies: those that last, or those that are over."""

    over: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class Noted(Body):
    """A word to those who look later."""

    note: Text | None = None


class Muted(Body):
    """Silence, for good or for a while, of one anomaly or all that its detector finds."""

    seconds: LeaseSeconds | None = None
    reason: Text | None = None
    all: bool = False


class Unmuted(Body):
    """The end of a silence, of one anomaly or all that its detector finds."""

    all: bool = False


class Tuned(Body):
    """How closely a detector looks, at all queues or one; null goes back to what is usual."""

    enabled: bool | None = None
    thresholds: dict[str, Annotated[float, Meta(ge=0, le=1e9)] | None] = field(default_factory=dict)
    queue: QueueName | None = None


class Forecast(Body):
    """Of which queue, to be drained within which target, at the pace of how long."""

    queue: Annotated[str, Meta(max_length=120)] = ""
    target: Annotated[float, Meta(ge=1, le=2_592_000)] | None = None
    span: Annotated[float, Meta(ge=10, le=86400)] = 300.0


class Previewed(Body):
    """One verb for all jobs that match a filter."""

    op: Verb
    q: Annotated[str, Meta(min_length=1, max_length=2000)]
    limit: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    delay: Seconds | None = None
    queue: QueueName | None = None
    reason: Text | None = None


class Started(Body):
    """A preview to be carried out, at a rate such as `200/s` or 200."""

    preview_token: str
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | str | None = None


class Drained(Body):
    """All that waits in a queue, cancelled."""

    reason: Text | None = None
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | str | None = None


class Undone(Body):
    """An operation, undone."""

    reason: Text | None = None
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | str | None = None


class NewToken(Body):
    """A token for a program."""

    name: Name
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=5)] | None = None
    role: Literal["viewer", "operator", "admin"] | None = None
    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=100)] | None = None
    expires: LeaseSeconds | None = None


class SignIn(Body):
    """A token that a browser shows once, for a session."""

    token: Annotated[str, Meta(max_length=200)]


class Link(Body):
    """The link that signs in once."""

    link: Annotated[str, Meta(max_length=200)] = ""


class Begin(Body):
    """The page to show once somebody is signed in."""

    next: Annotated[str, Meta(max_length=2000)] = ""


class Returned(Body, forbid_unknown_fields=False):
    """What an identity provider sends a browser back with; some add more."""

    code: Annotated[str, Meta(max_length=4000)] = ""
    state: Annotated[str, Meta(max_length=200)] = ""
    iss: Annotated[str, Meta(max_length=2000)] = ""
    error: Annotated[str, Meta(max_length=200)] = ""
    error_description: Annotated[str, Meta(max_length=2000)] = ""


class Series(Body):
    """Which numbers over time."""

    metric: Literal[
        "queued",
        "leased",
        "dead",
        "oldest",
        "done",
        "enqueued",
        "failed",
        "pickup_p50",
        "pickup_p95",
        "pickup_p99",
        "run_p50",
        "run_p95",
        "run_p99",
    ] = "done"
    queue: Annotated[str, Meta(max_length=120)] = ""
    kind: Annotated[str, Meta(max_length=200)] = ""
    start: Annotated[float, Meta(ge=0, le=253_000_000_000)] | Moment | None = field(
        default=None, name="from"
    )
    step: Annotated[int, Meta(ge=1, le=86400)] = 10


class Asked(Body):
    """Which events of the activity log."""

    queue: Annotated[str, Meta(max_length=120)] = ""
    kind: Annotated[str, Meta(max_length=200)] = ""
    event: Annotated[str, Meta(max_length=50)] = ""
    actor: Annotated[str, Meta(max_length=200)] = ""
    worker: Annotated[str, Meta(max_length=200)] = ""
    job: Annotated[str, Meta(max_length=36)] = ""
    start: Moment | None = field(default=None, name="from")
    end: Moment | None = field(default=None, name="until")
    cursor: Annotated[str, Meta(max_length=18, pattern=r"^[0-9]*\Z")] = ""
    after: Annotated[str, Meta(max_length=18, pattern=r"^[0-9]*\Z")] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class NewStrike(Body):
    """A rule by which jobs do not run."""

    mode: Literal["hold", "skip"] = "hold"
    queue: QueueName | None = None
    kind: Name | None = None
    payload: dict[str, Any] | None = None
    reason: Text | None = None
    expires: LeaseSeconds | None = None


class Strikes(Body):
    """Which strikes."""

    all: bool = False


class Limit(Body):
    """How many at most."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class Empty(Body):
    """No parameter at all."""
