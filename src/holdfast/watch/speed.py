"""How fast a database carries the queue, measured in about ten seconds, and what would help.

Jobs are stored, claimed and acked in transactions that are rolled back, so nothing is left behind
and nobody else ever sees them. What a commit costs is measured apart, with a record in the log that
belongs to no table, and added where a worker or producer would commit.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from holdfast import conninfo
from holdfast.client import Client
from holdfast.records import NewJob
from holdfast.upkeep.listener import CHANNEL

__all__ = ["Advice", "Figure", "Report", "advise", "measure"]

# As many as a busy worker claims at a time.
BATCH = 100
BULK = 2_000
# Parts of the time that is given.
SHARES = {"commit": 0.15, "trip": 0.05, "single": 0.2, "bulk": 0.2, "drain": 0.25, "notify": 0.15}
# Beyond these, something is worth changing.
SLOW_COMMIT = 0.005
FAR = 0.002
LATE = 0.02
FULL = 0.8


@dataclass(frozen=True)
class Figure:
    """One thing measured: its value, in what, and what it consists of."""

    name: str
    value: float
    unit: str
    about: str


@dataclass(frozen=True)
class Advice:
    """What was seen, why it matters, and what to type or to do."""

    what: str
    why: str
    fix: str


@dataclass
class Report:
    """What was measured, the settings that matter, and what would help."""

    figures: list[Figure] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    advice: list[Advice] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """What advice is given on, in seconds and counts."""

    commit: float
    trip: float
    notify: float | None
    pooled: bool
    connections: int
    forced_checkpoints: int
    timed_checkpoints: int
    settings: dict[str, str]


def measure(client: Client, *, seconds: float = 10.0) -> Iterator[Figure | Report]:
    """Yield each figure once it is known, and the whole report at the end."""
    report = Report()

    def found(name: str, value: float, unit: str, about: str) -> Figure:
        report.figures.append(Figure(name, value, unit, about))
        return report.figures[-1]

    parameters = conninfo.parameters(client.url, application_name="holdfast bench")
    with psycopg.connect(**parameters) as connection:
        trip = median(_repeated(lambda: connection.execute("select 1"), seconds * SHARES["trip"]))
        yield found("round trip", 1000 * trip, "ms", "one empty statement")
        commits = _repeated(lambda: _commit(connection), seconds * SHARES["commit"])
        commit = median(commits)
        slowest = quantiles(commits, n=100, method="inclusive")[98]
        yield found("commit", 1000 * commit, "ms", f"safe on disk; one in 100 takes {_ms(slowest)}")
        flush = max(0.0, commit - trip)
        with _rolled_back(connection):
            own = client.on(connection)
            queue = f"bench-{uuid4().hex[:12]}"
            one = median(
                _repeated(
                    lambda: own.enqueue("noop", {"n": 1}, queue=queue), seconds * SHARES["single"]
                )
            )
        yield found(
            "single enqueue",
            1 / (one + flush),
            "jobs/s",
            f"one client: {_ms(one)} and the commit each",
        )
        with _rolled_back(connection):
            own = client.on(connection)
            queue = f"bench-{uuid4().hex[:12]}"
            copied = _repeated(lambda: _copy(own, queue), seconds * SHARES["bulk"], least=1)
            yield found(
                "bulk enqueue",
                len(copied) * BULK / (sum(copied) + flush),
                "jobs/s",
                f"one client: {len(copied) * BULK:,} by copy, one commit",
            )
            many = min(len(copied) * BULK // BATCH - 1, 10_000)
            took = _repeated(
                lambda: _claim_and_ack(own, queue), seconds * SHARES["drain"], least=1, most=many
            )
            batch = median(took)
            yield found(
                "drain",
                BATCH / (batch + flush),
                "jobs/s",
                f"one connection, by {BATCH}: {_ms(batch)} and the commit",
            )
            single_claim = median(_repeated(lambda: _claim(own, queue, 1), 0.2, least=5, most=50))
        notify = _notified(client, seconds * SHARES["notify"])
        if notify is not None:
            yield found(
                "pick-up",
                1000 * (notify + single_claim),
                "ms",
                f"notified in {_ms(notify)}, claimed in {_ms(single_claim)}",
            )
        seen = _look(connection, commit=flush, trip=trip, notify=notify)
    report.settings = seen.settings
    report.advice = advise(seen)
    yield report


def advise(seen: Seen) -> list[Advice]:
    """Say what would make the queue faster or safer, the most important first."""
    rules: list[tuple[bool, Advice]] = [
        (
            seen.settings["fsync"] == "off",
            Advice(
                "fsync is off",
                "A crash of the machine can destroy the database; commits look faster than they "
                "are.",
                "alter system set fsync = on;",
            ),
        ),
        (
            seen.settings["synchronous_commit"] == "off",
            Advice(
                "synchronous_commit is off",
                "Commits do not wait for the disk: a crash loses the last ones, jobs and acks.",
                "alter role … set synchronous_commit = on;   # if none may be lost",
            ),
        ),
        (
            seen.commit > SLOW_COMMIT and bool(seen.settings["synchronous_standby_names"]),
            Advice(
                f"a commit waits {_ms(seen.commit)} for the disk and for a standby",
                "Each enqueue and each batch of acks waits for it.",
                "Look at the standby's disk and network, or enqueue more jobs in one transaction.",
            ),
        ),
        (
            seen.commit > SLOW_COMMIT and not seen.settings["synchronous_standby_names"],
            Advice(
                f"a commit waits {_ms(seen.commit)} for the disk",
                "Each enqueue and each batch of acks waits for it; a local SSD takes below 1 ms.",
                "Move pg_wal to a faster disk, enqueue more jobs in one transaction, or, for a "
                "role whose last jobs may be lost in a crash: "
                "alter role … set synchronous_commit = off;",
            ),
        ),
        (
            seen.trip > FAR,
            Advice(
                f"a round trip takes {_ms(seen.trip)}",
                "One job after the other waits for one trip each.",
                "Run workers and producers closer to the database, and use enqueue_many.",
            ),
        ),
        (
            seen.pooled,
            Advice(
                "connected through a pooler",
                "In transaction mode it delivers no notifications, and workers poll.",
                "export HOLDFAST_LISTEN_URL=postgresql://…   # a direct address",
            ),
        ),
        (
            seen.notify is None,
            Advice(
                "no notification arrived",
                "Workers poll instead, and jobs start up to a second later.",
                "holdfast doctor",
            ),
        ),
        (
            seen.notify is not None and seen.notify > LATE,
            Advice(
                f"a notification takes {_ms(seen.notify or 0)}",
                "Idle workers start a job that much later.",
                "Look for a busy machine, or for many sessions that listen.",
            ),
        ),
        (
            seen.connections > FULL * int(seen.settings["max_connections"]),
            Advice(
                f"{seen.connections} of {seen.settings['max_connections']} connections are in use",
                "A worker needs three, a producer one for each thread that enqueues at once.",
                "Raise max_connections, or put a pooler before the producers.",
            ),
        ),
        (
            seen.forced_checkpoints > max(10, seen.timed_checkpoints),
            Advice(
                f"{seen.forced_checkpoints} checkpoints came early because the log was full, "
                f"{seen.timed_checkpoints} by time",
                f"max_wal_size is {seen.settings['max_wal_size']}; after each checkpoint every "
                "page that changes is written to the log whole.",
                "alter system set max_wal_size = '4GB';   # then: select pg_reload_conf()",
            ),
        ),
    ]
    return [advice for applies, advice in rules if applies]


def _commit(connection: psycopg.Connection[Any]) -> None:
    # Written to the log and flushed like any commit, and read by nobody.
    connection.execute("select pg_logical_emit_message(true, 'holdfast bench', '')")


def _copy(client: Client, queue: str) -> None:
    client.copy(NewJob(kind="noop", payload={"n": n}, queue=queue) for n in range(BULK))


def _claim_and_ack(client: Client, queue: str) -> None:
    client.ack(_claim(client, queue, BATCH))


def _claim(client: Client, queue: str, most: int) -> Any:
    return client.claim(queue, worker="holdfast bench", limit=most)


def _notified(client: Client, seconds: float) -> float | None:
    """Return how long a notification to oneself takes; None if none arrives."""
    me = f"bench {uuid4()}"
    parameters = conninfo.parameters(client.listen_url, application_name="holdfast bench")
    took: list[float] = []
    with psycopg.connect(**parameters) as listening:
        listening.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))
        client.workers.ping(me)  # opens the connection
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(took) < 2:
            for _ in listening.notifies(timeout=0.01):
                pass
            client.workers.ping(me)
            answered = time.perf_counter()
            for notification in listening.notifies(timeout=max(seconds, 1.0)):
                if notification.payload.endswith("\n" + me):
                    break
            else:
                return None
            took.append(max(0.0, time.perf_counter() - answered))
    return median(took)


def _look(
    connection: psycopg.Connection[Any], *, commit: float, trip: float, notify: float | None
) -> Seen:
    names = ["fsync", "synchronous_commit", "synchronous_standby_names", "max_connections"]
    names += ["max_wal_size", "shared_buffers", "checkpoint_timeout"]
    settings = connection.execute(
        "select n, current_setting(n) from unnest(%s::text[]) n", [names]
    ).fetchall()
    [(pid, sessions)] = connection.execute(
        "select pg_backend_pid(), count(*) from pg_stat_activity "
        "where backend_type = 'client backend' or backend_type is null"
    ).fetchall()
    newer = connection.info.server_version >= 170000
    [(forced, timed)] = connection.execute(
        "select num_requested, num_timed from pg_stat_checkpointer"
        if newer
        else "select checkpoints_req, checkpoints_timed from pg_stat_bgwriter"
    ).fetchall()
    return Seen(
        commit=commit,
        trip=trip,
        notify=notify,
        pooled=pid != connection.info.backend_pid,
        connections=sessions,
        forced_checkpoints=forced,
        timed_checkpoints=timed,
        settings=dict(settings),
    )


@contextmanager
def _rolled_back(connection: psycopg.Connection[Any]) -> Iterator[None]:
    with connection.transaction(force_rollback=True):
        yield


def _repeated(
    action: Callable[[], object], seconds: float, *, least: int = 10, most: int = 100_000
) -> list[float]:
    """Return how long an action took, each time until the time is over."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < least or (time.perf_counter() < end and len(took) < most):
        start = time.perf_counter()
        action()
        took.append(time.perf_counter() - start)
    return took


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"
