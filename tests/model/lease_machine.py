"""A model of the protocol beside the real one: whatever is done to both, they must agree.

Workers claim and settle, also as zombies with leases they lost long ago and with tokens that were
never theirs; producers collide; operators interfere; time passes. After each step the rows of the
database are compared with the model, which knows for every job its state, its holder and its
attempts. In the end all that lives must come to its end: nothing may be stuck.
"""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.model.world import RECEIPT, Grant, Job, World
from tests.protocol import Hold, Leased, Protocol

Draw = Callable[[Any], Any]

LEASE = timedelta(seconds=30)
TIMEOUT = timedelta(seconds=90)
LIMIT = 3
LANE_LIMITS = {"x": 1, "y": 2}
QUEUES = "abc"

ROWS = """
select id, queue, kind, case when token is null then 'queued' else 'leased' end as state, token,
       lease_until, attempt, max_attempts, priority, run_at, key, lane, follow, held, lane_seq, pos
from holdfast.job
union all
select id, queue, kind, state, null, null, attempt, max_attempts, priority, run_at, key, lane,
       false, null, null, null
from holdfast.ended
"""
LEAVING = "select id, token from holdfast.leaving"
DEPTH = "select queue, kind, state, jobs from holdfast.depth where jobs <> 0"

# How much is drawn must not depend on what the database answers: choose first, then look.
choices = st.tuples(*[st.integers(0, 999)] * 4)
queues = st.sampled_from(["a", "a", "b", "c"])
delays = st.sampled_from([0, 0, 5, 40])
items = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["send", "sync"]),
        "key": st.sampled_from([None, None, "k1", "k2"]),
        "on_conflict": st.sampled_from(["skip", "replace", "after"]),
        "lane": st.sampled_from([None, None, "x", "y"]),
        "priority": st.integers(0, 2),
        "delay": st.sampled_from([0, 0, 0, 5, 40]),
        "max_attempts": st.integers(1, 3),
        "tenant": st.sampled_from([None, "t1", "t2"]),
    }
)
# How often each is tried, of so many in all.
ACTIONS = {
    "enqueue": 2,
    "enqueue_what_is_there": 1,
    "send_again": 1,
    "claim": 5,
    "claim_kinds": 1,
    "touch": 1,
    "ack": 3,
    "nack": 3,
    "release": 1,
    "settle": 2,
    "hand_over": 2,
    "reconcile": 1,
    "ask_what_is_held": 1,
    "time_passes": 3,
    "reap": 1,
    "reap_what_has_seconds_left": 1,
    "promote": 1,
    "sweep": 1,
    "upkeep": 1,
    "cancel": 2,
    "retry": 2,
    "edit": 1,
    "move": 1,
    "archive": 1,
    "delete": 1,
    "pause": 1,
}
actions = st.sampled_from([action for action, times in ACTIONS.items() for _ in range(times)])


class LeaseMachine(RuleBasedStateMachine):
    """Both worlds. Subclasses set `db`."""

    db: Protocol
    steps = 0

    @initialize(
        on_failure=st.sampled_from(["skip", "retry", "halt"]),
        first=st.lists(items, min_size=1, max_size=4),
    )
    def begin(self, on_failure: str, first: list[dict[str, Any]]) -> None:
        self.world = World(datetime.now(UTC), on_failure)
        self._tell_time()
        self.db.wipe()
        self.db.queue_set("a", lane_on_failure=on_failure)
        self.db.queue_set(
            "b", keep_done=86_400, limit=LIMIT, by_kind=True, lane_on_failure=on_failure
        )
        self.db.queue_set("c", fair=True, lane_on_failure=on_failure)
        for queue in QUEUES:
            self.db.lane_set(queue, "y", limit=LANE_LIMITS["y"])
            self._enqueue(queue, first)

    @rule(action=actions, data=st.data())
    def step(self, action: str, data: st.DataObject) -> None:
        type(self).steps += 1
        getattr(self, action)(data.draw)

    # -- producers

    def enqueue(self, draw: Draw) -> None:
        self._enqueue(draw(queues), draw(st.lists(items, min_size=1, max_size=3)))

    def enqueue_what_is_there(self, draw: Draw) -> None:
        choice, item = draw(choices), draw(items)
        keyed = [job for job in self.world.jobs.values() if job.live and job.key]
        running = [job for job in keyed if job.token]
        if keyed:
            job = _one(choice[0], running or keyed)
            self._enqueue(job.queue, [{**item, "kind": job.kind, "key": job.key}])

    def send_again(self, draw: Draw) -> None:
        choice = draw(choices)
        jobs = self.world.jobs.values()
        known = [job for job in jobs if job.state != "gone" or self._receipt(job)]
        if not known:
            return
        job = _one(choice[0], known)
        item = {"kind": job.kind, "queue": job.queue, "key": job.key, "id": str(job.id)}
        policy = "after" if job.follow else "skip"

        [answer] = self.db.enqueue({**item, "on_conflict": policy}, repeat=True)

        assert (answer.id, answer.created) == (job.id, True)

    def _enqueue(self, queue: str, batch: list[dict[str, Any]]) -> None:
        answers = self.db.enqueue(*[{**item, "queue": queue} for item in batch])

        for item, answer in zip(batch, answers, strict=True):
            place = (queue, item["kind"], item["key"])
            due = self.world.now + timedelta(seconds=item["delay"])
            rival = self.world.at(place, follow=False)
            policy = item["on_conflict"]
            follows = rival is not None and rival.state == "leased" and policy != "skip"
            waiting = self.world.at(place, follow=True)
            if rival is None or (follows and waiting is None):
                assert answer.created
                assert answer.id not in self.world.jobs
                self.world.jobs[answer.id] = Job(
                    answer.id,
                    queue,
                    item["kind"],
                    item["key"],
                    item["lane"],
                    item["priority"],
                    item["max_attempts"],
                    due,
                    follow=rival is not None,
                )
                continue
            target = waiting if follows else rival
            assert target is not None
            assert (answer.created, answer.duplicate_of) == (False, target.id)
            if policy == "replace":
                target.priority, target.run_at = item["priority"], due
                target.max_attempts, target.attempt = item["max_attempts"], 0

    # -- workers

    def claim(self, draw: Draw) -> None:
        self._claim(draw(queues), draw(st.integers(1, 4)), None)

    def claim_kinds(self, draw: Draw) -> None:
        self._claim(draw(queues), 2, draw(st.sampled_from([["send"], ["sync"], ["sync", "send"]])))

    def _claim(self, queue: str, max_jobs: int, kinds: list[str] | None) -> None:
        waiting = [row for row in self.rows if row.state == "queued" and row.queue == queue]
        ready = {row.id: row for row in waiting if row.pos is not None and not row.lane}

        # A claim that comes up short also reaps, after it has taken what it found: a lane may be
        # halted by a job that died only then. What is given in it must have fitted before.
        halted = set(self.world.halted)
        held = Counter(
            row.lane for row in self.rows if row.state == "leased" and row.queue == queue
        )

        claimed = self.db.claim(queue, max_jobs=max_jobs, kinds=kinds)

        assert len(claimed) <= max_jobs
        assert not claimed or queue not in self.world.paused
        self.rows = self._rows()
        self._notice_reaped()
        self._who_was_cancelled_keeps_its_slot()
        now = self.world.now
        for leased in claimed:
            job = self.world.jobs[leased.id]
            assert (job.state, job.queue, job.follow) == ("queued", queue, False)
            assert job.run_at <= now
            assert kinds is None or job.kind in kinds
            assert (queue, job.lane) not in halted
            held[job.lane] += 1
            if (queue, job.lane) in self.world.halted:
                assert held[job.lane] <= LANE_LIMITS[job.lane]
            job.state, job.token, job.lease_until = "leased", leased.token, now + LEASE
            job.attempt += 1
            self.world.grants[Hold(job.id, leased.token)] = Grant()
            assert (leased.attempt, leased.lease_until) == (job.attempt, job.lease_until)
        if queue not in self.world.paused:
            self._check_order(queue, max_jobs, kinds, claimed, ready)

    def touch(self, draw: Draw) -> None:
        if hold := self._hold(draw(choices)):
            [answer] = self.db.touch(hold)
            assert answer.outcome in self._touched(hold)

    def ack(self, draw: Draw) -> None:
        if hold := self._hold(draw(choices)):
            [answer] = self.db.ack(hold)
            assert answer.outcome in self._acked(hold)

    def nack(self, draw: Draw) -> None:
        delay, final = draw(delays), draw(st.sampled_from([False, False, True]))
        if hold := self._hold(draw(choices)):
            wait = timedelta(seconds=delay)
            [answer] = self.db.nack(hold, message="boom", delay=wait, final=final)
            assert answer.outcome in self._nacked(hold, delay, final=final)

    def release(self, draw: Draw) -> None:
        delay = draw(delays)
        if hold := self._hold(draw(choices)):
            [answer] = self.db.release(hold, delay=timedelta(seconds=delay))
            assert answer.outcome in self._released(hold, delay)

    def settle(self, draw: Draw) -> None:
        asked: dict[UUID, tuple[Hold, str]] = {}
        verbs = st.sampled_from(["ack", "keep", "nack", "release", "cancel"])
        for verb, choice in draw(st.lists(st.tuples(verbs, choices), max_size=4)):
            if hold := self._hold(choice):
                asked.setdefault(hold.id, (hold, verb))

        said = {"keep": {"verb": "ack", "keep": True}}
        answers = self.db.settle(
            *[
                {"verb": verb, "delay": 0, **said.get(verb, {}), **hold._asdict()}
                for hold, verb in asked.values()
            ]
        )

        expected: dict[str, Callable[[Hold], set[str]]] = {
            "ack": self._acked,
            "keep": lambda hold: self._acked(hold, keep=True),
            "nack": self._nacked,
            "release": self._released,
            "cancel": self._cancelled,
        }
        # As the call does it: acks, then failures, then releases, then what is given up.
        order = sorted(
            zip(asked.values(), answers, strict=True),
            key=lambda each: list(expected).index(each[0][1]),
        )
        for (hold, verb), answer in order:
            assert answer.id == hold.id
            assert answer.outcome in expected[verb](hold), (verb, answer)

    def hand_over(self, draw: Draw) -> None:
        choice = draw(choices)
        hold = self._hold(choice)
        if not hold:
            return
        # At times to a token that was made for another hand-over.
        tickets = [grant.ticket for grant in self.world.grants.values() if grant.ticket]
        again = self.world.grants.get(hold, Grant()).ticket
        ticket = again or (_one(choice[3], tickets) if tickets and choice[2] % 9 == 0 else uuid4())
        if ticket == hold.token:
            return
        job = self._held(hold)

        answer = self.db.hand_over(hold, ticket, timeout=TIMEOUT)

        if job:
            assert answer.outcome == "leased"
            self.world.give_up(job, "handed over")
            self.world.grants[hold].ticket = ticket
            self.world.grants[Hold(job.id, ticket)] = Grant(length=TIMEOUT)
            job.token, job.lease_until = ticket, self.world.now + TIMEOUT
        else:
            assert answer.outcome in self.world.refusals("hand_over", hold, ticket)

    def reconcile(self, draw: Draw) -> None:
        choice, done = draw(choices), draw(st.booleans())
        expired = [Hold(job.id, job.token) for job in self._expired() if job.token]
        hold = _one(choice[0], expired) if expired and choice[1] % 4 else self._hold(choice)
        if not hold:
            return
        job = self._held(hold)

        [answer] = self.db.reconcile(hold, done=[done])

        if job and job in self._expired():
            wanted = self._reconciled(job) if done else self.world.fail(job, "expired", 0)
            assert answer.outcome == wanted
        elif job:
            assert answer.outcome == "lost"
        else:
            assert answer.outcome in self.world.refusals("reconcile", hold)

    def ask_what_is_held(self, draw: Draw) -> None:
        if hold := self._hold(draw(choices)):
            held = {job.id for job in self.db.held(hold.token)}
            assert held == {job.id for job in self.world.jobs.values() if job.token == hold.token}

    # -- time and upkeep

    def time_passes(self, draw: Draw) -> None:
        self.world.now += timedelta(seconds=draw(st.sampled_from([1, 10, 31, 31, 400])))
        self._tell_time()

    def reap(self, draw: Draw) -> None:
        reaped = self.db.reap()
        self._notice_all_reaped({each.id: each.outcome for each in reaped})

    def reap_what_has_seconds_left(self, draw: Draw) -> None:
        """A moment that chance comes upon in one of some hundred runs."""
        self._claim(draw(queues), 3, None)
        self.world.now += LEASE - timedelta(seconds=draw(st.sampled_from([1, 15])))
        self._tell_time()
        self.reap(draw)

    def promote(self, draw: Draw) -> None:
        self.db.promote()
        waiting = [row for row in self._rows() if row.state == "queued" and row.pos is None]
        due = [row for row in waiting if row.run_at <= self.world.now]
        assert not [row for row in due if not row.lane and not row.follow]

    def sweep(self, draw: Draw) -> None:
        self.db.sweep()

    def upkeep(self, draw: Draw) -> None:
        self.db.upkeep()
        self._notice_all_reaped(None)

    # -- operators

    def cancel(self, draw: Draw) -> None:
        job = self._any(draw(choices))
        [answer] = self.db.cancel(job.id)

        assert answer.changed == job.live
        if job.live:
            self.world.cancel(job, limited=job.queue == "b")

    def retry(self, draw: Draw) -> None:
        job, delay = self._any(draw(choices), "dead"), draw(delays)
        ended = job.state in ("dead", "cancelled", "done", "archived")
        free = self.world.at(job.place(), follow=False) is None

        [answer] = self.db.retry(job.id, delay=timedelta(seconds=delay))

        assert answer.changed == (ended and free)
        if answer.changed:
            self.world.deal_with(job)
            job.state, job.attempt, job.acks = "queued", 0, 0
            job.run_at = self.world.now + timedelta(seconds=delay)

    def edit(self, draw: Draw) -> None:
        job = self._any(draw(choices), "queued")
        priority, delay = draw(st.integers(0, 2)), draw(st.sampled_from([None, 0, 40]))
        run_at = None if delay is None else self.world.now + timedelta(seconds=delay)
        changes = {"priority": priority} | ({"run_at": run_at.isoformat()} if run_at else {})

        [answer] = self.db.edit(job.id, changes=changes)

        assert answer.changed == (job.state in ("queued", "dead"))
        if answer.changed:
            job.priority = priority
            if job.state == "queued":
                job.run_at = run_at or job.run_at
                job.max_attempts = max(job.max_attempts, job.attempt + 1)

    def move(self, draw: Draw) -> None:
        job, queue = self._any(draw(choices), "queued"), draw(queues)
        taken = job.state == "queued" and self.world.at((queue, job.kind, job.key), follow=False)
        movable = job.state in ("queued", "dead") and job.queue != queue and not taken

        [answer] = self.db.move(job.id, queue=queue)

        assert answer.changed == movable
        if movable:
            assert answer.new_id is not None
            self.world.move(job, queue, answer.new_id)

    def archive(self, draw: Draw) -> None:
        job = self._any(draw(choices), "dead")
        [answer] = self.db.archive(job.id)

        assert answer.changed == (job.state in ("dead", "cancelled", "done"))
        if answer.changed:
            self.world.deal_with(job)
            job.state = "archived"

    def delete(self, draw: Draw) -> None:
        job = self._any(draw(choices))
        [answer] = self.db.delete(job.id)

        assert answer.changed == (job.state not in ("leased", "gone"))
        if answer.changed:
            self.world.deal_with(job)
            if job.live:
                self.world.end(job, "gone")
            job.state = "gone"

    def pause(self, draw: Draw) -> None:
        queue = draw(queues)
        if self.world.paused:
            self.db.resume(self.world.paused.pop())
        else:
            self.db.pause(queue)
            self.world.paused.add(queue)

    # -- what must be true after every step

    @invariant()
    def both_worlds_agree(self) -> None:
        self.rows = self._rows()
        known = {job.id: job for job in self.world.jobs.values() if job.state != "gone"}
        assert len(self.rows) == len({row.id for row in self.rows}), "a job is in two places"
        assert {row.id for row in self.rows} == set(known)
        for row in self.rows:
            job = known[row.id]
            seen = (row.state, row.token, row.attempt, row.max_attempts, row.priority)
            assert seen == (job.state, job.token, job.attempt, job.max_attempts, job.priority)
            assert row.attempt <= row.max_attempts
            if job.live:
                seen = (row.run_at, row.follow, row.lease_until)
                assert seen == (job.run_at, job.follow, job.lease_until)
        assert max((job.acks for job in known.values()), default=0) <= 1
        self._who_was_cancelled_keeps_its_slot()
        self._limits_and_keys_hold()
        self._the_counters_tell_the_truth()

    def _who_was_cancelled_keeps_its_slot(self) -> None:
        if not self.world.leaving:
            return
        kept = {Hold(row.id, row.token) for row in self.db.table(LEAVING)}
        # When an ended lease is noticed is the database's business.
        for hold, (_, _, until) in list(self.world.leaving.items()):
            if hold not in kept and until <= self.world.now:
                del self.world.leaving[hold]
        assert kept == set(self.world.leaving)

    def _limits_and_keys_hold(self) -> None:
        live = [row for row in self.rows if row.state in ("queued", "leased")]
        keys = Counter((row.queue, row.kind, row.key, row.follow) for row in live if row.key)
        assert not [place for place, jobs in keys.items() if jobs > 1], "a key is taken twice"
        running = Counter((row.queue, row.lane) for row in live if row.lane and row.token)
        for (queue, lane), jobs in running.items():
            assert jobs + self.world.slots(queue, lane) <= LANE_LIMITS[lane]
        here = sum(1 for row in live if row.queue == "b" and row.token)
        assert here + self.world.slots("b") <= LIMIT

    def _the_counters_tell_the_truth(self) -> None:
        truth = Counter((row.queue, row.kind, row.state) for row in self.rows)
        depth = self.db.connection.execute(DEPTH, binary=True).fetchall()
        counted = {(queue, kind, state): jobs for queue, kind, state, jobs in depth}
        # Of the jobs that are done only their number is kept, for ever.
        ended = {place: jobs for place, jobs in truth.items() if place[2] != "done"}
        assert ended == {place: jobs for place, jobs in counted.items() if place[2] != "done"}

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.now += timedelta(hours=1)
        self._tell_time()
        for queue in QUEUES:
            self.db.resume(queue)
        self.db.upkeep()
        for queue, lane in product(QUEUES, LANE_LIMITS):
            self.db.lane_set(queue, lane, halted=False)
        idle = 0
        while idle < 2:
            claimed = [job for queue in QUEUES for job in self.db.claim(queue, max_jobs=50)]
            self.db.ack(*claimed)
            idle = 0 if claimed else idle + 1
            self.db.sweep()
        assert not self.db.table(LEAVING), "a slot is kept for ever"
        left = [row for row in self._rows() if row.state in ("queued", "leased")]
        assert not left, [(row, self.db.explain(row.id)) for row in left]

    # -- helpers

    def _rows(self) -> Any:
        return self.db.table(ROWS)

    def _tell_time(self) -> None:
        self.db.connection.execute(
            "select set_config('holdfast_test.now', %s, false)", [self.world.now.isoformat()]
        )

    def _any(self, choice: tuple[int, ...], mostly: str = "") -> Job:
        """Any job ever, mostly one in this state."""
        jobs = list(self.world.jobs.values())
        fitting = [job for job in jobs if job.state == mostly]
        return _one(choice[0], fitting if fitting and choice[1] % 4 else jobs)

    def _hold(self, choice: tuple[int, ...]) -> Hold | None:
        """A lease that was given once, mostly one that is held now; at times with a wrong token."""
        holds = list(self.world.grants)
        if not holds:
            return None
        current = [hold for hold in holds if self._held(hold)]
        hold = _one(choice[0], current if current and choice[1] % 4 else holds)
        return hold if choice[2] % 5 else Hold(hold.id, _one(choice[3], holds).token)

    def _held(self, hold: Hold) -> Job | None:
        job = self.world.jobs.get(hold.id)
        return job if job and job.token == hold.token else None

    def _receipt(self, job: Job) -> bool:
        """Whether the database must still know that this job was done."""
        now = self.world.now
        return any(
            grant.ended == "acked" and grant.ended_at and now - grant.ended_at < RECEIPT
            for hold, grant in self.world.grants.items()
            if hold.id == job.id
        )

    def _touched(self, hold: Hold) -> set[str]:
        if job := self._held(hold):
            assert job.lease_until is not None
            job.lease_until = max(job.lease_until, self.world.now + self.world.grants[hold].length)
            return {"leased"}
        return self.world.refusals("touch", hold)

    def _acked(self, hold: Hold, *, keep: bool = False) -> set[str]:
        job = self._held(hold)
        if not job:
            return self.world.refusals("ack", hold)
        self.world.give_up(job, "acked")
        self.world.end(job, "done" if keep or job.queue == "b" else "gone")
        job.acks += 1
        return {"done"}

    def _reconciled(self, job: Job) -> str:
        self.world.give_up(job, "reconciled")
        self.world.end(job, "done" if job.queue == "b" else "gone")
        job.acks += 1
        return "done"

    def _nacked(self, hold: Hold, delay: float = 0, *, final: bool = False) -> set[str]:
        job = self._held(hold)
        if not job:
            return self.world.refusals("nack", hold)
        return {self.world.fail(job, "failed", delay, final=final)}

    def _cancelled(self, hold: Hold) -> set[str]:
        job = self._held(hold)
        if not job:
            return self.world.refusals("cancel", hold)
        self.world.give_up(job, "cancelled by its holder")
        self.world.end(job, "cancelled")
        return {"cancelled"}

    def _released(self, hold: Hold, delay: float = 0) -> set[str]:
        job = self._held(hold)
        if not job:
            return self.world.refusals("release", hold)
        self.world.give_up(job, "released")
        job.state, job.token, job.lease_until = "queued", None, None
        job.attempt -= 1
        job.run_at = self.world.now + timedelta(seconds=delay)
        return {"queued"}

    def _expired(self) -> list[Job]:
        now = self.world.now
        jobs = self.world.jobs.values()
        return [job for job in jobs if job.lease_until and job.lease_until <= now]

    def _notice_reaped(self) -> None:
        """A claim may have reaped: expired leases, and only those, may be gone."""
        tokens = {row.id: row.token for row in self.rows}
        for job in self._expired():
            if tokens.get(job.id) != job.token:
                self.world.fail(job, "expired", 0)

    def _notice_all_reaped(self, answers: dict[UUID, str] | None) -> None:
        reaped = {job.id: self.world.fail(job, "expired", 0) for job in self._expired()}
        assert answers is None or answers == reaped

    def _check_order(
        self,
        queue: str,
        max_jobs: int,
        kinds: list[str] | None,
        claimed: list[Leased],
        ready: dict[UUID, Any],
    ) -> None:
        def place(row: Any) -> tuple[int, int]:
            # A fair queue has no line: tenants take turns inside a priority.
            return -row.priority, 0 if queue == "c" else row.pos

        places = [place(ready[job.id]) for job in claimed if job.id in ready]
        assert places == sorted(places)

        rows = self.rows
        mine = {job.id for job in claimed}
        for row in rows:
            if row.id in mine and row.lane:
                lane = [each for each in rows if (each.queue, each.lane) == (queue, row.lane)]
                running = sum(1 for each in lane if each.token)
                # One that waits for its time keeps its place and its slot.
                waiting = [each.lane_seq for each in lane if each.lane_seq and not each.token]
                ahead = sum(1 for seq in waiting if seq < row.lane_seq)
                running += self.world.slots(queue, row.lane)
                assert running + ahead <= LANE_LIMITS[row.lane], "a lane lost its order"

        known = [row for row in ready.values() if kinds is None or row.kind in kinds]
        left = [row for row in known if row.id not in mine]
        running = sum(1 for row in rows if row.queue == queue and row.token)
        running += self.world.slots(queue)
        full = len(claimed) == max_jobs or (queue == "b" and running >= LIMIT)
        assert full or not left, "a claim came up short although jobs were ready"
        if left and places:
            assert max(places) <= min(map(place, left)), "a claim passed over a better job"


def _one(choice: int, of: list[Any]) -> Any:
    return of[choice % len(of)]
