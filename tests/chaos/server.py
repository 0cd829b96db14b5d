"""A PostgreSQL to be hurt: stopped, started, filled up, made read-only, its backends ended."""

import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from holdfast import embedded, schema
from tests import partitioned

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "max_connections": "150",
    # Whatever commits without waiting for the disk is lost in a crash, not only if it is quick.
    "wal_writer_delay": "10s",
    "log_connections": "on",
    "log_min_messages": "warning",
    "log_line_prefix": "%n %p %a ",
}
STOPS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}
# Whoever watches connects under another name than the workers, who are the ones to be hurt.
WATCHER = "chaos"
# Workers are no superusers: they may do what a worker may, and feel it when slots run out.
WORKER = "hand"
EFFECTS = f"""
grant holdfast_worker to {WORKER};
create schema chaos;
create table chaos.effect (
  nth bigint generated always as identity, n integer not null, job uuid not null,
  token uuid not null, attempt integer not null, worker text not null,
  at timestamptz not null default clock_timestamp());
grant usage on schema chaos to {WORKER};
grant select, insert on chaos.effect to {WORKER};
"""


class Server:
    """A server of our own that listens on a Unix socket, whose path outlives every restart."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
        self._home.chmod(0o755)
        self._directory = self._home / "pg"
        # Held all the time: while it is, a stopped server is not taken for one nobody wants.
        self._place = self._start()
        self.url = make_conninfo(self._place.url, application_name=WATCHER)
        self._template = f"template_{uuid4().hex}"
        self._execute(f'create database "{self._template}" template template0')
        split = os.environ.get("HOLDFAST_TEST_SPLIT")
        install = partitioned.install if split else schema.migrate
        install(make_conninfo(self.url, dbname=self._template))
        self._execute(f"create role {WORKER} login")
        with psycopg.connect(self.url, dbname=self._template) as connection:
            connection.execute(EFFECTS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._place.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def socket(self) -> str:
        """The path of the socket it listens on."""
        return f"{self._place.data_dir}/.s.PGSQL.5432"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make a migrated database with a table of effects, and drop it at the end."""
        name = f"chaos_{uuid4().hex}"
        self._execute(f'create database "{name}" template "{self._template}"')
        url = make_conninfo(self.url, dbname=name)
        with psycopg.connect(url) as connection:
            # Copied, its last sign of life would be older than the server's last restart: that
            # is how the end of an outage looks.
            connection.execute("update holdfast.pulse set reaped_at = holdfast.now()")
        try:
            yield url
        finally:
            self.start()
            self._execute(f'drop database if exists "{name}" with (force)')

    def stop(self, how: str = "fast") -> None:
        """Stop it in one of the ways of STOPS, and return when it is gone."""
        pid = self._postmaster()
        assert pid, "the server does not run"
        os.kill(pid, STOPS[how])
        deadline = time.monotonic() + 30
        while _runs(pid):
            assert time.monotonic() < deadline, f"the server did not stop ({how})"
            time.sleep(0.01)

    def start(self) -> None:
        """Start it again if it was stopped, with the same data and address."""
        if not (pid := self._postmaster()) or not _runs(pid):
            self._start().stop()

    def end_backends(self, database: str, *, all: bool = False, rng: random.Random) -> int:
        """End one backend of the database, or all, whoever they belong to but the watchers."""
        with self._connect() as connection:
            pids = [
                pid
                for (pid,) in connection.execute(
                    "select pid from pg_stat_activity where datname = %s "
                    "and application_name <> %s and backend_type = 'client backend'",
                    [psycopg.conninfo.conninfo_to_dict(database)["dbname"], WATCHER],
                )
            ]
            chosen = pids if all else pids and [rng.choice(pids)]
            for pid in chosen:
                connection.execute("select pg_terminate_backend(%s)", [pid])
            return len(chosen)

    @contextmanager
    def ending_backends(
        self, database: str, *, rate: float, rng: random.Random
    ) -> Iterator[Callable[[], int]]:
        """End backends at random, so many a second; yields how many it were so far."""
        done = threading.Event()
        ended = 0

        def end() -> None:
            nonlocal ended
            while not done.wait(1 / rate):
                with suppress(psycopg.OperationalError):
                    ended += self.end_backends(database, rng=rng)

        thread = threading.Thread(target=end)
        thread.start()
        try:
            yield lambda: ended
        finally:
            done.set()
            thread.join()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Take every connection that is left to ordinary users."""
        taken: list[psycopg.Connection] = []
        try:
            with suppress(psycopg.OperationalError):
                while True:
                    taken.append(psycopg.connect(self.url, user=WORKER, dbname="postgres"))
            yield
        finally:
            for connection in taken:
                connection.close()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Refuse writes in every session, as a standby or a full disk does."""
        self._execute("alter system set default_transaction_read_only = on")
        self._execute("select pg_reload_conf()")
        try:
            yield
        finally:
            with self._connect() as connection:
                connection.execute("set default_transaction_read_only = off")
                connection.execute("alter system reset default_transaction_read_only")
                connection.execute("select pg_reload_conf()")

    def connects(self, since: float) -> list[float]:
        """Return the times of all connections that were asked for, from the log."""
        times = []
        for line in (self._directory / "log").read_text(errors="replace").splitlines():
            if "connection received" in line:
                with suppress(ValueError):
                    times.append(float(line.split()[0]))
        return [at for at in times if at >= since]

    def _start(self) -> embedded.Server:
        named = os.environ.get("HOLDFAST_TEST_PG_BIN")
        binaries = Path(named) if named else None
        return embedded.start(self._directory, settings=SETTINGS, binaries=binaries)

    def _postmaster(self) -> int | None:
        try:
            return int((self._directory / "data/postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True)

    def _execute(self, statement: str) -> None:
        with self._connect() as connection:
            connection.execute(statement)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
