"""What a worker does about its leases: keeps them, notices their loss, and never lies."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import holdfast
from holdfast import App, Client, Lease, LeaseLost
from holdfast.client.sync.drain import Drain
from holdfast.client.sync.workers import Workers
from holdfast.errors import Unavailable
from holdfast.worker import Worker
from holdfast.worker import worker as module
from tests.conftest import Clock, Connect

Start = Callable[..., Any]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so; what it waits for has no event of its own."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def test_a_job_ten_times_as_long_as_its_lease_runs_once(app: App, start: Start) -> None:
    runs = []

    @app.task
    async def awaited() -> None:
        runs.append("awaited")
        await asyncio.sleep(15)

    @app.task
    def threaded() -> None:
        runs.append("threaded")
        time.sleep(15)

    handles = [awaited.enqueue(), threaded.enqueue()]
    start(lease=1.5)
    start(lease=1.5)
    wait_for(lambda: all(handle.state() == "done" for handle in handles))

    assert sorted(runs) == ["awaited", "threaded"]


def test_a_lease_is_renewed_well_before_anybody_stops_believing_in_it(
    app: App, start: Start
) -> None:
    renewed = []

    @app.task
    def long() -> None:
        job = holdfast.current()
        first = job.deadline
        while job.deadline == first and job.held():
            time.sleep(0.01)
        renewed.append(first - time.monotonic())

    long.enqueue()
    start(lease=6.0)
    wait_for(lambda: bool(renewed))

    # At a third, when 3.4 seconds are left; how late a busy machine is must not matter.
    assert renewed[0] > 0.5


def test_renewals_go_past_the_pooler_where_there_is_a_direct_address(
    app: App, start: Start, direct: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LISTEN_URL", make_conninfo(direct, application_name="direct"))
    released = threading.Event()

    @app.task
    def long() -> None:
        released.wait(60)

    long.enqueue()
    start(lease=1.5)
    count = (
        "select count(*) from pg_stat_activity "
        "where application_name = 'direct' and query ~ 'touch|beat'"
    )
    connection = connect()
    wait_for(lambda: connection.execute(count).fetchone() == (1,))
    released.set()


def test_a_pool_too_small_for_the_slots_is_told_at_the_start(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with App(database, pool_size=2) as app:

        @app.task
        def hold() -> None: ...

        Worker(app, concurrency=8, until_idle=True).run()

    told = "8 slots that hold transactions need 12 connections; this pool has 2"
    assert told in caplog.messages


@pytest.mark.parametrize(("lease", "margin"), [(5.0, 0.5), (60.0, 1.0)])
def test_a_lease_counts_from_before_the_claim_and_is_believed_in_a_little_less(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch, lease: float, margin: float
) -> None:
    sent, seen = [], []
    exchange = Drain.exchange

    def slow(self: Drain, *arguments: Any, **more: Any) -> Any:
        began = time.monotonic()
        answer = exchange(self, *arguments, **more)
        if any(answer.leased):
            sent.append(began)
            time.sleep(0.3)  # an answer that takes its time is no part of the lease
        return answer

    monkeypatch.setattr(Drain, "exchange", slow)

    @app.task
    def look() -> None:
        seen.append(holdfast.current().deadline)

    look.enqueue()
    start(lease=lease)
    wait_for(lambda: bool(seen))

    assert sent[0] + lease - margin - 0.4 < seen[0] <= sent[0] + lease - margin


@pytest.mark.parametrize(
    ("settings", "options", "job", "seconds"),
    [
        ({"lease": 120}, {}, {}, 120),
        ({"lease": 120}, {"lease": 45}, {}, 45),
        ({"lease": 120}, {"lease": 45}, {"lease": 300}, 300),
        ({}, {}, {}, 30),
    ],
    ids=["the queue's", "the worker's", "the job's", "the usual"],
)
def test_the_lease_is_that_of_the_job_or_the_worker_or_the_queue(
    app: App,
    start: Start,
    settings: dict[str, Any],
    options: dict[str, Any],
    job: dict[str, Any],
    seconds: float,
) -> None:
    began, go = threading.Event(), threading.Event()
    believed: list[float] = []

    @app.task(queue="mail")
    def slow() -> None:
        held: Any = holdfast.current()
        believed.append(held.lease_seconds)
        began.set()
        go.wait(100)

    app.client.queues.set("mail", **settings)
    handle = slow.options(**job).enqueue()
    start(**options)
    assert began.wait(100)
    row = app.client.jobs.get(handle.id)
    go.set()

    assert row
    assert row.lease_until
    assert believed == [seconds]
    # Less than a third is gone: it would have been renewed.
    assert seconds * 0.6 < (row.lease_until - app.client.now()).total_seconds() <= seconds


def test_a_worker_renews_by_the_lease_it_was_given(app: App, start: Start, database: str) -> None:
    began, go = threading.Event(), threading.Event()

    @app.task(queue="mail")
    def slow() -> None:
        began.set()
        go.wait(100)

    app.client.queues.set("mail", lease=1)
    handle = slow.enqueue()
    start()
    assert began.wait(100)
    first = app.client.jobs.get(handle.id)
    assert first
    given = first.lease_until
    assert given

    def renewed() -> bool:
        row = app.client.jobs.get(handle.id)
        return bool(row and row.lease_until and row.lease_until > given)

    # Within the first lease, or the job would be taken back; the usual one is renewed after ten.
    wait_for(renewed, seconds=8)
    go.set()
    wait_for(lambda: handle.state() == "done")


@pytest.mark.usefixtures("hearing")
def test_a_cancelled_job_stops_its_handler_at_once(app: App, start: Start) -> None:
    began, ended = threading.Event(), threading.Event()

    @app.task
    async def forever() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    handle = forever.enqueue()
    running = start(lease=60)
    assert began.wait(100)
    # Heard, not waited for: a third of the lease is twenty seconds.
    wait_for(lambda: running.worker.hears)
    assert handle.cancel("changed my mind")

    assert ended.wait(100)
    wait_for(lambda: running.worker.counts.lost == 1)
    assert handle.state() == "cancelled"


@pytest.mark.usefixtures("hearing")
@pytest.mark.parametrize("sort", ["async", "stubborn", "thread"])
def test_a_lane_waits_until_the_handler_of_a_cancelled_job_has_ended(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    monkeypatch.setattr("holdfast.worker.asyncs.STUBBORN", 0.1 if sort == "stubborn" else 60.0)
    began, go, ran = threading.Event(), threading.Event(), []

    async def linger() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            while not go.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)

    def linger_in_thread() -> None:
        began.set()
        go.wait(100)

    task = app.task(kind="linger")(linger_in_thread if sort == "thread" else linger)  # type: ignore[type-var]

    @app.task
    def follow() -> None:
        ran.append(go.is_set())

    @app.task
    def beside() -> None: ...

    first = task.options(lane="one").enqueue()
    running = start(lease=60)
    assert began.wait(100)
    wait_for(lambda: running.worker.hears)
    second = follow.options(lane="one").enqueue()
    assert first.cancel("enough")
    wait_for(lambda: running.worker.counts.lost == 1)
    if sort != "async":
        # The worker has given the handler up: its slot is free for others, its lane is not.
        wait_for(lambda: not running.worker._jobs.running())
    # Whatever the worker had to say of the first job, it has said before it settled this one.
    third = beside.enqueue()
    wait_for(lambda: third.state() == "done")

    assert second.state() == "queued"
    assert "was cancelled" in app.client.jobs.explain(second.id)
    go.set()

    wait_for(lambda: second.state() == "done")
    assert ran == [True]


def test_a_job_whose_lease_is_lost_is_not_held(app: App, start: Start, database: str) -> None:
    began, go = threading.Event(), threading.Event()
    told: list[object] = []

    @app.task
    def slow() -> None:
        job = holdfast.current()
        began.set()
        go.wait(60)
        try:
            job.assert_held()
        except LeaseLost as error:
            told.append(error)
        else:
            told.append("held")

    handle = slow.enqueue()
    running = start()
    assert began.wait(100)
    app.client.jobs.cancel([handle.id])
    wait_for(lambda: running.worker.counts.lost == 1)
    go.set()
    wait_for(lambda: bool(told))

    assert isinstance(told[0], LeaseLost)


@pytest.mark.parametrize("sort", ["async", "thread"])
def test_the_effects_of_a_job_and_its_ack_commit_together(
    app: App, start: Start, database: str, sort: str
) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table effect (id int, note jsonb)")

    @app.task
    async def follow() -> None: ...

    if sort == "async":

        @app.task(kind="work", keep_result=True)
        async def awork(id: int) -> None:
            async with holdfast.current().transaction() as conn:
                await conn.execute("insert into effect values (%s, '{}')", [id])
                await follow.options(conn=conn, queue="later").aenqueue()

        handle = awork.enqueue(1)
    else:

        @app.task(kind="work", keep_result=True)
        def work(id: int) -> None:
            with holdfast.current().transaction() as conn:
                conn.execute("insert into effect values (%s, '{}')", [id])
                follow.options(conn=conn, queue="later").enqueue()

        handle = work.enqueue(1)
    running = start(queues={"default": 2})
    wait_for(lambda: running.worker.counts.acked == 1)

    with psycopg.connect(database) as conn:
        assert conn.execute("select count(*) from effect").fetchone() == (1,)
    assert handle.state() in (None, "done")
    assert [job.kind for job in app.client.jobs.list("queue:later")] == ["follow"]


def test_a_stale_holder_writes_nothing(app: App, start: Start, database: str, clock: Clock) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table effect (id int)")
    inside, go = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    @app.task
    def work() -> None:
        try:
            with holdfast.current().transaction() as conn:
                conn.execute("insert into effect values (1)")
                inside.set()
                go.wait(100)
        except BaseException as error:
            raised.append(error)
            raise

    handle = work.enqueue()
    running = start(lease=60, concurrency=1)
    assert inside.wait(100)
    clock.advance(seconds=61)
    # The worker's own upkeep may be at it: then the job is there a moment later.
    claimed: list[Lease] = []
    wait_for(lambda: claimed.extend(app.client.claim(worker="thief")) or bool(claimed))
    [stolen] = claimed
    go.set()
    wait_for(lambda: bool(raised))

    assert stolen.id == handle.id
    assert isinstance(raised[0], LeaseLost)
    with psycopg.connect(database) as conn:
        assert conn.execute("select count(*) from effect").fetchone() == (0,)
    wait_for(lambda: running.worker.counts.lost == 1)


def test_progress_is_shown_and_renews_the_lease(app: App, start: Start, database: str) -> None:
    go = threading.Event()

    @app.task
    def work() -> None:
        holdfast.current().progress(3, 20, "step three")
        go.wait(100)

    handle = work.enqueue()
    start(lease=60)

    def shown() -> bool:
        with psycopg.connect(database) as conn:
            row = conn.execute(
                "select progress from holdfast.job where id = %s", [handle.id]
            ).fetchone()
        return bool(row and row[0] and row[0]["done"] == 3 and row[0]["note"] == "step three")

    wait_for(shown)
    go.set()
    wait_for(lambda: handle.state() == "done")


@pytest.mark.parametrize("sort", ["async", "thread"])
def test_a_handler_over_its_time_fails_with_the_reason_and_frees_its_slot(
    app: App, start: Start, sort: str
) -> None:
    release, after = threading.Event(), threading.Event()

    if sort == "async":

        @app.task(kind="stuck", timeout=0.3, max_attempts=1)
        async def astuck() -> None:
            await asyncio.sleep(3600)

        handle = astuck.enqueue()
    else:

        @app.task(kind="stuck", timeout=0.3, max_attempts=1)
        def stuck() -> None:
            release.wait(15)

        handle = stuck.enqueue()

    @app.task
    def neighbour() -> None:
        after.set()

    neighbour.enqueue()
    start(concurrency=1)

    assert after.wait(100)
    release.set()
    wait_for(lambda: handle.state() == "dead")
    [attempt] = app.client.jobs.attempts(handle.id)
    assert attempt.error_kind == "TimedOut"
    assert attempt.message == "timed out after 0.3 s"


def test_a_blocked_event_loop_is_reported_by_name_and_its_lease_is_kept(
    app: App, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []

    @app.task
    async def rude() -> None:
        runs.append(1)
        time.sleep(4)

    handle = rude.enqueue()
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        start(lease=1.5)
        wait_for(lambda: handle.state() == "done")

    assert runs == [1]
    [told] = [record for record in caplog.records if "HF301" in record.getMessage()]
    assert told.kind == "rude"  # type: ignore[attr-defined]
    assert "test_leases.py" in told.at  # type: ignore[attr-defined]


def test_what_has_not_started_is_given_back_at_the_end_without_an_attempt(
    app: App, start: Start
) -> None:
    began, go = threading.Event(), threading.Event()

    @app.task
    def work(n: int) -> None:
        began.set()
        go.wait(100)

    handles = app.enqueue_many(work.call(n) for n in range(5))
    running = start(concurrency=1, grace=10)
    assert began.wait(100)
    running.worker.stop()
    go.set()
    running.join()

    assert [handle.state() for handle in handles] == ["done", *["queued"] * 4]
    jobs = [app.client.jobs.get(handle.id) for handle in handles[1:]]
    assert [job.attempt for job in jobs if job] == [0] * 4


def test_what_outlasts_the_grace_is_given_back_without_an_attempt(app: App, start: Start) -> None:
    began = threading.Event()

    @app.task
    async def work() -> None:
        began.set()
        await asyncio.sleep(3600)

    handle = work.enqueue()
    running = start(grace=0.2)
    assert began.wait(100)
    running.stop()

    job = app.client.jobs.get(handle.id)
    assert job
    assert (job.state, job.attempt) == ("queued", 0)


def test_a_part_that_fails_ends_the_worker_with_its_error(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def work() -> None: ...

    def broken(self: Any, now: float) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("holdfast.worker.leases.Keeper._renew", broken)

    with pytest.raises(ZeroDivisionError, match="planted"):
        Worker(app).run()


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("sort", ["async", "thread"])
def test_past_its_deadline_a_handler_gets_a_transaction_unless_its_job_was_taken(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch, sort: str, taken: bool
) -> None:
    monkeypatch.setattr("holdfast.worker.leases.Keeper._renew", lambda self, now: None)
    ended: list[str] = []
    entered: list[bool] = []

    def lose() -> None:
        if taken:
            while not app.client.upkeep.reap():
                time.sleep(0.02)

    @app.task(kind="work")
    async def awork() -> None:
        job = holdfast.current()
        while job.held():
            await asyncio.sleep(0.02)
        await asyncio.to_thread(lose)
        try:
            async with job.transaction():
                entered.append(True)
        except LeaseLost as error:
            ended.append(str(error))
        else:
            ended.append("done")

    def work() -> None:
        job = holdfast.current()
        while job.held():
            time.sleep(0.02)
        lose()
        try:
            with job.transaction():
                entered.append(True)
        except LeaseLost as error:
            ended.append(str(error))
        else:
            ended.append("done")

    task = awork if sort == "async" else app.task(kind="thread")(work)
    task.enqueue()
    # One job: what was taken is not claimed again.
    start(lease=1, upkeep=False, concurrency=1, max_jobs=1)
    wait_for(lambda: bool(ended))

    assert entered == ([] if taken else [True])
    assert ended == ["done"] if not taken else "lease lost" in ended[0]


def test_a_handler_past_its_deadline_does_not_hold_its_job_and_goes_on_until_somebody_knows(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, fenced, go = threading.Event(), threading.Event(), threading.Event()
    told: list[bool] = []

    @app.task
    async def work() -> None:
        job = holdfast.current()
        began.set()
        while job.held():
            await asyncio.sleep(0.02)
        fenced.set()
        while not go.is_set():
            await asyncio.sleep(0.02)
        while not job.held():
            await asyncio.sleep(0.02)
        told.append(True)

    away = threading.Event()
    touch = Client.touch

    def unreachable(self: Client, *args: Any, **options: Any) -> Any:
        if away.is_set():
            raise Unavailable("planted")
        return touch(self, *args, **options)

    monkeypatch.setattr(Client, "touch", unreachable)
    handle = work.enqueue()
    running = start(lease=3, upkeep=False, concurrency=1)
    assert began.wait(100)
    away.set()
    assert fenced.wait(100)
    away.clear()  # in time: nobody has reaped it
    go.set()

    wait_for(lambda: handle.state() == "done")
    assert told == [True]
    assert running.worker.counts.lost == 0


@pytest.mark.parametrize("sort", ["async", "thread"])
@pytest.mark.parametrize(
    "cut",
    [
        "select pg_terminate_backend(pg_backend_pid())",
        "set local transaction read only; insert into effect values (2)",
    ],
    ids=["ended", "read-only"],
)
def test_a_transaction_cut_by_an_outage_costs_no_attempt(
    app: App, drain: Callable[..., Worker], database: str, sort: str, cut: LiteralString
) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table effect (id int)")

    if sort == "async":

        @app.task(kind="work", max_attempts=1)
        async def awork() -> None:
            async with holdfast.current().transaction() as conn:
                await conn.execute("insert into effect values (1)")
                await conn.execute(cut)

        handle = awork.enqueue()
    else:

        @app.task(kind="work", max_attempts=1)
        def work() -> None:
            with holdfast.current().transaction() as conn:
                conn.execute("insert into effect values (1)")
                conn.execute(cut)

        handle = work.enqueue()
    drain()

    job = app.client.jobs.get(handle.id)
    assert job
    assert (job.state, job.attempt) == ("queued", 0)
    with psycopg.connect(database) as conn:
        assert conn.execute("select count(*) from effect").fetchone() == (0,)


def test_a_beat_that_was_held_up_does_not_make_the_clock_look_wrong_for_long(
    app: App, start: Start, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_EVERY", 3600.0)
    monkeypatch.setattr(module, "LATE", 0.1)

    @app.task
    def greet() -> None: ...

    beat, beats = Workers.beat, []

    def held_up(self: Workers, worker: str, **facts: Any) -> bool:
        # The first is its declaration.
        time.sleep(0.5 if len(beats) == 1 else 0.0)
        stop = beat(self, worker, **facts)
        beats.append(worker)
        return stop

    monkeypatch.setattr(Workers, "beat", held_up)
    worker = start().worker
    wait_for(lambda: len(beats) == 1)
    worker._beat_at = 0.0
    wait_for(lambda: len(beats) >= 3)
