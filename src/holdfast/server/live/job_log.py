"""Events of jobs from the activity log, which each server follows for its clients.

While a client watches, the server renews its `watch` in the database, and all events of those
queues are recorded, whatever causes them. While no client watches, nothing is written.

The log is followed by place. Places are drawn before their transactions commit, so one that is
missing between others is asked for again until nobody is left who could have drawn it. What is told
once stays in a ring; whoever falls behind that reads on in the log itself. What neither has is told
as a gap, with the place behind which it lies: nothing is left out in silence.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.records import Event, Watched
from holdfast.server.http import render
from holdfast.server.live.bells import QUICK, rung

if TYPE_CHECKING:
    from holdfast.server.http.redaction import Redaction
    from holdfast.server.running import Live

# How long every event is recorded after a `watch`, and how often a server renews it.
LASTS = 30.0
AGAIN = 10.0
# Events of one query of the log, and how many are kept for slower clients.
PAGE = 1000
REMEMBERED = 5000
# How many events a client that reconnects gets at most; it can request the rest.
CATCH_UP = 20_000
# A server that is further behind jumps to the end of the log, and announces a gap.
BEHIND = 50_000
# How many positions may be missing at once; beyond that, the oldest are announced as a gap.
MISSING = 1000
# Bytes that are sent at once, whole events: the server cuts what is larger than 16 kB.
PIECE = 8 * 1024
# How long clients that reconnect wait for transactions that were open when following began.
SETTLED = 10.0

ACTIVITY = "activity"

Framed = Callable[[str, Any, int, int], bytes]


class Words(Protocol):
    """How log entries are sent to a client: each as the name of an event and a document.

    Each form is rendered once for all clients that use it; `name` identifies the form.
    """

    name: str

    def event(self, event: Event, redaction: "Redaction") -> list[tuple[str, Any]]:
        """Return how an event of the log is sent."""

    def gap(self, about: dict[str, Any]) -> tuple[str, Any]:
        """Return how a gap is sent: events `after` a position and up to `until` are missing."""

    def queue(self, row: dict[str, Any]) -> Any:
        """Return how a change of a queue's counts is sent; None if ticks send it."""


class _Activity:
    """The words of /v1: events as they are in the log."""

    name = ACTIVITY

    def event(self, event: Event, redaction: "Redaction") -> list[tuple[str, Any]]:
        return [(ACTIVITY, render.event(event, redaction))]

    def gap(self, about: dict[str, Any]) -> tuple[str, Any]:
        return "gap", about | {"catch_up": f"/v1/activity?after={about['after']}"}

    def queue(self, row: dict[str, Any]) -> Any:
        return None


OWN_WORDS: Words = _Activity()


@dataclass(slots=True, eq=False)
class Seat:
    """A client that follows: in which form, which queues (None: all), and its position."""

    words: Words
    queues: tuple[str, ...] | None
    nth: int = 0
    place: int = 0
    # Events up to this position were sent from the log.
    told_to: int = 0

    def wants(self, queue: str | None) -> bool:
        """Whether events of a queue are for this one."""
        return self.queues is None or (queue is not None and queue in self.queues)


@dataclass(slots=True)
class _Entry:
    """An event or a gap at its place in the ring; `place`: nothing up to there is missing."""

    seq: int
    place: int
    mark: int
    event: Event | None
    gap: dict[str, Any] | None = None
    frames: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Hole:
    first: int
    last: int
    # The open writers when the position was first requested again; None before.
    waits: frozenset[str] | None = None


class Lives:
    """The end of the activity log, and the clients that follow it."""

    def __init__(
        self,
        live: "Live",
        *,
        framed: Framed,
        mark: Callable[[], int],
        tell: Callable[[], None],
    ) -> None:
        self._live = live
        self._framed = framed
        self._mark = mark
        self._tell = tell
        self._seats: set[Seat] = set()
        self._ring: deque[_Entry] = deque(maxlen=REMEMBERED)
        self._nth = 0
        self._high: int | None = None
        self._holes: list[_Hole] = []
        self._opening: frozenset[str] = frozenset()
        self._since: dict[str, int] = {}
        self._said_at = 0.0
        self._said_to = 0
        self._watched = False
        self._someone = asyncio.Event()
        self._hint = asyncio.Event()
        self._lock = asyncio.Lock()

    def hint(self) -> None:
        """Say that something changed: look soon."""
        self._hint.set()

    async def join(self, seat: Seat) -> None:
        """Begin to follow for a client: events from now on are recorded and sent."""
        self._seats.add(seat)
        try:
            async with self._lock:
                await self._say()
                if self._high is None:
                    await self._begin()
                seat.nth, seat.place = self._nth, self._low()
                seat.told_to = seat.place
        except BaseException:
            self.leave(seat)
            raise
        self._someone.set()

    def leave(self, seat: Seat) -> None:
        """Stop following for a client, and altogether if it was the last."""
        self._seats.discard(seat)
        if not self._seats:
            self._someone.clear()
            self._high, self._holes, self._since = None, [], {}
            self._ring.clear()

    def about(self, seat: Seat) -> dict[str, Any]:
        """Return the fields of a greeting: the position, and whether all events are recorded."""
        return {"place": str(seat.place), ACTIVITY: "all" if self._watched else "noted"}

    async def run(self) -> None:
        """Follow the log while a client watches, until cancelled."""
        while True:
            await self._someone.wait()
            self._hint.clear()
            with contextlib.suppress(HoldfastError):
                async with self._lock:
                    await self._turn()
            await rung(self._hint, QUICK)
            await asyncio.sleep(QUICK / 5)  # events that arrive together are sent together

    def due(self, seat: Seat) -> bytes:
        """Return what a client has not received, as much as is sent at once; empty if nothing."""
        start = seat.nth - (self._nth - len(self._ring))
        frames: list[bytes] = []
        size = 0
        for entry in islice(self._ring, max(start, 0), None):
            seat.nth += 1
            if entry.event is not None and entry.seq <= seat.told_to:
                continue
            seat.place = max(seat.place, entry.place)
            if entry.event is None or seat.wants(entry.event.queue):
                frames.append(self._frame(seat.words, entry))
                size += len(frames[-1])
                if size >= PIECE:
                    break
        return b"".join(frames)

    def is_behind(self, seat: Seat) -> bool:
        """Whether the ring has moved past a client, which then reads from the log."""
        return seat.nth < self._nth - len(self._ring)

    async def catch_up(self, seat: Seat, after: int) -> AsyncIterator[bytes]:
        """Yield what the log has behind a place, up to where the ring goes on."""
        until = monotonic() + SETTLED
        while self._opening and monotonic() < until:
            await asyncio.sleep(QUICK)
        client = self._live.client
        state = await client.activity.log_state()
        # Up to here no missing position can still appear, so a plain query finds everything.
        target = min(self._low(), state.last)
        later = [nth for nth, one in enumerate(self._ring) if one.event and one.seq > target]
        seat.nth = self._nth - (len(self._ring) - later[0] if later else 0)
        seat.place = seat.told_to = target
        if later and later[0] == 0 and len(self._ring) == REMEMBERED:
            last = self._ring[0].seq
            yield self._gap(seat, target, last, f"more than {REMEMBERED} events at once")
        if after > state.last:
            yield self._gap(
                seat,
                target,
                target,
                "the log does not reach this position: it belongs to another database",
            )
            return
        if self._opening:
            reason = "a transaction that is open for long may have noted more"
            yield self._gap(seat, after, target, reason)
        elif state.first is None or after + 1 < state.first:
            last = target if state.first is None else state.first - 1
            if last > after:
                yield self._gap(seat, after, last, "the log is not kept for so long")
        noted = max((self._since.get(name, 0) for name in seat.queues or ("",)), default=0)
        if after < noted and not await self._is_noted(seat):
            reason = (
                "no client watched: events of queues whose activity is not `all` were not recorded"
            )
            yield self._gap(seat, after, noted, reason)
        told = 0
        while after < target:
            if told >= CATCH_UP:
                yield self._gap(seat, after, target, f"more than {CATCH_UP} events")
                return
            names = None if seat.queues is None else list(seat.queues)
            page = await client.activity.list(queues=names, after=after, limit=500, patience=1.0)
            frames = []
            for event in page.events:
                if event.seq > target:
                    break
                if not event.jobs:
                    continue
                entry = _Entry(event.seq, event.seq, self._mark(), event)
                frames.append(self._frame(seat.words, entry))
            told += len(frames)
            for piece in _pieces(frames):
                yield piece
            if page.events and page.searched_to is None:
                after = page.events[-1].seq if len(page.events) == 500 else target
            else:
                after = target if page.searched_to is None else page.searched_to

    async def _is_noted(self, seat: Seat) -> bool:
        found = await self._live.queues()
        return all(one.activity == "all" for one in found if seat.wants(one.queue))

    async def _say(self) -> None:
        """Renew the watch; announce a gap if it was too late."""
        self._watched = not await self._live.read_only()
        if not self._watched:
            return
        said_at = monotonic()
        found: list[Watched] = []
        if any(seat.queues is None for seat in self._seats):
            found += await self._live.client.activity.watch(None, lasts=LASTS)
        if names := sorted({name for seat in self._seats for name in seat.queues or ()}):
            found += await self._live.client.activity.watch(names, lasts=LASTS)
        self._said_at = said_at
        late = 0
        for one in found:
            known = self._since.get(one.queue or "")
            if known is not None and known != one.place:
                late = max(late, one.place)
            self._since[one.queue or ""] = one.place
        if late and self._high is not None:
            reason = "this server was away: queues whose activity is not `all` were not noted"
            self._announce(self._said_to, late, reason)
        self._said_to = self._low()

    async def _begin(self) -> None:
        state = await self._live.client.activity.log_state()
        self._high, self._holes = state.last, []
        self._opening = frozenset(state.writers)
        self._said_to = state.last

    async def _turn(self) -> None:
        if monotonic() - self._said_at > AGAIN:
            await self._say()
        full = False
        while self._high is not None:
            writers: frozenset[str] = frozenset()
            if self._holes or self._opening or full:
                state = await self._live.client.activity.log_state()
                if self._high is None:
                    return
                writers = frozenset(state.writers)
                if full and state.last - self._high > BEHIND:
                    low, self._high, self._holes = self._low(), state.last, []
                    self._opening = writers
                    self._announce(low, state.last, f"more than {BEHIND} events at once")
                    continue
            holes = [(hole.first, hole.last) for hole in self._holes]
            page = await self._live.client.activity.tail(self._high, missing=holes, limit=PAGE)
            if self._high is None:
                return
            full = len(page) == PAGE
            self._take(page, writers, full=full)
            if not full:
                return

    def _take(self, page: Sequence[Event], writers: frozenset[str], *, full: bool) -> None:
        assert self._high is not None
        before, was_whole = self._low(), not self._holes
        found = {event.seq for event in page if event.seq <= self._high}
        holes = [part for hole in self._holes for part in _without(hole, found)]
        if not full:  # a page that was cut short does not show what is missing after it
            self._opening &= writers
            for hole in holes:
                hole.waits = writers if hole.waits is None else hole.waits & writers
            holes = [hole for hole in holes if hole.waits]
        for event in page:
            if event.seq > self._high:
                if event.seq > self._high + 1:
                    holes.append(_Hole(self._high + 1, event.seq - 1))
                self._high = event.seq
        lost = holes[:-MISSING]
        self._holes = holes[-MISSING:]
        low = self._low()
        for nth, event in enumerate(page, 1):
            # Of several late events, only the last counts as the last.
            place = min(event.seq, low) if was_whole else before
            self._add(_Entry(event.seq, low if nth == len(page) else place, self._mark(), event))
        if lost:
            self._announce(lost[0].first - 1, lost[-1].last, "transactions that are open for long")
        elif page:
            self._tell()

    def _low(self) -> int:
        """Return the place up to which nothing is missing."""
        if self._holes:
            return self._holes[0].first - 1
        return self._high or 0

    def _add(self, entry: _Entry) -> None:
        if entry.event is None or entry.event.jobs:
            self._ring.append(entry)
            self._nth += 1

    def _announce(self, after: int, until: int, reason: str) -> None:
        about = {"after": str(after), "until": str(until), "reason": reason}
        self._add(_Entry(0, self._low(), self._mark(), None, about))
        self._tell()

    def _gap(self, seat: Seat, after: int, until: int, reason: str) -> bytes:
        about = {"after": str(after), "until": str(until), "reason": reason}
        return self._frame(seat.words, _Entry(0, after, self._mark(), None, about))

    def _frame(self, words: Words, entry: _Entry) -> bytes:
        if words.name not in entry.frames:
            if entry.event is None:
                assert entry.gap is not None
                told = [words.gap(entry.gap)]
            else:
                told = words.event(entry.event, self._live.redaction)
            frames = [self._framed(name, one, entry.mark, entry.place) for name, one in told]
            entry.frames[words.name] = b"".join(frames)
        return entry.frames[words.name]


def _pieces(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Join events to pieces that are sent at once."""
    some: list[bytes] = []
    size = 0
    for frame in frames:
        some.append(frame)
        size += len(frame)
        if size >= PIECE:
            yield b"".join(some)
            some, size = [], 0
    if some:
        yield b"".join(some)


def _without(hole: _Hole, found: set[int]) -> list[_Hole]:
    """Return what is left of a range of missing positions, with the same writers."""
    if not found:
        return [hole]
    parts: list[_Hole] = []
    first = hole.first
    for place in sorted(one for one in found if hole.first <= one <= hole.last):
        if place > first:
            parts.append(_Hole(first, place - 1, hole.waits))
        first = place + 1
    if first <= hole.last:
        parts.append(_Hole(first, hole.last, hole.waits))
    return parts
