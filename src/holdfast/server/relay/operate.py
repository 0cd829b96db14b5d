"""What operators do, in the words of Relay: to messages, by name or many at once, and to queues."""

import asyncio
from time import monotonic
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType, field

from holdfast.errors import UnknownQueue
from holdfast.records import Change
from holdfast.records.fields import Attempts, Priority, QueueName, Text, says
from holdfast.server.api import operate
from holdfast.server.http import inputs
from holdfast.server.http.derive import Body
from holdfast.server.http.inputs import LeaseSeconds
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request
from holdfast.server.live.feed import operation
from holdfast.server.relay.look import Range, queue_of, range_filter, state_of
from holdfast.server.relay.messages import STATES, Ids, State
from holdfast.server.relay.queues import SETTINGS
from holdfast.server.relay.words import STATUSES

# How long a request waits for its operation; after that the client can follow the operation.
PATIENCE = 5.0
LOOK_EVERY = 0.02
# Parts of the database that a partitioned queue is spread over.
SPREAD = 8

_ENDED = "state:queued,done,dead,cancelled,archived"
_HOW: dict[State, Literal["retry", "archive"]] = {"main": "retry", "archived": "archive"}


class EditedMessage(Body):
    """Changes of a message that waits or is dead."""

    payload: msgspec.Raw | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    queue: QueueName | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    ack_timeout_seconds: LeaseSeconds | UnsetType | None = UNSET


class Deleted(Body):
    """Messages to delete."""

    ids: Ids


class Moved(Body):
    """Messages, or all of a state, and where they go: to another state or another queue."""

    ids: Ids | None = None
    source: State | None = field(default=None, name="from")
    to: State | None = None
    queue: QueueName | None = None
    reason: Text | None = None


class OfQueue(Body):
    """Of one queue alone."""

    queue: Annotated[QueueName | None, says("only of this queue")] = None


class NewQueue(Body):
    """A queue to make."""

    name: QueueName
    type: Literal["standard", "unlogged", "partitioned"] = "standard"
    ack_timeout_seconds: LeaseSeconds | None = None
    max_attempts: Attempts | None = None


class ChangedQueue(Body):
    """What to change of a queue."""

    type: Literal["standard", "unlogged", "partitioned"] | None = None
    ack_timeout_seconds: LeaseSeconds | None = None
    max_attempts: Attempts | None = None


async def edit(request: Request) -> Answer:
    """Change a message that waits or is dead."""
    said: EditedMessage = request.body
    request.body = inputs.Edited(
        payload=said.payload,
        priority=said.priority,
        queue=said.queue,
        max_attempts=said.max_attempts,
        lease=said.ack_timeout_seconds,
    )
    told = (await operate.edit(request)).document
    return Answer({"id": told["id"], "status": STATUSES.get(told["state"])})


async def delete(request: Request) -> Answer:
    """Delete a message permanently."""
    told = (await operate.delete(request)).document
    return Answer({"id": told["id"], "deleted": True})


async def delete_many(request: Request) -> Answer:
    """Delete messages permanently; those being processed stay."""
    said: Deleted = request.body
    results = await _each(request, "delete", said.ids)
    done = sum(one["success"] for one in results)
    return Answer({"deleted": done, "failed": len(results) - done, "results": results})


async def delete_range(request: Request) -> Answer:
    """Delete messages that were enqueued between two times, except those being processed."""
    asked: Range = request.query
    if asked.start is None and asked.end is None:
        raise Problem(
            422,
            "HF406",
            "query: neither start nor end is there",
            fix="Give one of them, or both; DELETE /queue/clear deletes everything.",
        )
    filter = f"{_ENDED} {range_filter(asked.start, asked.end, asked.queue)}"
    return await _all(request, "delete", filter, "deleted", reason="deleted by date")


async def move(request: Request) -> Answer:
    """Move messages, or all of a state: back to main, to the archive, or to another queue.

    Give `ids` or `from`, and `to` or `queue`. With both `ids` and `from`, only those in that
    state are moved. All messages of a state are moved by an operation; 202 means that it continues.
    """
    said: Moved = request.body
    if (said.to is None) == (said.queue is None) or (said.ids is None and said.source is None):
        raise Problem(
            422,
            "HF406",
            "body: give exactly one source and one target",
            fix="Give ids or from; and to, or queue.",
        )
    verb: Any = "move" if said.to is None else _HOW.get(said.to)
    if verb is None:
        raise Problem(
            409,
            "HF409",
            f"no message can be moved to {said.to!r}",
            fix="Move it to main or archived; the other states it gets to by being processed.",
        )
    state = None if said.source is None else STATES[said.source]
    if said.ids is None:
        if said.queue is not None:
            request.user.check_queues([said.queue])
        return await _all(
            request, verb, f"state:{state}", "moved", reason=said.reason, queue=said.queue
        )
    results = await _each(
        request, verb, said.ids, reason=said.reason, queue=said.queue or "", state=state
    )
    done = sum(one["success"] for one in results)
    return Answer({"moved": done, "failed": len(results) - done, "results": results})


async def clear(request: Request) -> Answer:
    """Delete all messages except those being processed."""
    asked: OfQueue = request.query
    filter = f"{_ENDED} {range_filter(None, None, asked.queue)}"
    return await _all(request, "delete", filter, "cleared", reason="cleared")


async def clear_state(request: Request) -> Answer:
    """Delete all messages of a state."""
    asked: OfQueue = request.query
    state = state_of(request)
    if state == "leased":
        raise Problem(
            409,
            "HF409",
            "messages that are being processed cannot be deleted",
            fix="Let their consumers end, or cancel them:  POST /v1/jobs/{id}/cancel",
            state=state,
        )
    filter = f"state:{state} {range_filter(None, None, asked.queue)}"
    return await _all(
        request, "delete", filter, "cleared", reason=f"{request.part('state')} cleared"
    )


async def clear_activity(request: Request) -> Answer:
    """Clear nothing: the record is kept for as long as it is set to be."""
    request.user.check_everywhere()
    return Answer({"cleared": 0, "detail": "The record is kept for as long as it is set to be."})


async def make_queue(request: Request) -> Answer:
    """Create a queue.

    A partitioned queue is spread over eight parts of the database. An unlogged one is a
    standard one: it survives a crash.
    """
    said: NewQueue = request.body
    request.http.path_params["queue"] = said.name
    request.user.check_queues([said.name])
    if await request.client.queues.get(said.name) is not None:
        raise Problem(409, "HF409", f"queue {said.name!r} already exists")
    return Answer(await _set(request, said, **SETTINGS), 201)


async def change_queue(request: Request) -> Answer:
    """Change a queue."""
    said: ChangedQueue = request.body
    await _known_queue(request)
    return Answer(await _set(request, said))


async def delete_queue(request: Request) -> Answer:
    """Delete all messages of a queue except those being processed; its settings stay."""
    name = request.part("queue")
    await _known_queue(request)
    filter = f"{_ENDED} {range_filter(None, None, name)}"
    return await _all(request, "delete", filter, "deleted", reason=f"queue {name} deleted")


async def _known_queue(request: Request) -> None:
    name = request.part("queue")
    if not request.user.sees(name) or await request.client.queues.get(name) is None:
        raise UnknownQueue(name)


async def _set(request: Request, said: NewQueue | ChangedQueue, **usual: Any) -> dict[str, Any]:
    settings = {
        "lease": said.ack_timeout_seconds,
        "max_attempts": said.max_attempts,
        "fanout": SPREAD if said.type == "partitioned" else None,
    }
    request.body = usual | {name: value for name, value in settings.items() if value is not None}
    told = queue_of((await operate.queue_set(request)).document)
    if said.type == "unlogged":
        told["detail"] = "It is a standard queue: messages survive a crash of the database."
    return told


async def _each(
    request: Request,
    verb: Literal["retry", "archive", "delete", "move"],
    texts: list[str],
    **how: Any,
) -> list[dict[str, Any]]:
    ids = {text: _id(text) for text in texts}
    known = [id for id in ids.values() if id is not None]
    changes = await operate.change_many(request, verb, known, **how) if known else {}
    return [_result(text, changes.get(id) if id else None) for text, id in ids.items()]


def _result(text: str, change: Change | None) -> dict[str, Any]:
    if change is None or (not change.changed and change.state is None):
        told = {"code": "NOT_FOUND", "error": f"no message has the id {text}"}
        return {"id": text, "success": False} | told
    status = None if change.state is None else STATUSES[change.state]
    if change.changed:
        moved = {} if change.new_id in (None, change.id) else {"new_id": change.new_id}
        return {"id": text, "success": True, "status": status} | moved
    told = {"code": "INVALID_STATE", "error": change.detail or "nothing was changed"}
    return {"id": text, "success": False, "status": status} | told


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


async def _all(
    request: Request,
    verb: inputs.Verb,
    filter: str,
    done: str,
    *,
    reason: str | None,
    queue: str | None = None,
) -> Answer:
    """Do a verb to all that match, as an operation: 200 if that is over soon, else 202."""
    request.body = inputs.Previewed(op=verb, q=filter.strip(), reason=reason, queue=queue)
    preview = (await operate.preview(request)).document
    request.body = inputs.Started(preview_token=preview["preview_token"])
    started = await operate.start(request)
    told: dict[str, Any] = started.document
    # Inside this transaction it is not visible to others, so no process can run it yet.
    until = monotonic() + (PATIENCE if request.client is request.live.client else 0.0)
    while told["state"] == "running" and monotonic() < until:
        await asyncio.sleep(LOOK_EVERY)
        found = await request.client.operations.get(int(told["id"]))
        assert found is not None
        told = operation(found)
    answer = {done: told["changed"], "operation": told}
    if told["state"] == "running":
        return Answer(answer, 202, started.headers)
    return Answer(answer)
