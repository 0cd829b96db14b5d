"""What both releases of the shop have in common: a ledger of effects, and a producer's loop.

Effects are written with the id of their job: `inside` by the transaction that ends the job, and
`outside` by a connection of its own, which commits whatever becomes of the job.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from holdfast import current
from holdfast.handle import Handle

TABLES = """
create table chaos.placed (
  job uuid primary key, call text not null, release text not null,
  at timestamptz not null default clock_timestamp());
create table chaos.ledger (
  job uuid not null, how text not null, kind text not null, release text not null,
  attempt integer not null, pid integer not null);
grant select, insert on chaos.placed, chaos.ledger to {worker};
"""
# So many jobs wait at most: a producer that is much faster than the workers proves nothing more.
BACKLOG = 100
READY = "producing"

Call = Callable[[Any, int], "Handle[Any]"]


def outside(release: str) -> None:
    """Have an effect at once, which no transaction of the job can take back."""
    if not hasattr(_kept, "connection"):
        _kept.connection = psycopg.connect(os.environ["HOLDFAST_URL"], autocommit=True)
    _write(_kept.connection, "outside", release)


def inside(release: str, seconds: float = 0.0) -> None:
    """Have an effect in the transaction that ends the job."""
    with current().transaction() as connection:
        _write(connection, "inside", release)
        time.sleep(seconds)


def produce(release: str, calls: Mapping[str, Call]) -> None:
    """Enqueue calls until SIGTERM, each in one transaction with a note of it.

    The words of the command line are the calls that are left out.
    """
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    chosen = {name: call for name, call in calls.items() if name not in sys.argv[1:]}
    with psycopg.connect(os.environ["HOLDFAST_URL"], autocommit=True) as connection:
        print(READY, flush=True)
        n = 0
        while not over.is_set():
            if _live(connection) > BACKLOG:
                over.wait(0.02)
                continue
            for name, call in chosen.items():
                with connection.transaction():
                    handle = call(connection, n)
                    connection.execute(
                        "insert into chaos.placed (job, call, release) values (%s, %s, %s)",
                        [handle.id, name, release],
                    )
                n += 1


def _write(connection: Any, how: str, release: str) -> None:
    job = current()
    connection.execute(
        "insert into chaos.ledger (job, how, kind, release, attempt, pid)"
        " values (%s, %s, %s, %s, %s, %s)",
        [job.id, how, job.kind, release, job.attempt, os.getpid()],
    )


def _live(connection: "psycopg.Connection[Any]") -> int:
    row = connection.execute("select count(*) from holdfast.job").fetchone()
    assert row is not None
    return int(row[0])


# A connection for each thread, for as long as its process lives.
_kept = threading.local()
