"""The feed over HTTP: server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.server import bodies
from holdfast.server.call import Call
from holdfast.server.feed import STALLED, WATCHED, Stream
from holdfast.server.lives import ACTIVITY, PLAIN, Seat
from holdfast.server.problems import Problem

EVERYTHING = frozenset({"tick", "job", "op", "anomaly"})
# How often it is asked whether whoever watches still may.
ALLOWED_EVERY = 15.0


async def events(call: Call) -> Response:
    """Send ticks of all queues, events of jobs that are watched, and the activity if asked."""
    asked: bodies.Watch = call.asked
    seat = _seat(call, ACTIVITY, asked.queue) if asked.activity else None
    return await open_stream(call, EVERYTHING, _ids(asked), seat)


async def plain_events(call: Call) -> Response:
    """Send events without names: of every message's life, and of all queues."""
    asked: bodies.Told = call.asked
    return await open_stream(call, frozenset({PLAIN}), seat=_seat(call, PLAIN, asked.queue))


async def open_stream(
    call: Call,
    names: frozenset[str],
    watch: frozenset[UUID] = frozenset(),
    seat: Seat | None = None,
) -> Response:
    """Begin a stream of events; refuse it if there are too many."""
    address = call.live.gate.address(call.request)
    stream = Stream(call.user, address, names, watch, seat)
    frames = call.live.feed.frames(stream, call.request.headers.get("last-event-id"))

    async def allowed() -> bool:
        try:
            return await call.live.gate.user(call.request, call.live.client) == call.user
        except Problem:
            return False
        except HoldfastError:
            return True  # nobody knows, while the database is away

    # Up to the first frame, so that a refusal can still be a status.
    return EventStream(await anext(frames), frames, allowed)


class EventStream(Response):
    """A response that goes on until the client leaves, stops reading, or may no longer read."""

    def __init__(
        self, first: bytes, frames: AsyncIterator[bytes], allowed: Callable[[], Awaitable[bool]]
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._first = first
        self._frames = frames
        self._allowed = allowed
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send frames until the client has gone."""
        tasks = [
            asyncio.create_task(one)
            for one in (self._send(send), _leave(receive), self._be_refused())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._frames.aclose()  # type: ignore[attr-defined]

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _chunk(send, self._first)
        async for frame in self._frames:
            if self._over:
                return
            await _chunk(send, frame)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _be_refused(self) -> None:
        while not self._over:
            await asyncio.sleep(ALLOWED_EVERY)
            if not await self._allowed():
                return


async def _chunk(send: Send, frame: bytes) -> None:
    message = {"type": "http.response.body", "body": frame, "more_body": True}
    async with asyncio.timeout(STALLED):
        await send(message)


async def _leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _seat(call: Call, name: str, queue: str) -> Seat:
    if not queue:
        return Seat(name, call.user.queues)
    call.user.check_queues([queue])
    return Seat(name, (queue,))


def _ids(asked: bodies.Watch) -> frozenset[UUID]:
    texts = [text for text in f"{asked.job},{asked.watch}".split(",") if text]
    if len(texts) > WATCHED:
        raise Problem(422, "HF406", f"{len(texts)} jobs to watch, {WATCHED} are allowed")
    try:
        return frozenset(map(UUID, texts))
    except ValueError:
        raise Problem(422, "HF406", "watch: a job is named by its whole id") from None
