"""The two ways a call reaches the database: the client's own connections, or the caller's.

We do not use psycopg_pool: it hides why it cannot connect, warns at every attempt, and backs off
for minutes. After an outage of 37 s its first connection came 28 s late.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import count
from math import inf
from time import monotonic
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCopy, AsyncCursor, generators, waiting
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row
from psycopg.types.json import JsonbLoader
from psycopg.types.string import TextLoader

from holdfast import conninfo
from holdfast.client import raw
from holdfast.client.lent import Lent
from holdfast.client.primaries import WHO, Primary, primary_of
from holdfast.client.slots import AsyncSlots
from holdfast.client.statement import (
    AWAY,
    REACHED,
    Row,
    Statement,
    is_outdated,
    may_retry,
    speaks_for_the_server,
    translate,
    was_cut,
)
from holdfast.client.waits import QUIET, TICK, Quiet, TooLate, until
from holdfast.errors import Misuse, Unavailable, UnknownOutcome
from holdfast.jitter import random_between

RV = TypeVar("RV")

log = logging.getLogger("holdfast")

# Below this round trip the driver's pipeline costs more than it saves: 12.6 against 7.7 us a job.
_FAR = 0.0005
# A statement that a connection repeats is parsed and planned once. Not behind a pooler: there the
# next transaction may be in another session, which does not know it.
_PREPARED_AFTER = 2
# The first connection attempt of a process to an address ends early, so that a wrong one does not
# look like a slow one.
_FIRST = 3.0
# A reply that does not come within this time is taken for lost where a worker waits for it: most of
# its leases are longer.
_SWALLOWED = 10.0
# Work inside a transaction keeps its connection; other calls wait this long for it.
_BEHIND_WORK = 60.0


class AsyncPool:
    """The client's own connections, opened when needed.

    Every call is its own transaction and has a deadline. After that the connection is closed, not
    cancelled: if a wait for a standby is cancelled, the transaction commits on the primary only.
    """

    durable = False

    def __init__(
        self, url: str, source: str, *, size: int, timeout: float, application_name: str
    ) -> None:
        self._url = url
        self._source = source
        self._timeout = timeout
        self._parameters = conninfo.parameters(url, application_name=application_name)
        self._slots: AsyncSlots[_Connection] = AsyncSlots(size)
        self._size = size
        self._closed = False
        # Who answered at this address when it was last looked at, and when that was.
        self._answers: tuple[float, Primary | None] = (-inf, None)

    async def run(self, statement: Statement, cut: psycopg.Error | None = None) -> list[Row]:
        """Make a call; if that is safe, repeat it until it succeeds or time is up.

        `cut` is the error of an earlier attempt, if there was one.
        """
        deadline = monotonic() + self._timeout
        for turn in count(1):
            try:
                return await self._once(statement, deadline, after_cut=cut is not None)
            except Unavailable as error:
                if cut is None:
                    raise
                raise _unknown(statement, cut) from error
            except psycopg.Error as error:
                if not may_retry(error):
                    raise self._translated(error) from error
                if was_cut(error) and not statement.reads:
                    cut = error
                if speaks_for_the_server(error):
                    await self._discard_idle()
                pause = _jitter(turn)
                if (cut and not statement.repeatable) or monotonic() + pause > deadline:
                    raise (
                        _unknown(statement, cut) if cut else self._too_late(statement, error)
                    ) from error
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def run_all(self, statements: Sequence[Statement]) -> tuple[list[list[Row]], bool]:
        """Make calls one after the other, each in its own transaction.

        If the server is far away, they are sent in one round trip. If the connection or any call
        fails, each is made separately, as after a lost reply. Returns their rows, and whether any
        was sent twice: the first may still be under way.
        """
        deadline = monotonic() + min(self._timeout, _SWALLOWED)
        try:
            async with self._connection(deadline, proven=False) as connection:
                if connection.far and len(statements) > 1:
                    return await _pipelined(connection, statements), False
                rows = [await _fetch(connection.cursor(), statement) for statement in statements]
                return rows, False
        except psycopg.Error as error:
            if speaks_for_the_server(error):
                await self._discard_idle()
            return [await self.run(statement, cut=error) for statement in statements], True

    @asynccontextmanager
    async def transaction(self, name: str, *, plain: bool = False) -> AsyncIterator["AsyncBound"]:
        """Bind a connection inside a transaction; each of its waits has the deadline of a call.

        A `plain` one is for the caller's own statements: they have no time limit and get jsonb
        as the driver decodes it by default.
        """
        committing, ours = False, True
        try:
            deadline = monotonic() + (_BEHIND_WORK if plain else self._timeout)
            async with self._connection(deadline, proven=True) as connection:
                connection.deadline = None
                connection.patience = self._timeout
                connection.adapters.register_loader("jsonb", JsonbLoader if plain else TextLoader)
                prepared_after = connection.prepare_threshold
                factories = connection.row_factory, connection.cursor_factory
                connection.lent = plain
                if plain:
                    # Their columns change with the application's migrations, not with ours.
                    connection.prepare_threshold = None
                try:
                    async with connection.transaction():
                        connection.patience = inf if plain else self._timeout
                        yield AsyncBound(connection)
                        connection.patience = self._timeout
                        committing = True
                except psycopg.Error:
                    # The caller may use other databases inside, whose troubles are its own.
                    ours = connection.closed or committing
                    raise
                finally:
                    connection.prepare_threshold = prepared_after
                    connection.lent = False
                    connection.row_factory, connection.cursor_factory = factories
                    connection.adapters.register_loader("jsonb", TextLoader)
        except psycopg.Error as error:
            if not (was_cut(error) and ours):
                raise self._translated(error) from error
            if committing:
                raise UnknownOutcome(name, _first_line(error)) from error
            raise Unavailable(f"{name}: nothing was changed, {_first_line(error)}") from error

    def widen(self, size: int) -> None:
        """Allow at least this many connections."""
        for _ in range(self._size, size):
            self._slots.put(None)
        self._size = max(self._size, size)

    async def close(self) -> None:
        """Close the connections; those in use are closed when they are returned."""
        self._closed = True
        await self._discard_idle()

    def abandon(self) -> None:
        """Drop the connections without waiting, so that no event loop is needed."""
        self._closed = True
        for connection in self._slots.clear():
            connection.pgconn.finish()

    async def _once(self, statement: Statement, deadline: float, *, after_cut: bool) -> list[Row]:
        async with self._connection(deadline, proven=not statement.repeatable) as connection:
            if after_cut and statement.again:
                rows = await _fetch_own(connection, statement.again)
                if rows:
                    return rows
            try:
                return await _fetch_own(connection, statement)
            except TooLate:
                # If the connection were only closed, the server would finish the query for no
                # reader.
                if statement.reads:
                    with suppress(psycopg.Error):
                        await connection.cancel_safe(timeout=1.0)
                raise

    @asynccontextmanager
    async def _connection(self, deadline: float, *, proven: bool) -> AsyncIterator["_Connection"]:
        self._refuse_if_closed()
        started = monotonic()
        try:
            connection = await self._slots.take(deadline - started)
        except TimeoutError:
            raise Unavailable(
                f"all {self._size} connections were in use for {monotonic() - started:.3g} s",
                fix="Raise pool_size.",
            ) from None
        deadline = min(deadline, monotonic() + self._timeout)
        try:
            if connection is not None:
                connection.deadline = deadline
                # One that broke while it was idle would make an outcome unknown without need.
                if connection.closed or (proven and not await _lives(connection)):
                    await connection.close()
                    connection = None
            if connection is None:
                connection = await self._connect(deadline)
            yield connection
        finally:
            if connection is not None and (self._closed or not _reusable(connection)):
                await connection.close()
                connection = None
            self._slots.put(connection)

    async def _connect(self, deadline: float) -> "_Connection":
        started = monotonic()
        known = self._url in REACHED
        give_up = deadline if known else min(deadline, started + _FIRST)
        for turn in count(1):
            try:
                connection = await _Connection.connect(**self._parameters)
                connection.deadline = deadline
                try:
                    connection.far = await _round_trip(connection) > _FAR
                    connection.direct, connection.server = await _met(connection)
                    connection.is_replaced = self._is_replaced
                    if connection.direct:
                        connection.prepare_threshold = _PREPARED_AFTER
                        connection.quick = connection.info.encoding == "utf-8"
                except BaseException:
                    await connection.close()  # no other call uses it yet
                    raise
            except psycopg.OperationalError as error:
                self._note_away(error)
                pause = _jitter(turn + 2)
                final = not known and _is_final(error)
                if final or monotonic() + pause > give_up:
                    raise conninfo.cannot_connect(
                        self._url,
                        error,
                        source=self._source,
                        tries=turn,
                        seconds=monotonic() - started,
                    ) from error
                await asyncio.sleep(pause)
            else:
                connection.adapters.register_loader("jsonb", TextLoader)
                REACHED.add(self._url)
                self._note_back()
                return connection
        raise AssertionError("unreachable")

    async def _is_replaced(self, connection: "_Connection") -> bool:
        """Whether another server has taken over from the one that does not reply."""
        if connection.server is None:
            return False
        looked, answers = self._answers
        if monotonic() - looked >= QUIET:
            # Noted before: many calls may wait for the same server.
            self._answers = (monotonic(), answers)
            answers = await self._who_answers() or answers
            self._answers = (monotonic(), answers)
        return connection.server.is_followed_by(answers)

    async def _who_answers(self) -> "Primary | None":
        try:
            connection = await _Connection.connect(**self._parameters)
        except psycopg.OperationalError:
            return None
        try:
            connection.deadline = monotonic() + QUIET
            return (await _met(connection))[1]
        except psycopg.OperationalError:
            return None
        finally:
            await connection.close()

    async def _discard_idle(self) -> None:
        for connection in self._slots.clear():
            await connection.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Misuse("the client is closed")

    def _note_away(self, error: psycopg.Error) -> None:
        # Logged once for all clients of a process; otherwise each would log the outage.
        if self._url in REACHED and AWAY.setdefault(self._url, now := monotonic()) is now:
            log.warning(
                "database unreachable",
                extra={"server": conninfo.server(self._url), "reason": _first_line(error)},
            )

    def _note_back(self) -> None:
        if (since := AWAY.pop(self._url, None)) is not None:
            seconds = round(monotonic() - since, 1)
            log.warning("database reachable again", extra={"seconds": seconds})

    def _translated(self, error: psycopg.Error) -> Exception:
        return translate(error, conninfo.database(self._url)) or error

    def _too_late(self, statement: Statement, error: psycopg.Error) -> Unavailable:
        reason = _first_line(error)
        return Unavailable(f"{statement.name}: no success within {self._timeout:g} s: {reason}")


class AsyncBound:
    """The caller's connection: calls join its transaction and do not change the connection.

    Nothing is committed, retried or given a deadline, and no statement is prepared.
    """

    durable = True

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self.connection = connection

    async def run(self, statement: Statement) -> list[Row]:
        """Make a call once, in whatever transaction the caller is in."""
        try:
            # Binary, which does not depend on the caller's DateStyle and IntervalStyle.
            cursor, binary = self._cursor(texts=statement.texts), not statement.texts
            return await _fetch(cursor, statement, prepare=False, binary=binary)
        except psycopg.Error as error:
            raise self._translated(error) from error

    async def run_all(self, statements: Sequence[Statement]) -> tuple[list[list[Row]], bool]:
        """Refuse: calls in the caller's transaction are not separate transactions."""
        raise Misuse(
            "drain needs the client's own connections",
            fix="Call it on the client itself, not on client.on(connection).",
        )

    @asynccontextmanager
    async def transaction(self, name: str, *, plain: bool = False) -> AsyncIterator[Self]:
        """Bind itself; open a transaction only if the connection is in autocommit mode.

        In the caller's transaction a savepoint is set, unless it is `plain`: whoever catches an
        error and commits has stored all of it or nothing.
        """
        status = self.connection.pgconn.transaction_status
        if self.connection.autocommit and status == TransactionStatus.IDLE:
            async with self.connection.transaction():
                yield self
        elif plain or status == TransactionStatus.ACTIVE:  # in a pipeline nobody knows the status
            yield self
        else:
            # Not the driver's savepoints, which it refuses in a two-phase transaction.
            await self._cursor().execute("savepoint holdfast")
            try:
                yield self
            except BaseException:
                with suppress(psycopg.Error):
                    await self._cursor().execute("rollback to savepoint holdfast")
                raise
            finally:
                with suppress(psycopg.Error):
                    await self._cursor().execute("release savepoint holdfast")

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Let the transaction survive an error inside."""
        async with self.connection.transaction():
            yield

    @asynccontextmanager
    async def copying(self, sql: LiteralString) -> AsyncIterator[AsyncCopy]:
        """Open a stream of rows in COPY's text format."""
        try:
            async with self._cursor().copy(sql) as copy:
                yield copy
        except psycopg.Error as error:
            raise self._translated(error) from error

    def widen(self, size: int) -> None:
        """Change nothing: there is one connection, the caller's."""

    async def close(self) -> None:
        """Leave the connection open: it is the caller's."""

    def abandon(self) -> None:
        """Leave the connection open: it is the caller's."""

    def _cursor(self, *, texts: bool = False) -> AsyncCursor[Row]:
        # Created here with its own adapters: the caller's connection may have other factories.
        cursor = AsyncCursor(self.connection, row_factory=tuple_row)
        if not texts:
            raw.adapt_json(cursor)
        return cursor

    def _translated(self, error: psycopg.Error) -> Exception:
        name = "" if self.connection.closed else self.connection.info.dbname
        return translate(error, name) or error


class _Connection(Lent, AsyncConnection[Row]):
    deadline: float | None = None
    patience = 0.0
    far = False
    quick = False
    server: Primary | None = None
    is_replaced: "Callable[[_Connection], Awaitable[bool]] | None" = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Statements of texts: how often each was sent, and under which name it is prepared.
        self.sent: Counter[str] = Counter()
        self.names: dict[str, bytes] = {}

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        deadline = self.deadline
        if deadline is None:
            deadline = monotonic() + self.patience
        wanted = None
        while True:
            try:
                # Not the inherited wait, which cancels the query when it is interrupted.
                waits = until(gen, deadline, wanted)
                return await waiting.wait_async(waits, self.pgconn.socket, TICK)
            except Quiet as quiet:
                wanted = quiet.wanted
            if self.is_replaced and await self.is_replaced(self):
                # What it confirmed from now on would be lost.
                await self.close()
                raise TooLate("no answer from the server, and another one has taken over")


async def _fetch_own(connection: _Connection, statement: Statement) -> list[Row]:
    if statement.texts and connection.quick:
        connection.sent[statement.sql] += 1
        if connection.sent[statement.sql] > _PREPARED_AFTER:
            try:
                return await _fetch_texts(connection, statement)
            except psycopg.errors.InvalidSqlStatementName:
                # The driver forgets all that is prepared in a session after a rollback.
                connection.names.clear()
                return await _fetch_texts(connection, statement)
    return await _fetch(connection.cursor(), statement)


async def _fetch_texts(connection: _Connection, statement: Statement) -> list[Row]:
    """Send texts and receive texts without the driver's cursor, which costs more than they do."""
    pgconn = connection.pgconn
    name = connection.names.get(statement.sql)
    if name is None:
        name = b"holdfast_%d" % len(connection.names)
        pgconn.send_prepare(name, _numbered(statement.sql))
        _check(await connection.wait(generators.execute(pgconn)))
        connection.names[statement.sql] = name
    pgconn.send_query_prepared(
        name, [None if v is None else v.encode() for v in statement.parameters]
    )
    result = _check(await connection.wait(generators.execute(pgconn)))
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]


def _check(results: Sequence[PGresult]) -> PGresult:
    [result] = results
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result)
    return result


@cache
def _numbered(sql: str) -> bytes:
    """Return a statement with numbers for its placeholders, as the server wants it."""
    first, *rest = sql.split("%s")
    return (first + "".join(f"${n}{part}" for n, part in enumerate(rest, 1))).encode()


async def _fetch(
    cursor: AsyncCursor[Row],
    statement: Statement,
    prepare: bool | None = None,
    binary: bool = False,
) -> list[Row]:
    await _execute(cursor, statement, prepare, binary)
    return await cursor.fetchall()


async def _execute(
    cursor: AsyncCursor[Row],
    statement: Statement,
    prepare: bool | None = None,
    binary: bool = False,
) -> None:
    if statement.raw:
        raw.adapt(cursor)
    try:
        await cursor.execute(
            statement.sql, statement.parameters, prepare=prepare, binary=binary or statement.raw
        )
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidSqlStatementName) as error:
        # The driver does not know: it would send the same to this session again.
        if prepare is None and is_outdated(error):
            await cursor.connection.close()
        raise


async def _pipelined(
    connection: AsyncConnection[Row], statements: Sequence[Statement]
) -> list[list[Row]]:
    cursors = [connection.cursor() for _ in statements]
    rows: list[list[Row]] = []
    failed: psycopg.Error | None = None
    try:
        async with connection.pipeline() as pipeline:
            try:
                for cursor, statement in zip(cursors, statements, strict=True):
                    await _execute(cursor, statement)
                    # Not one transaction for all: a claim is committed less durably than an ack.
                    await pipeline.sync()
                rows = [await cursor.fetchall() for cursor in cursors]
            except psycopg.Error as error:
                failed = error  # kept from the pipeline's own end, which would log it as ignored
    except psycopg.Error as error:
        failed = failed or error
    if failed:
        raise failed
    return rows


async def _round_trip(connection: AsyncConnection[Row]) -> float:
    started = monotonic()
    await connection.execute("")
    return monotonic() - started


async def _met(connection: AsyncConnection[Row]) -> tuple[bool, Primary | None]:
    """Return whether the server itself answers, not a pooler; and which primary it is, if it is."""
    try:
        [(session, cluster, timeline)] = await (await connection.execute(WHO)).fetchall()
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.InternalError):
        # A service that calls itself PostgreSQL may not tell.
        [(session,)] = await (await connection.execute("select pg_backend_pid()")).fetchall()
        cluster = timeline = None
    return bool(session == connection.info.backend_pid), primary_of(cluster, timeline)


async def _lives(connection: AsyncConnection[Any]) -> bool:
    try:
        await connection.execute("")
    except psycopg.OperationalError:
        return False
    return True


def _unknown(statement: Statement, cut: psycopg.Error) -> UnknownOutcome:
    fix = "Repeat it with the same ids and repeat=True." if statement.ids else ""
    return UnknownOutcome(statement.name, _first_line(cut), fix=fix, ids=statement.ids)


def _reusable(connection: AsyncConnection[Any]) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _jitter(turn: int) -> float:
    return random_between(0, min(1.0, 0.025 * 2**turn))


def _is_final(error: psycopg.Error) -> bool:
    """Whether the server itself refused, for a reason that will not go away."""
    told = str(error)
    return "FATAL" in told and not any(word in told for word in _PASSING)


_PASSING = ("starting up", "shutting down", "recovery", "too many", "slots")


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0]
