"""The loop of a worker: it claims jobs, starts their handlers, and settles how they ended.

One thread speaks to the database and runs this loop. It claims for free slots and a few jobs ahead
(`claiming`), hands them to the runners, and settles what has ended (`settling`) together with the
next claim. Handlers run elsewhere: see `asyncs`, `threads` and `process`.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Protocol
from uuid import UUID

import psycopg
from msgspec.structs import replace

from holdfast.app import App
from holdfast.client import Client
from holdfast.current import CurrentJob, Keeps
from holdfast.errors import HoldfastError, Misuse, Unavailable, UnknownOutcome
from holdfast.jitter import random_between
from holdfast.outcome import RetryBudget, Stop, settle_stopped
from holdfast.records import Claim, Failed, Lease, Released, Settlement
from holdfast.watch.logs import fields_of
from holdfast.watch.meter import Meter
from holdfast.worker.allowance import Allowance
from holdfast.worker.claiming import Claiming
from holdfast.worker.lease_clock import USUAL_LEASE, count_lease_from
from holdfast.worker.queue_slots import QueueSlots
from holdfast.worker.settling import Counts, Ended, Settling

log = logging.getLogger("holdfast.worker")


class Runner(Protocol):
    """Runs handlers of one sort. It calls `finish` once for each job it started."""

    def start(self, job: CurrentJob) -> None:
        """Start the handler and return at once."""

    def stop(self, job: CurrentJob) -> None:
        """Stop the handler for the reason in `job.stopped`, as far as its sort can be stopped."""


class JobLoop:
    """The loop of one worker, and the jobs it holds."""

    def __init__(
        self,
        app: App,
        client: Client,
        queues: Sequence[QueueSlots],
        *,
        worker: str,
        counts: Counts,
        lease: float | None,
        poll: Callable[[], float],
        stopping: threading.Event,
        ear: Callable[[], int | None] = lambda: None,
        doubt: Callable[[], None] = lambda: None,
        until_idle: bool = False,
        allowance: Allowance | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.held: dict[tuple[UUID, UUID], CurrentJob] = {}
        self.counts = counts
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self.claiming = Claiming(
            client,
            queues,
            worker=worker,
            lease=lease,
            poll=poll,
            stopping=stopping,
            lock=self._lock,
            bell=self._bell,
            ear=ear,
            allowance=allowance,
        )
        self.settling = Settling(
            client,
            self.held,
            counts=counts,
            lock=self._lock,
            lost=self.lost,
            # What a handler enqueued before it ended is looked for after its end.
            on_ended=self.claiming.look_again if until_idle else None,
            meter=meter,
        )
        self._app = app
        self._client = client
        self._queues = self.claiming.queues
        self._runners: Mapping[str, Runner] = {}
        self._keeps: Keeps = _NobodyKeeps()
        self._longest = lease or USUAL_LEASE
        self._doubt = doubt
        self._stopping = stopping
        self._until_idle = until_idle
        self._allowance = allowance
        self._meter = meter
        self._logs = log.isEnabledFor(logging.DEBUG)
        self._budgets = {
            kind: RetryBudget(task.retry_budget)
            for kind, task in app.tasks.items()
            if task.retry_budget is not None
        }

    def run(self, runners: Mapping[str, Runner], keeps: Keeps) -> None:
        """Work until stopped, or idle if that was asked for. Returns when nothing is held."""
        self._runners = runners
        self._keeps = keeps
        while True:
            self._bell.clear()
            settlements, claims = self.settling.take(), self.claiming.next()
            if settlements or claims or self.claiming.is_asking_due():
                self._exchange(settlements, claims)
                if self._allowance:
                    self._allowance.give_back(sum(claim.limit for claim in claims))
            elif not self.held and (self._stopping.is_set() or self._has_done_enough()):
                return
            else:
                self._bell.wait(self.claiming.pause())

    def give_back_waiting(self) -> None:
        """Give back what has not started, once nothing more is to start; what runs may end."""
        with self._lock:
            for slots in self._queues.values():
                for job in slots.waiting:
                    self._give_back(job)
                slots.waiting.clear()
        self._bell.set()

    def finish(self, job: CurrentJob, settlement: Settlement | None) -> None:
        """Take in how a job ended; from any thread, and only once for each job.

        Without a settlement there is nothing left to tell the database. A second call says that
        a handler that was given up has come to its end.
        """
        slots = self._queues[job.lease.queue]
        with self._lock:
            if job.finished:
                if job.goes_on and job.stopped is Stop.LOST:
                    job.goes_on = False
                    self.settling.add(job, None)
                    self._bell.set()
                return
            job.finished = True
            if settlement and (budget := self._budgets.get(job.kind)):
                settlement = budget.charge(settlement)
            ran = None if job.started is None else monotonic() - job.started
            if ran is not None:
                self.settling.add_ran(job, ran)
            if job.log is not None and isinstance(settlement, Failed):
                settlement = replace(settlement, log=job.log.text())
            self.settling.add(job, settlement)
            slots.ended += 1
            slots.running -= 1
            after = self._next_to_start(slots)
        if self._meter and ran is not None:
            self._meter.ran(job, ran)
        if after:
            self._start(after)
        self._bell.set()

    def stop(self, job: CurrentJob, why: Stop) -> None:
        """Stop a job's handler, as far as it can be stopped."""
        with self._lock:
            if job.finished or job.stopped:
                return
            job.stopped = why
            slots = self._queues[job.lease.queue]
            waiting = job in slots.waiting
            if waiting:
                slots.waiting.remove(job)
                job.finished = True
                self.settling.add(job, settle_stopped(job))
        if waiting:
            self._bell.set()
        else:
            self._runners[job.task.runs].stop(job)

    def lost(self, job: CurrentJob, detail: str) -> None:
        """Note that a lease is not this worker's any more, and stop its handler."""
        self.counts.lost += 1
        log.warning("lease lost", extra={**fields_of(job), "detail": detail})
        if self._meter:
            self._meter.lost(job)
        self.held.pop((job.id, job.lease.token), None)
        self.stop(job, Stop.LOST)

    def running(self) -> list[CurrentJob]:
        """Return the jobs whose handlers run now."""
        return [job for job in list(self.held.values()) if job.started and not job.finished]

    def _exchange(self, settlements: Sequence[Ended], claims: Sequence[Claim]) -> None:
        """Settle what has ended and claim what comes next, in one round trip."""
        sent = monotonic()
        told = self.claiming.take_told(claims)
        try:
            for claim, sent_before, lease in self.claiming.ask_unanswered(self._longest):
                if (lease.id, lease.token) not in self.held:
                    self._take_in(claim, sent_before, [lease])
            self.claiming.await_work(claims, sent)
            settled, leased = self._client.exchange([how for _, how in settlements], claims)
        except Misuse:
            if not settlements:
                raise
            # Something in the batch cannot be stored: the others must not suffer for it.
            for job, settlement in settlements:
                self.settling.settle_alone(job, settlement)
            return
        except (Unavailable, UnknownOutcome, psycopg.Error) as error:
            _raise_unless_passing(error)
            self.settling.put_back(settlements)
            self.claiming.keep_unanswered(claims, sent)
            # Whatever was cut may have been the listener as well, or the memory of the database.
            self._doubt()
            self._wait_out()
            return
        self.settling.note(settlements, settled)
        for claim, leases in zip(claims, leased, strict=True):
            self._take_in(claim, sent, leases)
            self.claiming.note(claim, leases, told=claim.queue in told)
        self.claiming.rate()

    def _take_in(self, claim: Claim, sent: float, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        self.counts.claimed += len(leases)
        if self._allowance:
            self._allowance.claimed(len(leases))
        slots = self._queues[claim.queue]
        jobs = [self._hold(lease, sent) for lease in leases]
        self.counts.claims.appendleft(datetime.now(UTC))
        with self._lock:
            self.settling.add_claimed(leases)
            if self._stopping.is_set():
                for job in jobs:
                    self._give_back(job)
                return
            slots.waiting.extend(jobs)
            starting = []
            while (first := self._next_to_start(slots)) is not None:
                starting.append(first)
        for job in starting:
            self._start(job)

    def _hold(self, lease: Lease, sent: float) -> CurrentJob:
        job = CurrentJob(lease, self._app.tasks[lease.kind], self._keeps)
        job.lease_seconds = length = lease.length.total_seconds()
        self._longest = max(self._longest, length)
        job.claimed = sent
        count_lease_from(job, sent)
        self.held[lease.id, lease.token] = job
        return job

    def _next_to_start(self, slots: QueueSlots) -> CurrentJob | None:
        while slots.waiting and slots.running < slots.slots and not self._stopping.is_set():
            job = slots.waiting.popleft()
            if job.held():
                slots.running += 1
                return job
            # It waited too long, say in a process that was stopped: it may run elsewhere by now.
            self._give_back(job)
        return None

    def _give_back(self, job: CurrentJob) -> None:
        job.finished = True
        self.settling.add(job, Released(job.lease))

    def _start(self, job: CurrentJob) -> None:
        job.started = now = monotonic()
        if job.task.timeout is not None:
            job.run_until = now + job.task.timeout
        if self._logs:
            log.debug("leased", extra=fields_of(job))
        if self._meter:
            self._meter.started(job)
        self._runners[job.task.runs].start(job)

    def _wait_out(self) -> None:
        # The client has waited already; many workers should not all return at once.
        self._bell.clear()
        self._bell.wait(random_between(0.05, 0.6))

    def _has_done_enough(self) -> bool:
        if self._allowance and self._allowance.used_up():
            return True
        return self._until_idle and self.claiming.is_idle()


class _NobodyKeeps:
    def renew_soon(self) -> None:
        pass


def _raise_unless_passing(error: Exception) -> None:
    """Raise an error that is not an outage: trying again would never help."""
    if isinstance(error, HoldfastError):
        return
    state = getattr(error, "sqlstate", None) or ""
    passing = ("", "08", "25", "40", "53", "55", "57", "58", "XX")
    if state[:2] not in passing:
        raise error
