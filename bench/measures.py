"""What is measured of a queue and its workers: enqueueing, a drain, pick-up, an idle worker.

Every function takes a queue's adapter and a database that has its tables and no job, and returns
samples by name.
"""

import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench import peers
from bench.harness import Database, Meter, Server
from bench.peers import Peer, Workers
from bench.peers.contract import AT_ONCE, SLEEP, WARM_UP

# Backends tell the statistics of an idle session within ten seconds.
SETTLE = 12
INTERVAL = 0.05
PATIENCE = 120


def bulk(peer: Peer, database: Database, jobs: int, *, keys: bool = False) -> dict[str, float]:
    """Enqueue many jobs by the fastest call there is."""
    # So that no sample pays for writing what an earlier one has changed.
    database.connection.execute("checkpoint")
    with Meter(database) as meter:
        said = peer.run("bulk", url_of(database), jobs, "keys" if keys else "plain")
    return {
        "rate": jobs / said["seconds"],
        "client_cpu": said["cpu"] / jobs * 1e6,
        "server_cpu": meter.server_cpu / jobs * 1e6,
        "wal": meter.wal / jobs,
    }


def single(peer: Peer, database: Database, jobs: int) -> dict[str, float]:
    """Enqueue one job after the other, a transaction each, from one client."""
    database.connection.execute("checkpoint")
    with tempfile.TemporaryDirectory() as place, Meter(database) as meter:
        answered = Path(place) / "answered"
        said = peer.run("feed", url_of(database), WARM_UP + jobs, 0, answered)
    return {
        "rate": jobs / said["seconds"],
        "client_cpu": said["cpu"] / jobs * 1e6,
        "server_cpu": meter.server_cpu / jobs * 1e6,
    }


def drain(
    peer: Peer,
    database: Database,
    jobs: int,
    *,
    style: str = "async",
    processes: int = 1,
    remaining: str = "",
) -> dict[str, float]:
    """Start workers on a backlog, and time from the first handler to the last job's end."""
    remaining = remaining or peer.queue.remaining
    database.connection.execute("vacuum analyze")
    with (
        tempfile.TemporaryDirectory() as place,
        peer.working(url_of(database), Path(place), jobs, style, processes) as workers,
    ):
        # It knows what was used once it is closed.
        with Meter(database) as meter:
            used = memory = looked = 0.0
            with suppress(TimeoutError):
                for now in peers.until(time.time() + PATIENCE):
                    if now > looked + 0.25:
                        memory, looked = max(memory, workers.memory()), now
                    begun = workers.begun()
                    if not begun:
                        used = workers.cpu()
                    elif begun == jobs and not database.value(remaining):
                        break
            end = time.time()
            used = workers.cpu() - used
        left = database.value(remaining)
        times = sorted(filter(None, workers.times()))
        doubled = workers.doubled()
    took = end - times[0] if times else 0.0
    ideal = jobs * SLEEP / AT_ONCE / processes
    return {
        "rate": (jobs - left) / took if times else 0.0,
        "share": ideal / took if len(times) == jobs and not left else 0.0,
        "worker_cpu": used / max(len(times), 1) * 1e6,
        "server_cpu": meter.server_cpu / max(len(times), 1) * 1e6,
        "wal": meter.wal / jobs,
        "memory": memory,
        "lost": jobs - len(times) + left,
        "doubled": doubled,
    }


def pick_up(peer: Peer, database: Database, jobs: int) -> dict[str, float]:
    """Enqueue one by one for an idle worker; from the call's return to the handler's start."""
    total = WARM_UP + jobs
    with waiting(peer, database, total) as (place, workers):
        answered = place / "answered"
        peer.run("feed", url_of(database), total, INTERVAL, answered)
        for _ in peers.until(time.time() + PATIENCE):
            if workers.begun() == total:
                break
        returned = array("d", answered.read_bytes())
        begun = workers.times()
    waits = [(begun[n] - returned[n]) * 1000 for n in range(WARM_UP, total)]
    cuts = quantiles(waits, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


@contextmanager
def waiting(peer: Peer, database: Database, jobs: int) -> Iterator[tuple[Path, Workers]]:
    """Let one worker wait for jobs while the block lasts."""
    others = "select count(*) from pg_stat_activity where datname = current_database() and "
    others += "pid <> pg_backend_pid() and backend_type = 'client backend'"
    with (
        tempfile.TemporaryDirectory() as place,
        peer.working(url_of(database), Path(place), jobs, "async") as workers,
    ):
        for _ in peers.until(time.time() + PATIENCE, every=0.05):
            if database.value(others):
                break
        time.sleep(1)
        yield Path(place), workers


def idle(
    server: Server, waiting: dict[str, tuple[Database, Workers]], seconds: int
) -> dict[str, dict[str, float]]:
    """Watch workers that wait, each in its own database, and count what PostgreSQL sees of them."""
    names = {name: database.connection.info.dbname for name, (database, _) in waiting.items()}
    # From another database, so that looking is not counted.
    with psycopg.connect(server.url, autocommit=True) as connection:
        time.sleep(SETTLE if seconds else 0)
        start, before = time.time(), _transactions(connection)
        time.sleep(seconds)
        after, end = _transactions(connection), time.time()
    return {
        name: {
            "transactions": (after[database] - before[database]) / (end - start),
            "memory": waiting[name][1].memory(),
        }
        for name, database in names.items()
    }


def url_of(database: Database) -> str:
    """Say the address as a URL: not every driver reads the other form."""
    known = conninfo_to_dict(database.url)
    host, port = quote(str(known["host"]), safe=""), known.get("port", "5432")
    return f"postgresql://{known['user']}@/{known['dbname']}?host={host}&port={port}"


def _transactions(connection: psycopg.Connection) -> dict[str, int]:
    rows = connection.execute("select datname, xact_commit + xact_rollback from pg_stat_database")
    return {name: int(count) for name, count in rows if name}
