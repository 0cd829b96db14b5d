"""Faults that a test can arrange: a worker that vanishes, a lease that is lost, a cut connection.

A fault strikes at a point of a handler. Commits are seen where psycopg and asyncpg send them, so
that they count on every connection of theirs, that of `current().transaction()` and those of the
application. A handler that crashes is not stopped by an exception, which would run its `finally`
blocks: its thread stops for ever, and its sessions end, as by kill -9.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from importlib import import_module
from typing import Any, Final, Literal, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.client import Client
from holdfast.client.statement import Statement
from holdfast.current import CurrentJob, running
from holdfast.errors import Misuse
from holdfast.outcome import error_kind, error_message

R = TypeVar("R")

Verb = Literal["crash", "lose_lease", "drop_connection"]
# How the sessions of the kit itself are named.
APPLICATION = "holdfast test"
COMMITS = ("before_commit", "after_commit")

_EXPIRE = """
with lost as (
  select id, token from holdfast.job where id = %s and token = %s for update skip locked
), moved as (
  update holdfast.job j set lease_until = holdfast.now() - interval '1 ms'
  from lost where j.id = lost.id and j.token = lost.token
)
update holdfast.lease l set until = holdfast.now() - interval '1 ms'
from lost where l.token = lost.token returning 1
"""
# A session's end takes a moment: until then it keeps its locks.
_END = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and {}
"""


class Crashed(Enum):
    """The type of CRASHED: how a handler ended that was stopped for ever."""

    CRASHED = "crashed"


CRASHED: Final = Crashed.CRASHED


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and at which point of a handler."""

    verb: Verb
    at: str

    def __str__(self) -> str:
        where = self.at.replace("_", " the ") if self.at in COMMITS else f"at {self.at}"
        return f"{self.verb.replace('_', ' ')} {where}"


FAULTS = (
    Fault("crash", "start"),
    Fault("crash", "before_commit"),
    Fault("crash", "after_commit"),
    Fault("crash", "return"),
    Fault("lose_lease", "start"),
    Fault("lose_lease", "before_commit"),
    Fault("lose_lease", "return"),
    Fault("drop_connection", "before_commit"),
    Fault("drop_connection", "after_commit"),
)
"""The faults under which `assert_effect_once` runs a task."""


@dataclass(slots=True)
class _Armed:
    fault: Fault
    kind: str | None
    # Of a handler that commits nothing: better late than never.
    or_at_return: bool = False
    missed: bool = False
    # What the handler raised that ended without reaching the point.
    raised: BaseException | None = None

    @property
    def points(self) -> tuple[str, ...]:
        return (self.fault.at, "return") if self.or_at_return else (self.fault.at,)


def _of_another_loop(raised: BaseException) -> bool:
    """Whether a handler used what belongs to the event loop of the test."""
    # asyncio's own words, and those of asyncpg when two loops use one of its connections.
    words = ("different loop", "different event loop", "another operation is in progress")
    link: BaseException | None = raised
    while link is not None:
        if any(word in str(link) for word in words):
            return True
        link = link.__cause__ or link.__context__
    return False


_REACHABLE = (
    "Choose a point that it reaches: start, before_commit, after_commit,"
    " return, or the note of a progress()."
)
_OWN_LOOP = (
    "A handler that may crash runs on an event loop of its own. Open what it uses in"
    " @app.lifespan,\nor let your engine keep no connections: "
    " create_async_engine(url, poolclass=NullPool)"
)


class Faults:
    """The faults that one test has arranged and that have not struck yet."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._armed: list[_Armed] = []
        self._watching = False
        self._over = threading.Event()

    def arm(self, fault: Fault, kind: str | None, *, or_at_return: bool = False) -> None:
        """Arrange a fault, in the next handler of a kind that reaches its point."""
        if not self._watching:
            self._watching = True
            _watch(self)
        self._armed.append(_Armed(fault, kind, or_at_return))

    def disarm(self) -> bool:
        """Forget what has not struck; returns whether there was anything."""
        left, self._armed = bool(self._armed), []
        return left

    def close(self) -> None:
        """Stop looking at commits."""
        if self._watching:
            _unwatch(self)

    def may_crash(self, job: CurrentJob) -> bool:
        """Whether a handler has to run where it can be stopped for ever."""
        return any(a.fault.verb == "crash" and a.kind in (None, job.kind) for a in self._armed)

    def reach(self, point: str, connection: Any = None) -> None:
        """Let a fault strike that was arranged for this point of the handler that runs here."""
        job = running.get(None)
        for armed in self._armed:
            kind_fits = armed.kind is None or (job is not None and armed.kind == job.kind)
            if point in armed.points and kind_fits:
                self._armed.remove(armed)
                self._strike(armed.fault, job, connection)
                return

    def ended(self, job: CurrentJob) -> None:
        """Note that a handler has ended without reaching the point of a fault for it."""
        for armed in self._armed:
            if armed.kind == job.kind and not armed.missed:
                armed.missed, armed.raised = True, job.raised

    def refuse_missed(self) -> None:
        """Raise Misuse if a fault did not strike although its handler ran: it proved nothing."""
        for armed in self._armed:
            if armed.missed:
                self._armed.clear()
                raised = armed.raised
                how = f"It raised {error_kind(raised)}: {error_message(raised)}\n" if raised else ""
                raise Misuse(
                    f"the handler of {armed.kind} ended without reaching {armed.fault.at!r}",
                    why=f"{how}So the fault was never tried: {armed.fault}.",
                    fix=_OWN_LOOP if raised and _of_another_loop(raised) else _REACHABLE,
                ) from raised

    def run_apart(self, run: Callable[[], R]) -> "R | Crashed":
        """Run a handler in a thread of its own; returns CRASHED if it was stopped for ever."""
        [(began,)] = self._query("select clock_timestamp()")
        self._over.clear()
        answers: list[R] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                answers.append(run())
            except BaseException as error:
                errors.append(error)
            self._over.set()

        context = copy_context()
        threading.Thread(
            target=context.run, args=[work], name="holdfast-apart", daemon=True
        ).start()
        self._over.wait()
        if errors:
            raise errors[0]
        if answers:
            return answers[0]
        self._end_sessions(began)
        return CRASHED

    def _strike(self, fault: Fault, job: CurrentJob | None, connection: Any) -> None:
        match fault.verb:
            case "crash":
                self._over.set()
                threading.Event().wait()
            case "lose_lease":
                assert job is not None
                if self._query(_EXPIRE, [job.id, job.lease.token]):
                    self.client.upkeep.reap()
                    job.deadline = 0.0
            case "drop_connection":
                self._cut(connection)
                if fault.at == "after_commit":
                    raise _noticed(connection)

    def _cut(self, connection: Any) -> None:
        if not hasattr(connection, "pgconn"):
            self._query(_END.format("pid = %s"), [connection.get_server_pid()])
            return
        pid = connection.info.backend_pid
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as wire, suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)
        self._query(_END.format("pid = %s"), [pid])

    def _end_sessions(self, began: datetime) -> None:
        """End the sessions of the worker that crashed: opened since, or in a transaction since."""
        theirs = "application_name <> %s and (xact_start >= %s or backend_start >= %s)"
        self._query(_END.format(theirs), [APPLICATION, began, began])

    def _query(self, sql: Any, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return self.client._door.run(Statement("fault", sql, parameters))


_CUT = (
    "server closed the connection unexpectedly\n"
    "\tThis probably means the server terminated abnormally\n"
    "\tbefore or while processing the request."
)


def _noticed(connection: Any) -> Exception:
    """Return what a driver raises when it notices that its connection is cut."""
    if hasattr(connection, "pgconn"):
        connection.pgconn.exec_(b"")  # by which it notices
        return psycopg.OperationalError(_CUT)
    lost: Exception = import_module("asyncpg").ConnectionDoesNotExistError(_CUT)
    return lost


# -- commits, wherever a driver sends one

_WATCHERS: list[Faults] = []
_REAL: dict[tuple[type, str], Any] = {}


def _watch(faults: Faults) -> None:
    _WATCHERS.append(faults)
    if len(_WATCHERS) > 1:
        return
    for owner, name, made in (
        (psycopg.Connection, "commit", _commits),
        (psycopg.AsyncConnection, "commit", _acommits),
        (psycopg.Transaction, "__exit__", _exits),
        (psycopg.AsyncTransaction, "__aexit__", _aexits),
        *_of_asyncpg(),
    ):
        real = _REAL[owner, name] = getattr(owner, name)
        setattr(owner, name, made(real))


def _unwatch(faults: Faults) -> None:
    _WATCHERS.remove(faults)
    if not _WATCHERS:
        for (owner, name), real in _REAL.items():
            setattr(owner, name, real)
        _REAL.clear()


@contextmanager
def _points(connection: Any, commits: bool) -> Iterator[None]:
    """Reach the points around a commit; they block, on an event loop too."""
    for faults in list(_WATCHERS) if commits else ():
        faults.reach("before_commit", connection)
    yield
    for faults in list(_WATCHERS) if commits else ():
        faults.reach("after_commit", connection)


def _is_open(connection: Any) -> bool:
    return bool(connection.pgconn.transaction_status == TransactionStatus.INTRANS)


def _commits(real: Any) -> Any:
    def commit(self: Any) -> None:
        with _points(self, _is_open(self)):
            real(self)

    return commit


def _acommits(real: Any) -> Any:
    async def commit(self: Any) -> None:
        with _points(self, _is_open(self)):
            await real(self)

    return commit


def _ends(transaction: Any, kind: Any) -> bool:
    return kind is None and transaction._outer_transaction and not transaction.force_rollback


def _exits(real: Any) -> Any:
    def exits(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        with _points(self.connection, _ends(self, kind)):
            return real(self, kind, error, trace)

    return exits


def _aexits(real: Any) -> Any:
    async def aexits(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        with _points(self.connection, _ends(self, kind)):
            return await real(self, kind, error, trace)

    return aexits


def _of_asyncpg() -> list[tuple[type, str, Any]]:
    try:
        transaction = import_module("asyncpg.transaction").Transaction
    except ImportError:  # whoever has it not commits nothing by it
        return []
    return [(transaction, "commit", _asyncpg_commits), (transaction, "__aexit__", _asyncpg_exits)]


def _asyncpg_commits(real: Any) -> Any:
    async def commit(self: Any) -> None:
        with _points(self._connection, not self._nested):
            await real(self)

    return commit


def _asyncpg_exits(real: Any) -> Any:
    async def aexits(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        with _points(self._connection, kind is None and not self._nested):
            return await real(self, kind, error, trace)

    return aexits
