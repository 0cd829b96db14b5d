"""The protocol as plain calls: one method per SQL function, arguments and columns by name."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row, namedtuple_row, scalar_row
from psycopg.types.json import Jsonb

# Set by `python -m tests.citus`: the address of a node of a cluster on which the protocol is
# tested, and that of another one, on which it enqueues what is no part of a transaction.
NODE = "HOLDFAST_TEST_NODE"
ELSEWHERE = "HOLDFAST_TEST_ELSEWHERE"
# All tests share the node's database: what one of them does to its functions would stay.
PLANTED_STAYS = pytest.mark.skipif(NODE in os.environ, reason="a fault would stay in the database")

Row = TypeVar("Row")
Later = Callable[..., None]
"""Moves the time: `later(seconds=31)`."""
Open = Callable[..., "Protocol"]
"""Opens another session: `other()`, `other(autocommit=False)`."""

CLOCK = """
create schema holdfast_test;
create table holdfast_test.clock (ahead interval not null);
insert into holdfast_test.clock values ('0');
create or replace function holdfast.now() returns timestamptz
language sql stable parallel safe
as 'select statement_timestamp() + (select ahead from holdfast_test.clock)';
"""

WIPE = """
update holdfast_test.clock set ahead = '0';
delete from holdfast.job;
delete from holdfast.ended;
delete from holdfast.step;
delete from holdfast.line;
delete from holdfast.sent;
delete from holdfast.reply_link;
delete from holdfast.dead_tally;
delete from holdfast.attempt;
delete from holdfast.lease;
delete from holdfast.queue;
delete from holdfast.lane;
delete from holdfast.gate;
delete from holdfast.rate_use;
delete from holdfast.tally;
delete from holdfast.total;
delete from holdfast.floor;
delete from holdfast.waiter;
delete from holdfast.watched;
delete from holdfast.awaited;
select setval('holdfast.listening', 1, false);
delete from holdfast.leaving;
delete from holdfast.link;
delete from holdfast.countdown;
delete from holdfast.workflow;
delete from holdfast.member;
delete from holdfast.newborn;
delete from holdfast.orphaned;
delete from holdfast.unreadable;
delete from holdfast.bell;
delete from holdfast.redo;
delete from holdfast.expiry;
delete from holdfast.alias;
delete from holdfast.worker;
delete from holdfast.kind;
delete from holdfast.schedule;
delete from holdfast.schedule_slot;
delete from holdfast.api_token;
delete from holdfast.request;
delete from holdfast.operation;
delete from holdfast.operation_chunk;
delete from holdfast.event;
delete from holdfast.strike;
delete from holdfast.sample;
delete from holdfast.measure;
delete from holdfast.anomaly;
delete from holdfast.detector_setting;
delete from holdfast.detector_run;
delete from holdfast.mute;
delete from holdfast.webhook;
delete from holdfast.reading;
delete from holdfast.bulk;
delete from holdfast.stir;
delete from holdfast.sampled;
delete from holdfast.failing;
delete from holdfast.pulse;
insert into holdfast.pulse (reaped_at) values (holdfast.now());
update holdfast.chore set at = '-infinity', cursor = '{}';
"""

FORGET = """
reset session authorization;
reset all;
close all;
unlisten *;
discard temp;
select pg_advisory_unlock_all();
"""


class Enqueued(NamedTuple):
    ord: int
    id: UUID
    created: bool
    duplicate_of: UUID | None
    behind: UUID | None
    holder: str | None
    held_since: datetime | None


class Hold(NamedTuple):
    """A job and the token that is said to hold it."""

    id: UUID
    token: UUID


class Leased(NamedTuple):
    id: UUID
    kind: str
    payload: Any
    priority: int
    attempt: int
    max_attempts: int
    lease_until: datetime
    run_at: datetime
    created_at: datetime
    key: str | None
    lane: str | None
    tenant: str | None
    subject: str | None
    headers: Any
    lease_for: timedelta | None
    error: str | None
    token: UUID


class Outcome(NamedTuple):
    id: UUID
    outcome: str
    detail: str | None


class Touched(NamedTuple):
    id: UUID
    outcome: str
    lease_until: datetime | None
    detail: str | None


class Settled(NamedTuple):
    ord: int
    id: UUID
    outcome: str
    detail: str | None


class Reaped(NamedTuple):
    id: UUID
    queue: str
    kind: str
    worker: str
    outcome: str


class HandedOver(NamedTuple):
    outcome: str
    lease_until: datetime | None
    detail: str | None


class Doubtful(NamedTuple):
    id: UUID
    token: UUID
    queue: str
    kind: str
    payload: Any
    headers: Any
    subject: str | None
    key: str | None
    attempt: int
    worker: str


class Answer(NamedTuple):
    id: UUID
    changed: bool
    state: str | None
    detail: str | None


class Moved(NamedTuple):
    id: UUID
    changed: bool
    state: str | None
    detail: str | None
    new_id: UUID | None


class Attempt(NamedTuple):
    attempt: int
    outcome: str
    worker: str
    started_at: datetime
    ended_at: datetime
    error_kind: str | None
    message: str | None
    traceback: str | None
    fingerprint: str | None


class Job(NamedTuple):
    id: UUID
    queue: str
    kind: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    lease_until: datetime | None
    worker: str | None
    key: str | None
    lane: str | None
    tenant: str | None
    subject: str | None
    headers: Any
    payload: Any
    error: str | None
    fingerprint: str | None
    reason: str | None
    result: Any
    ended_at: datetime | None
    lease: timedelta | None
    progress: Any
    total_attempts: int
    expires_at: datetime | None


@contextmanager
def shared_database(url: str, template: str) -> Iterator[str]:
    """A database that many tests share, each after a wipe; its time can be moved."""
    if node := os.environ.get(NODE):
        with psycopg.connect(node) as connection:
            connection.execute("set local citus.enable_ddl_propagation = off")
            connection.execute("drop schema if exists holdfast_test cascade")
            connection.execute(CLOCK)
        yield node
        return
    name = sql.Identifier(f"holdfast_shared_{uuid4().hex}")
    copied = sql.SQL("create database {} template {}").format(name, sql.Identifier(template))
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(copied)
        shared = make_conninfo(url, dbname=name.as_string().strip('"'))
        with psycopg.connect(shared) as connection:
            connection.execute(CLOCK)
        yield shared
        server.execute(sql.SQL("drop database {} with (force)").format(name))


class Sessions:
    """Sessions of one database that a test gives back and the next takes: their plans are made.

    A new session compiles every function that it calls, which takes longer than most tests. What a
    session is told to forget here is all that `discard all` has it forget, but for those plans.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[psycopg.Connection] = []

    @contextmanager
    def lent(self) -> Iterator[Callable[[], psycopg.Connection]]:
        """Lend sessions; take them back in the end."""
        taken: list[psycopg.Connection] = []

        def take() -> psycopg.Connection:
            taken.append(self._idle.pop() if self._idle else self._open())
            return taken[-1]

        try:
            yield take
        finally:
            # The first is lent first again: it has seen the most.
            for connection in reversed(taken):
                self._take_back(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    def _open(self) -> psycopg.Connection:
        return psycopg.connect(self._url, autocommit=True, prepare_threshold=None)

    def _take_back(self, connection: psycopg.Connection) -> None:
        # Whoever left a transaction open may not even have meant to.
        if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()
            return
        try:
            connection.autocommit = True
            connection.execute(FORGET)
        except psycopg.Error:  # its server, its database or itself was ended
            connection.close()
            return
        self._idle.append(connection)


class Protocol:
    """The SQL functions of one connection. An argument that is None is not passed."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    # -- producers

    def enqueue(self, *items: Mapping[str, Any], repeat: bool | None = None) -> list[Enqueued]:
        if os.environ.get(ELSEWHERE) and self._is_idle() and self._may_cross(items):
            return _elsewhere()._rows(Enqueued, "enqueue", items=Jsonb(items), repeat=repeat)
        return self._rows(Enqueued, "enqueue", items=Jsonb(items), repeat=repeat)

    def put(self, kind: str = "work", **item: Any) -> UUID:
        """The id of one new job."""
        [enqueued] = self.enqueue({"kind": kind, **item})
        assert enqueued.created
        return enqueued.id

    # -- holders

    def claim(
        self,
        queue: str = "default",
        worker: str = "ada",
        *,
        token: UUID | None = None,
        max_jobs: int | None = None,
        lease: timedelta | None = None,
        kinds: Sequence[str] | None = None,
        durable: bool | None = None,
    ) -> list[Leased]:
        token = token or uuid4()
        rows = self.call(
            "claim",
            queue=queue,
            worker=worker,
            token=token,
            max_jobs=max_jobs,
            lease=lease,
            kinds=kinds if kinds is None else list(kinds),
            durable=durable,
            columns=Leased._fields[:-1],
        )
        return [Leased(*row, token) for row in rows]

    def take(self, queue: str = "default", worker: str = "ada", **options: Any) -> Leased:
        """The one job that a claim gives."""
        [leased] = self.claim(queue, worker, **options)
        return leased

    def touch(
        self,
        *held: Hold | Leased,
        lease: timedelta | None = None,
        progress: Sequence[Any] | None = None,
    ) -> list[Touched]:
        said = None if progress is None else Jsonb(progress)
        return self._rows(Touched, "touch", **_pairs(held), lease=lease, progress=said)

    def ack(
        self,
        *held: Hold | Leased,
        results: Sequence[Any] | None = None,
        keep: bool | None = None,
        recent: int | None = None,
    ) -> list[Outcome]:
        wrapped = None if results is None else Jsonb(results)
        return self._rows(Outcome, "ack", **_pairs(held), results=wrapped, keep=keep, recent=recent)

    def nack(
        self,
        *held: Hold | Leased,
        error_kind: str | None = None,
        message: str | None = None,
        traceback: str | None = None,
        delay: timedelta | None = None,
        final: bool | None = None,
    ) -> list[Outcome]:
        return self._rows(
            Outcome,
            "nack",
            **_pairs(held),
            error_kind=error_kind,
            message=message,
            traceback=traceback,
            delay=delay,
            final=final,
        )

    def release(self, *held: Hold | Leased, delay: timedelta | None = None) -> list[Outcome]:
        return self._rows(Outcome, "release", **_pairs(held), delay=delay)

    def settle(self, *items: Mapping[str, Any]) -> list[Settled]:
        return self._rows(Settled, "settle", items=Jsonb([_plain(item) for item in items]))

    def held(self, *tokens: UUID) -> list[Leased]:
        return self._rows(Leased, "held", tokens=list(tokens))

    def hand_over(
        self,
        held: Hold | Leased,
        new_token: UUID | None = None,
        *,
        timeout: timedelta = timedelta(minutes=3),
        holder: str | None = None,
    ) -> HandedOver:
        [answer] = self._rows(
            HandedOver,
            "hand_over",
            id=held.id,
            token=held.token,
            new_token=new_token or uuid4(),
            timeout=timeout,
            holder=holder,
        )
        return answer

    # -- recovery

    def declare_kinds(self, *kinds: Mapping[str, Any]) -> int:
        return self.value("declare_kinds", kinds=Jsonb(kinds))

    def doubtful(self, *kinds: str, max_jobs: int | None = None) -> list[Doubtful]:
        asked = list(kinds) or None
        return self._rows(Doubtful, "doubtful", kinds=asked, max_jobs=max_jobs)

    def reconcile(self, *held: Hold | Leased | Doubtful, done: Sequence[bool]) -> list[Outcome]:
        return self._rows(Outcome, "reconcile", **_pairs(held), done=list(done))

    def beat(self, worker: str, **facts: Any) -> None:
        self.call("beat", worker=worker, facts=Jsonb(facts), columns=("stop",))

    # -- upkeep

    def reap(self, max_jobs: int | None = None) -> list[Reaped]:
        return self._rows(Reaped, "reap", max_jobs=max_jobs)

    def promote(self, max_jobs: int | None = None) -> int:
        return self.value("promote", max_jobs=max_jobs)

    def sweep(self) -> int:
        return self.value("sweep")

    def raise_floors(self, patience: timedelta | None = None) -> int:
        return self.value("raise_floors", patience=patience)

    def lift_strays(self) -> int:
        return self.value("lift_strays")

    def fold(self) -> int:
        return self.value("fold")

    def upkeep(self) -> dict[str, int]:
        return self.value("upkeep")

    def recount(self) -> list[Any]:
        """Where the kept counters differ from the rows."""
        columns = ("queue", "kind", "queued", "leased", "dead", "cancelled", "archived")
        return self.call("recount", columns=columns)

    # -- operators

    def cancel(self, *ids: UUID, **why: str) -> list[Answer]:
        return self._rows(Answer, "cancel", ids=list(ids), **why)

    def retry(self, *ids: UUID, delay: timedelta | None = None, **why: str) -> list[Answer]:
        return self._rows(Answer, "retry", ids=list(ids), delay=delay, **why)

    def edit(self, *ids: UUID, changes: Mapping[str, Any], **why: str) -> list[Answer]:
        return self._rows(Answer, "edit", ids=list(ids), changes=Jsonb(changes), **why)

    def move(self, *ids: UUID, queue: str, **why: str) -> list[Moved]:
        return self._rows(Moved, "move", ids=list(ids), queue=queue, **why)

    def archive(self, *ids: UUID, **why: str) -> list[Answer]:
        return self._rows(Answer, "archive", ids=list(ids), **why)

    def delete(self, *ids: UUID, **why: str) -> list[Answer]:
        return self._rows(Answer, "delete", ids=list(ids), **why)

    def queue_set(self, queue: str, **settings: Any) -> None:
        self.call("queue_set", queue=queue, settings=Jsonb(settings), columns=("queue",))

    def lane_set(self, queue: str, lane: str, **settings: Any) -> None:
        self.value("lane_set", queue=queue, lane=lane, settings=Jsonb(settings))

    def pause(self, queue: str, until: datetime | None = None, **why: str) -> None:
        self.call("pause", queue=queue, until=until, columns=("queue",), **why)

    def resume(self, queue: str) -> None:
        self.call("resume", queue=queue, columns=("queue",))

    # -- looking

    def get(self, id: UUID) -> Job | None:
        return next(iter(self._rows(Job, "get", id=id)), None)

    def job(self, id: UUID) -> Job:
        """The job with this id, which must be there."""
        found = self.get(id)
        assert found is not None
        return found

    def state(self, id: UUID) -> str | None:
        found = self.get(id)
        return found.state if found else None

    def list(self, filter: str = "", max_jobs: int | None = None) -> list[Job]:
        return self._rows(Job, "list", filter=filter, max_jobs=max_jobs)

    def find(self, filter: str = "") -> Sequence[UUID]:
        return self.value("find", filter=filter)

    def attempts(self, id: UUID) -> Sequence[Attempt]:
        return self._rows(Attempt, "attempts", id=id)

    def explain(self, id: UUID) -> str:
        return self.value("explain", id=id)

    def depth(self, queue: str = "default") -> dict[str, int]:
        """How many jobs the counters say are in each state; states with none are left out."""
        rows = self.connection.execute(
            "select state, sum(jobs)::int from holdfast.depth where queue = %s group by state",
            [queue],
        ).fetchall()
        return {state: jobs for state, jobs in rows if jobs}

    # -- tests only

    def wipe(self) -> None:
        """Leave the database as if it had just been migrated; far cheaper than making another."""
        self.connection.execute(WIPE)

    def table(self, query: str) -> Sequence[Any]:
        """The rows of any query, with their names."""
        cursor = self.connection.cursor(row_factory=namedtuple_row, binary=True)
        return cursor.execute(query).fetchall()

    def rows_read(self) -> int:
        """How many rows of the hot table this transaction has read: compare before and after."""
        # Between transactions a session reports what it counted, once in a second, and begins anew.
        assert not self._is_idle(), "open a transaction around what is compared"
        row = self.connection.execute(
            "select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)"
            " from pg_stat_xact_user_tables where relid = 'holdfast.job'::regclass"
            " or relid in (select relid from pg_partition_tree('holdfast.job'))"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def later(self, **by: float) -> None:
        """Move the time of all sessions by what `timedelta` accepts."""
        self.connection.execute(
            "update holdfast_test.clock set ahead = ahead + %s", [timedelta(**by)]
        )

    # -- any function

    def call(self, function: str, *, columns: Sequence[str], **arguments: Any) -> Sequence[Any]:
        """Rows of a function that returns a table."""
        cursor = self.connection.cursor(row_factory=namedtuple_row)
        given = _given(arguments)
        return cursor.execute(_select(function, tuple(columns), tuple(given)), given).fetchall()

    def value(self, function: str, **arguments: Any) -> Any:
        """The value of a function that returns one."""
        cursor = self.connection.cursor(row_factory=scalar_row)
        given = _given(arguments)
        return cursor.execute(_select(function, (), tuple(given)), given).fetchone()

    def _may_cross(self, items: Sequence[Mapping[str, Any]]) -> bool:
        """Whether it is on the node, and not in a database that the test made for itself."""
        info = self.connection.info
        # Jobs are added to a workflow on its node; from elsewhere that is refused.
        joins = any({"workflow", "child_of"} & item.keys() for item in items)
        return not joins and _node() == (info.port, info.dbname)

    def _is_idle(self) -> bool:
        connection = self.connection
        return (
            connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
        )

    def _rows(self, row: type[Row], function: str, **arguments: Any) -> Sequence[Row]:
        cursor = self.connection.cursor(row_factory=class_row(row))
        given = _given(arguments)
        columns = row._fields  # type: ignore[attr-defined]
        return cursor.execute(_select(function, columns, tuple(given)), given).fetchall()


@cache
def _node() -> tuple[int, str]:
    told = conninfo_to_dict(os.environ[NODE])
    return int(told["port"]), str(told["dbname"])


@cache
def _elsewhere() -> Protocol:
    return Protocol(psycopg.connect(os.environ[ELSEWHERE], autocommit=True, prepare_threshold=None))


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


@cache
def _select(function: str, columns: tuple[str, ...], arguments: tuple[str, ...]) -> sql.Composed:
    named = sql.SQL(", ").join(
        sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name))
        for name in arguments
    )
    call = sql.SQL("holdfast.{}({})").format(sql.Identifier(function), named)
    if not columns:
        return sql.SQL("select {}").format(call)
    named_columns = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("select {} from {}").format(named_columns, call)


def _pairs(held: Iterable[Hold | Leased | Doubtful]) -> dict[str, list[UUID]]:
    pairs = list(held)
    return {"ids": [pair.id for pair in pairs], "tokens": [pair.token for pair in pairs]}


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, UUID) else value for name, value in item.items()}
