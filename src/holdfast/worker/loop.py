"""The loop of a worker: it claims jobs, starts their handlers, and settles how they ended.

One thread speaks to the database and runs this loop. It claims for free slots and a few jobs ahead
(`claiming`), hands them to the runners, and settles what has ended (`settling`) together with the
next claim. While there is plenty to do, a second thread settles on a connection of its own: a claim
need not wait until an ack is on the disk. Handlers run elsewhere: see `asyncs`, `threads` and
`process`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Protocol

import psycopg
from msgspec.structs import replace

from holdfast.app import App
from holdfast.client import Client
from holdfast.client.statement import Row
from holdfast.client.sync.drain import Exchanged
from holdfast.current import CurrentJob, Keeps
from holdfast.errors import Misuse, Unavailable, UnknownOutcome
from holdfast.jitter import random_between
from holdfast.leased import ID, KIND, LENGTH, length_of
from holdfast.outcome import RetryBudget, Stop, settle_stopped
from holdfast.records import Claim, Done, Failed, Released, Settlement
from holdfast.watch.logs import fields_of
from holdfast.watch.meter import Meter
from holdfast.worker.allowance import Allowance
from holdfast.worker.claiming import Claiming
from holdfast.worker.handlers import ACKED, Ending, Returned, done_with, settlement_of
from holdfast.worker.lease_clock import USUAL_LEASE, believed
from holdfast.worker.lines import Lines
from holdfast.worker.queue_slots import QueueSlots
from holdfast.worker.settling import Counts, Ended, Settling, raise_unless_passing

log = logging.getLogger("holdfast.worker")

# Nothing more is claimed while so many jobs that have ended are not settled: all of them would run
# again if this worker died. It is about what a fast worker does while one ack is under way.
MOST_UNSETTLED = 2000
# Jobs that have waited here this long for a slot are released: after short jobs came a long one.
LONGEST_AHEAD = 2.0
# While there is plenty to do, acks wait so long for company: with jobs of 10 ms that takes a third
# of the CPU off the database, and off the worker if they run in threads.
GATHER = 0.003


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
        self.held: set[CurrentJob] = set()
        self.counts = counts
        self._bell = threading.Event()
        # Rings for the thread that settles apart, if it does; and how that thread broke.
        self._ended_bell = threading.Event()
        self._apart = self._over = False
        self._broken: BaseException | None = None
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
            # What a handler enqueued, and what its end released, is looked for after its end.
            on_ended=self.claiming.look_again if until_idle else None,
            meter=meter,
        )
        self.lines = Lines()
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
        """Work until stopped, or until idle if requested. Returns when no leases are held."""
        self._runners = runners
        self._keeps = keeps
        settler = threading.Thread(target=self._settle_apart, name="holdfast-settler", daemon=True)
        settler.start()
        try:
            while not self._broken:
                self._bell.clear()
                self._release_stuck()
                behind = self._unsettled() > MOST_UNSETTLED
                claims = [] if behind else self.claiming.next()
                ended = Ended() if self._apart else self.settling.take()
                if ended or claims or self.claiming.is_asking_due():
                    self._exchange(ended, claims)
                    self._apart = self.claiming.has_plenty() and not self._stopping.is_set()
                    if self._apart:
                        self._ended_bell.set()
                elif self._apart and self._stopping.is_set():
                    self._apart = False
                elif not self.held and (self._stopping.is_set() or self._has_done_enough()):
                    return
                else:
                    # The bell rings when a batch is settled.
                    self._bell.wait(1.0 if behind else min(self.claiming.pause(), LONGEST_AHEAD))
        finally:
            self._over = True
            self._ended_bell.set()
            settler.join()
        raise self._broken

    def _settle_apart(self) -> None:
        """Settle what has ended while the loop leaves that to this thread."""
        while not self._over:
            self._ended_bell.wait()
            self._ended_bell.clear()
            try:
                while self._apart and (ended := self.settling.take()):
                    self._settle(ended)
                    self._bell.set()
                    self._stopping.wait(GATHER)
            except BaseException as error:
                self._broken = error
            # There may be nothing left to hold, and the loop settles what has ended since.
            self._bell.set()

    def _unsettled(self) -> int:
        """How many jobs have ended that the database does not know of: they would run again."""
        begun = sum(slots.running + len(slots.waiting) for slots in self._queues.values())
        return len(self.held) - begun

    def give_back_waiting(self) -> None:
        """Release jobs that have not started, once no more should start; running ones finish."""
        with self._lock:
            for slots in self._queues.values():
                self._give_back_waiting(slots)
        self._ring_both()

    def _release_stuck(self) -> None:
        """Release jobs that wait behind long ones: another worker may have a free slot."""
        long_ago = monotonic() - LONGEST_AHEAD
        for slots in self._queues.values():
            if not slots.waiting:
                continue
            with self._lock:
                if slots.waiting and slots.waiting[0].claimed < long_ago:
                    self._give_back_waiting(slots)
                    slots.ahead = 0
                    self._ended_bell.set()

    def _give_back_waiting(self, slots: QueueSlots) -> None:
        for job in slots.waiting:
            self._give_back(job)
        slots.waiting.clear()

    def finish(self, job: CurrentJob, ended: Ending) -> CurrentJob | None:
        """Take in how a job ended; from any thread, and only once for each job.

        Returns the job that has its slot now, begun and to be run by the same runner; one for
        another runner is started here. A second call says that a handler that was given up has
        come to its end.
        """
        slots = self._queues[job.queue]
        with self._lock:
            if job.finished:
                if job.goes_on and job.stopped is Stop.LOST:
                    job.goes_on = False
                    self.settling.add(job, None)
                    self._ring_both()
                return None
            job.finished = True
            now = monotonic()
            ran = None if job.started is None else now - job.started
            if ended is ACKED and ran is not None and not self._budgets and not job.stopped:
                self.settling.add_acked(job, ran)
            elif (
                isinstance(ended, Returned)
                and ran is not None
                and not self._budgets
                and not job.stopped
            ):
                self.settling.add_returned(job, ended.document, ran)
            else:
                self.settling.add(job, self._charged(job, settlement_of(job, ended)))
                if ran is not None:
                    self.settling.add_ran(job, ran)
            slots.ended += 1
            slots.running -= 1
            after = self._next_to_start(slots, now)
        if self._meter and ran is not None:
            self._meter.ran(job, ran)
        self._ring(slots)
        if after is None:
            return None
        self._begin(after, now)
        if after.task.runs == job.task.runs:
            return after
        self._runners[after.task.runs].start(after)
        return None

    def _charged(self, job: CurrentJob, settlement: Settlement | None) -> Settlement | None:
        if settlement and (budget := self._budgets.get(job.kind)):
            settlement = budget.charge(settlement)
        # A handler in another process has said what it logged, unless that was killed.
        if job.log and isinstance(settlement, Failed) and settlement.log is None:
            settlement = replace(settlement, log=job.log.text())
        return settlement

    def _ring(self, slots: QueueSlots) -> None:
        """Wake the threads that have something to do now that a job has ended.

        Checking whether an event is already set is far cheaper than setting it, and equivalent: it
        is cleared before the lists are read.
        """
        if not self._apart:
            if not self._bell.is_set():
                self._bell.set()
            return
        if not self._ended_bell.is_set():
            self._ended_bell.set()
        if slots.wanted() > 0 and not self._bell.is_set():
            self._bell.set()

    def _ring_both(self) -> None:
        self._ended_bell.set()
        self._bell.set()

    def stop(self, job: CurrentJob, why: Stop) -> None:
        """Stop a job's handler, as far as it can be stopped."""
        with self._lock:
            if job.finished or job.stopped:
                return
            job.stopped = why
            slots = self._queues[job.queue]
            waiting = job in slots.waiting
            if waiting:
                slots.waiting.remove(job)
                job.finished = True
                self.settling.add(job, settle_stopped(job))
        if waiting:
            self._ring_both()
        else:
            self._runners[job.task.runs].stop(job)

    def lost(self, job: CurrentJob, detail: str) -> None:
        """Record that this worker no longer holds a lease, and stop its handler."""
        self.counts.lost += 1
        log.warning("lease lost", extra={**fields_of(job), "detail": detail})
        if self._meter:
            self._meter.lost(job)
        self.held.discard(job)
        self.stop(job, Stop.LOST)

    def running(self) -> list[CurrentJob]:
        """Return the jobs whose handlers run now."""
        return [job for job in list(self.held) if job.started and not job.finished]

    def _exchange(self, ended: Ended, claims: Sequence[Claim]) -> None:
        """Settle what has ended and claim what comes next, in one round trip."""
        sent = monotonic()
        told = self.claiming.take_told(claims)
        try:
            self._take_in_unanswered()
            self.claiming.await_work(claims, sent)
            answer = self._send(ended, claims)
        except Misuse:
            if not (ended.others or ended.returned):
                raise
            # To a server that is far they were sent together, and may have been carried out.
            self.claiming.keep_unanswered(claims, sent)
            self._settle_one_by_one(ended)
            return
        except (Unavailable, UnknownOutcome, psycopg.Error) as error:
            raise_unless_passing(error)
            self.claiming.keep_unanswered(claims, sent)
            self._wait_out(ended, self._bell)
            return
        self.settling.note(ended, answer.lost, answer.settled)
        if answer.repeated:
            self.claiming.keep_unanswered(claims, sent, reserved=False)
        for claim, rows in zip(claims, answer.leased, strict=True):
            self._take_in(claim, sent, rows)
            self.claiming.note(claim, len(rows), told=claim.queue in told)
        self.claiming.answered(claims)
        self.claiming.rate()

    def _settle(self, ended: Ended) -> None:
        """Settle what has ended, while the loop claims."""
        try:
            answer = self._send(ended, [])
        except Misuse:
            if not (ended.others or ended.returned):
                raise
            self._settle_one_by_one(ended)
        except (Unavailable, UnknownOutcome, psycopg.Error) as error:
            raise_unless_passing(error)
            self._wait_out(ended, self._ended_bell)
        else:
            self.settling.note(ended, answer.lost, answer.settled)

    def _send(self, ended: Ended, claims: Sequence[Claim]) -> Exchanged:
        if self.lines.jobs:
            self.lines.send_rest(self._client, ended.jobs())
        ids = [job.row[ID] for job in ended.acked]
        tokens = [job.token for job in ended.acked]
        results = None
        if ended.returned:
            results = b"[%b%b]" % (
                b"null," * len(ids),
                b",".join([document for _, document in ended.returned]),
            )
            ids += [job.row[ID] for job, _ in ended.returned]
            tokens += [job.token for job, _ in ended.returned]
        settlements = [how for _, how in ended.others]
        dones = sum(type(how) is Done for how in settlements)
        recent = self._app.recent.take(len(ids) + dones) if ids or dones else 0
        return self._client.drain.exchange(
            ids, tokens, settlements, claims, results=results, recent=recent
        )

    def _settle_one_by_one(self, ended: Ended) -> None:
        """Settle a batch in which something cannot be stored, without affecting the others."""
        self.settling.put_back(Ended(ended.acked))
        returned = [(job, done_with(job, document)) for job, document in ended.returned]
        for job, settlement in [*returned, *ended.others]:
            self.settling.settle_alone(job, settlement)

    def _take_in_unanswered(self) -> None:
        if not self.claiming.is_asking_due():
            return
        known = {(job.row[ID], job.token) for job in list(self.held)}
        for claim, sent, row in self.claiming.ask_unanswered(self._longest):
            if (row[ID], claim.token.bytes) not in known:
                self._take_in(claim, sent, [row])
                self.claiming.found(claim)

    def _take_in(self, claim: Claim, sent: float, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self.counts.claimed += len(rows)
        if self._allowance:
            self._allowance.claimed(len(rows))
        slots = self._queues[claim.queue]
        jobs = self._hold(claim, sent, rows)
        self.counts.claims.appendleft(datetime.now(UTC))
        self.settling.add_claimed(claim.queue, rows)
        with self._lock:
            if self._stopping.is_set():
                for job in jobs:
                    self._give_back(job)
                return
            slots.waiting.extend(jobs)
            starting, now = [], monotonic()
            while (first := self._next_to_start(slots, now)) is not None:
                starting.append(first)
        for job in starting:
            self._begin(job, now)
            self._runners[job.task.runs].start(job)

    def _hold(self, claim: Claim, sent: float, rows: Iterable[Row]) -> list[CurrentJob]:
        tasks, keeps, queue, token = self._app.handlers, self._keeps, claim.queue, claim.token.bytes
        jobs = []
        length: bytes | None = None
        seconds = deadline = renew_at = 0.0
        for row in rows:
            if row[LENGTH] != length:  # most have one length
                length = row[LENGTH]
                seconds = length_of(length).total_seconds()
                deadline, renew_at = believed(sent, seconds)
                self._longest = max(self._longest, seconds)
            task = tasks[row[KIND]]
            jobs.append(
                CurrentJob(task, keeps, queue, claim, row, token, seconds, sent, deadline, renew_at)
            )
        self.held.update(jobs)
        return jobs

    def _next_to_start(self, slots: QueueSlots, now: float) -> CurrentJob | None:
        while slots.waiting and slots.running < slots.slots and not self._stopping.is_set():
            job = slots.waiting.popleft()
            if now < job.deadline:
                slots.running += 1
                return job
            # It waited too long, perhaps in a stopped process: it may run elsewhere by now.
            self._give_back(job)
        return None

    def _give_back(self, job: CurrentJob) -> None:
        job.finished = True
        if self._allowance:
            self._allowance.claimed(-1)
        self.settling.add(job, Released(job.lease))

    def _begin(self, job: CurrentJob, now: float) -> None:
        """Record that the handler of a job starts."""
        job.started = now
        if job.task.timeout is not None:
            job.run_until = now + job.task.timeout
        if self._logs:
            log.debug("leased", extra=fields_of(job))
        if self._meter:
            self._meter.started(job)

    def _wait_out(self, ended: Ended, bell: threading.Event) -> None:
        """Put back what had ended, and wait until the exchange can be tried again."""
        self.settling.put_back(ended)
        # The listener may have lost its connection too, or the database its list of waiting
        # workers.
        self._doubt()
        # The client has waited already; many workers should not all return at once.
        bell.clear()
        bell.wait(random_between(0.05, 0.6))

    def _has_done_enough(self) -> bool:
        if self._allowance and self._allowance.used_up():
            return True
        return self._until_idle and self.claiming.is_idle()


class _NobodyKeeps:
    def renew_soon(self) -> None:
        pass
