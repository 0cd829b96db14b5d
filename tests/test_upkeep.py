"""The loop that keeps a database: one job per slot whoever fires, idle cheaply, for ever."""

import inspect
import logging
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Client, cron, embedded, schema
from holdfast.client.statement import Statement
from holdfast.client.sync.upkeep import Upkeep as UpkeepCalls
from holdfast.errors import CannotConnect
from holdfast.records import Doubtful, NewJob, NewSchedule, Tended
from holdfast.upkeep.loop import Upkeep
from tests.conftest import Clock, Connect

MINUTE = timedelta(minutes=1)


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database, application_name="holdfast upkeep test") as opened:
        yield opened


@pytest.fixture
def upkeep(client: Client) -> Upkeep:
    return Upkeep(client, holder="ada")


@contextmanager
def running(upkeep: Upkeep, **options: Any) -> Iterator[list[dict[str, int]]]:
    """Runs upkeep in a thread; yields what its turns did."""
    stop = threading.Event()
    turns: list[dict[str, int]] = []
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(upkeep.run, stop, turns.append)
        try:
            yield turns
        finally:
            stop.set()
            ended.result(timeout=100)


def eventually(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (value := true()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
    return value


def slots(client: Client, name: str) -> list[str]:
    """The slots that have a job, as the jobs say it."""
    found = client.jobs.list(f"kind:{name}", limit=10_000)
    return sorted(job.headers["slot"] for job in found)


@pytest.mark.proves("S2.5", "S2.27")
def test_a_turn_fires_what_has_come_and_plans_what_is_new(
    client: Client, upkeep: Upkeep, clock: Clock
) -> None:
    client.schedules.declare(
        [
            NewSchedule(name="process-pricing-queue", kind="pricing", cron="*/5 * * * *"),
            NewSchedule(name="nightly", kind="report", cron="30 5 * * *", tz="Europe/Paris"),
        ]
    )

    assert upkeep.turn()["fired"] == 0
    planned = client.schedules.get("process-pricing-queue")
    assert planned is not None
    assert planned.next_at is not None
    assert planned.next_at.minute % 5 == 0
    clock.advance(minutes=5)
    assert upkeep.turn()["fired"] == 1
    assert upkeep.turn()["fired"] == 0

    [job] = client.jobs.list()
    assert (job.kind, job.headers["schedule"]) == ("pricing", "process-pricing-queue")


def test_schedules_of_one_rule_fire_each_by_the_clock_of_its_own_zone(
    client: Client, upkeep: Upkeep, clock: Clock
) -> None:
    zones = {"tokyo": "Asia/Tokyo", "kolkata": "Asia/Kolkata", "utc": "UTC"}
    for name, tz in zones.items():
        client.schedules.set(name, kind=name, cron="30 5 * * *", tz=tz, missed="all")

    upkeep.turn()
    clock.advance(days=1)
    upkeep.turn()

    # None of these zones moves its clocks.
    fired = {name: [slot[11:] for slot in slots(client, name)] for name in zones}
    assert fired == {"tokyo": ["20:30:00Z"], "kolkata": ["00:00:00Z"], "utc": ["05:30:00Z"]}


@pytest.mark.parametrize(("missed", "jobs"), [("skip", 0), ("once", 1), ("all", 10)])
def test_slots_nobody_was_there_to_fire(
    missed: Any, jobs: int, client: Client, upkeep: Upkeep, clock: Clock
) -> None:
    anchor = datetime(2020, 1, 1, tzinfo=UTC)
    client.schedules.set("tick", kind="tick", every=3600, anchor=anchor, missed=missed)
    upkeep.turn()
    planned = client.schedules.get("tick")
    assert planned is not None
    assert planned.next_at is not None
    # ten slots and half a period later
    now = datetime.now(UTC)
    clock.advance(seconds=(planned.next_at - now).total_seconds() + 9 * 3600 + 1800)

    assert upkeep.turn()["fired"] == jobs

    fired = slots(client, "tick")
    assert len(fired) == jobs
    if missed == "once":
        newest = planned.next_at + timedelta(hours=9)
        assert fired == [newest.strftime("%Y-%m-%dT%H:%M:%SZ")]


def test_all_goes_on_next_turn_where_a_turn_stopped(
    client: Client, upkeep: Upkeep, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cron, "MOST", 10)
    client.schedules.set("tick", kind="tick", every=60, missed="all")
    upkeep.turn()
    clock.advance(minutes=25, seconds=30)

    assert [upkeep.turn()["fired"] for _ in range(4)] == [10, 10, 5, 0]
    assert len(set(slots(client, "tick"))) == 25


class SkewedTime:
    """Each thread has a clock of its own, wrong by up to hours."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._real = time.time

    def skew(self) -> float:
        if not hasattr(self._local, "by"):
            self._local.by = random.uniform(-7200, 7200)
        return float(self._local.by)

    def time(self) -> float:
        return self._real() + self.skew()

    def time_ns(self) -> int:
        return int(self.time() * 1e9)


class SkewedDatetime(datetime):
    skewed = SkewedTime()

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.fromtimestamp(cls.skewed.time(), tz)


@pytest.mark.proves("S2.5")
def test_ten_schedulers_with_wrong_clocks_make_one_job_per_slot_for_an_hour(
    database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    skewed = SkewedDatetime.skewed
    monkeypatch.setattr(time, "time", skewed.time)
    monkeypatch.setattr(time, "time_ns", skewed.time_ns)
    monkeypatch.setattr(cron, "datetime", SkewedDatetime)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(database, pool_size=1)) for _ in range(10)]
        schedulers = [Upkeep(one, holder=f"scheduler {n}") for n, one in enumerate(clients)]
        watcher = clients[0]
        anchor = datetime(2020, 1, 1, tzinfo=UTC)
        watcher.schedules.set("minutely", kind="minutely", cron="* * * * *", missed="all")
        watcher.schedules.set("steps", kind="steps", every=90, anchor=anchor, missed="all")
        watcher.schedules.set("hourly", kind="hourly", cron="0 * * * *", tz="Asia/Kathmandu")
        schedulers[0].turn()
        first = {one.name: one.next_at for one in watcher.schedules.list()}
        pool = stack.enter_context(ThreadPoolExecutor(10))
        together = threading.Barrier(10)
        fired = Counter[int]()

        def turn(nth: int) -> None:
            together.wait(100)
            fired[nth] += schedulers[nth].turn()["fired"]

        began = time.monotonic()
        for _ in range(26):
            clock.advance(minutes=2.5)
            list(pool.map(turn, range(10)))
        more = int((time.monotonic() - began) // 60)  # minutes that passed meanwhile

        steps = {"minutely": MINUTE, "steps": 1.5 * MINUTE, "hourly": 60 * MINUTE}
        for name, step in steps.items():
            start = first[name]
            assert start is not None
            made = slots(watcher, name)
            expected = [start + n * step for n in range(len(made))]
            assert made == [slot.strftime("%Y-%m-%dT%H:%M:%SZ") for slot in expected], name
        assert 65 <= len(slots(watcher, "minutely")) <= 66 + more
        assert 43 <= len(slots(watcher, "steps")) <= 44 + more
        assert len(slots(watcher, "hourly")) in (1, 2)
    assert len(+fired) > 1, "they took turns, or the race was none"


def test_schedulers_that_are_stopped_at_any_moment_and_go_on_fire_each_slot_once(
    database: str, client: Client, clock: Clock
) -> None:
    client.schedules.set("tick", kind="tick", every=60, missed="all")
    command = [sys.executable, "-m", "holdfast", "upkeep", "--every", "10ms", "--url", database]
    dice = random.Random(17)
    with ExitStack() as stack:
        schedulers = [
            stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            for _ in range(4)
        ]
        for one in schedulers:
            stack.callback(one.kill)
        first = eventually(lambda: (found := client.schedules.get("tick")) and found.next_at)
        for _ in range(60):
            clock.advance(minutes=1)
            victim = dice.choice(schedulers)
            victim.send_signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0, 0.1))
            victim.send_signal(signal.SIGCONT)
        eventually(lambda: len(slots(client, "tick")) >= 59)

    made = slots(client, "tick")
    expected = [first + n * MINUTE for n in range(len(made))]
    assert made == [slot.strftime("%Y-%m-%dT%H:%M:%SZ") for slot in expected]


def test_more_schedules_than_one_batch_are_fired_without_a_pause(
    client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.loop._BATCH", 3)
    client.schedules.declare(NewSchedule(name=f"s{n}", kind="tick", every=60) for n in range(10))
    while not all(one.next_at for one in client.schedules.list()):
        Upkeep(client, holder="ada").turn()
    clock.advance(minutes=1)
    started = time.monotonic()
    with running(Upkeep(client, holder="ada", every=30)):
        eventually(lambda: len(slots(client, "tick")) == 10)

    assert time.monotonic() - started < 25  # four turns with the usual pause take longer


def test_the_role_of_a_worker_is_enough(database: str, connect: Connect, clock: Clock) -> None:
    connect().execute("grant select on holdfast_test.clock to holdfast_worker")
    as_worker = psycopg.conninfo.make_conninfo(database, options="-c role=holdfast_worker")
    with Client(as_worker) as client:
        client.schedules.declare([NewSchedule(name="tick", kind="tick", every=60)], owner="app")
        upkeep = Upkeep(client, holder="ada")
        upkeep.turn()
        clock.advance(minutes=1)

        assert upkeep.turn()["fired"] == 1
        assert client.upkeep.tend("ada").leads


def test_a_schedule_fires_within_a_quarter_of_a_second_of_its_slot(client: Client) -> None:
    """A busy machine may be late, but not each time: who looks every minute always is."""
    client.schedules.set("tick", kind="tick", every=2)

    def late() -> list[timedelta]:
        found = client.jobs.list()
        return [one.created_at - datetime.fromisoformat(one.headers["slot"]) for one in found]

    with running(Upkeep(client, holder="ada", every=60)):
        eventually(lambda: any(one < timedelta(seconds=0.25) for one in late()))


def test_a_schedule_that_cannot_be_computed_does_not_stop_the_others(
    client: Client,
    upkeep: Upkeep,
    connect: Connect,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.schedules.set("bad", kind="bad", cron="0 0 * * *")
    client.schedules.set("good", kind="good", every=60)
    connect().execute("update holdfast.schedule set tz = 'Mars/Olympus' where name = 'bad'")

    for _ in range(3):
        upkeep.turn()
        clock.advance(minutes=1)

    bad = client.schedules.get("bad")
    assert bad is not None
    assert bad.problem == "time zone 'Mars/Olympus' is unknown"
    assert len(slots(client, "good")) == 2
    told = [
        record.__dict__["duty"] for record in caplog.records if record.name == "holdfast.upkeep"
    ]
    assert told == ["schedule bad"]
    client.schedules.set("bad", tz="UTC")
    upkeep.turn()
    mended = client.schedules.get("bad")
    assert mended is not None
    assert mended.problem is None
    assert mended.next_at is not None
    told = [r.getMessage() for r in caplog.records if r.name == "holdfast.upkeep"]
    assert told[-1] == "duty works again"


def test_a_schedule_beyond_the_calendar_does_not_end_the_loop(
    client: Client, upkeep: Upkeep, connect: Connect
) -> None:
    client.schedules.set("last", kind="last", every=60)
    connect().execute(
        "update holdfast.schedule set since = '9999-12-30', cron = '0 0 1 1 *',"
        " every = null, anchor = null"
    )

    assert upkeep.turn()["fired"] == 0

    found = client.schedules.get("last")
    assert found is not None
    assert found.problem


def test_a_duty_that_fails_is_told_once_and_the_others_are_done(
    client: Client,
    upkeep: Upkeep,
    connect: Connect,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.schedules.set("tick", kind="tick", every=60)
    upkeep.turn()
    connect().execute(
        "create or replace function holdfast.fold() returns integer language plpgsql"
        " as 'begin raise exception ''no space''; end'"
    )
    clock.advance(minutes=1)

    turns = [upkeep.turn() for _ in range(3)]

    assert [turn["fired"] for turn in turns] == [1, 0, 0]
    told = [record for record in caplog.records if record.name == "holdfast.upkeep"]
    assert [(one.message, one.__dict__["duty"]) for one in told] == [("duty failed", "folded")]
    assert told[0].__dict__["reason"] == "P0001: no space"


def test_schedules_are_fired_although_all_other_housekeeping_fails(
    client: Client, connect: Connect, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    client.schedules.set("tick", kind="tick", every=60)
    connect().execute(
        "create or replace function holdfast.upkeep(steps text[] default null) returns jsonb"
        " language plpgsql as 'begin raise exception ''no space''; end'"
    )

    with running(Upkeep(client, holder="ada", every=0.05)):
        eventually(lambda: (found := client.schedules.get("tick")) and found.next_at)
        clock.advance(minutes=1)
        eventually(lambda: slots(client, "tick"))

    assert [record.__dict__["duty"] for record in caplog.records] == ["upkeep"]


class Counting(UpkeepCalls):
    """Counts how often it is asked to tend."""

    asked = 0

    def tend(self, *args: Any, **options: Any) -> Tended:
        self.asked += 1
        return super().tend(*args, **options)


def counting(database: str) -> Client:
    client = Client(database)
    client.upkeep = Counting(client._door)
    return client


def test_only_one_of_several_tends_and_another_follows_when_it_stops(database: str) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(counting(database)) for _ in range(3)]
        first, *others = [Upkeep(c, holder=f"h{n}", every=0.05) for n, c in enumerate(clients)]
        with running(first) as leading:
            eventually(lambda: len(leading) > 3)
            began = time.monotonic()
            waiting = [stack.enter_context(running(other)) for other in others]
            eventually(lambda: len(leading) > 10)
            assert waiting == [[], []]
            # They ask again after three seconds, not sooner; a busy machine may be there by now.
            most = 1 + (time.monotonic() - began) / 3
            assert all(1 <= one.upkeep.asked <= most for one in clients[1:])
        # Both may have begun in the same moment, once: that does nothing twice.
        eventually(lambda: max(map(len, waiting)) > 3)
        before = [len(turns) for turns in waiting]
        eventually(lambda: max(map(len, waiting)) > 10)
        assert sum(len(turns) > had for turns, had in zip(waiting, before, strict=True)) == 1


def test_idle_upkeep_makes_less_than_a_transaction_a_second(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.schedules.set("yearly", kind="yearly", cron="0 0 1 1 *")
    made: list[str] = []
    run = client._door.run

    def counted(statement: Statement) -> Any:
        made.append(statement.name)
        return run(statement)

    monkeypatch.setattr(client._door, "run", counted)
    checks = {"order": lambda _, __: True}
    with running(Upkeep(client, holder="ada", checks=checks, every=0.5)) as turns:
        eventually(lambda: len(turns) >= 2)
        before, had, started = len(made), len(turns), time.monotonic()
        eventually(lambda: len(turns) >= had + 4)
        turned, statements, seconds = (
            len(turns) - had,
            len(made) - before,
            time.monotonic() - started,
        )

    # A turn takes one, and waits twice as long as it is told to, or once after it found something
    # to do. The detectors run every ten seconds. A busy machine does all that less often.
    assert inspect.signature(Upkeep).parameters["every"].default == 1.0
    assert seconds > 2.7
    assert statements <= turned + 1 + 1 + seconds / 10


def test_connections_that_are_killed_again_and_again_are_made_again(
    client: Client, upkeep: Upkeep, connect: Connect
) -> None:
    killer = connect()
    client.schedules.set("tick", kind="tick", every=1, missed="all")
    with running(upkeep) as turns:
        for _ in range(20):
            killer.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'holdfast upkeep test'"
            )
            time.sleep(0.1)
        before = len(turns)
        eventually(lambda: len(turns) > before + 1)

    made = slots(client, "tick")
    assert len(made) == len(set(made)) >= 2


def test_an_outage_is_one_line_and_its_end_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = embedded.start(tmp_path / "pg")
    schema.migrate(server.url)
    with Client(server.url, timeout=2.0) as client:
        upkeep = Upkeep(client, holder="ada", every=0.02)
        caplog.set_level(logging.INFO, "holdfast")
        with running(upkeep) as turns:
            eventually(lambda: len(turns) > 2)
            server.stop()
            time.sleep(5)
            with embedded.start(tmp_path / "pg"):
                before = len(turns)
                eventually(lambda: len(turns) > before + 2)
                told = list(caplog.messages)

    assert told == ["database unreachable", "database reachable again"]


def test_a_turn_without_a_database_raises() -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"

    with Client(nowhere) as client, pytest.raises(CannotConnect):
        Upkeep(client, holder="ada").turn()


def test_a_run_without_a_schema_waits_for_one(
    empty_database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.loop.LEAD", 0.1)
    with (
        Client(empty_database) as client,
        running(Upkeep(client, holder="ada", every=0.05)) as turns,
    ):
        eventually(lambda: "duty failed" in caplog.messages)
        schema.migrate(empty_database)
        eventually(lambda: len(turns) > 2)

    assert caplog.messages == ["duty failed", "duty works again"]


def test_a_bug_ends_the_loop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(client.upkeep, "tend", broken)

    with pytest.raises(ZeroDivisionError):
        Upkeep(client, holder="ada").run(threading.Event())


# -- checks


class Orders:
    """Work whose output is a row, and a check that looks for it."""

    def __init__(self, client: Client, connect: Connect) -> None:
        self.client = client
        self.asked: list[Any] = []
        self.answer: Any = None
        self._connection = connect()
        self._connection.execute("create table orders (id integer primary key)")
        client.queues.set("default", keep_done=3600)
        client.kinds.declare([{"kind": "order", "done_when": True}])
        client.workers.beat("living", kinds=["order"])

    def vanish(self, clock: Clock, *ids: int, wrote: bool) -> list[Any]:
        """Jobs whose worker is gone, and which wrote their output or not."""
        for id in ids:
            self.client.enqueue("order", {"id": id})
        leases = self.client.claim(worker="gone", limit=len(ids), lease=30)
        if wrote:
            for id in ids:
                self._connection.execute("insert into orders values (%s)", [id])
        clock.advance(seconds=31)
        self.client.workers.beat("living", kinds=["order"])
        return [lease.id for lease in leases]

    def check(self, connection: psycopg.Connection, job: Doubtful) -> bool:
        self.asked.append(job)
        if isinstance(self.answer, Exception):
            raise self.answer
        row = connection.execute(
            "select count(*) from orders where id = %s", [job.payload["id"]]
        ).fetchone()
        assert row
        return bool(row[0])

    def state(self, id: Any) -> str | None:
        found = self.client.jobs.get(id)
        return found.state if found else None


@pytest.fixture
def orders(client: Client, connect: Connect) -> Orders:
    return Orders(client, connect)


@pytest.mark.parametrize(("wrote", "state"), [(True, "done"), (False, "queued")])
def test_a_job_whose_worker_vanished_is_run_again_only_if_its_output_is_not_there(
    wrote: bool, state: str, client: Client, orders: Orders, clock: Clock
) -> None:
    [id] = orders.vanish(clock, 7, wrote=wrote)
    upkeep = Upkeep(client, holder="living", checks={"order": orders.check})

    done = upkeep.turn()

    assert orders.state(id) == state
    assert (done["reconciled"], done["undone"]) == (int(wrote), int(not wrote))
    assert [(job.id, job.kind, job.payload) for job in orders.asked] == [(id, "order", {"id": 7})]
    assert [queue.reconciled for queue in client.queues.list()] == [int(wrote)]


def test_a_check_that_raises_is_asked_three_times_and_then_the_job_is_not_done(
    client: Client, orders: Orders, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    [id] = orders.vanish(clock, 7, wrote=True)
    orders.answer = ConnectionError("the shop is closed")
    upkeep = Upkeep(client, holder="living", checks={"order": orders.check})

    states = [(upkeep.turn(), orders.state(id))[1] for _ in range(3)]

    assert states == ["leased", "leased", "queued"]
    assert caplog.messages == [
        "check failed",
        "check failed",
        "check failed, job counts as not done",
    ]
    assert caplog.records[0].__dict__["reason"] == "the shop is closed"


def test_a_check_that_fails_once_is_asked_again(
    client: Client, orders: Orders, clock: Clock
) -> None:
    ids = orders.vanish(clock, 1, 2, wrote=True)
    upkeep = Upkeep(client, holder="living", checks={"order": orders.check})
    orders.answer = ConnectionError("the shop is closed")
    upkeep.turn()
    orders.answer = None

    upkeep.turn()

    assert [orders.state(id) for id in ids] == ["done", "done"]


def test_a_check_that_breaks_its_connection_spoils_no_other(
    client: Client, orders: Orders, clock: Clock
) -> None:
    ids = orders.vanish(clock, 1, 2, 3, wrote=True)

    def check(connection: psycopg.Connection, job: Doubtful) -> bool:
        if job.payload["id"] == 2:
            connection.execute("select 1/0")
        elif job.payload["id"] == 1:
            connection.close()
        return orders.check(connection, job)

    Upkeep(client, holder="living", checks={"order": check}).turn()

    assert [orders.state(id) for id in ids] == ["leased", "leased", "done"]


def test_what_a_check_writes_is_rolled_back(
    client: Client, orders: Orders, clock: Clock, connect: Connect
) -> None:
    orders.vanish(clock, 7, wrote=False)

    def check(connection: psycopg.Connection, job: Doubtful) -> bool:
        connection.execute("insert into orders values (99)")
        return False

    Upkeep(client, holder="living", checks={"order": check}).turn()

    assert connect().execute("select * from orders").fetchall() == []


def test_a_check_that_keeps_the_database_busy_is_cancelled(
    client: Client, orders: Orders, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.loop.CHECK", 0.2)
    [id] = orders.vanish(clock, 7, wrote=True)

    def check(connection: psycopg.Connection, job: Doubtful) -> bool:
        connection.execute("select pg_sleep(60)")
        return True

    started = time.monotonic()
    Upkeep(client, holder="living", checks={"order": check}).turn()

    assert time.monotonic() - started < 40
    assert orders.state(id) == "leased"


def test_checks_are_asked_also_by_one_who_does_not_lead(
    client: Client, orders: Orders, clock: Clock
) -> None:
    [id] = orders.vanish(clock, 7, wrote=True)
    client.upkeep.lead("without checks", length=3600)
    client.upkeep.run()  # what the leader does: it leaves the job to those who can tell

    with running(Upkeep(client, holder="living", checks={"order": orders.check})) as turns:
        eventually(lambda: orders.state(id) == "done")

    assert turns == []


def test_whoever_leads_carries_out_operations(client: Client) -> None:
    jobs = client.enqueue_many(NewJob(kind="a", queue="mail") for _ in range(1200))
    preview = client.operations.preview("cancel", "queue:mail")
    client.operations.start(preview.token)
    stop = threading.Event()
    keeper = threading.Thread(target=Upkeep(client, holder="me", every=0.1).run, args=[stop])

    keeper.start()
    end = time.monotonic() + 120
    while client.operations.get(preview.id).state == "running" and time.monotonic() < end:
        time.sleep(0.05)
    stop.set()
    keeper.join()

    assert client.operations.get(preview.id).changed == len(jobs)
    assert client.queues.get("mail").cancelled == len(jobs)


def test_a_turn_goes_on_slice_by_slice_while_there_is_more(
    client: Client, connect: Connect
) -> None:
    watcher = connect()
    watcher.execute(
        "insert into holdfast.tally (part, queue, kind, done)"
        " select holdfast.queue_part('q'), 'q', 'k', 1 from generate_series(1, 45000)"
    )

    with running(Upkeep(client, holder="me", every=100.0)) as turns:
        eventually(lambda: turns)

    assert turns[0]["folded"] == 45_000


def test_a_step_that_passes_the_deadline_stops_no_other_step(
    database: str, connect: Connect, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = connect()
    watcher.execute(
        "create or replace function holdfast.promote(max_jobs integer default 1000,"
        " only_queue text default null) returns integer language sql"
        " as 'select 1 from pg_sleep(case when only_queue is null then 60 else 0 end)'"
    )
    with Client(database, timeout=2.0) as client:
        client.enqueue("greet")
        client.claim(worker="w", lease=30)
        clock.advance(seconds=31)
        with running(Upkeep(client, holder="ada", every=0.05)):
            eventually(lambda: [job for job in client.jobs.list() if job.state == "queued"])
            eventually(
                lambda: watcher.execute(
                    "select 1 from holdfast.failing where step = 'promoted' and times > 1"
                ).fetchone()
            )

    assert "promoted" in {record.__dict__.get("duty") for record in caplog.records}
