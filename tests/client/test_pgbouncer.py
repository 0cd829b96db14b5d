"""Everything works through PgBouncer in transaction mode, with fewer servers than clients."""

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import App, Client, NewJob, current, schema
from holdfast.upkeep import listener
from holdfast.upkeep.listener import Listener
from holdfast.worker import Worker
from tests.ports import free_port

BINARY = (
    os.environ.get("HOLDFAST_TEST_PGBOUNCER")
    or shutil.which("pgbouncer")
    or shutil.which("pgbouncer", path="/usr/sbin")
)

pytestmark = pytest.mark.skipif(BINARY is None, reason="pgbouncer is not installed")

Pooled = Callable[[str], str]


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that another account can read, unlike those of pytest."""
    with TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def pooled(postgres: Any, open_directory: Path) -> Iterator[Pooled]:
    """Turns the address of a database into one that goes through a pool of two."""
    server = conninfo_to_dict(postgres.url)
    host, port = str(server["host"]), free_port()
    # PgBouncer refuses to be root, and must be able to enter the server's directory.
    account = Path(host).stat().st_uid if host.startswith("/") else 65534
    password = f"password={server['password']}" if server.get("password") else ""
    config = open_directory / "pgbouncer.ini"
    config.write_text(
        f"""
        [databases]
        * = host={host} port={server.get("port") or 5432} user={server["user"]} {password}
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = {port}
        unix_socket_dir =
        auth_type = any
        pool_mode = transaction
        default_pool_size = 2
        """
    )
    config.chmod(0o644)
    assert BINARY is not None
    process = subprocess.Popen(
        [BINARY, "-q", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=account if os.geteuid() == 0 else None,
    )
    try:
        await_port(port)
        yield lambda url: make_conninfo(
            "", host="127.0.0.1", port=port, user="app", dbname=conninfo_to_dict(url)["dbname"]
        )
    finally:
        process.terminate()
        process.wait()


def await_port(port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "pgbouncer did not start"
            time.sleep(0.02)
        else:
            return


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
    pooled: Pooled, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LISTEN_URL", database)
    ran: list[str] = []
    with App(pooled(database)) as app:

        @app.task
        def hold(name: str) -> None:
            with current().transaction() as connection:
                connection.execute("select pg_sleep(3)")
                ran.append(name)

        for name in "abcdef":
            hold.enqueue(name)
        # A pool of two: the last pair begins when a lease has passed twice.
        Worker(app, concurrency=6, lease=3.0, until_idle=True).run()
        with Client(database) as client:
            assert client.jobs.list() == []
            assert client.queues.get("default").done == 6

    assert sorted(ran) == list("abcdef")
