"""Live changes: one query for all streams, sent to each at its own pace.

Nothing is queued per client. Events go into one ring; every stream has a position in it and gets a
`resync` when the ring has moved past it. A client that does not read costs only a socket.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.errors import HoldfastError
from holdfast.records import Anomaly, Job, Operation, Queue
from holdfast.server.doors.access import User
from holdfast.server.http import render
from holdfast.server.http.problems import SOON, Problem
from holdfast.server.live.bells import QUICK, rung
from holdfast.server.live.job_log import Lives, Seat

if TYPE_CHECKING:
    from holdfast.server.running import Live

# One look a second while nothing happens, or where nothing is heard.
CALM = 1.0
# As many are compared, the worst.
ANOMALIES = 200
PING = 15.0
# A socket that takes nothing for so long is dropped.
STALLED = 30.0
REMEMBERED = 512
# Events that are sent in one piece.
TOGETHER = 32
# A tick stays below two kilobytes.
TICK = 2000
WATCHED = 100
# What a browser calls an event that has no name.
UNNAMED = "message"


@dataclass(frozen=True, slots=True)
class Event:
    """An event at its position in the ring. `queues` None: the queues are unknown.

    `frame` is what is sent to clients that see all queues: created once for all of them.
    """

    seq: int
    name: str
    document: Any
    frame: bytes
    queues: tuple[str, ...] | None = None
    job: UUID | None = None


@dataclass(slots=True, eq=False)
class Stream:
    """A watching client: what it may see, what it requested, and its position."""

    user: User
    address: str
    names: frozenset[str]
    watch: frozenset[UUID] = frozenset()
    # Its position in the log, if it follows the events of jobs.
    seat: Seat | None = None
    seq: int = 0
    bell: asyncio.Event = field(default_factory=asyncio.Event)

    def wants(self, event: Event) -> bool:
        """Whether an event is for this one."""
        if event.name not in self.names or (event.job and event.job not in self.watch):
            return False
        if event.queues is None:
            return self.user.queues is None
        if self.seat is not None and event.name == self.seat.words.name:
            return any(map(self.seat.wants, event.queues))
        return any(self.user.sees(queue) for queue in event.queues)


class Feed:
    """The events of one server and the clients that watch them."""

    def __init__(self, live: "Live", *, most: int, most_per_address: int) -> None:
        self.hears: Callable[[], bool] = lambda: False
        self._live = live
        self._most = most
        self._most_per_address = most_per_address
        self._epoch = secrets.token_hex(4)
        self._seq = 0
        self._ring: deque[Event] = deque(maxlen=REMEMBERED)
        self._streams: set[Stream] = set()
        self._hint = asyncio.Event()
        self._someone = asyncio.Event()
        self._queues: dict[str, Queue] | None = None
        self._jobs: dict[UUID, tuple[Any, ...]] = {}
        self._operations: dict[int, tuple[Any, ...]] = {}
        self._anomalies: dict[str, tuple[Any, ...]] | None = None
        self._looked_at = 0.0
        self._closed = False
        self.lives = Lives(live, framed=self._framed, mark=lambda: self._seq, tell=self._ring_all)

    @property
    def mode(self) -> str:
        """How the server detects changes: `live` by notifications, otherwise `polling`."""
        return "live" if self.hears() else "polling"

    def hint(self) -> None:
        """Say that something changed: look soon."""
        self._hint.set()
        self.lives.hint()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._ring_all()

    async def run(self) -> None:
        """Look for changes while a client watches, until cancelled."""
        while True:
            await self._someone.wait()
            self._hint.clear()
            busy = False
            with contextlib.suppress(HoldfastError):
                busy = await self._look()
            await asyncio.sleep(QUICK)
            if not busy:
                await rung(self._hint, CALM - QUICK)

    async def frames(self, stream: Stream, last_seen: str | None) -> AsyncIterator[bytes]:
        """Yield the frames of one stream; a comment if there was nothing for a while."""
        self._admit(stream)
        seat = stream.seat
        ring_at, _, log_at = (last_seen or "").partition("@")
        try:
            if seat is not None:
                await self.lives.join(seat)
            yield b"retry: 3000\n\n"
            if not self._resume(stream, ring_at):
                yield self._framed("resync", {}, self._seq, _place(seat))
            # What is known before the greeting is compared with: nothing falls in between.
            with contextlib.suppress(HoldfastError):
                if self._queues is None:
                    self._queues = _named(await self._live.reads.queues.list())
                if self._anomalies is None:
                    self._anomalies = _marks(await self._live.reads.anomalies.list(limit=ANOMALIES))
            about = {"mode": self.mode, "at": datetime.now(UTC)}
            if seat is not None:
                about |= self.lives.about(seat)
            back = seat is not None and log_at.isdecimal() and len(log_at) < 19
            place = int(log_at) if back else _place(seat)
            yield self._framed("hello", about, stream.seq, place)
            if seat is not None and back:
                async for frames in self.lives.catch_up(seat, int(log_at)):
                    yield frames
            for job, line in await self._jobs_of(sorted(stream.watch)):
                told = _facts(job, line)
                if self._jobs.setdefault(job.id, told) != told:
                    # A look read it as well, and either may be the newer: the next look says it.
                    self._jobs[job.id] = (job.queue,)
                if stream.user.sees(job.queue):
                    yield self._framed("job", _job(job, line), stream.seq, _place(seat))
            quiet = monotonic() + PING
            while not self._closed:
                stream.bell.clear()
                while due := b"".join(islice(self._due(stream), TOGETHER)):
                    yield due
                    quiet = monotonic() + PING
                if seat is not None:
                    if self.lives.is_behind(seat):
                        async for frames in self.lives.catch_up(seat, seat.place):
                            yield frames
                        continue
                    if lives := self.lives.due(seat):
                        yield lives
                        quiet = monotonic() + PING
                        continue
                # Events of other queues ring too; they do not make this stream less silent.
                left = quiet - monotonic()
                if left <= 0:
                    yield b": ping\n\n"
                    quiet = monotonic() + PING
                    continue
                await rung(stream.bell, left)
        finally:
            self._streams.discard(stream)
            if seat is not None:
                self.lives.leave(seat)
            if not self._streams:
                self._someone.clear()
                self._queues, self._jobs, self._operations = None, {}, {}
                self._anomalies = None

    def _admit(self, stream: Stream) -> None:
        if len(self._streams) >= self._most:
            raise Problem(503, "HF429", f"{self._most} streams are open already", headers=SOON)
        near = sum(other.address == stream.address for other in self._streams)
        if near >= self._most_per_address:
            raise Problem(
                429,
                "HF429",
                f"{near} streams are open from {stream.address} already",
                headers=SOON,
                fix="One stream serves all tabs of a browser.",
            )
        caller = stream.user.shares_as
        same = sum(other.user.shares_as == caller for other in self._streams) if caller else 0
        if same >= max(self._most // 2, 1):
            raise Problem(429, "HF429", f"{same} streams are open for you already", headers=SOON)
        self._streams.add(stream)
        self._someone.set()

    def _resume(self, stream: Stream, last_seen: str | None) -> bool:
        """Place a stream behind the last event it saw; whether it has missed nothing."""
        stream.seq = self._seq
        if not last_seen:
            return True
        epoch, _, seq = last_seen.partition("-")
        if epoch != self._epoch or not seq.isdecimal() or int(seq) > self._seq:
            return False
        oldest = self._ring[0].seq if self._ring else self._seq + 1
        if int(seq) + 1 < oldest:
            return False
        stream.seq = int(seq)
        return True

    def _due(self, stream: Stream) -> Iterable[bytes]:
        behind = stream.seq + 1 - self._ring[0].seq if self._ring else 0
        if behind < 0:
            stream.seq = self._seq
            yield self._framed("resync", {}, self._seq, _place(stream.seat))
            return
        for event in list(islice(self._ring, behind, None)):
            stream.seq = event.seq
            if not stream.wants(event):
                continue
            if stream.user.queues is None and stream.seat is None:
                yield event.frame
            else:
                user = None if stream.user.queues is None else stream.user
                seen = _seen(event.name, event.document, user)
                yield self._framed(event.name, seen, event.seq, _place(stream.seat))

    def _framed(self, name: str, document: Any, seq: int, place: int | None = None) -> bytes:
        """Return an event as it is sent; its id contains the position here and in the log."""
        head = b"" if name == UNNAMED else b"event: %s\n" % name.encode()
        at = f"{self._epoch}-{seq}" + ("" if place is None else f"@{place}")
        return b"%sid: %s\ndata: %s\n\n" % (head, at.encode(), render.encode(document))

    def _publish(
        self, name: str, document: Any, queues: Sequence[str] | None, job: UUID | None = None
    ) -> None:
        self._seq += 1
        frame = self._framed(name, _seen(name, document, None), self._seq)
        names = None if queues is None else tuple(queues)
        self._ring.append(Event(self._seq, name, document, frame, names, job))
        self._ring_all()

    def _ring_all(self) -> None:
        for stream in self._streams:
            stream.bell.set()

    async def _look(self) -> bool:
        changed = self._compare_queues(await self._live.reads.queues.list())
        if any(stream.watch for stream in self._streams):
            changed |= await self._look_at_jobs()
        if monotonic() - self._looked_at > CALM:
            self._looked_at = monotonic()
            changed |= self._compare_operations(await self._live.reads.operations.list(limit=20))
            changed |= self._compare_anomalies(
                await self._live.reads.anomalies.list(limit=ANOMALIES)
            )
        return changed

    def _compare_queues(self, found: Sequence[Queue]) -> bool:
        known, now = self._queues, _named(found)
        self._queues = now
        if known is None:
            return False
        rows = [
            row
            for queue in found
            if (row := _difference(known.get(queue.queue), queue)) is not None
        ]
        rows += [{"queue": name, "gone": True} for name in known.keys() - now.keys()]
        if not rows:
            return False
        rows.sort(key=lambda row: -sum(map(abs, row.get("change", {}).values())))
        names = tuple(row["queue"] for row in rows)
        about = {"at": datetime.now(UTC), "mode": self.mode}
        self._publish("tick", about | {"queues": rows}, names)
        for words in {stream.seat.words for stream in self._streams if stream.seat is not None}:
            for row in rows:
                if (told := words.queue(row)) is not None:
                    self._publish(words.name, told, (row["queue"],))
        return True

    async def _look_at_jobs(self) -> bool:
        wanted = self._watched()
        looked = await self._jobs_of(sorted(wanted))
        # Streams that have begun since then were told what may be older: it is compared as well.
        known = self._jobs
        self._jobs = {id: known[id] for id in (self._watched() - wanted) & known.keys()}
        changed = False
        for job, line in looked:
            self._jobs[job.id] = now = _facts(job, line)
            if known.get(job.id, now) != now:
                changed = True
                self._publish("job", _job(job, line), (job.queue,), job.id)
        for id in known.keys() - self._jobs.keys() & wanted:
            changed = True
            queue = known[id][0]
            self._publish("job", {"id": id, "state": "gone"}, (queue,), id)
        return changed

    def _watched(self) -> set[UUID]:
        return {id for stream in self._streams for id in stream.watch}

    async def _jobs_of(self, ids: Sequence[UUID]) -> list[tuple[Job, int]]:
        """Return jobs, each with the number of the last line that it has logged."""
        found: list[tuple[Job, int]] = []
        for start in range(0, len(ids), WATCHED):
            some = ids[start : start + WATCHED]
            filter = "id:" + ",".join(map(str, some))
            jobs = await self._live.reads.jobs.list(filter, limit=WATCHED)
            lines = await self._live.reads.jobs.last_lines([job.id for job in jobs])
            found += [(job, lines.get(job.id, 0)) for job in jobs]
        return found

    def _compare_operations(self, found: Sequence[Operation]) -> bool:
        known = self._operations
        self._operations = {
            one.id: (one.state, one.seen, one.changed, one.undoable) for one in found
        }
        changed = False
        for one in found:
            if known and known.get(one.id) != self._operations[one.id]:
                changed = True
                self._publish("op", operation(one), None)
        return changed

    def _compare_anomalies(self, found: Sequence[Anomaly]) -> bool:
        known, now = self._anomalies, _marks(found)
        self._anomalies = now
        if known is None:
            return False
        changed = [one for one in found if known.get(one.id) != now[one.id]]
        for one in changed:
            about = {"change": "changed" if one.id in known else "raised"}
            queues = None if one.queue is None else (one.queue,)
            self._publish("anomaly", render.record(one) | about, queues)
        over = known.keys() - now.keys()
        for id in sorted(over):
            queue = known[id][0]
            queues = None if queue is None else (queue,)
            self._publish("anomaly", {"id": id, "queue": queue, "change": "resolved"}, queues)
        return bool(changed or over)


def operation(one: Operation) -> dict[str, Any]:
    """Return an operation as JSON, with its id as a string."""
    return render.record(one) | {"id": str(one.id), "done": one.seen}


def _place(seat: Seat | None) -> int | None:
    return None if seat is None else seat.place


def _marks(found: Sequence[Anomaly]) -> dict[str, tuple[Any, ...]]:
    return {one.id: (one.queue, one.severity, one.acked_at, one.muted) for one in found}


_COUNTS = ("queued", "leased", "dead", "done", "cancelled", "archived")


def _difference(before: Queue | None, now: Queue) -> dict[str, Any] | None:
    change = {
        name: difference
        for name in _COUNTS
        if (difference := getattr(now, name) - (getattr(before, name) if before else 0))
    }
    paused = now.paused_at is not None
    if not change and before is not None and paused == (before.paused_at is not None):
        return None
    return {
        "queue": now.queue,
        **{name: getattr(now, name) for name in _COUNTS},
        "oldest": None if now.oldest is None else now.oldest.total_seconds(),
        "paused": paused,
        "change": change,
    }


def _seen(name: str, document: Any, user: User | None) -> Any:
    """Return what a user sees of an event: of a tick, their queues, and not more than fit."""
    if name != "tick":
        return document
    rows = [row for row in document["queues"] if user is None or user.sees(row["queue"])]
    shown = rows
    while len(shown) > 1 and len(render.encode(shown)) > TICK - 100:
        shown = shown[: len(shown) // 2]
    more = {"more": True} if len(shown) < len(rows) else {}
    return document | {"queues": shown} | more


def _named(queues: Sequence[Queue]) -> dict[str, Queue]:
    return {queue.queue: queue for queue in queues}


def _facts(job: Job, line: int) -> tuple[Any, ...]:
    progress = job.progress_json
    until = job.lease_until
    return job.queue, job.state, job.attempt, job.run_at, job.worker, until, progress, line


def _job(job: Job, line: int) -> dict[str, Any]:
    return {
        "id": job.id,
        "queue": job.queue,
        "kind": job.kind,
        "state": job.state,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "run_at": render.moment(job.run_at),
        "lease_until": render.moment(job.lease_until),
        "worker": job.worker,
        "progress": render.raw(job.progress_json),
        "log": line,
        "ended_at": render.moment(job.ended_at),
    }
