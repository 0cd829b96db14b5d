"""What requests may say, field by field; anything else is refused by name."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from holdfast import records
from holdfast.records import Scope
from holdfast.records.fields import Moment, Name, QueueName, Text, says
from holdfast.server.http.derive import Body, body, changes

Seconds = Annotated[float, Meta(ge=0, le=3_153_600_000)]
LeaseSeconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Verb = Literal["retry", "cancel", "archive", "delete", "move"]

Metric = Literal[
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
]
# Jobs per second, or a text; what exactly a text may be is checked by its handler.
Pace = Annotated[
    Annotated[float, Meta(gt=0, le=1_000_000)]
    | Annotated[str, Meta(extra_json_schema={"pattern": "^[1-9][0-9]{0,5}(/[smh])?$"})]
    | None,
    says("jobs per second, or a text such as 200/s or 60/m"),
]
_Queue = Annotated[str, Meta(max_length=120)]
_Place = Annotated[str, Meta(max_length=18, pattern=r"^[0-9]*\Z")]
_Kind = Annotated[str, Meta(max_length=200)]

# What stands in a path, by its name.
PARTS: dict[str, Any] = {
    "id": Annotated[str, says("its id")],
    "queue": Annotated[str, Meta(min_length=1, max_length=120), says("the name of a queue")],
    "name": Annotated[str, Meta(min_length=1, max_length=200), says("its name")],
    "worker": Annotated[str, Meta(min_length=1, max_length=200), says("the id of a worker")],
    "lane": Annotated[str, Meta(min_length=1, max_length=200), says("the name of a lane")],
    "code": Annotated[str, Meta(min_length=1, max_length=60), says("its code")],
    "number": Annotated[str, says("its number")],
}

NewJob = body(records.NewJob, "A job to enqueue.")
QueueSettings = changes(records.QueueSettings, "QueueSettings", "Settings of a queue to change.")


class NewClaim(Body):
    """Up to `limit` leases for a worker; `wait` holds the request until there is one."""

    worker: Annotated[Name, says("who asks")]
    queues: Annotated[
        list[QueueName],
        Meta(min_length=1, max_length=100, extra_json_schema={"default": ["default"]}),
    ] = field(default_factory=lambda: ["default"])
    kinds: Annotated[list[Name], Meta(min_length=1, max_length=1000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1
    lease: Annotated[LeaseSeconds | None, says("seconds that the leases last")] = None
    wait: Annotated[float, Meta(ge=0, le=60), says("seconds to wait for a job")] = 0


class Failure(Body):
    """What went wrong in an attempt."""

    kind: Annotated[str, Meta(max_length=200)] | None = None
    message: str | None = None
    traceback: str | None = None


class Acked(Body):
    """The end of a lease with success."""

    token: str
    result: Annotated[msgspec.Raw | UnsetType, says("kept with the job, if done jobs are kept")] = (
        UNSET
    )
    keep: Annotated[bool, says("keep the job whatever its queue does")] = False


class Nacked(Body):
    """The end of a lease with failure."""

    token: str
    error: Failure | str | None = None
    retry_in: Annotated[
        Seconds | None, says("seconds until the next attempt; else as the queue's backoff says")
    ] = None
    final: Annotated[bool, says("dead now, whatever attempts are left")] = False


class Released(Body):
    """A lease given back unused."""

    token: str
    delay: Seconds | None = None


class NewProgress(Body):
    """How far a job has come."""

    done: float | None = None
    total: float | None = None
    note: str | None = None


class Touched(Body):
    """A lease held for longer."""

    token: str
    lease: LeaseSeconds | None = None
    progress: NewProgress | None = None


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

    q: Annotated[str, Meta(max_length=2000), says("a filter: state:dead kind:send* age:<2h")] = ""
    limit: Annotated[int, Meta(ge=1, le=500), says("jobs on a page")] = 50
    cursor: Annotated[str, Meta(max_length=200), says("that of the page before")] = ""
    count: Annotated[bool, says("also count all that match")] = False


class DeadPage(Page):
    """What a list of dead jobs is asked for: newest first, or those that failed last first."""

    order: Annotated[
        Literal["enqueued", "failed"], says("by when they were enqueued or failed, newest first")
    ] = "enqueued"


class Upcoming(Body):
    """How many of those that run next."""

    limit: Annotated[int, Meta(ge=1, le=500), says("how many")] = 50


class OneJob(Body):
    """What else to tell of a job."""

    include: Annotated[str, says("attempts, events or both, with a comma")] = ""


class Reason(Body):
    """Why something is done, for the record."""

    reason: Annotated[Text | None, says("goes into the activity log")] = None


EDITABLE = ("payload", "priority", "run_at", "max_attempts", "lease", "headers")
Edited = changes(
    records.NewJob,
    "Edited",
    "Changes of a waiting or dead job; another queue gives it another id.",
    only=(*EDITABLE, "queue"),
    more=Reason,
)


class Retried(Reason):
    """When to retry a job."""

    delay: Annotated[Seconds | None, says("seconds until it may run")] = None


class Paused(Reason):
    """A pause, for good or for a while."""

    until: Annotated[Moment | None, says("when the pause ends by itself")] = None
    seconds: Annotated[LeaseSeconds | None, says("the same, counted from now")] = None


class Nothing(Body):
    """No field at all."""


class Watch(Body):
    """Which jobs to tell of, by their ids; and whether of all that happens, in which queue."""

    job: Annotated[str, says("the id of a job to follow")] = ""
    watch: Annotated[
        str, Meta(max_length=4000), says("ids of up to 100 jobs to follow, with commas")
    ] = ""
    activity: Annotated[bool, says("send every event of every job")] = False
    queue: Annotated[_Queue, says("with activity: of this queue alone")] = ""


class Pausing(Reason):
    """Whether a schedule is paused."""

    paused: bool | UnsetType = UNSET


NewSchedule = body(records.NewSchedule, "A schedule, whole.", leave_out=("name",))
ChangedSchedule = changes(
    records.NewSchedule,
    "ChangedSchedule",
    "What to change of a schedule, and whether it is paused.",
    leave_out=("name",),
    never_null=("cron", "every", "anchor", "options"),
    more=Pausing,
)


class LaneOf(Body):
    """The queue that a lane is of."""

    queue: Annotated[QueueName, says("the queue of the lane")] = "default"


class Anomalies(Body):
    """Which anomalies: those that last, or those that are over."""

    over: Annotated[bool, says("those that are over, of the last week")] = False
    limit: Annotated[int, Meta(ge=1, le=500), says("how many")] = 100


class Noted(Body):
    """A word to those who look later."""

    note: Text | None = None


class Muted(Body):
    """Silence, for good or for a while, of one anomaly or all that its detector finds."""

    seconds: LeaseSeconds | None = None
    reason: Text | None = None
    all: Annotated[bool, says("all that its detector finds, not only this one")] = False


class Unmuted(Body):
    """The end of a silence, of one anomaly or all that its detector finds."""

    all: Annotated[bool, says("all that its detector finds, not only this one")] = False


class Tuned(Body):
    """How closely a detector looks, at all queues or one; null goes back to what is usual."""

    enabled: bool | None = None
    thresholds: dict[str, Annotated[float, Meta(ge=0, le=1e9)] | None] = field(default_factory=dict)
    queue: QueueName | None = None


class Forecast(Body):
    """Of which queue, to be drained within which target, at the pace of how long."""

    queue: Annotated[_Queue, says("only this queue")] = ""
    target: Annotated[
        Annotated[float, Meta(ge=1, le=2_592_000)] | None, says("seconds to drain it in")
    ] = None
    span: Annotated[float, Meta(ge=10, le=86400), says("seconds to take the pace from")] = 300.0


class Previewed(Body):
    """One verb for all jobs that match a filter."""

    op: Verb
    q: Annotated[str, Meta(min_length=1, max_length=2000), says("a filter")]
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000)] | None,
        says("only so many, the newest: to see first whether it works"),
    ] = None
    delay: Annotated[Seconds | None, says("of a retry: seconds until they may run")] = None
    queue: Annotated[QueueName | None, says("where to move them")] = None
    reason: Text | None = None


class Started(Body):
    """A preview to be carried out, at a rate such as `200/s` or 200."""

    preview_token: str
    rate: Pace = None


class Drained(Body):
    """All that waits in a queue, cancelled."""

    reason: Text | None = None
    rate: Pace = None


class Undone(Body):
    """An operation, undone."""

    reason: Text | None = None
    rate: Pace = None


class NewToken(Body):
    """A token for a program."""

    name: Name
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=5)] | None = None
    role: Annotated[Literal["viewer", "operator", "admin"] | None, says("instead of scopes")] = None
    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=100)] | None = None
    expires: Annotated[LeaseSeconds | None, says("seconds until it expires")] = None


class SignIn(Body):
    """A token that a browser shows once, for a session."""

    token: Annotated[str, Meta(max_length=200)]


class Link(Body):
    """The link that signs in once."""

    link: Annotated[str, Meta(max_length=200), says("what holdfast serve printed")] = ""


class Begin(Body):
    """The page to show once somebody is signed in."""

    next: Annotated[str, Meta(max_length=2000), says("the page to show after signing in")] = ""


class Returned(Body, forbid_unknown_fields=False):
    """What an identity provider sends a browser back with; some add more."""

    code: Annotated[str, Meta(max_length=4000), says("what the provider gave, for one use")] = ""
    state: Annotated[str, Meta(max_length=200), says("what this server sent with the request")] = ""
    iss: Annotated[str, Meta(max_length=2000), says("which provider answers")] = ""
    error: Annotated[str, Meta(max_length=200), says("why the sign-in failed")] = ""
    error_description: Annotated[str, Meta(max_length=2000), says("the same for people")] = ""


class Series(Body):
    """Which numbers over time."""

    metric: Annotated[
        Metric,
        says("done, enqueued and failed are per second; oldest and the quantiles are seconds"),
    ] = "done"
    queue: Annotated[_Queue, says("only this queue")] = ""
    kind: Annotated[_Kind, says("only this kind")] = ""
    start: Annotated[
        Annotated[float, Meta(ge=0, le=253_000_000_000)] | Moment | None,
        says("the first point; a time or unix seconds"),
    ] = field(default=None, name="from")
    step: Annotated[int, Meta(ge=1, le=86400), says("seconds between points")] = 10


class Asked(Body):
    """Which events of the activity log."""

    queue: Annotated[_Queue, says("only this queue")] = ""
    kind: Annotated[_Kind, says("only jobs of this kind")] = ""
    event: Annotated[str, Meta(max_length=50), says("such as nacked, retried or paused")] = ""
    actor: Annotated[str, Meta(max_length=200), says("what this person or program did")] = ""
    worker: Annotated[str, Meta(max_length=200), says("what this worker ran")] = ""
    job: Annotated[str, Meta(max_length=36), says("the history of this job")] = ""
    start: Annotated[Moment | None, says("not before this time")] = field(default=None, name="from")
    end: Annotated[Moment | None, says("before this time")] = field(default=None, name="until")
    cursor: Annotated[_Place, says("that of the page before")] = ""
    after: Annotated[_Place, says("behind this place in the log, the oldest first")] = ""
    limit: Annotated[int, Meta(ge=1, le=500), says("how many")] = 100


class NewStrike(Body):
    """A rule by which jobs do not run."""

    mode: Annotated[Literal["hold", "skip"], says("keep them waiting, or cancel them")] = "hold"
    queue: QueueName | None = None
    kind: Name | None = None
    payload: Annotated[dict[str, Any] | None, says("what their payload contains")] = None
    reason: Text | None = None
    expires: Annotated[LeaseSeconds | None, says("seconds until it ends by itself")] = None


class Strikes(Body):
    """Which strikes."""

    all: Annotated[bool, says("also those that are over")] = False


class Limit(Body):
    """How many at most."""

    limit: Annotated[int, Meta(ge=1, le=500), says("how many")] = 100


class Empty(Body):
    """No parameter at all."""
