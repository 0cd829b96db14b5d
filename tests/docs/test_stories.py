"""The stories that the sources tell, told again with the protocol."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import psycopg
import pytest
from psycopg import errors

from holdfast import Client, Lease, NewJob, schema
from tests.docs.pages import ROOT

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database, pool_size=8) as client:
        yield client


# Source 0: a nightly workflow claims rows by a function.


@pytest.mark.proves("S0.2")
def test_the_schema_arrives_as_numbered_migrations(empty_database: str) -> None:
    files = sorted((ROOT / "src" / "holdfast" / "sql" / "migrations").glob("*.sql"))

    applied = schema.migrate(empty_database)

    numbers = [int(file.name[:4]) for file in files]
    assert numbers == sorted(set(numbers))
    assert applied[: len(files)] == [file.stem for file in files]


@pytest.mark.proves("S0.22")
def test_nothing_brings_a_dead_job_back_but_a_retry(client: Client, clock: Any) -> None:
    job = client.enqueue("match", max_attempts=1)
    client.nack(client.claim(worker="a"))

    clock.advance(days=1)
    client.upkeep.run()

    assert client.claim(worker="a") == []
    client.jobs.retry([job.id])
    assert len(client.claim(worker="a")) == 1


# Source 1: the same processor runs on many instances.


@pytest.mark.proves("S1.1", "S1.3", "S1.20")
def test_many_instances_take_batches_and_no_job_twice(client: Client) -> None:
    jobs = client.enqueue_many(NewJob(kind="process") for _ in range(100))
    start = Barrier(8)

    def instance(name: int) -> list[Lease]:
        start.wait()
        taken: list[Lease] = []
        while batch := client.claim(worker=f"instance-{name}", limit=5):
            assert len(batch) <= 5
            taken += batch
        return taken

    with ThreadPoolExecutor(8) as threads:
        taken = [lease.id for leases in threads.map(instance, range(8)) for lease in leases]

    assert sorted(taken) == sorted(job.id for job in jobs)


@pytest.mark.proves("S1.2")
def test_development_never_eats_the_jobs_of_production(client: Client) -> None:
    client.enqueue("process", queue="production")
    client.enqueue("report", queue="shared")

    assert client.claim("development", worker="laptop", limit=10) == []
    assert client.claim("shared", worker="laptop", limit=10, kinds=["process"]) == []


@pytest.mark.proves("S1.4")
def test_a_burst_after_an_analyse_of_an_empty_table_gives_no_more_than_asked_for(
    client: Client, connect: Connect
) -> None:
    client.enqueue("process")
    connect().execute("analyze holdfast.job")
    client.enqueue_many(NewJob(kind="process") for _ in range(60))

    assert len(client.claim(worker="a", limit=5)) == 5


@pytest.mark.proves("S1.5", "S1.9", "S1.23")
def test_each_state_and_the_times_of_start_and_end_are_recorded(client: Client) -> None:
    client.queues.set("default", keep_done=60)
    client.enqueue_many(NewJob(kind="process", max_attempts=1) for _ in range(4))
    done, failed, _ = client.claim(worker="a", limit=3)
    client.ack([done])
    client.nack([failed])

    jobs = client.jobs.list()

    assert sorted(job.state for job in jobs) == ["dead", "done", "leased", "queued"]
    assert {job.state for job in jobs if job.ended_at} == {"dead", "done"}
    [attempt] = client.jobs.attempts(failed.id)
    assert attempt.started_at
    assert attempt.ended_at
    assert attempt.started_at <= attempt.ended_at


@pytest.mark.proves("S1.19", "S2.14")
def test_what_waits_has_indexes_that_hold_nothing_else(connect: Connect) -> None:
    indexes = connect().execute(
        "select indexname, indexdef from pg_indexes "
        "where schemaname = 'holdfast' and tablename = 'job'"
    )
    predicates = {name: text.partition(" WHERE ")[2] for name, text in indexes}

    assert predicates["job_ready"] == "(pos IS NOT NULL)"
    assert "pos IS NULL" in predicates["job_due"]


@pytest.mark.proves("S1.22", "S2.16")
def test_how_long_until_work_counts_as_stuck_is_one_setting(client: Client, clock: Any) -> None:
    client.queues.set("default", lease=timedelta(minutes=5))
    job = client.enqueue("process")
    client.claim(worker="stuck")

    clock.advance(minutes=4)
    assert client.claim(worker="next") == []
    clock.advance(minutes=2)
    assert [lease.id for lease in client.claim(worker="next")] == [job.id]


# Source 2: one pricing run at a time.


@pytest.mark.proves("S2.1", "S2.2", "S2.15", "S2.18", "S2.21")
def test_of_many_who_ask_at_once_one_gets_the_slot(client: Client) -> None:
    client.queues.set("pricing", limit=1)
    client.enqueue_many(NewJob(kind="run", queue="pricing") for _ in range(8))
    start = Barrier(8)

    def ask(name: int) -> list[Lease]:
        start.wait()
        return client.claim("pricing", worker=f"worker-{name}", limit=3)

    with ThreadPoolExecutor(8) as threads:
        first = [lease for leases in threads.map(ask, range(8)) for lease in leases]

    assert len(first) == 1
    assert client.claim("pricing", worker="late") == []
    client.ack(first)
    assert len(client.claim("pricing", worker="late")) == 1


@pytest.mark.proves("S2.3", "S2.4")
def test_busy_means_queued_and_it_can_be_asked_who_is_in_the_way(client: Client) -> None:
    client.enqueue("run", queue="pricing", lane="axiom")
    [busy] = client.claim("pricing", worker="axiom-1")

    queued = client.enqueue("run", queue="pricing", lane="axiom")

    assert queued.created
    told = client.jobs.explain(queued.id)
    assert str(busy.id) in told
    assert "axiom-1" in told


@pytest.mark.proves("S2.6", "S2.7", "S2.8", "S2.27")
def test_the_oldest_goes_first_and_a_failed_one_comes_back(client: Client) -> None:
    client.queues.set("pricing", limit=1)
    names = ["5:00", "5:30", "6:00"]
    client.enqueue_many(NewJob(kind="run", queue="pricing", payload=name) for name in names)

    ran = []
    while leases := client.claim("pricing", worker="processor"):
        ran.append((leases[0].payload, leases[0].attempt))
        if ran == [("5:00", 1)]:
            client.nack(leases, message="fell over", delay=0)
        else:
            client.ack(leases)

    assert ran == [("5:00", 1), ("5:30", 1), ("6:00", 1), ("5:00", 2)]


@pytest.mark.proves("S2.9", "S2.10", "S2.19", "S2.20")
def test_each_run_has_its_own_number_of_attempts(client: Client) -> None:
    twice = client.enqueue("run", max_attempts=2)
    thrice = client.enqueue("run")

    attempts = []
    while leases := client.claim(worker="processor"):
        attempts.append((leases[0].id, leases[0].attempt))
        client.nack(leases, delay=0)

    assert sorted(attempts) == sorted(
        [(twice.id, 1), (twice.id, 2), (thrice.id, 1), (thrice.id, 2), (thrice.id, 3)]
    )
    assert {job.state for job in client.jobs.list()} == {"dead"}


@pytest.mark.proves("S2.11")
def test_when_a_run_became_due_is_recorded(client: Client) -> None:
    job = client.jobs.get(client.enqueue("run", delay=60).id)

    assert job
    assert job.run_at - job.created_at == timedelta(seconds=60)


@pytest.mark.proves("S2.12")
@pytest.mark.parametrize(
    "role", ["holdfast_reader", "holdfast_producer", "holdfast_worker", "holdfast_operator"]
)
def test_the_database_lets_nobody_write_a_state_but_by_its_functions(
    role: str, client: Client, connect: Connect
) -> None:
    client.enqueue("run")
    session = connect(options=f"-c role={role}")

    for column in ("token", "worker", "blocked", "follow", "attempt", "priority"):
        with pytest.raises(errors.InsufficientPrivilege):
            session.execute(f"update holdfast.job set {column} = default")
    with pytest.raises(errors.InsufficientPrivilege):
        session.execute("delete from holdfast.job")


@pytest.mark.proves("S2.17")
def test_a_stuck_run_fails_with_a_message_and_the_next_proceeds(client: Client, clock: Any) -> None:
    client.queues.set("pricing", limit=1, max_attempts=1)
    stuck = client.enqueue("run", queue="pricing")
    waiting = client.enqueue("run", queue="pricing")
    client.claim("pricing", worker="axiom", lease=180)

    clock.advance(seconds=181)
    [proceeds] = client.claim("pricing", worker="axiom")

    assert proceeds.id == waiting.id
    job = client.jobs.get(stuck.id)
    assert job
    assert (job.state, job.error) == (
        "dead",
        "LeaseExpired: the lease expired without being renewed",
    )


@pytest.mark.proves("S2.25")
def test_a_run_can_be_cancelled_by_hand_waiting_or_running(client: Client) -> None:
    client.enqueue_many(NewJob(kind="run") for _ in range(2))
    [running] = client.claim(worker="axiom")

    changes = client.jobs.cancel(client.jobs.find("kind:run"), reason="wrong rates")

    assert [change.state for change in changes] == ["cancelled", "cancelled"]
    assert client.ack([running])[0].outcome == "lost"


# Source 3: an import feeds a queue that cron jobs drain.


@pytest.mark.proves("S3.6")
def test_a_second_import_adds_only_what_is_not_waiting(client: Client) -> None:
    def sync(items: range) -> int:
        jobs = (NewJob(kind="PRICE_UPDATED", key=f"item-{n}") for n in items)
        return sum(enqueued.created for enqueued in client.enqueue_many(jobs))

    assert sync(range(50)) == 50
    assert sync(range(60)) == 10
    assert sync(range(60)) == 0


@pytest.mark.proves("S3.34")
def test_cron_jobs_that_overlap_share_the_work(client: Client) -> None:
    client.enqueue_many(NewJob(kind="NEW_ITEM") for _ in range(60))
    start = Barrier(3)

    def cron_job(name: int) -> int:
        start.wait()
        done = 0
        while leases := client.claim(worker=f"cron-{name}", limit=7):
            done += [settled.outcome for settled in client.ack(leases)].count("done")
        return done

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(cron_job, range(3))) == 60
    assert client.jobs.list() == []


# Source 4: a broker.


@pytest.mark.proves("S4.27")
def test_only_those_who_wait_are_notified_once_and_not_for_each_row(
    client: Client, connect: Connect
) -> None:
    listener = connect()
    listener.execute("listen holdfast")
    client.enqueue_many(NewJob(kind="a") for _ in range(50))
    client.workers.await_work(["default"], worker="idle")

    client.enqueue_many(NewJob(kind="a") for _ in range(50))
    client.enqueue_many(NewJob(kind="a") for _ in range(50))

    [first] = listener.notifies(timeout=100, stop_after=1)
    assert first.payload == "default\nidle"
    assert list(listener.notifies(timeout=0.2)) == []


@pytest.mark.proves("S4.31")
def test_any_number_of_processes_look_for_overdue_jobs_and_each_is_taken_back_once(
    client: Client, clock: Any
) -> None:
    client.enqueue_many(NewJob(kind="a") for _ in range(20))
    client.claim(worker="gone", limit=20)
    clock.advance(seconds=31)
    start = Barrier(4)

    def server(_: int) -> int:
        start.wait()
        return client.upkeep.run()["reaped"]

    with ThreadPoolExecutor(4) as threads:
        reaped = list(threads.map(server, range(4)))

    assert sum(reaped) == 20
    assert {job.attempt for job in client.jobs.list("state:queued")} == {1}


@pytest.mark.proves("S4.35")
def test_a_client_uses_no_more_connections_than_its_pool_has(
    database: str, connect: Connect
) -> None:
    with Client(database, pool_size=2, application_name="pooled") as client:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: client.enqueue("a"), range(40)))

        [(used,)] = connect().execute(
            "select count(*) from pg_stat_activity where application_name = 'pooled'"
        )
    assert used <= 2


@pytest.mark.proves("S4.35")
def test_as_many_calls_of_a_client_are_under_way_as_its_pool_has_connections(
    database: str, connect: Connect
) -> None:
    first = connect(autocommit=False)
    first.execute("""select holdfast.enqueue('{"kind": "a", "key": "k"}')""")
    waiting = (
        "select count(*) from pg_stat_activity"
        " where application_name = 'pooled' and wait_event_type = 'Lock'"
    )
    with (
        Client(database, pool_size=3, application_name="pooled") as client,
        ThreadPoolExecutor(8) as threads,
    ):
        # All of them wait for the one that has their key and is not committed.
        calls = [threads.submit(client.enqueue, "a", key="k") for _ in range(8)]
        watcher, end = connect(), time.monotonic() + 120
        while (used := watcher.execute(waiting).fetchone()) != (3,) and time.monotonic() < end:
            time.sleep(0.01)
        first.commit()
        answers = [call.result() for call in calls]

    assert used == (3,)
    assert not any(answer.created for answer in answers)


@pytest.mark.proves("S4.36")
def test_history_is_kept_by_day_and_dropped_by_day(
    client: Client, clock: Any, connect: Connect
) -> None:
    client.upkeep.run()
    client.queues.set("default", keep_done=timedelta(days=7))
    job = client.enqueue("a")
    client.ack(client.claim(worker="a"))
    pages = "select count(*) from pg_inherits where inhparent = 'holdfast.history'::regclass"
    [(before,)] = connect().execute(pages)

    clock.advance(days=30)
    client.upkeep.run()

    [(after,)] = connect().execute(pages)
    assert client.jobs.get(job.id) is None
    assert after == before


@pytest.mark.proves("S4x.8")
def test_a_lease_that_was_renewed_is_not_taken_back_although_its_claim_is_overdue(
    client: Client, clock: Any
) -> None:
    client.enqueue("a")
    leases = client.claim(worker="a", lease=30)
    clock.advance(seconds=20)
    client.touch(leases)
    clock.advance(seconds=20)

    assert client.upkeep.reap() == []
    assert client.ack(leases)[0].outcome == "done"


@pytest.mark.proves("S4x.8")
def test_nothing_changes_the_schema_but_migrate() -> None:
    sources = (ROOT / "src" / "holdfast" / "client").rglob("*.py")
    text = "".join(file.read_text("utf-8") for file in sources)

    assert re.findall(r"\b(?:create|alter|drop) (?:table|index|schema|function)", text) == []
