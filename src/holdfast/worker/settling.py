"""Outcomes of jobs: collected from the runners, sent to the database, counted and logged."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import psycopg

from holdfast.client import Client
from holdfast.client.statement import Row
from holdfast.current import CurrentJob
from holdfast.errors import HoldfastError, Misuse, Unavailable, UnknownOutcome
from holdfast.leased import KIND, LEASE_UNTIL, LENGTH, RUN_AT, microseconds_of
from holdfast.outcome import Retry, Stop, error_kind, error_message, without_own_frames
from holdfast.records import Done, Failed, Released, Settled, Settlement, Suspended, Unread
from holdfast.watch.logs import fields_of
from holdfast.watch.measures import Measures
from holdfast.watch.meter import Meter

log = logging.getLogger("holdfast.worker")

# One in this many successful attempts is kept, and a limited number between two beats.
SAMPLED = 100
MOST_SAMPLED = 50
# How many different reasons why jobs cannot be read are logged.
MOST_TOLD = 100
# How many of the latest claims are shown with the worker.
RECENT = 10


@dataclass(slots=True)
class Ended:
    """Jobs whose ends the database does not know yet.

    Those to ack, others with how, and those to ack with a result, which is JSON.
    """

    acked: list[CurrentJob] = field(default_factory=list)
    others: list[tuple[CurrentJob, Settlement]] = field(default_factory=list)
    returned: list[tuple[CurrentJob, bytes]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.acked or self.others or self.returned)

    def jobs(self) -> list[CurrentJob]:
        """Return all of them."""
        return [
            *self.acked,
            *(job for job, _ in self.returned),
            *(job for job, _ in self.others),
        ]


@dataclass(slots=True)
class Counts:
    """What a worker has done since it started."""

    claimed: int = 0
    acked: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    busy_time: float = 0.0
    acked_at: datetime | None = None
    claims: deque[datetime] = field(default_factory=lambda: deque(maxlen=RECENT))


class Settling:
    """The ends of a worker's jobs. `held` is shared with the loop, and so is the lock."""

    def __init__(
        self,
        client: Client,
        held: set[CurrentJob],
        *,
        counts: Counts,
        lock: threading.Lock,
        lost: Callable[[CurrentJob, str], None],
        on_ended: Callable[[], None] | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._client = client
        self._held = held
        self._counts = counts
        self._lock = lock
        self._lost = lost
        self._on_ended = on_ended
        self._meter = meter
        self._measures = Measures()
        self._unread: set[tuple[str, str]] = set()
        # Two threads may settle for a moment, when there is suddenly plenty to do, or no more.
        self._noting = threading.Lock()
        self._acked: list[CurrentJob] = []
        self._returned: list[tuple[CurrentJob, bytes]] = []
        # How long handlers ran, by queue and kind: noted here and counted later, many at once.
        self._ran: list[tuple[str, str, float]] = []
        self._measuring = threading.Lock()
        self._others: list[tuple[CurrentJob, Settlement | None]] = []
        # Checked once: at 30,000 jobs a second even a record that is not shown would cost too much.
        self._logs = log.isEnabledFor(logging.DEBUG)
        self._notes = self._logs or meter is not None

    def add_acked(self, job: CurrentJob, seconds: float) -> None:
        """Record that a job succeeded with nothing to store, under the lock."""
        self._acked.append(job)
        self._ran.append((job.queue, job.task.kind, seconds))

    def add_returned(self, job: CurrentJob, document: bytes, seconds: float) -> None:
        """Record that a job succeeded with a result for the jobs that wait for it."""
        self._returned.append((job, document))
        self._ran.append((job.queue, job.task.kind, seconds))

    def add(self, job: CurrentJob, settlement: Settlement | None) -> None:
        """Record how else a job ended, under the lock; None if the database already knows."""
        self._others.append((job, settlement))

    def add_ran(self, job: CurrentJob, seconds: float) -> None:
        """Record how long a handler ran, under the lock."""
        self._ran.append((job.queue, job.task.kind, seconds))

    def add_claimed(self, queue: str, rows: Iterable[Row]) -> None:
        """Record how long jobs waited before they were claimed."""
        waited = [
            # A lease is counted from when it was claimed, by the clock of the database.
            (row[KIND], row[LEASE_UNTIL] - microseconds_of(row[LENGTH]) - row[RUN_AT])
            for row in rows
        ]
        with self._measuring:
            self._measures.all_waited(queue, waited)

    def put_back(self, ended: Ended) -> None:
        """Keep what could not be sent for the next time."""
        with self._lock:
            self._acked[:0] = ended.acked
            self._returned[:0] = ended.returned
            self._others[:0] = ended.others

    def take(self) -> Ended:
        """Return what to send to the database now."""
        with self._lock:
            ended, self._acked = Ended(self._acked, returned=self._returned), []
            self._returned = []
            others, self._others = self._others, []
            ran, self._ran = self._ran, []
        self._measure(ran)
        if others and self._on_ended:  # some may have been settled already
            self._on_ended()
        for job, settlement in others:
            if job.stopped is Stop.LOST and not (job.settled or job.ticket):
                # It may have been cancelled: then its slot is kept until its handler has ended.
                if not job.goes_on:
                    ended.others.append((job, Released(job.lease)))
            elif settlement is None:
                if job.settled:
                    with self._noting:
                        self._counts.acked += 1
                self._held.discard(job)
                if self._notes and (job.settled or job.ticket):
                    self._note_ended(job, "done" if job.settled else "handed over")
            else:
                ended.others.append((job, settlement))
        return ended

    def note(self, ended: Ended, lost: Mapping[int, str], settled: Iterable[Settled]) -> None:
        """Count and log the results of the database: acks that were `lost`, and the others."""
        if ended and self._on_ended:
            self._on_ended()  # before any of them leaves what is held
        with self._noting:
            before = self._counts.acked
            acked = ended.acked
            if ended.returned:
                acked = [*acked, *(job for job, _ in ended.returned)]
            if acked:
                self._note_acked(acked, lost)
            self._note_others(ended.others, settled)
            if self._counts.acked > before:
                self._counts.acked_at = datetime.now(UTC)

    def _note_acked(self, jobs: Sequence[CurrentJob], lost: Mapping[int, str]) -> None:
        self._held.difference_update(jobs)
        for nth, detail in lost.items():
            if not jobs[nth].stopped:
                self._lost(jobs[nth], detail)
        if lost:
            jobs = [job for nth, job in enumerate(jobs) if nth not in lost]
        first = SAMPLED - 1 - self._counts.acked % SAMPLED
        self._counts.acked += len(jobs)
        for job in jobs[first::SAMPLED]:
            self._sample(job)
        if self._notes:
            for job in jobs:
                self._note_ended(job, "done")

    def _note_others(
        self, others: Iterable[tuple[CurrentJob, Settlement]], answers: Iterable[Settled]
    ) -> None:
        counts = self._counts
        for (job, settlement), answer in zip(others, answers, strict=True):
            self._held.discard(job)
            if not answer.held:
                if not job.stopped:
                    self._lost(job, answer.detail or "")
            elif isinstance(settlement, Done):
                counts.acked += 1
                if counts.acked % SAMPLED == 0:
                    self._sample(job)
                if self._notes:
                    self._note_ended(job, "done")
            elif isinstance(settlement, Failed):
                counts.failed += 1
                self._note_failed(job, settlement, died=answer.outcome == "dead")
            elif isinstance(settlement, Released):
                counts.released += 1
                if settlement.unread:
                    self._note_unread(job, settlement.unread)
                if self._notes:
                    self._note_ended(job, "released")
            elif self._notes:
                how = "suspended" if isinstance(settlement, Suspended) else "cancelled"
                self._note_ended(job, how)

    def settle_alone(self, job: CurrentJob, settlement: Settlement) -> None:
        """Settle one job of a refused batch; one that cannot be stored fails permanently."""
        try:
            answers = self._client.settle([settlement])
        except Misuse as error:
            refused = Failed(job.lease, error_kind(error), error_message(error), final=True)
            self.put_back(Ended([], [(job, refused)]))
        except (Unavailable, UnknownOutcome, psycopg.Error) as error:
            self.put_back(Ended([], [(job, settlement)]))
            raise_unless_passing(error)
        else:
            self.note(Ended([], [(job, settlement)]), {}, answers)

    def measured(self) -> dict[str, Any] | None:
        """Return what was measured since this was last called; from any thread."""
        with self._lock:
            ran, self._ran = self._ran, []
        self._measure(ran)
        with self._measuring:
            return self._measures.take()

    def _measure(self, ran: Sequence[tuple[str, str, float]]) -> None:
        with self._measuring:
            self._measures.all_ran(ran)
            self._counts.busy_time += sum(seconds for _, _, seconds in ran)

    def _note_failed(self, job: CurrentJob, failed: Failed, *, died: bool) -> None:
        told = {**fields_of(job), "error": f"{failed.error_kind}: {failed.message}"}
        error, job.raised = job.raised, None
        if error is None and failed.traceback:
            told["traceback"] = failed.traceback
        log.log(
            # Error trackers report this level. After a failed attempt, the next may succeed.
            logging.ERROR if died else logging.WARNING,
            "job died" if died else "attempt failed",
            # A handler that raises Retry has asked for another attempt: nothing went wrong.
            exc_info=None
            if error is None or isinstance(error, Retry)
            else without_own_frames(error),
            extra=told,
        )
        if self._meter:
            self._meter.ended(job, "dead" if died else "failed")

    def _note_unread(self, job: CurrentJob, unread: Unread) -> None:
        """Log what cannot be read here: once for each reason, however many jobs there are."""
        if (job.kind, unread.problem) not in self._unread and len(self._unread) < MOST_TOLD:
            self._unread.add((job.kind, unread.problem))
            told = {**fields_of(job), "problem": unread.problem}
            log.warning("job cannot be read here, and is given back", extra=told)

    def _note_ended(self, job: CurrentJob, how: str) -> None:
        if self._meter:
            self._meter.ended(job, how.replace(" ", "_"))
        if self._logs:
            seconds = 0.0 if job.started is None else monotonic() - job.started
            log.debug(how, extra={**fields_of(job), "seconds": round(seconds, 4)})

    def _sample(self, job: CurrentJob) -> None:
        """Keep one successful attempt: its log shows what is normal."""
        if self._measures.attempts >= MOST_SAMPLED or job.started is None:
            return
        ended = datetime.now(UTC)
        attempt = {
            "id": job.id,
            "attempt": job.attempt,
            "token": job.lease.token,
            "started_at": ended - timedelta(seconds=monotonic() - job.started),
            "ended_at": ended,
            "log": job.log.text() if job.log else None,
        }
        with self._measuring:
            self._measures.ended(attempt)


def raise_unless_passing(error: Exception) -> None:
    """Raise an error that is not an outage: trying again would never help."""
    if isinstance(error, HoldfastError):
        return
    state = getattr(error, "sqlstate", None) or ""
    passing = ("", "08", "25", "40", "53", "55", "57", "58", "XX")
    if state[:2] not in passing:
        raise error
