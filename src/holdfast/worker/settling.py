"""How jobs ended: collected from the runners, told to the database, counted and logged."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from holdfast.client import Client
from holdfast.current import CurrentJob
from holdfast.errors import Misuse, Unavailable, UnknownOutcome
from holdfast.outcome import Stop, error_kind, error_message
from holdfast.records import Done, Failed, Lease, Released, Settled, Settlement
from holdfast.watch.logs import fields_of
from holdfast.watch.measures import Measures
from holdfast.watch.meter import Meter

log = logging.getLogger("holdfast.worker")

# Of attempts that succeed one in so many is kept, and not more between two beats.
SAMPLED = 100
MOST_SAMPLED = 50
# How many of the latest claims are shown with the worker.
RECENT = 10

Ended = tuple[CurrentJob, Settlement]


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
        held: MutableMapping[tuple[UUID, UUID], CurrentJob],
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
        self._ended: list[tuple[CurrentJob, Settlement | None]] = []
        # Asked once: at 30,000 jobs a second even a record that nobody reads would be felt.
        self._logs = log.isEnabledFor(logging.DEBUG)
        self._notes = self._logs or meter is not None

    def add(self, job: CurrentJob, settlement: Settlement | None) -> None:
        """Take in how a job ended, under the lock; None if the database knows already."""
        self._ended.append((job, settlement))

    def add_ran(self, job: CurrentJob, seconds: float) -> None:
        """Take in how long a handler ran, under the lock."""
        self._counts.busy_time += seconds
        self._measures.ran(job.lease.queue, job.lease.kind, seconds)

    def add_claimed(self, leases: Iterable[Lease]) -> None:
        """Take in how long jobs waited before they were claimed, under the lock."""
        # A lease is counted from when it was claimed, by the clock of the database.
        for lease in leases:
            claimed = lease.lease_until - lease.length
            self._measures.waited(lease.queue, lease.kind, lease.run_at, claimed)

    def put_back(self, settlements: Sequence[Ended]) -> None:
        """Keep settlements that could not be sent for the next time."""
        with self._lock:
            self._ended[:0] = settlements

    def take(self) -> list[Ended]:
        """Return what is to be told to the database now."""
        with self._lock:
            ended, self._ended = self._ended, []
        if ended and self._on_ended:
            self._on_ended()
        settlements: list[Ended] = []
        for job, settlement in ended:
            if job.stopped is Stop.LOST and not (job.settled or job.ticket):
                # It may have been cancelled: then its slot is kept until its handler has ended.
                if not job.goes_on:
                    settlements.append((job, Released(job.lease)))
            elif settlement is None:
                if job.settled:
                    self._counts.acked += 1
                self._held.pop((job.id, job.lease.token), None)
                if self._notes and (job.settled or job.ticket):
                    self._note_ended(job, "done" if job.settled else "handed over")
            else:
                settlements.append((job, settlement))
        return settlements

    def note(self, settlements: Iterable[Ended], answers: Iterable[Settled]) -> None:
        """Count and log what the database made of settlements."""
        counts = self._counts
        before = counts.acked
        for (job, settlement), answer in zip(settlements, answers, strict=True):
            self._held.pop((job.id, job.lease.token), None)
            if not answer.held:
                if not job.stopped:
                    self._lost(job, answer.detail or "")
            elif type(settlement) is Done:
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
                if self._notes:
                    self._note_ended(job, "released")
            elif self._notes:
                self._note_ended(job, "cancelled")
        if counts.acked > before:
            counts.acked_at = datetime.now(UTC)

    def settle_alone(self, job: CurrentJob, settlement: Settlement) -> None:
        """Settle one job of a batch that was refused; one that cannot be stored fails for good."""
        try:
            answers = self._client.settle([settlement])
        except Misuse as error:
            refused = Failed(job.lease, error_kind(error), error_message(error), final=True)
            self.put_back([(job, refused)])
        except (Unavailable, UnknownOutcome):
            self.put_back([(job, settlement)])
        else:
            self.note([(job, settlement)], answers)

    def measured(self) -> dict[str, Any] | None:
        """Return what was measured since this was last called; from any thread."""
        with self._lock:
            return self._measures.take()

    def _note_failed(self, job: CurrentJob, failed: Failed, *, died: bool) -> None:
        error = f"{failed.error_kind}: {failed.message}"
        log.warning(
            "job died" if died else "attempt failed", extra={**fields_of(job), "error": error}
        )
        if self._meter:
            self._meter.ended(job, "dead" if died else "failed")

    def _note_ended(self, job: CurrentJob, how: str) -> None:
        if self._meter:
            self._meter.ended(job, how.replace(" ", "_"))
        if self._logs:
            seconds = 0.0 if job.started is None else monotonic() - job.started
            log.debug(how, extra={**fields_of(job), "seconds": round(seconds, 4)})

    def _sample(self, job: CurrentJob) -> None:
        """Keep one attempt that succeeded: what it logged shows what is usual."""
        if self._measures.attempts >= MOST_SAMPLED or job.started is None:
            return
        ended = datetime.now(UTC)
        attempt = {
            "id": job.id,
            "attempt": job.attempt,
            "token": job.lease.token,
            "started_at": ended - timedelta(seconds=monotonic() - job.started),
            "ended_at": ended,
            "log": job.log.text() if job.log is not None else None,
        }
        with self._lock:
            self._measures.ended(attempt)
