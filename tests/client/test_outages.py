"""Lost connections, lost replies, deadlines: repeated where that is safe, told where it is not."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from holdfast import AsyncClient, Client, HoldfastError, NewJob, schema
from holdfast.client.statement import may_retry, was_cut
from holdfast.errors import CannotConnect, Unavailable, UnknownOutcome
from holdfast.records import new_id

KILL = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'victim'"


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def jobs_locked(connect: Any) -> Iterator[None]:
    """Make whoever touches the table of jobs wait."""
    connection = connect(autocommit=False)
    connection.execute("lock table holdfast.job")
    yield
    connection.rollback()


def wait_until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (value := true()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)
    return value


def waiting_backends(connection: Any, name: str) -> list[int]:
    rows = connection.execute(
        "select pid from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'",
        [name],
    )
    return [pid for (pid,) in rows]


def test_a_database_that_is_down_is_one_message_within_seconds(
    make_client: Any, closed_port: int
) -> None:
    url = f"postgresql://app:s3cret@127.0.0.1:{closed_port}/shop"
    client = make_client(url, timeout=60)
    started = time.monotonic()

    with pytest.raises(CannotConnect) as refused:
        client.enqueue("greet")

    told = str(refused.value)
    assert time.monotonic() - started < 30  # and not the minute that a call may take
    assert f"127.0.0.1:{closed_port} (user app, database shop): connection refused" in told
    assert "s3cret" not in told


def test_the_message_says_that_the_address_came_from_the_environment(
    monkeypatch: Any, closed_port: int
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"postgresql://app@127.0.0.1:{closed_port}/shop")

    with Client() as client, pytest.raises(CannotConnect, match="from HOLDFAST_URL in the env"):
        client.queues.list()


@pytest.mark.direct_only("the pooler answers, and tries for a while")
def test_a_database_that_does_not_exist_is_told_at_once(make_client: Any, database: str) -> None:
    client = make_client(psycopg.conninfo.make_conninfo(database, dbname="nowhere"))

    with pytest.raises(CannotConnect, match='database "nowhere" does not exist') as refused:
        client.enqueue("greet")

    assert refused.value.tries == 1


def test_connections_killed_while_idle_are_not_noticed(make_client: Any, connect: Any) -> None:
    client = make_client(application_name="victim")
    client.enqueue("greet")
    for _ in range(3):
        connect().execute(KILL)

        assert client.enqueue("greet").created

    assert len(client.jobs.list()) == 4


def test_a_call_killed_under_way_is_repeated(database: str, connect: Any) -> None:
    enqueued = []
    observer = connect()
    with Client(database, application_name="victim") as client:
        producer = threading.Thread(target=lambda: enqueued.append(client.enqueue("greet")))
        with jobs_locked(connect):
            producer.start()
            [pid] = wait_until(lambda: waiting_backends(observer, "victim"))
            observer.execute("select pg_terminate_backend(%s)", [pid])
            wait_until(lambda: waiting_backends(observer, "victim") not in ([], [pid]))
        producer.join()

        assert [job.id for job in client.jobs.list()] == [enqueued[0].id]


def test_an_enqueue_whose_reply_was_lost_is_stored_once(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url)
    client.queues.list()
    proxy.swallow_reply()

    answers = client.enqueue_many([NewJob(kind="greet"), NewJob(kind="greet", key="ada")])

    assert [answer.created for answer in answers] == [True, True]
    assert {job.id for job in client.jobs.list()} == {answer.id for answer in answers}


@pytest.mark.parametrize(
    ("keys", "lost"),
    [
        *((True, lost) for lost in (b"BEGIN", b"SELECT 5000", b"SELECT 1001", b"COMMIT")),
        *((False, lost) for lost in (b"BEGIN", b"COPY 6001", b"COMMIT")),
    ],
)
def test_of_very_many_jobs_all_are_stored_once_whatever_reply_was_lost(
    keys: bool, lost: bytes, make_client: Any, proxy: Any
) -> None:
    client = make_client(proxy.url)
    client.queues.list()
    proxy.swallow_reply(with_=lost)

    answers = client.enqueue_many(
        NewJob(kind="greet", key=str(n) if keys else None) for n in range(6001)
    )

    assert {answer.created for answer in answers} == {True}
    assert client.queues.get("default").queued == 6001
    assert set(client.jobs.find(limit=7000)) == {answer.id for answer in answers}


def test_of_very_many_jobs_none_is_stored_twice_when_nobody_knows(
    make_client: Any, proxy: Any, connect: Any
) -> None:
    client = make_client(proxy.url)
    client.queues.list()
    jobs = [NewJob(kind="greet", id=new_id()) for _ in range(6001)]
    proxy.swallow_reply(with_=b"COMMIT", times=3)

    with pytest.raises(UnknownOutcome) as caught:
        client.enqueue_many(jobs)
    client.enqueue_many(jobs, repeat=True)

    assert set(caught.value.ids) == {job.id for job in jobs}
    assert connect().execute("select count(*) from holdfast.job").fetchone() == (6001,)


def test_a_claim_whose_reply_was_lost_returns_what_it_got(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url)
    client.enqueue_many(NewJob(kind="greet") for _ in range(5))
    proxy.swallow_reply()

    leases = client.claim(worker="ada", limit=3)

    assert len(leases) == 3
    assert client.held([leases[0].token]) == leases
    assert [lease.attempt for lease in leases] == [1, 1, 1]
    assert len(client.jobs.list("state:leased")) == 3


def test_a_claim_whose_reply_was_lost_returns_all_that_its_token_holds(
    make_client: Any, proxy: Any
) -> None:
    """More than it asked for, if an earlier sending of it has leased jobs, too."""
    client = make_client(proxy.url)
    client.enqueue_many(NewJob(kind="greet") for _ in range(5))
    [first] = client.claim(worker="ada")
    proxy.swallow_reply()

    leases = client.claim(worker="ada", token=first.token)

    assert len(leases) == 2
    assert first.id in {lease.id for lease in leases}


def test_an_ack_whose_reply_was_lost_answers_already(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url)
    client.enqueue("greet")
    leases = client.claim(worker="ada")
    proxy.swallow_reply()

    [settled] = client.ack(leases)

    assert settled.outcome == "already"
    assert settled.held


def test_a_nack_whose_reply_was_lost_counts_once(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url)
    id = client.enqueue("greet").id
    leases = client.claim(worker="ada")
    proxy.swallow_reply()

    [settled] = client.nack(leases, message="no", delay=0)

    assert settled.outcome == "already"
    assert len(client.jobs.attempts(id)) == 1


def test_a_move_whose_reply_was_lost_has_an_unknown_outcome(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url)
    id = client.enqueue("greet").id
    proxy.swallow_reply(after=1)  # the first tells that the connection lives

    with pytest.raises(UnknownOutcome, match="HF120 move: outcome unknown"):
        client.jobs.move([id], "mail")


def test_a_move_does_not_mind_connections_that_died_while_idle(
    make_client: Any, connect: Any
) -> None:
    client = make_client(application_name="victim")
    id = client.enqueue("greet").id
    connect().execute(KILL)

    assert client.jobs.move([id], "mail")[0].changed


@pytest.mark.direct_only("the pooler keeps the sessions that refuse to write")
def test_connections_to_a_server_that_was_demoted_are_left(database: str, connect: Any) -> None:
    admin = connect()
    name = admin.info.dbname
    admin.execute(f"alter database {name} set default_transaction_read_only = on")
    enqueued = []
    with Client(database, application_name="victim") as client:
        client.queues.list()
        producer = threading.Thread(target=lambda: enqueued.append(client.enqueue("greet")))
        producer.start()
        admin.execute(f"alter database {name} reset default_transaction_read_only")
        producer.join()

        assert [job.id for job in client.jobs.list()] == [enqueued[0].id]


def test_an_outage_is_ridden_out_and_told_twice(
    make_client: Any, proxy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(proxy.url)
    client.enqueue("greet")
    proxy.down()
    threading.Timer(1, proxy.up).start()

    with caplog.at_level(logging.INFO, "holdfast"):
        enqueued = client.enqueue("greet")

    assert enqueued.created
    assert [r.message for r in caplog.records] == [
        "database unreachable",
        "database reachable again",
    ]
    assert "Connection refused" in caplog.records[0].reason


def test_an_outage_longer_than_the_deadline_is_told_with_its_reason(
    make_client: Any, proxy: Any
) -> None:
    client = make_client(proxy.url, timeout=2)
    client.queues.list()
    proxy.down()
    started = time.monotonic()

    with pytest.raises(HoldfastError) as failed:
        client.claim(worker="ada")

    assert isinstance(failed.value, CannotConnect | UnknownOutcome)
    assert time.monotonic() - started < 9  # and not the ten seconds that are usual


def test_a_write_that_gets_no_answer_hangs_up_and_is_of_unknown_outcome(
    make_client: Any, proxy: Any, connect: Any
) -> None:
    client = make_client(proxy.url, timeout=1.5)
    client.queues.list()
    proxy.go_silent()
    started = time.monotonic()

    with pytest.raises(
        UnknownOutcome, match=r"(?s)enqueue: outcome unknown.*repeat=True"
    ) as unknown:
        client.enqueue("greet")

    assert time.monotonic() - started < 9  # and not the ten seconds that are usual
    assert len(unknown.value.ids) == 1


def test_a_read_that_gets_no_answer_changed_nothing(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url, timeout=1.5)
    client.queues.list()
    proxy.go_silent()

    with pytest.raises(Unavailable, match="queues"):
        client.queues.list()


def test_a_call_past_its_deadline_is_hung_up_not_cancelled(make_client: Any, connect: Any) -> None:
    client = make_client(timeout=1.5)
    client.queues.list()

    with jobs_locked(connect), pytest.raises(UnknownOutcome) as unknown:
        client.enqueue("greet")

    # The server was not told to stop: once it gets its lock, it stores the job.
    wait_until(lambda: client.jobs.get(unknown.value.ids[0]))


def test_an_interrupted_task_hangs_up_and_leaves_the_client_usable(
    database: str, connect: Any
) -> None:
    observer = connect()

    async def scenario() -> int:
        async with AsyncClient(database, pool_size=1) as client:
            await client.queues.list()
            with jobs_locked(connect), pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.enqueue("greet")
            wait_until(lambda: observer.execute("select id from holdfast.job").fetchone())
            return len(await client.jobs.list())

    assert asyncio.run(scenario()) == 1


def test_a_task_interrupted_while_it_connects_leaves_no_connection(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[psycopg.AsyncConnection[Any]] = []
    reached = asyncio.Event()

    async def measured_for_ever(connection: psycopg.AsyncConnection[Any]) -> float:
        made.append(connection)
        reached.set()
        await asyncio.Event().wait()
        return 0.0

    monkeypatch.setattr("holdfast.client.aio.pool._round_trip", measured_for_ever)

    async def scenario() -> None:
        async with AsyncClient(database) as client:
            task = asyncio.create_task(client.queues.list())
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())

    assert [connection.closed for connection in made] == [True]


def test_a_copy_cut_before_its_commit_changed_nothing(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url)

    def jobs() -> Iterator[NewJob]:
        yield from (NewJob(kind="greet") for _ in range(3000))
        proxy.down()
        yield NewJob(kind="greet")

    with pytest.raises(Unavailable, match="copy: nothing was changed"):
        client.copy(jobs())

    proxy.up()
    assert client.jobs.list() == []


def test_when_all_connections_are_in_use_the_size_of_the_pool_is_named(database: str) -> None:
    taken, given_back = threading.Event(), threading.Event()

    def jobs() -> Iterator[NewJob]:
        taken.set()
        given_back.wait()
        yield NewJob(kind="greet")

    with Client(database, pool_size=1, timeout=1.5) as client:
        producer = threading.Thread(target=lambda: client.copy(jobs()))
        producer.start()
        taken.wait()
        try:
            with pytest.raises(Unavailable, match=r"all 1 connections were in use.*\n.*pool_size"):
                client.queues.list()
        finally:
            given_back.set()
            producer.join()

        assert len(client.jobs.list()) == 1


def test_threads_share_a_client(database: str) -> None:
    with Client(database, pool_size=3) as client:
        producers = [
            threading.Thread(target=lambda: [client.enqueue("greet") for _ in range(20)])
            for _ in range(8)
        ]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join()

        assert len(client.jobs.list(limit=1000)) == 160


@pytest.mark.parametrize(
    ("state", "retried", "unknown"),
    [
        ("08006", True, True),
        ("08P01", True, True),
        ("57P01", True, True),
        ("57P02", True, True),
        ("57P03", True, False),
        ("25006", True, False),
        ("53300", True, False),
        ("40001", True, False),
        ("40P01", True, False),
        ("26000", True, False),
        ("0A000", False, False),
        ("42501", False, False),
        ("HF202", False, False),
    ],
)
def test_the_sqlstate_decides_what_is_repeated(state: str, retried: bool, unknown: bool) -> None:
    error = type("Error", (psycopg.OperationalError,), {"sqlstate": state})()

    assert (may_retry(error), was_cut(error)) == (retried, unknown)


def test_a_server_that_says_nothing_about_its_schema_is_hung_up_on(
    proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = schema._applied

    def ask_in_vain(connection: psycopg.Connection) -> list[schema.Applied]:
        proxy.go_silent()
        return ask(connection)

    monkeypatch.setattr(schema, "_applied", ask_in_vain)
    monkeypatch.setattr(schema, "_ANSWERS_WITHIN", 0.3)

    with pytest.raises(Unavailable, match="no answer from 127"):
        schema.check(proxy.url)
