"""Everything works through PgBouncer in transaction mode, with fewer servers than clients."""

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import psycopg
import pytest

from holdfast import App, Client, NewJob, current, schema
from holdfast.current import CurrentJob
from holdfast.upkeep import listener
from holdfast.upkeep.listener import Listener
from holdfast.worker import Worker, leases
from tests.pgbouncer import BINARY, Pooled, pooler

pytestmark = pytest.mark.skipif(BINARY is None, reason="pgbouncer is not installed")


@pytest.fixture
def pooled(postgres: Any) -> Iterator[Pooled]:
    """Turns the address of a database into one that goes through a pool of two."""
    with pooler(postgres.url) as turn:
        yield turn


def test_six_clients_share_two_servers_without_an_error(pooled: Pooled, database: str) -> None:
    url = pooled(database)
    failures: list[BaseException] = []
    claimed: list[Any] = []

    def live(worker: str) -> None:
        try:
            with Client(url, pool_size=2) as client:
                for _ in range(20):
                    client.enqueue("greet", {"from": worker})
                    leases = client.claim(worker=worker, limit=2)
                    claimed.extend(lease.id for lease in leases)
                    client.ack(leases)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=live, args=[f"w{nth}"]) for nth in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert failures == []
    assert len(claimed) == len(set(claimed))


def test_no_call_leaves_anything_behind_in_a_server_session(pooled: Pooled, database: str) -> None:
    with Client(pooled(database)) as client:
        client.enqueue("greet")
        client.copy([NewJob(kind="greet")])
        client.ack(client.claim(worker="ada", limit=2))
        client.upkeep.run()

    with psycopg.connect(pooled(database), autocommit=True, prepare_threshold=None) as connection:
        commit = connection.execute("show synchronous_commit").fetchone()
        prepared = connection.execute("select count(*) from pg_prepared_statements").fetchone()
        locks = connection.execute(
            "select count(*) from pg_locks where locktype = 'advisory'"
        ).fetchone()
    assert (commit, prepared, locks) == (("on",), (0,), (0,))


def test_a_schema_is_migrated_through_the_pool(pooled: Pooled, empty_database: str) -> None:
    schema.migrate(pooled(empty_database))

    schema.check(pooled(empty_database))
    schema.check(empty_database)


def test_a_listener_that_hears_nothing_leaves_no_session_listening(
    pooled: Pooled, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TEST_PATIENCE", 0.2)
    url, deaf = pooled(database), threading.Event()
    monkeypatch.setattr(Listener, "_deaf", lambda self: deaf.set())
    stop = threading.Event()
    with Client(url) as client:
        one = Listener(client, worker="ada", heard=lambda queue: None)
        running = threading.Thread(target=one.run, args=[stop])
        running.start()
        assert deaf.wait(60)
        stop.set()
        running.join()

    both = [psycopg.connect(url, autocommit=True, prepare_threshold=None) for _ in range(2)]
    with both[0] as first, both[1] as second, first.transaction(), second.transaction():
        # Each has one of the pool's two servers.
        left = [one.execute("select pg_listening_channels()").fetchall() for one in both]
    assert left == [[], []]


def test_handlers_that_hold_all_servers_of_the_pool_keep_their_leases(
    pooled: Pooled, direct: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LISTEN_URL", direct)
    ran: list[str] = []
    left: list[float] = []
    count_from = leases.count_lease_from

    def renewed(job: CurrentJob, now: float) -> None:
        left.append(job.deadline - monotonic())
        count_from(job, now)

    monkeypatch.setattr(leases, "count_lease_from", renewed)
    with App(pooled(direct)) as app:

        @app.task
        def hold(name: str) -> None:
            with current().transaction() as connection:
                connection.execute("select pg_sleep(3)")
                ran.append(name)

        for name in "abcdef":
            hold.enqueue(name)
        # A pool of two: the last pair begins when a lease has passed twice.
        Worker(app, concurrency=6, lease=3.0, until_idle=True).run()
        with Client(direct) as client:
            assert {job.state for job in client.jobs.list()} == {"done"}
            assert client.queues.get("default").done == 6

    assert sorted(ran) == list("abcdef")
    assert min(left) > 0, "a lease was renewed only after its handler had stopped believing in it"
