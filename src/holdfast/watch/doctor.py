"""The doctor: checks a database and says what to type if something is wrong."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from holdfast import budget, conninfo, schema
from holdfast.client import Client
from holdfast.errors import HoldfastError, SchemaError
from holdfast.records import Checkup
from holdfast.upkeep.listener import CHANNEL

__all__ = ["examine"]

# A database further away than this makes every claim slow.
FAR = 0.05
# Clocks further apart than this confuse people and schedules made by clients.
SKEW = 1.0
# How long a notification to oneself may take.
PATIENCE = 3.0


def examine(client: Client, *, source: str = "") -> Iterator[Checkup]:
    """Run one check after the other; stop if the next ones are not possible.

    Raises only if the database cannot be reached.
    """
    status = schema.status(client.url, source=source)
    started = time.monotonic()
    with psycopg.connect(**conninfo.parameters(client.url, application_name="doctor")) as direct:
        yield from _connection(direct, time.monotonic() - started)
        yield _pooling(direct)
    if status.problem is not None:
        yield _schema(status.problem)
        return
    yield Checkup("schema", "ok", f"version {status.found}", _SCHEMA, None)
    yield _clock(client)
    yield _listening(client)
    yield from client.doctor()
    yield _workers(client)


def _connection(direct: psycopg.Connection[Any], connecting: float) -> Iterator[Checkup]:
    started = time.monotonic()
    for _ in range(5):
        direct.execute("select 1")
    trip = (time.monotonic() - started) / 5
    version = direct.info.server_version
    yield Checkup(
        "connection",
        "ok" if trip < FAR else "warn",
        f"PostgreSQL {version // 10000}.{version % 10000}, connected in {1000 * connecting:.0f} ms,"
        f" a round trip takes {1000 * trip:.1f} ms",
        "Each claim and ack waits for a round trip.",
        None if trip < FAR else "Run workers closer to the database, or claim more at a time.",
    )
    if version < 140000:
        yield Checkup(
            "version", "fail", f"PostgreSQL {version // 10000}", "14 to 18 are supported.", None
        )


def _pooling(direct: psycopg.Connection[Any]) -> Checkup:
    """Detect a pooler: the process that answers is not the one that was connected to."""
    [pid] = direct.execute("select pg_backend_pid()").fetchone() or (None,)
    if pid == direct.info.backend_pid:
        return Checkup("pooling", "ok", "a direct connection", _POOLING, None)
    return Checkup(
        "pooling",
        "warn",
        "connected through a pooler",
        _POOLING,
        "export HOLDFAST_LISTEN_URL=postgresql://…   # a direct address, for notifications",
    )


def _schema(problem: SchemaError) -> Checkup:
    return Checkup("schema", "fail", problem.what, _SCHEMA, "holdfast migrate")


def _clock(client: Client) -> Checkup:
    before = datetime.now(UTC)
    there = client.now()
    after = datetime.now(UTC)
    skew = max((before - there).total_seconds(), (there - after).total_seconds(), 0.0)
    return Checkup(
        "clock",
        "ok" if skew <= SKEW else "warn",
        f"this machine and the database differ by {skew:.1f} s",
        "Leases use the clock of the database; times in logs and run_at set here do not.",
        None if skew <= SKEW else "timedatectl status",
    )


def _listening(client: Client) -> Checkup:
    try:
        heard = _hears(client)
        problem = "notifications do not arrive"
    except (psycopg.Error, HoldfastError) as error:
        heard, problem = False, str(error).strip().partition("\n")[0]
    return Checkup(
        "listen",
        "ok" if heard else "warn",
        "notifications arrive" if heard else problem,
        "Without them workers poll, and jobs start up to a second later.",
        None if heard else "export HOLDFAST_LISTEN_URL=postgresql://…   # a direct address",
    )


def _workers(client: Client) -> Checkup:
    """Compare what the running workers may open with what the server lets in."""
    running = [one for one in client.workers.list() if one.alive]
    most = sum(budget.of_worker(one.slots).total for one in running)
    with psycopg.connect(
        **conninfo.parameters(client.url, application_name="doctor")
    ) as connection:
        [limit] = connection.execute(_LIMIT).fetchone() or (0,)
    return Checkup(
        "workers",
        "ok" if most <= limit else "warn",
        f"{len(running)} workers may open up to {most} connections; the server lets in {limit}",
        "A worker process opens up to 10 connections and one more for each slot.",
        None if most <= limit else "Run fewer slots, raise max_connections, or use a pooler.",
    )


def _hears(client: Client) -> bool:
    me = f"doctor {uuid4()}"
    parameters = conninfo.parameters(client.listen_url, application_name="doctor")
    with psycopg.connect(**parameters) as listening:
        listening.autocommit = True
        listening.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))
        client.workers.ping(me)
        end = time.monotonic() + PATIENCE
        while (left := end - time.monotonic()) > 0:
            for notification in listening.notifies(timeout=left, stop_after=1):
                if notification.payload.endswith("\n" + me):
                    return True
    return False


_LIMIT = """
select current_setting('max_connections')::integer
  - current_setting('superuser_reserved_connections')::integer
"""
_SCHEMA = "Programs and database must have the same functions."
_POOLING = "A pooler in transaction mode accepts LISTEN but delivers no notifications."
