"""The stream of Relay: every event of every message's life, in its words."""

from typing import Annotated, Any

from msgspec import Meta
from starlette.responses import Response

from holdfast.records import Event
from holdfast.records.fields import says
from holdfast.server.http.derive import Body
from holdfast.server.http.redaction import Redaction
from holdfast.server.http.request import Request
from holdfast.server.live.feed import UNNAMED
from holdfast.server.live.job_log import Words
from holdfast.server.live.stream import open_stream, seat
from holdfast.server.relay.words import STATUSES, actions_of, type_of


class OfQueue(Body):
    """Which queue to follow; all if none is named."""

    queue: Annotated[str, Meta(max_length=120), says("only this queue")] = ""


async def stream(request: Request) -> Response:
    """Send what happens to messages, as server-sent events.

    Every event of every message is sent, whatever caused it. A `gap` names the events that the
    stream could not send, and where to get them.
    """
    asked: OfQueue = request.query
    follows = seat(request, MESSAGES, asked.queue)
    return await open_stream(request, frozenset({UNNAMED}), seat=follows)


class _Messages:
    """The words of Relay: events without names, each with its type in the document."""

    name = UNNAMED

    def event(self, event: Event, redaction: Redaction) -> list[tuple[str, Any]]:
        return [(UNNAMED, one) for one in _messages_of(event)]

    def gap(self, about: dict[str, Any]) -> tuple[str, Any]:
        where = {"catch_up": f"/queue/activity?after={about['after']}"}
        return UNNAMED, {"type": "gap", "payload": about | where}

    def queue(self, row: dict[str, Any]) -> Any:
        return {"type": "queue_update", "payload": row}


MESSAGES: Words = _Messages()


def _messages_of(event: Event) -> list[dict[str, Any]]:
    """Return an event of the log as Relay has it."""
    about: dict[str, Any] = {
        "id": event.job,
        "type": type_of(event.kind),
        "queue": event.queue,
        "status": None if event.state is None else STATUSES[event.state],
        "at": event.at,
        "event_id": str(event.seq),
    }
    if event.job is None:
        about["count"] = event.jobs
    if event.worker is not None:
        about["consumer_id"] = event.worker
    if event.attempt is not None:
        about["attempt_count"] = event.attempt
    if event.event in ("nacked", "reaped"):
        about["last_error"] = event.reason
    return [{"type": one, "payload": about} for one in actions_of(event.event, event.state)]
