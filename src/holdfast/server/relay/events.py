"""The stream of Relay: every event of every message's life, in its words."""

from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from holdfast.records.fields import says
from holdfast.server.http.derive import Body
from holdfast.server.http.request import Request
from holdfast.server.live.job_log import PLAIN
from holdfast.server.live.stream import open_stream, seat


class OfQueue(Body):
    """Which queue to follow; all if none is named."""

    queue: Annotated[str, Meta(max_length=120), says("only this queue")] = ""


async def stream(request: Request) -> Response:
    """Send what happens to messages, as server-sent events.

    Every event of every message is sent, whoever caused it. A `gap` says what the stream could not
    send, and where to ask for it.
    """
    asked: OfQueue = request.query
    return await open_stream(request, frozenset({PLAIN}), seat=seat(request, PLAIN, asked.queue))
