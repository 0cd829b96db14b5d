"""The feed over HTTP: server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.server.http import inputs
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Request
from holdfast.server.live.feed import STALLED, WATCHED, Stream
from holdfast.server.live.job_log import OWN_WORDS, Seat, Words

EVERYTHING = frozenset({"tick", "job", "op", "anomaly"})
# How often it is checked whether the client may still watch.
ALLOWED_EVERY = 15.0


async def events(request: Request) -> Response:
    """Send changes as server-sent events.

    `hello` says whether changes arrive at once (live) or are looked for every second (polling).
    `tick` has the queues that changed, four times a second at most. `job` is about the jobs that
    are followed, with the number of the last line of their log; `op` is about operations.
    `resync` means that something was missed: fetch again. With `activity`, every event of every
    job is sent, whoever caused it; a `gap` says what the stream could not send, and where to ask
    for it.
    """
    asked: inputs.Watch = request.query
    follows = seat(request, OWN_WORDS, asked.queue) if asked.activity else None
    return await open_stream(request, EVERYTHING, _ids(asked), follows)


async def open_stream(
    request: Request,
    names: frozenset[str],
    watch: frozenset[UUID] = frozenset(),
    seat: Seat | None = None,
) -> Response:
    """Begin a stream of events; refuse it if there are too many."""
    address = request.live.gate.address(request.http)
    stream = Stream(request.user, address, names, watch, seat)
    frames = request.live.feed.frames(stream, request.http.headers.get("last-event-id"))

    async def allowed() -> bool:
        try:
            return await request.live.gate.user(request.http, request.live.client) == request.user
        except Problem:
            return False
        except HoldfastError:
            return True  # unknown while the database is unavailable

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


def seat(request: Request, words: Words, queue: str) -> Seat:
    """Return the seat of a client that follows the log of one queue, or of all it may see."""
    if not queue:
        return Seat(words, request.user.queues)
    request.user.check_queues([queue])
    return Seat(words, (queue,))


def _ids(asked: inputs.Watch) -> frozenset[UUID]:
    texts = [text for text in f"{asked.job},{asked.watch}".split(",") if text]
    if len(texts) > WATCHED:
        raise Problem(422, "HF406", f"{len(texts)} jobs to watch, {WATCHED} are allowed")
    try:
        return frozenset(map(UUID, texts))
    except ValueError:
        raise Problem(422, "HF406", "watch: a job is named by its whole id") from None
