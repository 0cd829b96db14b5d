"""The routes of Relay for producers and consumers, as names for the same handlers.

A message is a job, its type is the kind, its lock token the token. Each handler puts a request into
our words and the answer into Relay's; nothing here changes a job by itself. `look` and `operate`
have the other routes, `queues` what Relay expects of a queue.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field
from starlette.responses import Response

from holdfast.errors import HoldfastError
from holdfast.records import defaults
from holdfast.records.fields import Attempts, Name, Priority, QueueName, says
from holdfast.server.api import consume, produce
from holdfast.server.http import inputs, render
from holdfast.server.http.derive import Body
from holdfast.server.http.inputs import LeaseSeconds
from holdfast.server.http.problems import Problem, problem_of
from holdfast.server.http.request import Answer, Handler, Request, decoded
from holdfast.server.relay import queues
from holdfast.server.relay.words import STATUSES, UNTYPED, type_of

# The lock time of a queue without settings.
ACK_TIMEOUT = defaults.LEASE.total_seconds()
# The states of messages, as in their addresses.
STATES = {
    "main": "queued",
    "processing": "leased",
    "dead": "dead",
    "acknowledged": "done",
    "archived": "archived",
}
State = Literal["main", "processing", "dead", "acknowledged", "archived"]
ERRORS = {
    "HF300": "LOCK_LOST",
    "HF310": "NOT_FOUND",
    "HF311": "NOT_FOUND",
    "HF317": "NOT_FOUND",
    "HF410": "NOT_FOUND",
    "HF409": "INVALID_STATE",
    "HF222": "UPDATE_FAILED",
}
Ids = Annotated[list[str], Meta(min_length=1, max_length=1000)]


class NewMessage(Body):
    """A message to enqueue."""

    payload: msgspec.Raw
    type: Name | None = None
    priority: Priority = 0
    queue: QueueName = "default"
    max_attempts: Attempts | None = None
    attempts: Attempts | None = field(default=None, name="maxAttempts")
    ack_timeout_seconds: LeaseSeconds | None = None
    ack_timeout: LeaseSeconds | None = field(default=None, name="ackTimeout")


class Batch(Body):
    """Messages to enqueue together."""

    messages: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=10_000)]


class Imported(NewMessage, forbid_unknown_fields=False):
    """A message as it was exported; fields that cannot be set are ignored."""


class Dequeue(Body):
    """What a consumer requests."""

    timeout: Annotated[float, Meta(ge=0, le=60), says("seconds to wait for a message")] = 0
    type: Annotated[Name | None, says("only of this type")] = None
    queue: Annotated[QueueName, says("only of this queue")] = "default"
    consumer: Annotated[Name | None, says("who asks")] = field(default=None, name="consumerId")
    consumer_id: Annotated[Name, says("the same, if consumerId is not there")] = "anonymous"
    ack_timeout: Annotated[LeaseSeconds | None, says("seconds that the lock lasts")] = field(
        default=None, name="ackTimeout"
    )
    ack_timeout_seconds: Annotated[
        LeaseSeconds | None, says("the same, if ackTimeout is not there")
    ] = None


class DequeueMany(Dequeue):
    """What a consumer of several messages requests."""

    count: Annotated[int, Meta(ge=1, le=100), says("how many at most")] = 10


class Acknowledged(Body):
    """A message that was processed."""

    lock_token: str
    result: msgspec.Raw | UnsetType = UNSET


class AcknowledgedById(Body):
    """A message that was processed, named in the body."""

    id: str
    lock_token: str
    result: msgspec.Raw | UnsetType = UNSET


class NotAcknowledged(Body):
    """A message that could not be processed."""

    lock_token: str
    error: str | None = None
    reason: str | None = field(default=None, name="errorReason")
    retry_in: inputs.Seconds | None = None


class NotAcknowledgedById(NotAcknowledged, kw_only=True):
    """A message that could not be processed, named in the body."""

    id: str


class MessageSettlements(Body):
    """Messages that were processed, or could not be, each with its token."""

    messages: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=1000)]


class TouchedMessage(Body):
    """A lock to be held for longer."""

    lock_token: str
    extend_seconds: LeaseSeconds | None = None


async def enqueue(request: Request) -> Answer:
    """Enqueue a message."""
    said: NewMessage = request.body
    await queues.make(request, [said.queue])
    request.body = _job(said)
    answer = await produce.enqueue(request)
    told = {
        "id": answer.document["id"],
        "type": said.type,
        "queue": said.queue,
        "priority": said.priority,
        "status": "queued",
    }
    return Answer(told, 201)


async def batch(request: Request) -> Answer:
    """Enqueue messages; those that cannot be stored are listed in `errors`."""
    return await _store(request, NewMessage)


async def restore(request: Request) -> Answer:
    """Enqueue messages that were exported, with new ids.

    Whatever state they were exported from, they are queued. Fields that cannot be set are
    ignored.
    """
    return await _store(request, Imported)


async def dequeue(request: Request) -> Answer:
    """Lock one message, at once or within `timeout` seconds; 404 if there is none."""
    asked: Dequeue = request.query
    messages = await _dequeue(request, asked, 1)
    if not messages:
        raise Problem(404, "HF317", f"no message in queue {asked.queue!r}")
    return Answer(messages[0])


async def dequeue_many(request: Request) -> Answer:
    """Lock up to `count` messages, at once or within `timeout` seconds."""
    asked: DequeueMany = request.query
    messages = await _dequeue(request, asked, asked.count)
    return Answer({"messages": messages, "count": len(messages)})


async def ack(request: Request) -> Answer:
    """Acknowledge a message."""
    said: Acknowledged | AcknowledgedById = request.body
    if isinstance(said, AcknowledgedById):
        request.http.path_params["id"] = said.id
    request.body = inputs.Acked(token=said.lock_token, result=said.result)
    return _settled(await consume.ack(request))


async def nack(request: Request) -> Answer:
    """Report a message as failed; it is queued again, or dead."""
    said: NotAcknowledged = request.body
    error = said.reason if said.error is None else said.error
    request.body = inputs.Nacked(token=said.lock_token, error=error, retry_in=said.retry_in)
    return _settled(await consume.nack(request))


async def ack_many(request: Request) -> Answer:
    """Acknowledge messages; each has its own answer."""
    results = await _settle(request, AcknowledgedById)
    done = sum(one["success"] for one in results)
    return Answer({"succeeded": done, "failed": len(results) - done, "results": results})


async def nack_many(request: Request) -> Answer:
    """Report messages as failed; each has its own answer."""
    results = await _settle(request, NotAcknowledgedById)
    done = sum(one["success"] for one in results)
    return Answer(
        {
            "succeeded": done,
            "failed": len(results) - done,
            "requeued": sum(one.get("status") == "queued" for one in results),
            "movedToDlq": sum(one.get("status") == "dead" for one in results),
            "results": results,
        }
    )


async def touch(request: Request) -> Answer:
    """Extend a lock; one that lasts longer already is left as it is."""
    said: TouchedMessage = request.body
    request.body = inputs.Touched(token=said.lock_token, lease=said.extend_seconds)
    told = (await consume.touch(request)).document
    until: datetime = told["lease_until"]
    by: float | None = said.extend_seconds if told["extended"] else 0
    if by is None:
        by = round((until - await request.reads.now()).total_seconds(), 3)
    return Answer(told | {"locked_until": until, "new_timeout_at": until, "extended_by": by})


def worded(handler: Handler) -> Handler:
    """Wrap a handler so that errors have Relay's code, and ours in addition."""

    @wraps(handler)
    async def answered(request: Request) -> Answer | Response:
        try:
            return await handler(request)
        except HoldfastError as error:
            problem = problem_of(error)
            if word := ERRORS.get(problem.code):
                problem.facts |= {"code": word, "error": word, "holdfast_code": problem.code}
            raise problem from error

    return answered


def message_of(job: Mapping[str, Any], timeout: Callable[[str], float]) -> dict[str, Any]:
    """Return a job of a list as a message; `timeout` returns the lock time of its queue.

    Lists do not contain the token, which is only for the holder.
    """
    lease = job["lease"]
    told = {
        "id": job["id"],
        "type": type_of(job["kind"]),
        "payload": job["payload"],
        "queue": job["queue"],
        "priority": job["priority"],
        "status": STATUSES[job["state"]],
        "attempt_count": job["attempt"],
        "max_attempts": job["max_attempts"],
        "ack_timeout_seconds": whole(timeout(job["queue"]) if lease is None else lease),
        "locked_until": job["lease_until"],
        "consumer_id": job["worker"],
        "created_at": job["created_at"],
        "dequeued_at": None,
        "acknowledged_at": job["ended_at"] if job["state"] == "done" else None,
        "last_error": job["error"],
    }
    shortened = ("payload_preview", "payload_size")
    return told | {name: job[name] for name in shortened if name in job}


def whole(seconds: float) -> float:
    """Return seconds without a fraction if they have none, as the source has them."""
    return int(seconds) if seconds == int(seconds) else seconds


async def _store(request: Request, kind: type[NewMessage]) -> Answer:
    said: Batch = request.body
    found = [_read(bytes(item), kind) for item in said.messages]
    names = {one.queue for one in found if not isinstance(one, Problem)}
    await queues.make(request, [name for name in sorted(names) if request.user.sees(name)])
    return _stored(await produce.store(request, found, _checked))


def _read(item: bytes, kind: type[NewMessage]) -> Any:
    """Return the job that a message is, or why it is none."""
    try:
        return _job(decoded(item, kind, where="message"))
    except Problem as problem:
        return problem


def _checked(found: Any) -> Any:
    if isinstance(found, Problem):
        raise found
    return found


async def timeouts(request: Request) -> Callable[[str], float]:
    """Return a function for how long messages of a queue are locked without their own setting.

    For a queue with the default lease, the setting of the server applies.
    """
    usual = request.live.settings.ack_timeout
    known = {one.queue: one.lease.total_seconds() for one in await request.live.queues()}

    def timeout(queue: str) -> float:
        lease = known.get(queue, ACK_TIMEOUT)
        return lease if usual is None or lease != ACK_TIMEOUT else usual

    return timeout


async def _ack_timeout(request: Request, queue: str) -> float | None:
    if request.live.settings.ack_timeout is None:
        return None
    return (await timeouts(request))(queue)


async def _dequeue(request: Request, asked: Dequeue, count: int) -> list[dict[str, Any]]:
    lease = asked.ack_timeout or asked.ack_timeout_seconds
    if asked.type is not None and request.user.sees(asked.queue):
        await queues.sort_by_type(request, asked.queue)
    request.body = inputs.NewClaim(
        worker=asked.consumer or asked.consumer_id,
        queues=[asked.queue],
        kinds=None if asked.type is None else [asked.type],
        limit=count,
        lease=lease or await _ack_timeout(request, asked.queue),
        wait=asked.timeout,
    )
    return [_message(lease) for lease in (await consume.claim(request)).document["leases"]]


async def _settle(
    request: Request, wanted: type[AcknowledgedById] | type[NotAcknowledgedById]
) -> list[dict[str, Any]]:
    said: MessageSettlements = request.body
    results: list[dict[str, Any]] = [{} for _ in said.messages]
    wanted_at: list[int] = []
    items = []
    for nth, item in enumerate(said.messages):
        try:
            items.append(_settlement(decoded(bytes(item), wanted, where="message")))
            wanted_at.append(nth)
        except Problem as problem:
            told = {"id": None, "success": False, "code": problem.code, "error": problem.what}
            results[nth] = told
    request.body = inputs.Settlements(items=items)
    settled = (await consume.settle(request)).document["results"]
    for nth, one in zip(wanted_at, settled, strict=True):
        results[nth] = _result(one)
    return results


def _settlement(said: AcknowledgedById | NotAcknowledgedById) -> msgspec.Raw:
    told: dict[str, Any] = {"id": said.id, "token": said.lock_token}
    if isinstance(said, AcknowledgedById):
        told |= {"verb": "ack"} | ({} if said.result is UNSET else {"result": said.result})
    else:
        error = said.reason if said.error is None else said.error
        told |= {"verb": "nack", "error": error, "retry_in": said.retry_in}
    return msgspec.Raw(render.encode(told))


def _result(one: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"id": one.get("id"), "success": one["ok"]}
    if one["ok"]:
        return told | {"status": STATUSES.get(one.get("state", ""))}
    code = ERRORS.get(one["code"], one["code"])
    return told | {"code": code, "error": one["detail"] or code}


def _job(said: NewMessage) -> Any:
    return inputs.NewJob(
        kind=said.type or UNTYPED,
        payload=said.payload,
        queue=said.queue,
        priority=said.priority,
        max_attempts=said.attempts or said.max_attempts,
        lease=said.ack_timeout or said.ack_timeout_seconds,
    )


def _stored(answer: Answer) -> Answer:
    told = dict(answer.document)
    told["messages"] = [{"id": job["id"], "status": "queued"} for job in told.pop("jobs")]
    return Answer(told, 201)


def _message(lease: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": lease["id"],
        "type": type_of(lease["kind"]),
        "payload": lease["payload"],
        "queue": lease["queue"],
        "priority": lease["priority"],
        "status": "processing",
        "attempt_count": lease["attempt"],
        "max_attempts": lease["max_attempts"],
        "lock_token": lease["token"],
        "locked_until": lease["lease_until"],
        "consumer_id": lease["worker"],
        "created_at": lease["created_at"],
        "dequeued_at": lease["lease_until"] - timedelta(seconds=lease["length"]),
        "acknowledged_at": None,
        "ack_timeout_seconds": whole(lease["length"]),
        "last_error": lease.get("error"),
    }


def _settled(answer: Answer) -> Answer:
    told = dict(answer.document)
    told["status"] = STATUSES.get(told.pop("state"), "queued")
    if "attempt" in told:
        told["attempt_count"] = told.pop("attempt")
    return Answer(told, answer.status)
