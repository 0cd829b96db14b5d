"""What requests may contain, field by field; unknown fields are refused by name."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from holdfast import records
from holdfast.records import Scope
from holdfast.records.fields import Label, Moment, Name, QueueName, Text, says
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

# Parts of a path, by name.
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
# How many of them one request may have; its handler refuses more.
MOST_JOBS = 10_000


class NewWorkflow(Body):
    """A workflow to start, with its jobs."""

    name: Annotated[Name, says("what it is called; many may have the same name")]
    key: Annotated[Label | None, says("at most one live workflow of a name can have it")] = None
    deadline: Annotated[
        Seconds | None, says("seconds after which everything that has not ended is cancelled")
    ] = None
    child_of: Annotated[UUID | None, says("a job that it goes with: cancelled if that is")] = None
    jobs: Annotated[
        list[msgspec.Raw],
        Meta(extra_json_schema={"maxItems": MOST_JOBS, "default": []}),
        says("its jobs; none may have a `workflow` of its own"),
    ] = field(default_factory=list)


class NewEvent(Body):
    """An event, for the job that has waited longest for its name and key."""

    name: Annotated[Name, says("which event")]
    key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=500)] | None, says("of what it tells")
    ] = None
    payload: Annotated[msgspec.Raw | UnsetType, says("what the job receives")] = UNSET
    keep: Annotated[
        Annotated[float, Meta(ge=0, le=31_536_000)],
        says("seconds for which it is kept if no job waits"),
    ] = 604_800.0
    everyone: Annotated[bool, says("for all jobs that wait now; it is not kept")] = False


class NewReplyLink(Body):
    """A link by which somebody without an account answers one wait of a job."""

    step: Annotated[Name, says("the name of the wait")]
    question: Annotated[
        Annotated[str, Meta(max_length=2000)] | None, says("shown with the form")
    ] = None
    expires: Annotated[
        Annotated[float, Meta(gt=0, le=31_536_000)], says("seconds until it expires")
    ] = 604_800.0


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
    result: Annotated[
        msgspec.Raw | UnsetType, says("stored with the job, if done jobs are kept")
    ] = UNSET
    keep: Annotated[bool, says("keep the job even if its queue does not keep done jobs")] = False


class Nacked(Body):
    """The end of a lease with failure."""

    token: str
    error: Failure | str | None = None
    retry_in: Annotated[
        Seconds | None, says("seconds until the next attempt; by default the queue's backoff")
    ] = None
    final: Annotated[bool, says("the job is dead now, even if it has attempts left")] = False


class Released(Body):
    """A job returned without running it."""

    token: str
    delay: Seconds | None = None


class NewProgress(Body):
    """The progress of a job."""

    done: float | None = None
    total: float | None = None
    note: str | None = None


class Touched(Body):
    """A lease to extend."""

    token: str
    lease: LeaseSeconds | None = None
    progress: NewProgress | None = None
    log: Annotated[
        Annotated[list[str], Meta(max_length=1000)] | None,
        says("lines to show with the job while it runs"),
    ] = None


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


class PlainAck(Body):
    """One of many leases that end with success, with nothing to store: what most of them are."""

    id: UUID
    token: UUID
    verb: Literal["ack"]


class Settlements(Body):
    """Many leases to end, each with its own verb."""

    items: Annotated[list[msgspec.Raw], Meta(max_length=1000)]


class Page(Body):
    """Parameters of a list."""

    q: Annotated[str, Meta(max_length=2000), says("a filter: state:dead kind:send* age:<2h")] = ""
    limit: Annotated[int, Meta(ge=1, le=500), says("jobs on a page")] = 50
    cursor: Annotated[str, Meta(max_length=200), says("the cursor of the previous page")] = ""
    count: Annotated[bool, says("also count all matching jobs")] = False


class DeadPage(Page):
    """Parameters of a list of dead jobs: newest first, or the most recent failure first."""

    order: Annotated[
        Literal["enqueued", "failed"], says("by when they were enqueued or failed, newest first")
    ] = "enqueued"


class WorkflowPage(Body):
    """Parameters of a list of workflows."""

    name: Annotated[str, says("only workflows of this name")] = ""
    key: Annotated[str, says("only workflows with this key")] = ""
    state: Annotated[
        Literal["", "running", "waiting", "done", "failed", "cancelled"], says("only in this state")
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=500), says("workflows on a page")] = 50
    cursor: Annotated[str, Meta(max_length=200), says("the cursor of the previous page")] = ""


class WorkflowJobs(Body):
    """Parameters of the list of jobs of a workflow."""

    group: Annotated[str, says("only the jobs of this group")] = ""
    state: Annotated[
        Literal["", "queued", "leased", "done", "dead", "cancelled"], says("only in this state")
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=500), says("jobs on a page")] = 50
    cursor: Annotated[
        str, Meta(pattern="^[0-9]{0,18}$"), says("the cursor of the previous page")
    ] = ""


class Upcoming(Body):
    """How many of the next jobs."""

    limit: Annotated[int, Meta(ge=1, le=500), says("how many")] = 50


class OneJob(Body):
    """What else to include with a job."""

    include: Annotated[str, says("attempts, events, steps, separated by commas")] = ""


class LinesOf(Body):
    """Which lines of a job's log."""

    after: Annotated[int, Meta(ge=0, le=2**31 - 1), says("behind the line of this number")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000), says("only so many, the newest")] = 1000


class Reason(Body):
    """The reason of an action, for the activity log."""

    reason: Annotated[Text | None, says("recorded in the activity log")] = None


class WorkflowRetried(Reason):
    """Retries what failed in a workflow."""

    from_job: Annotated[UUID | None, says("only this job and those that follow it")] = None


EDITABLE = ("payload", "priority", "run_at", "max_attempts", "lease", "headers")
Edited = changes(
    records.NewJob,
    "Edited",
    "Changes of a queued or dead job; moving it to another queue changes its id.",
    only=(*EDITABLE, "queue"),
    more=Reason,
)


class Retried(Reason):
    """When to retry a job."""

    delay: Annotated[Seconds | None, says("seconds until it may run")] = None
    fresh: Annotated[bool, says("forget its steps: start from nothing")] = False


class Paused(Reason):
    """A pause, forever or for a while."""

    until: Annotated[Moment | None, says("when the pause ends automatically")] = None
    seconds: Annotated[LeaseSeconds | None, says("the same, counted from now")] = None


class Nothing(Body):
    """No fields."""


class Watch(Body):
    """Which jobs to follow, by their ids; or all events, of all queues or one."""

    job: Annotated[str, says("the id of a job to follow")] = ""
    watch: Annotated[
        str, Meta(max_length=4000), says("ids of up to 100 jobs to follow, separated by commas")
    ] = ""
    activity: Annotated[bool, says("send every event of every job")] = False
    queue: Annotated[_Queue, says("with activity: only of this queue")] = ""


class Pausing(Reason):
    """Whether a schedule is paused."""

    paused: bool | UnsetType = UNSET


NewSchedule = body(records.NewSchedule, "A complete schedule.", leave_out=("name",))
ChangedSchedule = changes(
    records.NewSchedule,
    "ChangedSchedule",
    "Changes of a schedule, and whether it is paused.",
    leave_out=("name",),
    never_null=("cron", "every", "anchor", "options"),
    more=Pausing,
)


class LaneOf(Body):
    """The queue of a lane."""

    queue: Annotated[QueueName, says("the queue of the lane")] = "default"


class Anomalies(Body):
    """Which anomalies: current or resolved ones."""

    over: Annotated[bool, says("resolved ones of the last week")] = False
    limit: Annotated[int, Meta(ge=1, le=500), says("how many")] = 100


class Noted(Body):
    """A note for other operators."""

    note: Text | None = None


class Muted(Body):
    """A mute, forever or for a while, of one anomaly or of everything its detector finds."""

    seconds: LeaseSeconds | None = None
    reason: Text | None = None
    all: Annotated[bool, says("all that its detector finds, not only this one")] = False


class Unmuted(Body):
    """The end of a mute, of one anomaly or of everything its detector finds."""

    all: Annotated[bool, says("all that its detector finds, not only this one")] = False


class Tuned(Body):
    """Settings of a detector, for all queues or one; null restores the default."""

    enabled: bool | None = None
    thresholds: dict[str, Annotated[float, Meta(ge=0, le=1e9)] | None] = field(default_factory=dict)
    queue: QueueName | None = None


class Forecast(Body):
    """Parameters of a forecast: the queue, the target time, and the span of the pace."""

    queue: Annotated[_Queue, says("only this queue")] = ""
    target: Annotated[
        Annotated[float, Meta(ge=1, le=2_592_000)] | None,
        says("seconds in which it should be empty"),
    ] = None
    span: Annotated[
        float, Meta(ge=10, le=86400), says("seconds over which the pace is measured")
    ] = 300.0


class Previewed(Body):
    """One verb for all jobs that match a filter."""

    op: Verb
    q: Annotated[str, Meta(min_length=1, max_length=2000), says("a filter")]
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000)] | None,
        says("only this many of the newest jobs, to try it first"),
    ] = None
    delay: Annotated[Seconds | None, says("for a retry: seconds until they may run")] = None
    queue: Annotated[QueueName | None, says("where to move them")] = None
    reason: Text | None = None


class Started(Body):
    """A preview to start, at a rate such as `200/s` or 200."""

    preview_token: str
    rate: Pace = None


class Drained(Body):
    """Cancels all queued jobs of a queue."""

    reason: Text | None = None
    rate: Pace = None


class Undone(Body):
    """Undoes an operation."""

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
    """A token that a browser exchanges for a session."""

    token: Annotated[str, Meta(max_length=200)]


class Link(Body):
    """A link that works once."""

    link: Annotated[str, Meta(max_length=200), says("the secret in the link")] = ""


class Begin(Body):
    """The page to show after signing in."""

    next: Annotated[str, Meta(max_length=2000), says("the page to show after signing in")] = ""


class Returned(Body, forbid_unknown_fields=False):
    """The parameters with which an identity provider redirects a browser; some add more."""

    code: Annotated[str, Meta(max_length=4000), says("the one-time code of the provider")] = ""
    state: Annotated[str, Meta(max_length=200), says("the state that this server sent")] = ""
    iss: Annotated[str, Meta(max_length=2000), says("the provider that responds")] = ""
    error: Annotated[str, Meta(max_length=200), says("why the sign-in failed")] = ""
    error_description: Annotated[str, Meta(max_length=2000), says("the same in words")] = ""


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
    actor: Annotated[str, Meta(max_length=200), says("only actions of this user or program")] = ""
    worker: Annotated[str, Meta(max_length=200), says("only jobs that this worker ran")] = ""
    job: Annotated[str, Meta(max_length=36), says("the history of this job")] = ""
    start: Annotated[Moment | None, says("at or after this time")] = field(
        default=None, name="from"
    )
    end: Annotated[Moment | None, says("before this time")] = field(default=None, name="until")
    cursor: Annotated[_Place, says("the cursor of the previous page")] = ""
    after: Annotated[_Place, says("after this position in the log, the oldest first")] = ""
    limit: Annotated[int, Meta(ge=1, le=500), says("how many")] = 100


class NewStrike(Body):
    """A rule that keeps jobs from running."""

    mode: Annotated[Literal["hold", "skip"], says("keep them waiting, or cancel them")] = "hold"
    queue: QueueName | None = None
    kind: Name | None = None
    payload: Annotated[dict[str, Any] | None, says("what their payload contains")] = None
    reason: Text | None = None
    expires: Annotated[LeaseSeconds | None, says("seconds until it ends automatically")] = None


class Strikes(Body):
    """Which strikes."""

    all: Annotated[bool, says("also those that have ended")] = False


class Limit(Body):
    """How many at most."""

    limit: Annotated[int, Meta(ge=1, le=500), says("how many")] = 100


class Empty(Body):
    """No parameters."""
