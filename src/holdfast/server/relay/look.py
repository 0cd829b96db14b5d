"""Looking, in the words of Relay: counts, lists, exports, activity, consumers, queues."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from holdfast.records.fields import Moment, Name, QueueName, says
from holdfast.server.api import look, produce
from holdfast.server.api.operate import quoted
from holdfast.server.http import inputs
from holdfast.server.http.derive import Body
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request
from holdfast.server.relay.messages import STATES, message_of, timeouts, whole
from holdfast.server.relay.words import STATUSES, actions_of, type_of

# Messages that a list can be paged through by number, and that it can be sorted among.
REACH = 10_000
SORTED = 1000
# Looks that one request takes at most, and messages of each.
LOOKS = 40
STRIDE = 500
# Messages of each state beside their counts.
INCLUDED = 100
# The fields of a queue without settings.
ATTEMPTS = 3
PRIORITIES = 10

_Number = Annotated[str, Meta(pattern=r"^(?:>=|<=|>|<)?[0-9]{1,9}\Z", max_length=11)]

_Start = Annotated[Moment | None, says("enqueued at this time or later")]
_End = Annotated[Moment | None, says("enqueued at this time or earlier")]
_OfQueue = Annotated[QueueName | None, says("only of this queue")]
_Cursor = Annotated[str, Meta(max_length=200), says("the next_cursor of the answer before")]


class Filters(Body):
    """Which messages of a state."""

    kind: Annotated[Name | None, says("only of this type")] = field(default=None, name="filterType")
    priority: Annotated[_Number | None, says("a number, or one such as >=5")] = field(
        default=None, name="filterPriority"
    )
    attempts: Annotated[_Number | None, says("a number, or one such as >2")] = field(
        default=None, name="filterAttempts"
    )
    start_date: _Start = field(default=None, name="startDate")
    end_date: _End = field(default=None, name="endDate")
    start: _Start = None
    end: _End = None
    search: Annotated[
        str,
        Meta(max_length=200),
        says("a text in the last error; or an id, or its last eight digits or more"),
    ] = ""
    queue: _OfQueue = None


class Listed(Filters):
    """Which page of them, in which order."""

    page: Annotated[int, Meta(ge=1, le=REACH), says("the first is 1")] = 1
    limit: Annotated[int, Meta(ge=1, le=1000), says("messages on a page")] = 100
    sort: Annotated[
        Literal["created_at", "priority", "attempt_count", "type"], says("what to sort by")
    ] = "created_at"
    order: Annotated[Literal["asc", "desc"], says("in which direction")] = "desc"


class Exported(Filters):
    """How many of them, and behind which."""

    limit: Annotated[int, Meta(ge=1, le=STRIDE), says("how many at most")] = STRIDE
    cursor: _Cursor = ""


class Range(Body):
    """Messages that were enqueued between two moments."""

    start: _Start = None
    end: _End = None
    queue: _OfQueue = None


class RangePage(Range):
    """A page of them."""

    limit: Annotated[int, Meta(ge=1, le=STRIDE), says("how many at most")] = 100
    cursor: _Cursor = ""


class Included(Body):
    """Whether to include messages with the counts."""

    include_messages: Annotated[bool, says("also list the newest hundred of each state")] = False


async def status(request: Request) -> Answer:
    """Count messages by status, and list the newest of each if requested."""
    asked: Included = request.query
    counts: dict[str, Any] = dict.fromkeys(
        ("queued", "processing", "acknowledged", "dead", "archived"), 0
    )
    for queue in (await look.queues(request)).document["queues"]:
        for state, name in STATUSES.items():
            if name in counts:
                counts[name] += queue[state]
    if asked.include_messages:
        counts["messages"] = {
            name: (await _walk(request, f"state:{state}", 0, INCLUDED))["messages"]
            for name, state in STATES.items()
        }
    return Answer(counts)


async def metrics(request: Request) -> Answer:
    """Count messages by status and queue, with the age of the oldest."""
    queues = (await look.queues(request)).document["queues"]
    return Answer(
        {
            "queues": [
                {
                    "queue": queue["queue"],
                    **{name: queue[state] for state, name in STATUSES.items()},
                    "oldest_seconds": queue["oldest"],
                }
                for queue in queues
            ]
        }
    )


async def messages(request: Request) -> Answer:
    """List messages of all states that were enqueued between two times, newest first."""
    asked: RangePage = request.query
    filter = range_filter(asked.start, asked.end, asked.queue)
    request.query = inputs.Page(q=filter, limit=asked.limit, cursor=asked.cursor)
    told = (await look.jobs(request)).document
    found = await _messages(request, told["jobs"])
    return Answer({"messages": found, "next_cursor": told["cursor"]})


async def listed(request: Request) -> Answer:
    """List messages of a state, page by page.

    Newest first, unless `sort` and `order` say otherwise: then the newest thousand are sorted,
    and `sorted_all` says whether these are all. Pages reach to the ten thousandth message.
    """
    asked: Listed = request.query
    filter = _filter(request, asked)
    skip = (asked.page - 1) * asked.limit
    if skip + asked.limit > REACH:
        raise Problem(
            422,
            "HF406",
            f"query: page {asked.page} of {asked.limit} is beyond the first {REACH} messages",
            fix="Narrow the list by startDate and endDate, filterType or queue.",
        )
    if (asked.sort, asked.order) == ("created_at", "desc"):
        told = await _walk(request, filter, skip, asked.limit, count=True)
    else:
        told = await _walk(request, filter, 0, SORTED, count=True)
        told |= {"sorted": len(told["messages"]), "sorted_all": told["next_cursor"] is None}
        told["messages"].sort(
            key=lambda one: (
                (one[asked.sort] or "", one["created_at"])
                if asked.sort == "type"
                else (one[asked.sort], one["created_at"])
            ),
            reverse=asked.order == "desc",
        )
        told["messages"] = told["messages"][skip : skip + asked.limit]
    total = told.pop("total")
    return Answer(
        told
        | {
            "pagination": {
                "page": asked.page,
                "limit": asked.limit,
                "total": total,
                "totalPages": -(-total // asked.limit),
                "capped": told.pop("capped"),
            }
        }
    )


async def export(request: Request) -> Answer:
    """Export messages of a state with their whole payloads, as a file that import takes."""
    asked: Exported = request.query
    request.query = inputs.Page(q=_filter(request, asked), limit=asked.limit, cursor=asked.cursor)
    told = (await look.export(request)).document
    state = request.part("state")
    document = {
        "state": state,
        "exported_at": datetime.now(UTC),
        "messages": await _messages(request, told["jobs"]),
        "next_cursor": told["cursor"],
    }
    return Answer(document, 200, {"Content-Disposition": f'attachment; filename="{state}.json"'})


async def config(request: Request) -> Answer:
    """Show the defaults of messages, and the limits of requests."""
    queues = (await look.queues(request)).document["queues"]
    usual: dict[str, Any] = next((one for one in queues if one["queue"] == "default"), {})
    return Answer(
        {
            "ack_timeout_seconds": whole((await timeouts(request))("default")),
            "max_attempts": usual.get("max_attempts", ATTEMPTS),
            "max_priority_levels": PRIORITIES,
            "max_batch_size": produce.MOST,
            "max_dequeue_count": 100,
            "max_timeout_seconds": 60,
            "body_limit": request.live.settings.body_limit,
            "queue_types": ["standard", "partitioned"],
            "states": list(STATES),
        }
    )


async def activity(request: Request) -> Answer:
    """List what happened, the newest first."""
    told = (await look.activity(request)).document
    activities = [one for event in told["events"] for one in _activities(event)]
    return Answer({"activities": activities, "next_cursor": told["cursor"]})


async def message_activity(request: Request) -> Answer:
    """List what happened to a message, the oldest first."""
    request.query = inputs.OneJob(include="attempts,events")
    job = (await look.job(request)).document
    # In the order of the log: a claim that takes back what had expired is dated before that.
    events = job["events"][::-1]
    if all(one["event"] != "enqueued" for one in events):
        # Not all its events were recorded: its own fields give those, and the log the actions on
        # it.
        done = [one for one in events if one["event"] not in ("nacked", "reaped")]
        events = sorted(_past(job) + done, key=lambda one: one["at"])
    told = [one for event in events for one in _activities(event)]
    return Answer({"message_id": job["id"], "status": STATUSES[job["state"]], "activities": told})


async def consumers(request: Request) -> Answer:
    """List consumers and how much each has done."""
    workers = (await look.workers(request)).document["workers"]
    return Answer(
        {
            "consumers": [
                {
                    "consumer_id": one["worker"],
                    "total_dequeued": one["claimed"],
                    "total_acknowledged": one["acked"],
                    "total_failed": one["failed"],
                    "last_seen_at": one["seen_at"],
                    "last_dequeue_at": one.get("claimed_at"),
                    "last_ack_at": one.get("acked_at"),
                    "alive": one["alive"],
                    "queues": one["queues"],
                }
                for one in workers
            ]
        }
    )


async def queues(request: Request) -> Answer:
    """List queues; a browser gets the page."""
    found = (await look.queues(request)).document["queues"]
    return Answer({"queues": [queue_of(one) for one in found]})


async def queue(request: Request) -> Answer:
    """Show one queue; a browser gets the page."""
    return Answer(queue_of((await look.queue(request)).document))


def queue_of(one: dict[str, Any]) -> dict[str, Any]:
    """Return a queue as Relay has it."""
    return {
        "name": one["queue"],
        "type": "standard" if one["fanout"] == 1 else "partitioned",
        "ack_timeout_seconds": one["lease"],
        "max_attempts": one["max_attempts"],
        "paused": one["paused_at"] is not None,
        "message_count": one["queued"],
        **{name: one[state] for state, name in STATUSES.items()},
    }


def state_of(request: Request) -> str:
    """Return the state in the path as our state; refuse an unknown one."""
    name = request.part("state")
    if name not in STATES:
        fix = f"States are: {', '.join(STATES)}."
        raise Problem(404, "HF404", f"state {name!r} does not exist", fix=fix)
    return STATES[name]


def range_filter(start: datetime | None, end: datetime | None, queue: str | None = None) -> str:
    """Return the filter for what was enqueued between two moments, both among them."""
    terms = [] if start is None else [f"created:>={_moment(start)}"]
    terms += [] if end is None else [f"created:<={_moment(end)}"]
    # Only an unquoted name restricts the search to the queue's part.
    plain = queue is not None and not set(queue) & set(' \t",*\\')
    terms += [] if queue is None else [f"queue:{queue if plain else quoted(queue)}"]
    return " ".join(terms)


def _filter(request: Request, asked: Filters) -> str:
    terms = [f"state:{state_of(request)}"]
    if asked.kind is not None:
        terms.append(f"kind:{quoted(asked.kind)}")
    terms += [] if asked.priority is None else [f"priority:{asked.priority}"]
    terms += [] if asked.attempts is None else [f"attempt:{asked.attempts}"]
    terms.append(
        range_filter(asked.start_date or asked.start, asked.end_date or asked.end, asked.queue)
    )
    if text := asked.search.strip():
        digits = text.replace("-", "").lower()
        is_id = 8 <= len(digits) <= 32 and set(digits) <= set("0123456789abcdef")
        terms.append(f"id:{text}" if is_id else quoted(text))
    return " ".join(term for term in terms if term)


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


async def _walk(
    request: Request, filter: str, skip: int, limit: int, *, count: bool = False
) -> dict[str, Any]:
    """Return a stretch of a list, which is looked through from its beginning, cursor by cursor."""
    found: list[dict[str, Any]] = []
    passed, cursor, first = 0, "", True
    told: dict[str, Any] = {}
    for _ in range(LOOKS):
        stride = min(STRIDE, skip + limit - passed)
        request.query = inputs.Page(q=filter, limit=stride, cursor=cursor, count=count and first)
        page = (await look.jobs(request)).document
        if count and first:
            told |= {"total": page["count"], "capped": page["capped"]}
        first = False
        found += page["jobs"][max(0, skip - passed) :]
        passed += len(page["jobs"])
        cursor = page["cursor"]
        if cursor is None or passed >= skip + limit:
            break
    return told | {"messages": await _messages(request, found), "next_cursor": cursor}


async def _messages(request: Request, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    timeout = await timeouts(request)
    return [message_of(job, timeout) for job in jobs]


def _activities(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an event as Relay has it; a last failure is two things."""
    told = {
        "timestamp": event["at"],
        "message_id": event.get("job"),
        "type": type_of(event.get("kind")),
        "queue": event.get("queue"),
        "consumer_id": event.get("worker"),
        "actor": event.get("actor"),
        "reason": event.get("reason"),
        "details": event.get("detail"),
    }
    actions = actions_of(event["event"], event.get("state"))
    return [told | {"action": action} for action in actions]


def _past(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events that follow from the fields of a job."""
    about = {"job": job["id"], "queue": job["queue"], "kind": job["kind"]}
    events = [about | {"at": job["created_at"], "event": "enqueued"}]
    for one in job.get("attempts", []):
        facts = about | {"worker": one["worker"], "reason": one["message"]}
        if one["started_at"] is not None:
            events.append(facts | {"at": one["started_at"], "event": "claimed", "reason": None})
        if one["ended_at"] is not None:
            events.append(facts | {"at": one["ended_at"], "event": one["outcome"]})
    if job["ended_at"] is not None:
        event = {"done": "acked", "dead": "died"}.get(job["state"], job["state"])
        events.append(about | {"at": job["ended_at"], "event": event, "worker": job["worker"]})
    return events
