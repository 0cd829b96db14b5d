"""Renews the leases of a worker, in its own thread, so that handlers cannot delay it."""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

import psycopg

from holdfast.client import Client
from holdfast.current import CurrentJob
from holdfast.errors import Misuse, Unavailable, UnknownOutcome
from holdfast.outcome import Stop
from holdfast.worker.lease_clock import count_lease_from
from holdfast.worker.loop import JobLoop

log = logging.getLogger("holdfast.worker")

TICK = 0.5
# Reports of handlers in quick succession are sent together.
GATHER = 0.2
# How long after its deadline a handler may go on while it is unknown who holds the job.
OUTAGE = 60.0
# An event loop that does not respond for this long is blocked, not busy.
BLOCKED = 1.0


class Keeper:
    """Renews leases at a third of their length, and enforces their deadlines."""

    def __init__(self, jobs: JobLoop, client: Client, watch: "LoopWatch | None" = None) -> None:
        self._jobs = jobs
        self._client = client
        self._watch = watch
        self._noted = threading.Event()
        # When it last looked at the leases, on the monotonic clock.
        self.looked = monotonic()

    def renew_soon(self) -> None:
        """Send what a handler reported, together with the renewal."""
        self._noted.set()

    def run(self, stop: threading.Event, beat: Callable[[], None]) -> None:
        """Renew until stopped, and `beat` every now and then."""
        while not stop.is_set():
            if self._noted.wait(self._tick()):
                # One renewal for all reports within a moment.
                stop.wait(GATHER)
                self._noted.clear()
            self._renew(monotonic())
            self._jobs.lines.send_due(self._client, list(self._jobs.held), monotonic())
            beat()
            self.looked = monotonic()

    def watch(self, stop: threading.Event) -> None:
        """Enforce deadlines until stopped; waits only for the clock."""
        while not stop.wait(self._tick()):
            self._enforce(monotonic())
            if self._watch:
                self._watch.look()

    def _tick(self) -> float:
        shortest = min((job.lease_seconds for job in list(self._jobs.held)), default=60.0)
        return min(TICK, shortest / 6)

    def _renew(self, now: float) -> None:
        held = [job for job in list(self._jobs.held) if not (job.ticket or job.settled)]
        due = [job for job in held if job.renew_at <= now or job.noted]
        if not due:
            return
        notes = [job.noted for job in due]
        try:
            answers = self._client.touch(
                [job.lease for job in due], progress=notes if any(notes) else None
            )
        except (Unavailable, UnknownOutcome, psycopg.Error):
            return  # the next tick tries again; past its deadline a lease is given up
        except Misuse as error:
            log.error("progress cannot be stored", extra={"reason": str(error)})
            for job in due:
                job.noted = None
            return
        for job, note, answer in zip(due, notes, answers, strict=True):
            if job.noted is note:
                job.noted = None
            if answer.held:
                count_lease_from(job, now)
            elif not (job.ticket or job.settled or job.finished):
                self._jobs.lost(job, answer.detail or "")

    def _enforce(self, now: float) -> None:
        """Stop handlers whose time is over.

        After its deadline a job refuses guarded effects. Its handler continues for a while: leases
        are extended by an outage, so that the worker may still hold the job afterwards.
        """
        for job in list(self._jobs.held):
            if job.finished or job.ticket or job.settled:
                continue
            if now >= job.deadline + OUTAGE:
                facts = {"job": str(job.id), "kind": job.kind}
                log.warning("lease could not be renewed", extra=facts)
                self._jobs.stop(job, Stop.FENCED)
            elif job.run_until is not None and now >= job.run_until:
                self._jobs.stop(job, Stop.DEADLINE)


class LoopWatch:
    """Detects that a handler blocks the event loop, and logs which one and where."""

    def __init__(self, jobs: JobLoop, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self.lag = 0.0
        self._jobs = jobs
        self._loop = loop
        self._thread = thread
        self._asked: float | None = None
        self._told = False

    def look(self) -> None:
        """Send the event loop a probe, or detect that the last one is still unanswered."""
        now = monotonic()
        if self._asked is None:
            self._asked = now
            self._loop.call_soon_threadsafe(self._answer)
        elif now - self._asked > BLOCKED:
            self.lag = now - self._asked
            if not self._told:
                self._told = True
                self._tell()

    def _answer(self) -> None:
        if self._asked is not None:
            self.lag = monotonic() - self._asked
            if self._told:
                log.warning("event loop free again", extra={"seconds": round(self.lag, 1)})
        self._asked, self._told = None, False

    def _tell(self) -> None:
        facts: dict[str, Any] = {"seconds": round(self.lag, 1)}
        if frame := sys._current_frames().get(self._thread):
            facts["at"] = _line_of(frame)
        if (task := asyncio.current_task(self._loop)) and (job := self._job_of(task)):
            facts |= {"kind": job.kind, "job": str(job.id)}
        log.warning(
            "HF301 the event loop is blocked by %s (%s): use `def`, not `async def`, or await",
            facts.get("kind", "a callback"),
            facts.get("at", "unknown place"),
            extra=facts,
        )

    def _job_of(self, task: "asyncio.Task[Any]") -> CurrentJob | None:
        return next((job for job in self._jobs.running() if job.runner is task), None)


def _line_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
