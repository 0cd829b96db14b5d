"""Schedulers that read, sleep and write, and people who edit between: a model of one schedule."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from psycopg.types.json import Jsonb

from holdfast import cron
from tests.protocol import Protocol

START = datetime(2026, 3, 29, 0, 0, 7, tzinfo=UTC)
SCHEDULERS = st.integers(0, 2)


@dataclass(frozen=True)
class Seen:
    """What a scheduler read of a schedule that was due."""

    revision: int
    every: timedelta
    anchor: datetime
    missed: Any
    next_at: datetime | None
    since: datetime
    now: datetime


@dataclass
class Belief:
    """Where the schedule stands, as the model has it."""

    every: timedelta
    anchor: datetime
    missed: str
    overlap: str
    since: datetime
    revision: int = 1
    next_at: datetime | None = None
    paused: bool = False
    last_job: UUID | None = None
    fired: dict[datetime, str] = field(default_factory=dict)


class ScheduleMachine(RuleBasedStateMachine):
    """Runs the SQL and the model side by side."""

    db: ClassVar[Protocol]
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.seen: dict[int, Seen] = {}
        self.live: set[UUID] = set()
        self.belief: Belief | None = None
        self._tell_time()
        self.db.wipe()

    def _tell_time(self) -> None:
        self.db.connection.execute(
            "select set_config('holdfast_test.now', %s, false)", [self.now.isoformat()]
        )

    def _set(self, **settings: Any) -> None:
        self.db.call("schedule_set", name="s", settings=Jsonb(settings), columns=("name",))

    @initialize(
        every=st.sampled_from([10, 60]),
        missed=st.sampled_from(["skip", "once", "all"]),
        overlap=st.sampled_from(["queue", "skip", "cancel"]),
    )
    def begin(self, every: int, missed: str, overlap: str) -> None:
        self._set(kind="k", every=every, missed=missed, overlap=overlap)
        self.belief = Belief(timedelta(seconds=every), self.now, missed, overlap, self.now)

    @rule(seconds=st.sampled_from([1, 7, 20, 60, 200]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self._tell_time()

    @rule(nth=SCHEDULERS)
    def read(self, nth: int) -> None:
        rows = self.db.call(
            "schedule_due",
            columns=("revision", "every", "anchor", "missed", "next_at", "since", "now"),
        )
        due = [Seen(*row) for row in rows]
        assert self.belief
        comes = not self.belief.next_at or self.belief.next_at <= self.now
        assert len(due) == (comes and not self.belief.paused)
        if due:
            self.seen[nth] = due[0]

    @precondition(lambda self: self.seen)
    @rule(nth=SCHEDULERS)
    def write(self, nth: int) -> None:
        """Do what was decided by what was read, however long ago."""
        seen = self.seen.pop(nth, None)
        if seen is None:
            return
        turn = cron.turn(
            cron.rule(every=seen.every, anchor=seen.anchor),
            next_at=seen.next_at,
            since=seen.since,
            now=seen.now,
            missed=seen.missed,
        )
        rows = self.db.connection.execute(
            "select slot, outcome, job from holdfast.schedule_fire(name => 's',"
            " expected_next => %s, slots => %s::timestamptz[], next_at => %s, revision => %s)",
            [seen.next_at, turn.slots, turn.next_at, seen.revision],
        ).fetchall()
        assert {slot: outcome for slot, outcome, _ in rows} == self._expected(seen, turn)
        for _, outcome, job in rows:
            if outcome == "fired":
                self._started(job)

    # What it takes long to come upon by chance.

    @rule(nth=SCHEDULERS, seconds=st.sampled_from([1, 20, 60, 200]))
    def sleep_through_a_turn(self, nth: int, seconds: int) -> None:
        self._turn(nth + 1)
        self.wait(60)
        self.read(nth)
        self.wait(seconds)
        self._turn(nth + 1)
        self.wait(60)
        self.write(nth)

    @rule(nth=SCHEDULERS, every=st.sampled_from([10, 30, 60]))
    def edit_under_a_scheduler(self, nth: int, every: int) -> None:
        self.read(nth)
        self.edit(every)
        self.write(nth)

    @rule(nth=SCHEDULERS)
    def pause_under_a_scheduler(self, nth: int) -> None:
        self.read(nth)
        self.pause()
        self.write(nth)
        self.resume()

    def _turn(self, nth: int) -> None:
        self.read(nth)
        self.write(nth)

    def _expected(self, seen: Seen, turn: cron.Turn) -> dict[datetime, str]:
        belief = self.belief
        assert belief
        if (seen.next_at, seen.revision) != (belief.next_at, belief.revision) or belief.paused:
            return {}
        belief.next_at = turn.next_at
        outcomes: dict[datetime, str] = {}
        busy = belief.last_job in self.live
        for slot in turn.slots:
            if slot in belief.fired:
                continue
            skips = busy and belief.overlap == "skip"
            outcomes[slot] = belief.fired[slot] = "skipped" if skips else "fired"
            busy = True
        return outcomes

    def _started(self, job: UUID) -> None:
        assert self.belief
        if self.belief.overlap == "cancel" and self.belief.last_job in self.live:
            self.live.remove(self.belief.last_job)
        self.live.add(job)
        self.belief.last_job = job

    @rule(every=st.sampled_from([10, 30, 60]))
    def edit(self, every: int) -> None:
        assert self.belief
        self._set(every=every)
        if timedelta(seconds=every) != self.belief.every:
            self.belief.every = timedelta(seconds=every)
            self.belief.anchor = self.now
            self._replanned()

    @rule(missed=st.sampled_from(["skip", "once", "all"]))
    def choose_missed(self, missed: str) -> None:
        assert self.belief
        self._set(missed=missed)
        self.belief.missed = missed

    @rule(overlap=st.sampled_from(["queue", "skip", "cancel"]))
    def choose_overlap(self, overlap: str) -> None:
        assert self.belief
        self._set(overlap=overlap)
        self.belief.overlap = overlap

    @rule()
    def pause(self) -> None:
        assert self.belief
        self.db.call("schedule_pause", name="s", columns=("name",))
        self.belief.paused = True

    @rule()
    def resume(self) -> None:
        assert self.belief
        self.db.call("schedule_resume", name="s", columns=("name",))
        if self.belief.paused:
            self.belief.paused = False
            self._replanned()

    def _replanned(self) -> None:
        assert self.belief
        self.belief.since = self.now
        self.belief.revision += 1
        self.belief.next_at = None

    @rule()
    def run(self) -> None:
        [row] = self.db.call("schedule_run", name="s", columns=("job",))
        assert self.belief
        self.live.add(row.job)
        self.belief.last_job = row.job

    @precondition(lambda self: self.live)
    @rule(how_many=st.integers(1, 20))
    def work(self, how_many: int) -> None:
        taken = self.db.claim(max_jobs=how_many)
        self.db.ack(*taken)
        self.live -= {job.id for job in taken}

    @invariant()
    def the_schedule_stands_where_the_model_has_it(self) -> None:
        type(self).steps += 1
        if not self.belief:
            return
        [row] = self.db.table("select * from holdfast.schedules")
        belief = self.belief
        assert (row.next_at, row.last_job) == (belief.next_at, belief.last_job)
        assert (row.every, row.anchor, row.state == "paused") == (
            *(belief.every, belief.anchor),
            belief.paused,
        )
        assert row.fired == sum(outcome == "fired" for outcome in belief.fired.values())
        assert {job.id for job in self.db.list("state:queued,leased", 1000)} == self.live

    @invariant()
    def no_two_jobs_are_of_one_slot_and_none_is_of_a_slot_to_come(self) -> None:
        rows = self.db.table(
            "select slot from holdfast.schedule_slots where outcome in ('fired', 'skipped')"
        )
        assert not self.belief or {row.slot for row in rows} == set(self.belief.fired)
        assert all(row.slot <= self.now for row in rows)
