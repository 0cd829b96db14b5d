"""The life of a job in a worker: claimed, started, run, decided, settled.

One thread speaks to the database and owns this file's loop. It claims for free slots and a few jobs
ahead, hands them to the runners, collects how they ended, and settles that together with the next
claim. Handlers run elsewhere: see `runners`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Protocol
from uuid import UUID, uuid4

import psycopg
from msgspec.structs import replace

from holdfast.app import App
from holdfast.client import Client
from holdfast.current import CurrentJob, Keeps, Stop
from holdfast.errors import HoldfastError, LeaseLost, Misuse, Unavailable, UnknownOutcome
from holdfast.jitter import uniform
from holdfast.outcome import RetryBudget, decide, error_kind, error_message
from holdfast.records import Ack, Claim, Lease, Nack, Release, Settled, Settlement
from holdfast.watch.logs import fields_of
from holdfast.watch.measures import Measures
from holdfast.watch.meter import Meter
from holdfast.worker.allowance import Allowance

log = logging.getLogger("holdfast.worker")

# Jobs claimed ahead of free slots: as many as are run in this time, and never more than that.
AHEAD_SECONDS = 0.03
MOST_AHEAD = 400
# The pause before the first look at a queue that ran dry; each further one is three times as long.
FIRST_LOOK = 0.01
ENOUGH_LOOKS = 3
# How long the database remembers that this worker waits; it says so again well before that ends.
PATIENCE = 60.0
SAYS_AGAIN = 10.0
# The local belief in a lease ends this share of it, at most a second, before the database's.
MARGIN = 0.1
# What a queue gives that nobody set up.
USUAL_LEASE = 30.0
# Of attempts that end well one in so many is kept, and not more between two beats.
SAMPLED = 100
MOST_SAMPLED = 50
# Claims whose times are told.
RECENT = 10


class Runner(Protocol):
    """Runs handlers of one sort. It calls `finish` once for each job it started."""

    def start(self, job: CurrentJob) -> None:
        """Start the handler and return at once."""

    def stop(self, job: CurrentJob) -> None:
        """Stop the handler for the reason in `job.stopped`, as far as its sort can be stopped."""


@dataclass(slots=True)
class Line:
    """What a worker has of one queue: jobs that run in its slots, and some that wait for one."""

    queue: str
    slots: int
    kinds: Sequence[str]
    running: int = 0
    waiting: deque[CurrentJob] = field(default_factory=deque)
    ahead: int = 0
    ended: int = 0
    # When to look for jobs again, whether the last look came up short, and until when this worker
    # is sure to be told of the next one, if what it listens with is still the same.
    look_at: float = 0.0
    dry: bool = False
    awaited_until: float = 0.0
    ear: int | None = None
    looks: int = 0
    # Somebody told it of work; it may be more than this worker can take.
    told: bool = False

    def wanted(self) -> int:
        """How many jobs to claim: none while enough wait for a slot."""
        if len(self.waiting) > self.ahead // 2:
            return 0
        return max(self.slots - self.running, 0) + self.ahead - len(self.waiting)


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


class Life:
    """The loop of one worker, and everything it holds."""

    def __init__(
        self,
        app: App,
        client: Client,
        lines: Sequence[Line],
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
        self.worker = worker
        self.held: dict[tuple[UUID, UUID], CurrentJob] = {}
        self.counts = counts
        self._measures = Measures()
        self._app = app
        self._client = client
        self._lines = {line.queue: line for line in lines}
        self._runners: Mapping[str, Runner] = {}
        self._keeps: Keeps = _NobodyKeeps()
        self._lease = lease
        self._longest = lease or USUAL_LEASE
        self._poll = poll
        self._ear = ear
        self._doubt = doubt
        self._stopping = stopping
        self._until_idle = until_idle
        self._allowance = allowance
        self._meter = meter
        self._tells = self._notes = False
        self._budgets = {
            kind: RetryBudget(task.retry_budget)
            for kind, task in app.tasks.items()
            if task.retry_budget is not None
        }
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self._ended: list[tuple[CurrentJob, Settlement | None]] = []
        self._doubtful: list[tuple[Claim, float]] = []
        self._ask_at = 0.0
        self._rated_at = monotonic()

    def run(self, runners: Mapping[str, Runner], keeps: Keeps) -> None:
        """Work until stopped, or idle if that was asked for. Returns when nothing is held."""
        self._runners = runners
        self._keeps = keeps
        # Asked once: at 30,000 jobs a second even a record that nobody reads would be felt.
        self._tells = log.isEnabledFor(logging.DEBUG)
        self._notes = self._tells or self._meter is not None
        while True:
            self._bell.clear()
            settlements, claims = self._take_ended(), self._next_claims()
            if settlements or claims or (self._doubtful and self._ask_at <= monotonic()):
                self._exchange(settlements, claims)
                if self._allowance:
                    self._allowance.give_back(sum(claim.limit for claim in claims))
            elif not self.held and (self._stopping.is_set() or self._has_done_enough()):
                return
            else:
                self._bell.wait(self._pause())

    def wake(self, queue: str) -> bool:
        """Look for jobs now: a queue has some. False if there is no room for any."""
        line = self._lines.get(queue)
        if line is None:
            return False
        with self._lock:
            # Who was told is no longer among those who wait.
            line.awaited_until = 0.0
            if self._stopping.is_set() or line.wanted() <= 0:
                return False
            line.dry, line.look_at, line.told = False, 0.0, True
        self._bell.set()
        return True

    def listen_again(self) -> None:
        """Believe no longer that this worker is told of work; ask again to be, or look more often.

        Called when notifications begin to arrive, and when they no longer do.
        """
        with self._lock:
            soon = monotonic() + (0.0 if self._ear() is not None else self._poll())
            for line in self._lines.values():
                line.awaited_until, line.look_at = 0.0, min(line.look_at, soon)
        self._bell.set()

    def drain(self) -> None:
        """Give back what has not started, once nothing more is to start; what runs may end."""
        with self._lock:
            waiting = [job for line in self._lines.values() for job in line.waiting]
            for line in self._lines.values():
                line.waiting.clear()
            for job in waiting:
                self._give_back(job)
        self._bell.set()

    def finish(self, job: CurrentJob, settlement: Settlement | None) -> None:
        """Take in how a job ended; from any thread, and only once for each job.

        Without a settlement there is nothing left to say to the database. A second call says that
        a handler that was given up has come to its end.
        """
        line = self._lines[job.lease.queue]
        with self._lock:
            if job.finished:
                if job.goes_on and job.stopped is Stop.LOST:
                    job.goes_on = False
                    self._ended.append((job, None))
                    self._bell.set()
                return
            job.finished = True
            if settlement and (budget := self._budgets.get(job.kind)):
                settlement = budget.charge(settlement)
            ran = None if job.started is None else monotonic() - job.started
            if ran is not None:
                self.counts.busy_time += ran
                self._measures.ran(job.lease.queue, job.lease.kind, ran)
            if job.log is not None and isinstance(settlement, Nack):
                settlement = replace(settlement, log=job.log.text())
            self._ended.append((job, settlement))
            line.ended += 1
            line.running -= 1
            after = self._next_to_start(line)
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
            line = self._lines[job.lease.queue]
            waiting = job in line.waiting
            if waiting:
                line.waiting.remove(job)
                job.finished = True
                self._ended.append((job, stopped(job)))
        if waiting:
            self._bell.set()
        else:
            self._runners[job.task.runs].stop(job)

    def lost(self, job: CurrentJob, detail: str) -> None:
        """Note that a lease is somebody else's by now, and stop its handler."""
        self.counts.lost += 1
        log.warning("lease lost", extra={**fields_of(job), "detail": detail})
        if self._meter:
            self._meter.lost(job)
        self.held.pop((job.id, job.lease.token), None)
        self.stop(job, Stop.LOST)

    def measured(self) -> dict[str, Any] | None:
        """Return what was measured since this was last called; from any thread."""
        with self._lock:
            return self._measures.take()

    def running(self) -> list[CurrentJob]:
        """Return the jobs whose handlers run now."""
        return [job for job in list(self.held.values()) if job.started and not job.finished]

    def _next_claims(self) -> list[Claim]:
        if self._stopping.is_set():
            return []
        now = monotonic()
        claims = []
        for line in self._lines.values():
            wanted = line.wanted() if line.look_at <= now else 0
            if self._allowance:
                wanted = self._allowance.ask(wanted)
            if wanted > 0:
                claims.append(
                    Claim(line.queue, self.worker, wanted, self._lease, line.kinds, uuid4())
                )
        return claims

    def _exchange(
        self, settlements: Sequence[tuple[CurrentJob, Settlement]], claims: Sequence[Claim]
    ) -> None:
        sent = monotonic()
        told = self._take_told(claims)
        try:
            self._resume_doubtful()
            self._await_work(claims, sent)
            settled, leased = self._client.exchange([how for _, how in settlements], claims)
        except Misuse:
            if not settlements:
                raise
            # Something in the batch cannot be stored: the others must not suffer for it.
            for job, settlement in settlements:
                self._settle_alone(job, settlement)
            return
        except (Unavailable, UnknownOutcome, psycopg.Error) as error:
            _raise_unless_passing(error)
            with self._lock:
                self._ended[:0] = settlements
            self._doubtful += [(claim, sent) for claim in claims]
            # Whatever was cut may have been the listener as well, or the memory of the database.
            self._doubt()
            self._wait_out()
            return
        self._note_settled(settlements, settled)
        for claim, leases in zip(claims, leased, strict=True):
            self._take_in(claim, sent, leases)
            self._plan_look(self._lines[claim.queue], short=len(leases) < claim.limit)
            if claim.queue in told and len(leases) == claim.limit:
                self._pass_on(claim.queue)
        self._rate()

    def _take_told(self, claims: Sequence[Claim]) -> set[str]:
        """Return the queues of these claims that this worker was told of since it last claimed."""
        with self._lock:
            lines = [line for claim in claims if (line := self._lines[claim.queue]).told]
            for line in lines:
                line.told = False
        return {line.queue for line in lines}

    def _pass_on(self, queue: str) -> None:
        """Have another woken: there may be more than this one, which was told, has room for.

        An enqueue tells a few of those who wait, however much it stored; they tell the others.
        """
        with suppress(HoldfastError):
            self._client.workers.pass_on(queue)

    def _await_work(self, claims: Sequence[Claim], now: float) -> None:
        """Ask to be woken, then look: in this order no job slips in between unheard."""
        ear = self._ear()
        if ear is None:
            return
        lines = [self._lines[claim.queue] for claim in claims]
        with self._lock:
            unheard = [line for line in lines if line.dry and not self._is_told(line, now)]
            for line in unheard:
                # Before it is said, or a wake-up that comes while it is being said would be undone.
                line.awaited_until, line.ear = now + PATIENCE - SAYS_AGAIN, ear
        if not unheard:
            return
        queues, kinds = [line.queue for line in unheard], unheard[0].kinds
        try:
            self._client.workers.await_work(
                queues, worker=self.worker, patience=PATIENCE, kinds=kinds, ear=ear
            )
        except BaseException:
            for line in unheard:
                line.awaited_until = 0.0
            raise

    def _is_told(self, line: Line, now: float) -> bool:
        return line.awaited_until > now and line.ear == self._ear()

    def _plan_look(self, line: Line, *, short: bool) -> None:
        """Look again soon after a queue ran dry, then ever less often.

        A job that was enqueued while nobody waited, in a transaction that commits only later,
        wakes nobody.
        """
        now = monotonic()
        # Not beside a wake-up: what it wants to be looked at now must not be put off.
        with self._lock:
            if short and line.dry and (self._is_told(line, now) or self._ear() is None):
                line.look_at = now + min(self._poll(), FIRST_LOOK * 3**line.looks)
                if self._ear() is not None:
                    # However rarely it looks: it has to say again that it waits.
                    line.look_at = min(line.look_at, line.awaited_until)
                line.looks += 1
            else:
                line.dry, line.look_at, line.looks = short, 0.0, 0

    def _resume_doubtful(self) -> None:
        """Ask what claims with an unknown outcome gave, and run that instead of waiting it out.

        More than once: such a claim may still be on its way when the connection is back.
        """
        now = monotonic()
        if not self._doubtful or now < self._ask_at:
            return
        self._ask_at = now + 1.0
        by_token = {claim.token: (claim, sent) for claim, sent in self._doubtful}
        for lease in self._client.held(list(by_token)):
            if (lease.id, lease.token) not in self.held:
                self._take_in(*by_token[lease.token], [lease])
        self._doubtful = [(c, sent) for c, sent in self._doubtful if now < sent + self._longest]

    def _take_in(self, claim: Claim, sent: float, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        self.counts.claimed += len(leases)
        if self._allowance:
            self._allowance.claimed(len(leases))
        line = self._lines[claim.queue]
        jobs = [self._hold(lease, sent) for lease in leases]
        self.counts.claims.appendleft(datetime.now(UTC))
        with self._lock:
            self._note_waits(leases)
            if self._stopping.is_set():
                for job in jobs:
                    self._give_back(job)
                return
            line.waiting.extend(jobs)
            starting = []
            while (first := self._next_to_start(line)) is not None:
                starting.append(first)
        for job in starting:
            self._start(job)

    def _note_waits(self, leases: Sequence[Lease]) -> None:
        # What a lease was counted from is when it was claimed, by the clock of the database.
        for lease in leases:
            claimed = lease.lease_until - lease.length
            self._measures.waited(lease.queue, lease.kind, lease.run_at, claimed)

    def _hold(self, lease: Lease, sent: float) -> CurrentJob:
        job = CurrentJob(lease, self._app.tasks[lease.kind], self._keeps)
        job.lease_seconds = length = lease.length.total_seconds()
        self._longest = max(self._longest, length)
        job.claimed = sent
        believe(job, sent)
        self.held[lease.id, lease.token] = job
        return job

    def _next_to_start(self, line: Line) -> CurrentJob | None:
        while line.waiting and line.running < line.slots and not self._stopping.is_set():
            job = line.waiting.popleft()
            if job.held():
                line.running += 1
                return job
            # It waited too long, say in a process that was stopped: it may run elsewhere by now.
            self._give_back(job)
        return None

    def _give_back(self, job: CurrentJob) -> None:
        job.finished = True
        self._ended.append((job, Release(job.lease)))

    def _start(self, job: CurrentJob) -> None:
        job.started = now = monotonic()
        if job.task.timeout is not None:
            job.run_until = now + job.task.timeout
        if self._tells:
            log.debug("leased", extra=fields_of(job))
        if self._meter:
            self._meter.started(job)
        self._runners[job.task.runs].start(job)

    def _take_ended(self) -> list[tuple[CurrentJob, Settlement]]:
        with self._lock:
            ended, self._ended = self._ended, []
        if ended and self._until_idle:
            # What a handler enqueued before it ended is looked for after its end.
            for line in self._lines.values():
                line.look_at, line.looks = 0.0, 0
        settlements: list[tuple[CurrentJob, Settlement]] = []
        for job, settlement in ended:
            if job.stopped is Stop.LOST and not (job.settled or job.ticket):
                # It may have been cancelled: then its slot is kept until its handler has ended.
                if not job.goes_on:
                    settlements.append((job, Release(job.lease)))
            elif settlement is None:
                if job.settled:
                    self.counts.acked += 1
                self.held.pop((job.id, job.lease.token), None)
                if self._notes and (job.settled or job.ticket):
                    self._note_ended(job, "done" if job.settled else "handed over")
            else:
                settlements.append((job, settlement))
        return settlements

    def _note_settled(
        self, settlements: Iterable[tuple[CurrentJob, Settlement]], settled: Iterable[Settled]
    ) -> None:
        before = self.counts.acked
        for (job, settlement), answer in zip(settlements, settled, strict=True):
            self.held.pop((job.id, job.lease.token), None)
            if not answer.held:
                if not job.stopped:
                    self.lost(job, answer.detail or "")
            elif type(settlement) is Ack:
                self.counts.acked += 1
                if self.counts.acked % SAMPLED == 0:
                    self._sample(job)
                if self._notes:
                    self._note_ended(job, "done")
            elif isinstance(settlement, Nack):
                self.counts.failed += 1
                died = answer.outcome == "dead"
                facts = {
                    **fields_of(job),
                    "error": f"{settlement.error_kind}: {settlement.message}",
                }
                log.warning("job died" if died else "attempt failed", extra=facts)
                if self._meter:
                    self._meter.ended(job, "dead" if died else "failed")
            elif isinstance(settlement, Release):
                self.counts.released += 1
                if self._notes:
                    self._note_ended(job, "released")
            elif self._notes:
                self._note_ended(job, "cancelled")
        if self.counts.acked > before:
            self.counts.acked_at = datetime.now(UTC)

    def _sample(self, job: CurrentJob) -> None:
        """Keep one attempt that ended well: what it logged shows what is usual."""
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

    def _note_ended(self, job: CurrentJob, how: str) -> None:
        if self._meter:
            self._meter.ended(job, how.replace(" ", "_"))
        if self._tells:
            seconds = 0.0 if job.started is None else monotonic() - job.started
            log.debug(how, extra={**fields_of(job), "seconds": round(seconds, 4)})

    def _settle_alone(self, job: CurrentJob, settlement: Settlement) -> None:
        try:
            answers = self._client.settle([settlement])
        except Misuse as error:
            failure = Nack(job.lease, error_kind(error), error_message(error), final=True)
            with self._lock:
                self._ended.append((job, failure))
        except (Unavailable, UnknownOutcome):
            with self._lock:
                self._ended.append((job, settlement))
        else:
            self._note_settled([(job, settlement)], answers)

    def _rate(self) -> None:
        """Claim ahead what is run in a moment: nothing if jobs are long, many if they are short."""
        now = monotonic()
        if (passed := now - self._rated_at) < 0.05:
            return
        self._rated_at = now
        for line in self._lines.values():
            rate, line.ended = line.ended / passed, 0
            line.ahead = min(int(rate * AHEAD_SECONDS), MOST_AHEAD)

    def _pause(self) -> float:
        if self._stopping.is_set() or (self._allowance and not self._allowance.left()):
            return 1.0
        now = monotonic()
        looks = [line.look_at - now for line in self._lines.values() if line.wanted() > 0]
        asks = [self._ask_at - now] if self._doubtful else []
        return max(min([*looks, *asks], default=1.0), 0.0)

    def _wait_out(self) -> None:
        # The client has waited already; a herd of workers should not return as one.
        self._bell.clear()
        self._bell.wait(uniform(0.05, 0.6))

    def _has_done_enough(self) -> bool:
        if self._allowance and self._allowance.used_up():
            return True
        # More than one look: what somebody is about to reap or promote is work, too.
        return self._until_idle and all(line.looks >= ENOUGH_LOOKS for line in self._lines.values())


def believe(job: CurrentJob, sent: float) -> None:
    """Count a lease from before it was asked for, and believe in a little less of it."""
    length = job.lease_seconds
    job.deadline = sent + length - min(length * MARGIN, 1.0)
    job.renew_at = sent + length / 3
    if job.mirror is not None:
        job.mirror.value = job.deadline


def decided(
    job: CurrentJob, returned: Any = None, raised: BaseException | None = None
) -> Settlement | None:
    """Return how to end a job whose handler returned or raised; None if it has ended already."""
    try:
        return _decided(job, returned, raised)
    except Exception as error:
        # Ours to mend; the job must not keep its slot and its lease for ever because of it.
        log.exception("no outcome could be decided", extra={"job": str(job.id)})
        return Nack(job.lease, error_kind(error), error_message(error))


def _decided(job: CurrentJob, returned: Any, raised: BaseException | None) -> Settlement | None:
    if job.settled:
        if raised is not None:
            log.error("handler failed after its ack", exc_info=raised, extra={"job": str(job.id)})
        return None
    if job.stopped:
        return stopped(job)
    if job.ticket and raised is None:
        return None
    if isinstance(raised, LeaseLost) and raised.id == job.id:
        return Release(job.lease)
    if raised is not None and raised is job.cut_by:
        # Nothing was done and nothing is wrong with the job: an outage costs it no attempt.
        return Release(job.lease, uniform(1, 5))
    task = job.task
    if raised is None and task.keep_result:
        try:
            returned = task.encode_result(returned)
        except Exception as error:
            raised = error
    settlement = decide(
        job.lease, returned=returned, raised=raised, retry=task.retry, keep_result=task.keep_result
    )
    if job.ticket:
        settlement = replace(settlement, lease=(job.id, job.ticket.token))
    return settlement


def stopped(job: CurrentJob) -> Settlement | None:
    """Return how to end a job whose handler was stopped."""
    match job.stopped:
        case Stop.DEADLINE:
            told = f"timed out after {job.task.timeout:g} s"
            return Nack(job.lease, "TimedOut", told)
        case Stop.SHUTDOWN | Stop.FENCED:
            return Release(job.lease)
        case _:
            return None


class _NobodyKeeps:
    def renew_soon(self) -> None:
        pass


def _raise_unless_passing(error: Exception) -> None:
    """Let an outage pass; anything else would only be tried for ever."""
    if isinstance(error, HoldfastError):
        return
    state = getattr(error, "sqlstate", None) or ""
    passing = ("", "08", "25", "40", "53", "55", "57", "58", "XX")
    if state[:2] not in passing:
        raise error
