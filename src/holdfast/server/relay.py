"""The other dialect: the routes and words of Relay, as names for the same handlers.

A message is a job, its type is the kind, its lock token the token. Each alias says how to put a
request into our words and an answer into theirs; nothing here talks to the database.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.server import bodies, consume, look, produce
from holdfast.server.bodies import Body, LeaseSeconds, Name, Priority, QueueName
from holdfast.server.call import Answer, Call, decoded
from holdfast.server.problems import Problem

# A message need not have a type; a job has a kind.
UNTYPED = "message"
STATUSES = {
    "queued": "queued",
    "leased": "processing",
    "done": "acknowledged",
    "dead": "dead",
    "archived": "archived",
    "cancelled": "cancelled",
}


class Message(Body):
    """A message to enqueue."""

    payload: msgspec.Raw
    type: Name | None = None
    priority: Priority = 0
    queue: QueueName = "default"
    max_attempts: bodies.Attempts | None = None
    ack_timeout_seconds: LeaseSeconds | None = None


class Batch(Body):
    """Messages to enqueue together."""

    messages: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=10_000)]


class Dequeue(Body):
    """What a consumer asks for."""

    timeout: Annotated[float, Meta(ge=0, le=60)] = 0
    type: Name | None = None
    queue: QueueName = "default"
    consumer_id: Name = "anonymous"
    ack_timeout_seconds: LeaseSeconds | None = None


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
    retry_in: bodies.Seconds | None = None


class TouchedMessage(Body):
    """A lock to be held for longer."""

    lock_token: str
    extend_seconds: LeaseSeconds | None = None


async def enqueue(call: Call) -> Answer:
    """Enqueue a message."""
    said: Message = call.said
    call.said = _job(said)
    answer = await produce.enqueue(call)
    told = {
        "id": answer.document["id"],
        "type": said.type,
        "queue": said.queue,
        "priority": said.priority,
        "status": "queued",
    }
    return Answer(told, 201)


async def batch(call: Call) -> Answer:
    """Enqueue messages; all of them are looked at, and those that cannot be stored are told."""
    said: Batch = call.said
    answer = await produce.store(call, map(bytes, said.messages), _read)
    told = dict(answer.document)
    told["messages"] = [{"id": job["id"], "status": "queued"} for job in told.pop("jobs")]
    return Answer(told, 201)


async def dequeue(call: Call) -> Answer:
    """Lock one message, at once or within `timeout` seconds; 404 when there is none."""
    asked: Dequeue = call.asked
    call.said = bodies.NewClaim(
        worker=asked.consumer_id,
        queues=[asked.queue],
        kinds=None if asked.type is None else [asked.type],
        lease=asked.ack_timeout_seconds,
        wait=asked.timeout,
    )
    leases = (await consume.claim(call)).document["leases"]
    if not leases:
        raise Problem(404, "HF317", f"no message in queue {asked.queue!r}")
    return Answer(_message(leases[0]))


async def ack(call: Call) -> Answer:
    """Acknowledge a message."""
    said: Acknowledged | AcknowledgedById = call.said
    if isinstance(said, AcknowledgedById):
        call.request.path_params["id"] = said.id
    call.said = bodies.Acked(token=said.lock_token, result=said.result)
    return _settled(await consume.ack(call))


async def nack(call: Call) -> Answer:
    """Give a message back as failed; it is queued again, or dead."""
    said: NotAcknowledged = call.said
    call.said = bodies.Nacked(token=said.lock_token, error=said.error, retry_in=said.retry_in)
    return _settled(await consume.nack(call))


async def touch(call: Call) -> Answer:
    """Hold a lock for longer."""
    said: TouchedMessage = call.said
    call.said = bodies.Touched(token=said.lock_token, lease=said.extend_seconds)
    told = (await consume.touch(call)).document
    return Answer(told | {"locked_until": told["lease_until"]})


async def status(call: Call) -> Answer:
    """Count messages by status."""
    counts = dict.fromkeys(("queued", "processing", "acknowledged", "dead", "archived"), 0)
    for queue in (await look.queues(call)).document["queues"]:
        for state, name in STATUSES.items():
            if name in counts:
                counts[name] += queue[state]
    return Answer(counts)


async def metrics(call: Call) -> Answer:
    """Count messages by status and queue, and tell how long the oldest waits."""
    queues = (await look.queues(call)).document["queues"]
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


def _read(item: bytes) -> bodies.NewJob:
    return _job(decoded(item, Message, where="message"))


def _job(said: Message) -> bodies.NewJob:
    return bodies.NewJob(
        kind=said.type or UNTYPED,
        payload=said.payload,
        queue=said.queue,
        priority=said.priority,
        max_attempts=said.max_attempts,
        lease=said.ack_timeout_seconds,
    )


def _message(lease: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": lease["id"],
        "type": None if lease["kind"] == UNTYPED else lease["kind"],
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
        "dequeued_at": datetime.now(UTC),
    }


def _settled(answer: Answer) -> Answer:
    told = dict(answer.document)
    told["status"] = STATUSES.get(told.pop("state"), "queued")
    if "attempt" in told:
        told["attempt_count"] = told.pop("attempt")
    return Answer(told, answer.status)
