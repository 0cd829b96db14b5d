"""A worker process with handlers that do nothing: drain, pick-up, and what it costs to wait."""

import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench import peers
from bench.harness import Database, Meter, Options, Server
from bench.peers import Peer
from bench.peers.contract import WARM_UP, Ledger
from bench.report import Figure

# Backends tell the statistics of an idle session within ten seconds.
SETTLE = 12
INTERVAL = 0.05
PATIENCE = 120


@dataclass
class Rounds:
    """The samples of one queue, by what was measured."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    def note(self, **values: float) -> None:
        for name, value in values.items():
            self.samples.setdefault(name, []).append(value)


def run(server: Server, options: Options) -> list[Figure]:
    """Measure one worker process of each queue in turn, round after round."""
    contestants = [peers.here("holdfast")]
    if options.peers:
        contestants.append(peers.installed("pgqueuer"))
    for peer in contestants:
        print(peer.about, file=sys.stderr, flush=True)
    rounds = {peer.name: Rounds() for peer in contestants}
    with _databases(server, contestants) as databases:
        for _ in range(options.rounds):
            for peer, database in databases:
                rounds[peer.name].note(**drain(peer, database, options.drain))
            for peer, database in databases:
                if peer.name == "holdfast":
                    drained = drain(peer, database, options.drain, style="def")
                    rounds[peer.name].note(**{f"def {name}": x for name, x in drained.items()})
            for peer, database in databases:
                rounds[peer.name].note(**_pick_up(peer, database, options.pickups))
            for peer, database in databases:
                rounds[peer.name].note(**_idle(server, peer, database, options.idle))
    return _figures(rounds, options.drain)


def _figures(rounds: dict[str, Rounds], jobs: int) -> list[Figure]:
    def figure(peer: str, name: str, what: str, unit: str, **limits: float) -> Figure:
        whose = what if peer == "holdfast" else f"{what}, {peer}"
        return Figure("drain", whose, unit, rounds[peer].samples[name], **limits)

    async_drain = figure("holdfast", "rate", f"{jobs:,} async handlers", "jobs/s", at_least=15_000)
    found = [async_drain]
    others = [peer for peer in rounds if peer != "holdfast"]
    for peer in others:
        other = figure(peer, "rate", f"{jobs:,} async handlers", "jobs/s")
        found += [other, replace(async_drain, base=other, at_least=1.3)]
    found.append(
        figure("holdfast", "def rate", f"{jobs:,} def handlers", "jobs/s", at_least=10_000)
    )
    for peer in rounds:
        found += [
            figure(peer, "worker_cpu", "worker's CPU, async", "µs/job"),
            figure(peer, "server_cpu", "server's CPU, async", "µs/job"),
        ]
    for peer in rounds:
        mine = peer == "holdfast"
        limit = {"at_most": 3.0} if mine else {}
        found += [
            figure(peer, "p50", "pick-up, idle worker, p50", "ms", **limit),
            figure(peer, "p99", "pick-up, idle worker, p99", "ms"),
        ]
    for peer in rounds:
        limit = {"at_most": 2.0} if peer == "holdfast" else {}
        found += [
            figure(peer, "transactions", "idle worker", "tx/s", **limit),
            figure(peer, "memory", "idle worker", "MB"),
        ]
    for peer in rounds:
        limit = {"at_most": 0.0} if peer == "holdfast" else {}
        found += [
            figure(peer, name, f"jobs {name}", "jobs", **limit) for name in ("lost", "doubled")
        ]
    return found


@contextmanager
def _databases(
    server: Server, contestants: Sequence[Peer]
) -> Iterator[list[tuple[Peer, Database]]]:
    with ExitStack() as stack:
        made = []
        for peer in contestants:
            database = stack.enter_context(server.database(f"drain_{peer.name}"))
            peer.run("setup", url_of(database))
            made.append((peer, database))
        yield made


def drain(peer: Peer, database: Database, jobs: int, style: str = "async") -> dict[str, float]:
    """Fill the queue, start a worker, and time from the first handler to the last job's end."""
    _empty(peer, database)
    peer.run("fill", url_of(database), jobs)
    database.connection.execute("vacuum analyze")
    database.connection.execute("checkpoint")
    with _ledger(jobs) as (path, ledger):
        with peer.working(url_of(database), path, jobs, style) as process, Meter(database) as meter:
            used = 0.0
            with suppress(TimeoutError):
                for _ in peers.until(time.time() + PATIENCE):
                    if not ledger.begun():
                        used = peers.cpu(process)
                    elif ledger.begun() == jobs and not database.value(peer.remaining):
                        break
            end = time.time()
            used = peers.cpu(process) - used
            remaining = database.value(peer.remaining)
        begun = sorted(filter(None, ledger.times()))
        done = len(begun)
        return {
            "rate": (jobs - remaining) / (end - begun[0]) if done else 0.0,
            "worker_cpu": used / max(done, 1) * 1e6,
            "server_cpu": meter.server_cpu / max(done, 1) * 1e6,
            "lost": jobs - done + remaining,
            "doubled": ledger.doubled(),
        }


def _pick_up(peer: Peer, database: Database, jobs: int) -> dict[str, float]:
    """Enqueue one by one for an idle worker; from the call's return to the handler's start."""
    _empty(peer, database)
    total = WARM_UP + jobs
    with _ledger(total) as (path, ledger):
        answered = path.with_suffix(".answered")
        with peer.working(url_of(database), path, total, "async"):
            _ready(peer, database)
            peer.run("feed", url_of(database), total, INTERVAL, answered)
            for _ in peers.until(time.time() + PATIENCE):
                if ledger.begun() == total:
                    break
        returned = array("d", answered.read_bytes())
    waits = [(begun - returned[n]) * 1000 for n, begun in enumerate(ledger.times()) if n >= WARM_UP]
    cuts = quantiles(waits, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def _idle(server: Server, peer: Peer, database: Database, seconds: int) -> dict[str, float]:
    """Let a worker wait, and count what PostgreSQL sees of it."""
    _empty(peer, database)
    with _ledger(WARM_UP) as (path, _), peer.working(url_of(database), path, 1, "async") as process:
        _ready(peer, database)
        name = database.connection.info.dbname
        # From another database, so that looking is not counted.
        with psycopg.connect(server.url, autocommit=True) as connection:
            time.sleep(SETTLE if seconds else 0)
            start, before = time.time(), _transactions(connection, name)
            time.sleep(seconds)
            after, end = _transactions(connection, name), time.time()
        return {
            "transactions": (after - before) / (end - start),
            "memory": peers.memory(process),
        }


def _transactions(connection: psycopg.Connection, database: str) -> int:
    [(count,)] = connection.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = %s", [database]
    ).fetchall()
    return int(count)


def _ready(peer: Peer, database: Database) -> None:
    """Wait until a worker is connected and has nothing left to start."""
    others = "select count(*) from pg_stat_activity where datname = current_database() and "
    others += "pid <> pg_backend_pid() and backend_type = 'client backend'"
    for _ in peers.until(time.time() + PATIENCE, every=0.05):
        if database.value(others):
            break
    time.sleep(1)


def _empty(peer: Peer, database: Database) -> None:
    if peer.reset:
        database.connection.execute(peer.reset)
    else:
        database.reset()


@contextmanager
def _ledger(jobs: int) -> Iterator[tuple[Path, Ledger]]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "ledger"
        yield path, Ledger(path, jobs)


def url_of(database: Database) -> str:
    """Say the address as a URL: not every driver reads the other form."""
    known = conninfo_to_dict(database.url)
    host, port = quote(str(known["host"]), safe=""), known.get("port", "5432")
    return f"postgresql://{known['user']}@/{known['dbname']}?host={host}&port={port}"
