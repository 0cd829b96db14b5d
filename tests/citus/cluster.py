"""A Citus coordinator and two workers on loopback, which can be killed and started again."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests import ports

PROGRAMS = "HOLDFAST_TEST_CITUS_BIN"
ADDRESS = "HOLDFAST_TEST_CITUS_DSN"
WHY_NOT = f"needs {PROGRAMS}, the programs of a PostgreSQL with Citus, or {ADDRESS}, a coordinator"

SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
shared_preload_libraries = 'citus'
max_prepared_transactions = 100
max_connections = 120
shared_buffers = '32MB'
fsync = off
full_page_writes = off
citus.recover_2pc_interval = '2s'
citus.stat_statements_track = none
"""


class Server:
    """One PostgreSQL with the extension, run by an unprivileged user."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._data = directory / "data"
        self._log = directory / "log"
        self._user = "nobody" if os.geteuid() == 0 else None
        self.port = ports.free_port()
        directory.mkdir()
        if self._user:
            account = pwd.getpwnam(self._user)
            os.chown(directory, account.pw_uid, account.pw_gid)
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "--no-sync")
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write(f"{SETTINGS}port = {self.port}\n")
        self.start()

    @property
    def url(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    @property
    def pid(self) -> int:
        """The process that has started all others of the server."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self._log, "-w", "-t", "120", "start")

    def kill(self) -> None:
        """End it as a crash does: whatever was not written is lost."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "-t", "60", "stop")

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop every process of it: it takes connections, as its host does, and answers nothing."""
        first = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children")
        stopped = [first]
        os.kill(first, signal.SIGSTOP)  # it starts no other from now on
        stopped += map(int, children.read_text().split())
        try:
            for process in stopped[1:]:
                os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in stopped:
                os.kill(process, signal.SIGCONT)

    def _run(self, program: str, *arguments: Path | str) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            user=self._user,
            cwd=self._data.parent,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )


@dataclass
class Cluster:
    """The addresses of the nodes; the coordinator is the first. Servers are ours to kill or not."""

    urls: list[str]
    servers: list[Server] = field(default_factory=list)

    @contextmanager
    def database(self) -> Iterator[list[str]]:
        """Make a database on all nodes that know each other; yields the address on each."""
        name = f"holdfast_citus_{uuid4().hex[:12]}"
        urls = [make_conninfo(url, dbname=name) for url in self.urls]
        try:
            for url in self.urls:
                self._server(url, sql.SQL("create database {}").format(sql.Identifier(name)))
            for url in urls:
                self._server(url, sql.SQL("create extension citus"))
            with psycopg.connect(urls[0], autocommit=True) as connection:
                first, *others = map(conninfo_to_dict, urls)
                place = [first["host"], int(first["port"])]
                connection.execute("select citus_set_coordinator_host(%s, %s)", place)
                for other in others:
                    place = [other["host"], int(other["port"])]
                    connection.execute("select citus_add_node(%s, %s)", place)
            yield urls
        finally:
            drop = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            for url in self.urls:
                self._server(url, drop)

    def _server(self, url: str, statement: sql.Composable) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            with suppress(psycopg.Error):
                connection.execute("set citus.enable_create_database_propagation = off")
            connection.execute(statement)


@contextmanager
def running() -> Iterator[Cluster | None]:
    """The cluster of this run: that of the environment, one of our own, or none."""
    if url := os.environ.get(ADDRESS):
        with psycopg.connect(url) as connection:
            rows = connection.execute(
                "select nodename, nodeport from pg_dist_node where noderole = 'primary'"
                " and groupid > 0 order by groupid"
            ).fetchall()
        yield Cluster([url, *(make_conninfo(url, host=host, port=port) for host, port in rows)])
        return
    programs = os.environ.get(PROGRAMS)
    if not programs:
        yield None
        return
    shared = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None))
    directory.chmod(0o755)
    servers: list[Server] = []
    try:
        servers += (Server(Path(programs), directory / name) for name in ("zero", "one", "two"))
        yield Cluster([server.url for server in servers], servers)
    finally:
        for server in servers:
            with suppress(subprocess.CalledProcessError):
                server.kill()
        shutil.rmtree(directory, ignore_errors=True)
