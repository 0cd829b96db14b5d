"""The client: enqueue, claim and settle jobs; all else is by noun, as in `client.queues.set`.

`AsyncClient` is written here; `Client`, its synchronous twin, is generated from this file.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, LiteralString, Self, Unpack
from uuid import UUID, uuid4

from psycopg import AsyncConnection

from holdfast import conninfo
from holdfast.client import wire
from holdfast.client.aio.joined import door_on
from holdfast.client.aio.nouns import AsyncNouns
from holdfast.client.aio.pool import AsyncBound, AsyncPool
from holdfast.client.aio.storing import copy, enqueue
from holdfast.client.enqueue_log import log_enqueued
from holdfast.client.sql import ACK, RELATIONS, SETTLE, SYSTEM
from holdfast.client.statement import Row, Statement
from holdfast.errors import LeaseLost, Unavailable, UnknownOutcome
from holdfast.records import (
    Checkup,
    Claim,
    Duration,
    Enqueued,
    Held,
    JobOptions,
    Lease,
    NewJob,
    Relation,
    Settled,
    Settlement,
    System,
    Ticket,
)
from holdfast.watch import tracing

# The last fields of a lease, which the client knows itself when it claims.
_CLAIMED = ("token", "queue", "worker")
_LEASE = wire.columns(Lease, without=_CLAIMED, names={"lease": "lease_for"})


class AsyncClient(AsyncNouns):
    """Calls the SQL protocol of one database, over a few connections opened when needed.

    Every call has a deadline (`timeout`, else HOLDFAST_TIMEOUT, else 60 seconds). A call that is
    safe to repeat is repeated on a new connection until then. Without a url, HOLDFAST_URL names the
    database; errors show `source` as the place where a url came from. `listen_url` is a direct
    address to listen for notifications, needed if `url` points to a pooler. Safe to share between
    tasks.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool_size: int = 4,
        timeout: Duration | None = None,
        listen_url: str | None = None,
        application_name: str = "holdfast",
        source: str = "",
    ) -> None:
        self.url, source = conninfo.locate(url, source)
        self.listen_url = listen_url or self.url
        self._door = AsyncPool(
            self.url,
            source,
            size=pool_size,
            timeout=conninfo.timeout(timeout),
            application_name=application_name,
        )

    def on(self, connection: Any) -> Self:
        """Return the same client bound to the caller's connection, of any driver.

        Calls join its transaction and commit or roll back with it. The connection is not
        changed, and no call is retried, because only the caller can repeat a transaction.
        """
        bound = object.__new__(type(self))
        bound.url, bound.listen_url = self.url, self.listen_url
        bound._door = door_on(connection)
        return bound

    async def close(self) -> None:
        """Close the client's connections. A bound client leaves the caller's open."""
        await self._door.close()

    def widen(self, pool_size: int) -> None:
        """Allow at least this many connections."""
        self._door.widen(pool_size)

    def abandon(self) -> None:
        """Drop the connections at once, for a client whose event loop has ended."""
        self._door.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def enqueue(
        self, kind: str, payload: Any = None, **options: Unpack[JobOptions]
    ) -> Enqueued:
        """Store one job; options are the fields of NewJob, as in `queue="mail", delay=60`.

        Returns the job's id, or the id of the live job that it duplicates.
        """
        [enqueued] = await self.enqueue_many([wire.new_job(kind, payload, options)])
        return enqueued

    async def enqueue_many(self, jobs: Iterable[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        """Store jobs in one transaction; returns one result for each, in order.

        The client creates the ids, so that it can repeat the call after a lost reply. `repeat`
        means that jobs with these ids may have been sent before: none of them is stored or run
        twice. Very many plain jobs are sent by COPY.
        """
        jobs = list(jobs)
        if not jobs:
            return []
        ids = wire.ids_of(jobs)
        jobs = wire.by_ids(jobs, ids)
        with tracing.enqueueing(jobs, ids) as traced:
            answers = await enqueue(self._door, traced, ids, repeat)
        log_enqueued(jobs, answers)
        return answers

    async def copy(self, jobs: Iterable[NewJob]) -> int:
        """Store very many plain jobs by COPY, in one transaction; returns how many.

        Plain means without key, lane, delay, run_at, lease and after. Not repeated after a lost
        reply: UnknownOutcome then means that either all or none of them were stored.
        """
        with tracing.copying(jobs) as traced:
            return await copy(self._door, traced)

    async def claim(
        self,
        queue: str = "default",
        *,
        worker: str,
        limit: int = 1,
        lease: Duration | None = None,
        kinds: Sequence[str] | None = None,
        token: UUID | None = None,
    ) -> list[Lease]:
        """Lease up to `limit` due jobs of one queue, highest priority first.

        The token proves these leases: new for each claim, and created here unless given. After a
        lost reply the client looks up what the token holds before it claims again.
        """
        claim = Claim(queue, worker, limit, lease, kinds, token or uuid4())
        return _leases(claim, await self._door.run(_claim_statement(claim, self._door.durable)))

    async def held(self, tokens: Sequence[UUID]) -> list[Lease]:
        """Return the leases that are still held by the tokens of earlier claims."""
        sql = f"select {_LEASE}, token, queue, worker from holdfast.held(tokens => %s::uuid[])"
        rows = await self._door.run(Statement("held", sql, [wire.array(tokens)], reads=True))
        return [Lease(*row) for row in rows]

    async def touch(
        self,
        leases: Sequence[Held],
        lease: Duration | None = None,
        *,
        progress: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[Settled]:
        """Extend leases to `lease` from now; each result has the new `lease_until`.

        A lost lease cannot be recovered: stop its work. `progress`, one for each lease, is shown
        with the job: `{"done": 3, "total": 20, "note": "page 3"}`; None keeps the previous one.
        """
        return await _settle(
            self._door,
            "touch",
            "select id, outcome, detail, lease_until from holdfast.touch(ids => %s::uuid[], "
            "tokens => %s::uuid[], lease => %s::interval, progress => %s::jsonb)",
            [*wire.held_arrays(leases), wire.interval(lease), wire.progress(progress)],
        )

    async def log(
        self,
        leases: Sequence[Held],
        lines: Sequence[Sequence[str]],
        *,
        firsts: Sequence[int] | None = None,
    ) -> list[str]:
        """Store what handlers logged, a list of lines for each lease; shown with the job at once.

        Each outcome is logged, busy (send these lines again) or lost. A job keeps its newest 1000
        lines, each up to 1000 characters. With `firsts`, the number in its attempt of the first
        line of each lease, lines that were stored before are left out.
        """
        if not leases:
            return []
        sql: LiteralString = (
            "select outcome from holdfast.log(ids => %s::uuid[], tokens => %s::uuid[], "
            "lines => %s::jsonb, firsts => %s::bigint[])"
        )
        numbers = None if firsts is None else list(firsts)
        parameters = [*wire.held_arrays(leases), wire.lines(lines), numbers]
        repeatable = firsts is not None
        statement = Statement("log", sql, parameters, repeatable=repeatable)
        return [outcome for (outcome,) in await self._door.run(statement)]

    async def ack(
        self,
        leases: Sequence[Held],
        results: Sequence[Any] | None = None,
        *,
        keep: bool = False,
        recent: int = 0,
    ) -> list[Settled]:
        """End leases with success; `results`, one for each, are kept if the queue keeps done jobs.

        `keep` puts the jobs into the history even if their queue does not. So many as `recent`,
        from the first, are kept for a day if their queues keep recent jobs. Results are in the
        order given. For an exception instead of the outcome `lost`, call `raise_if_lost()` on a
        result.
        """
        if not leases:
            return []
        proofs = wire.held_arrays(leases)
        kept = ["true" if keep else "false", str(recent)]
        parameters = [*proofs, wire.results(results), *kept]
        rows = await self._door.run(Statement("ack", ACK, parameters, texts=True))
        return [Settled(UUID(str(id)), outcome, detail) for id, outcome, detail in rows]

    async def nack(
        self,
        leases: Sequence[Held],
        *,
        error_kind: str | None = None,
        message: str | None = None,
        traceback: str | None = None,
        delay: Duration | None = None,
        final: bool = False,
    ) -> list[Settled]:
        """End leases with one failure; each job is queued again after `delay`, or dies.

        Without a delay the queue's backoff applies. With `final`, the job dies now, even if it has
        attempts left.
        """
        error = [wire.text(error_kind), wire.text(message), wire.text(traceback)]
        return await _settle(
            self._door,
            "nack",
            "select id, outcome, detail from holdfast.nack(ids => %s::uuid[], "
            "tokens => %s::uuid[], error_kind => %s::text, message => %s::text, "
            "traceback => %s::text, delay => %s::interval, final => %s::bool)",
            [*wire.held_arrays(leases), *error, wire.interval(delay), final],
        )

    async def release(
        self, leases: Sequence[Held], *, delay: Duration | None = None
    ) -> list[Settled]:
        """Return jobs without running them; the attempts do not count."""
        return await _settle(
            self._door,
            "release",
            "select id, outcome, detail from holdfast.release("
            "ids => %s::uuid[], tokens => %s::uuid[], delay => %s::interval)",
            [*wire.held_arrays(leases), wire.interval(delay)],
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """End leases in different ways in one call; results are in the order given.

        A settlement is a Done, Failed, Released or Cancelled.
        """
        return await _settle(
            self._door,
            "settle",
            SETTLE,
            [wire.settlements(settlements)],
        )

    async def send_event(
        self,
        name: str,
        payload: Any = None,
        *,
        key: str | None = None,
        keep: Duration = timedelta(days=7),
        everyone: bool = False,
        sender: str | None = None,
    ) -> None:
        """Send an event: the job that has waited longest for this name and key goes on.

        Part of the caller's transaction on a bound client: the job is ready when that commits. If
        no job waits, the event is kept for `keep`, and the first that waits takes it. `everyone`:
        all that wait receive it, and it is not kept.
        """
        sql = (
            "select holdfast.send_event(name => %s::text, key => %s::text, payload => %s::jsonb, "
            "keep => %s::interval, everyone => %s::bool, sender => %s::text)"
        )
        encoded = None if payload is None else wire.encoded(payload, f"payload of {name!r}")
        parameters = [
            name,
            key,
            None if encoded is None else encoded.decode(),
            wire.interval(keep),
            everyone,
            sender,
        ]
        await self._door.run(Statement("send_event", sql, parameters, repeatable=False))

    @asynccontextmanager
    async def transaction(
        self, lease: Held, result: Any = None, *, keep: bool = False, recent: int = 0
    ) -> AsyncIterator[AsyncConnection[Any]]:
        """Yield a connection: what you write on it and the ack of the lease commit together.

        Raises LeaseLost, with everything rolled back, if the lease is no longer held. If the reply
        of the commit was lost, the client looks up whether it took place, and raises Unavailable if
        it did not. Never commit or close the connection yourself.
        """
        try:
            async with self._door.transaction("transaction", plain=True) as door:
                yield door.connection
                client = self.on(door.connection)
                [settled] = await client.ack([lease], [result], keep=keep, recent=recent)
                settled.raise_if_lost()
                if settled.outcome == "already":  # what was written here would be done twice
                    raise LeaseLost(
                        settled.id, f"job {settled.id} has ended with this lease before"
                    )
        except UnknownOutcome as error:
            # A touch waits for a commit in progress, so its result is final.
            [touched] = await self.touch([lease])
            if touched.held:
                raise Unavailable(
                    "the transaction of the lease was not committed", why=error.reason
                ) from error
            [acked] = await self.ack([lease])
            if acked.outcome != "already":
                acked.raise_if_lost()

    async def hand_over(self, lease: Held, *, timeout: Duration, holder: str = "outside") -> Ticket:
        """Pass a lease to an external system, which settles the job with the ticket in `timeout`.

        It can ack, nack or touch with the ticket; otherwise the attempt fails. The caller's own
        token is no longer valid. Raises LeaseLost if the lease is no longer held.
        """
        id, token = wire.id_and_token(lease)
        new_token = uuid4()
        sql = (
            "select outcome, detail, lease_until from holdfast.hand_over(id => %s::uuid, "
            "token => %s::uuid, new_token => %s::uuid, timeout => %s::interval, "
            "holder => %s::text)"
        )
        parameters = [id, token, new_token, wire.interval(timeout), holder]
        [row] = await self._door.run(Statement("hand_over", sql, parameters))
        settled = Settled(id, *row).raise_if_lost()
        assert settled.lease_until is not None
        return Ticket(id, new_token, settled.lease_until)

    async def guard(self, lease: Held) -> bool:
        """Return whether the output of a job still has to be created; for a bound client.

        Anyone else who runs the job waits until the transaction ends, and then sees the output.
        Only for adopted tables is the output known; for other jobs, only the lease is checked.
        Raises LeaseLost if the lease is no longer held.
        """
        id, token = wire.id_and_token(lease)
        sql = "select holdfast.guard(id => %s::uuid, token => %s::uuid)"
        [(open,)] = await self._door.run(Statement("guard", sql, [id, token]))
        if open is None:
            raise LeaseLost(id, f"job {id} is no longer held")
        return bool(open)

    async def read_only(self) -> bool:
        """Return whether the database accepts no changes: a standby, or set to read-only."""
        sql = "select current_setting('transaction_read_only') = 'on'"
        [(answer,)] = await self._door.run(Statement("read_only", sql, reads=True))
        return bool(answer)

    async def system(self) -> System:
        """Return the versions and sizes of the database, the largest tables first."""
        [about] = await self._door.run(Statement("system", SYSTEM, reads=True))
        rows = await self._door.run(Statement("relations", RELATIONS, reads=True))
        return System(*(*about, [Relation(*row) for row in rows]))

    async def now(self) -> datetime:
        """Return the time of the database, which all decisions use."""
        [(at,)] = await self._door.run(Statement("now", "select holdfast.now()", reads=True))
        assert isinstance(at, datetime)
        return at

    async def idempotent(
        self, key: str, work: Callable[[Self], Awaitable[str]], *, caller: str, digest: str
    ) -> tuple[str | None, bool]:
        """Call `work` in a transaction, unless the caller used this key before.

        `work` gets a client bound to the transaction, and returns an answer, which is kept for a
        day. Returns the new or the kept answer, and whether it was kept. None: the key was used
        with another `digest`, which identifies the request. A repeat that arrives meanwhile waits.
        """
        async with self._door.transaction("idempotent") as door:
            sql = (
                "select known, same, answer from holdfast.once("
                "caller => %s::text, key => %s::text, digest => %s::text)"
            )
            [(known, same, kept)] = await door.run(Statement("once", sql, [caller, key, digest]))
            if known:
                return (kept if same else None), True
            answer = await work(self.on(door.connection))
            sql = (
                "select holdfast.answered(caller => %s::text, key => %s::text, answer => %s::text)"
            )
            await door.run(Statement("answered", sql, [caller, key, answer]))
            return answer, False

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Set a savepoint, so that the transaction of a bound client survives an error inside."""
        if isinstance(self._door, AsyncBound):
            async with self._door.savepoint():
                yield
        else:
            yield

    async def doctor(self) -> list[Checkup]:
        """Check the health of the database."""
        sql = f"select {wire.columns(Checkup)} from holdfast.doctor()"
        return [Checkup(*row) for row in await self._door.run(Statement("doctor", sql))]

    # Last of the public methods: after it, `list` in this class is the method.


def _claim_statement(claim: Claim, durable: bool) -> Statement:
    held = f"select {_LEASE} from holdfast.held(tokens => %s::uuid[])"
    return Statement(
        "claim",
        f"select {_LEASE} from holdfast.claim("
        "queue => %s::text, worker => %s::text, token => %s::uuid, max_jobs => %s::int, "
        "lease => %s::interval, kinds => %s::text[], durable => %s::bool)",
        [
            claim.queue,
            claim.worker,
            claim.token,
            claim.limit,
            wire.interval(claim.lease),
            None if claim.kinds is None else list(claim.kinds),
            durable,
        ],
        again=Statement("held", held, [[claim.token]]),
    )


def _leases(claim: Claim, rows: Sequence[Row]) -> list[Lease]:
    held = (claim.token, claim.queue, claim.worker)
    return [Lease(*(*row, *held)) for row in rows]


async def _settle(
    door: AsyncPool | AsyncBound, name: str, sql: LiteralString, parameters: Sequence[Any]
) -> list[Settled]:
    if parameters[0] in ("{}", "[]"):
        return []
    return [Settled(*row) for row in await door.run(Statement(name, sql, parameters))]
