"""What the model believes: the jobs, the leases ever given, and the time."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from tests.protocol import Hold

RECEIPT = timedelta(minutes=5)


@dataclass
class Job:
    """What the model knows of a job."""

    id: UUID
    queue: str
    kind: str
    key: str | None
    lane: str | None
    priority: int
    max_attempts: int
    run_at: datetime
    follow: bool = False
    state: str = "queued"
    attempt: int = 0
    token: UUID | None = None
    lease_until: datetime | None = None
    acks: int = 0

    @property
    def live(self) -> bool:
        return self.state in ("queued", "leased")

    def place(self) -> tuple[str, str, str | None]:
        return self.queue, self.kind, self.key


@dataclass
class Grant:
    """A lease that was given once, and how it ended."""

    ended: str | None = None
    ended_at: datetime | None = None
    length: timedelta = timedelta(seconds=30)
    ticket: UUID | None = None


@dataclass
class World:
    """The jobs, the leases and the time of one example."""

    now: datetime
    on_failure: str
    jobs: dict[UUID, Job] = field(default_factory=dict)
    grants: dict[Hold, Grant] = field(default_factory=dict)
    halted: dict[tuple[str, str], UUID] = field(default_factory=dict)
    moved: dict[UUID, UUID] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    # Slots of jobs that were cancelled while they ran: queue, lane, and when their leases end.
    leaving: dict[Hold, tuple[str, str | None, datetime]] = field(default_factory=dict)

    def find(self, id: UUID) -> Job | None:
        """The job that has this id, or had it before it was moved."""
        while id not in self.jobs and id in self.moved:
            id = self.moved[id]
        return self.jobs.get(id)

    def at(self, place: tuple[str, str, str | None], *, follow: bool) -> Job | None:
        if place[2] is None:
            return None
        return next(
            (
                job
                for job in self.jobs.values()
                if job.live and job.place() == place and job.follow == follow
            ),
            None,
        )

    def end(self, job: Job, state: str) -> None:
        """The job leaves the living; its follow-up takes its place."""
        was_first = not job.follow
        job.state, job.follow = state, False
        job.token = job.lease_until = None
        if was_first and (successor := self.at(job.place(), follow=True)):
            successor.follow = False

    def give_up(self, job: Job, how: str) -> None:
        assert job.token is not None
        grant = self.grants[Hold(job.id, job.token)]
        grant.ended, grant.ended_at = how, self.now

    def fail(self, job: Job, how: str, delay: float, *, final: bool = False) -> str:
        self.give_up(job, how)
        if final or job.attempt >= job.max_attempts:
            self.end(job, "dead")
            if job.lane and self.on_failure == "halt":
                self.halted[job.queue, job.lane] = job.id
            return "dead"
        job.state, job.token, job.lease_until = "queued", None, None
        job.run_at = self.now + timedelta(seconds=delay)
        return "queued"

    def move(self, job: Job, queue: str, id: UUID) -> None:
        self.deal_with(job)
        first = job.live and not job.follow
        successor = self.at(job.place(), follow=True) if first else None
        del self.jobs[job.id]
        self.moved[job.id] = id
        self.moved.pop(id, None)
        job.id, job.queue, job.follow = id, queue, False
        self.jobs[id] = job
        if successor:
            successor.follow = False

    def deal_with(self, job: Job) -> None:
        """A dead job that halted its lane was retried, put away or deleted."""
        self.halted = {lane: id for lane, id in self.halted.items() if id != job.id}

    def cancel(self, job: Job, *, limited: bool) -> None:
        """The job ends; where it had a slot, it keeps that until its holder lets go."""
        if job.token:
            assert job.lease_until is not None
            self.give_up(job, "cancelled")
            if job.lane or limited:
                slot = job.queue, job.lane, job.lease_until
                self.leaving[Hold(job.id, job.token)] = slot
        self.end(job, "cancelled")

    def slots(self, queue: str, lane: str | None = None) -> int:
        """How many slots of a queue, or of one of its lanes, cancelled jobs keep."""
        kept = self.leaving.values()
        return sum(1 for q, name, _ in kept if q == queue and lane in (None, name))

    def refusals(self, verb: str, hold: Hold, ticket: UUID | None = None) -> set[str]:
        """What a verb may answer for a lease that is not held; who settles it lets go."""
        if verb in ("ack", "nack", "release", "cancel"):
            self.leaving.pop(hold, None)
        grant = self.grants.get(hold)
        job = self.find(hold.id)
        there = job is not None and job.state != "gone"
        told = {
            "ack": "acked",
            "nack": "failed",
            "release": "released",
            "cancel": "cancelled by its holder",
            "hand_over": "handed over",
            "reconcile": "reconciled",
        }.get(verb)
        if grant is None:
            return {"lost" if there else "unknown"}
        assert grant.ended_at is not None
        answers = {"already" if grant.ended == told and grant.ticket == ticket else "lost"}
        if self.now - grant.ended_at > RECEIPT:
            answers.add("lost" if there else "unknown")
        return answers
