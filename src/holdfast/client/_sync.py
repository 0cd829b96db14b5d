"""Generated from _async.py by tools/generate_sync_client.py: edit that."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Any, LiteralString, Self, Unpack
from uuid import UUID, uuid4

import psycopg
from psycopg import Connection

from holdfast import conninfo, tracing
from holdfast.client import _secrets as secrets
from holdfast.client import _wire as wire
from holdfast.client._call import Call, Row, may_retry
from holdfast.client._sync_doors import Bound, Pool
from holdfast.client._told import tell_enqueued
from holdfast.errors import CannotConnect, LeaseLost, Unavailable, UnknownOutcome
from holdfast.model import (
    Activity,
    Anomaly,
    AnomalyChange,
    ApiToken,
    Attempt,
    Caller,
    Change,
    Checkup,
    Claim,
    Count,
    DeadGroup,
    Declared,
    Depth,
    Detector,
    Doubtful,
    DueSchedule,
    Duration,
    Enqueued,
    Event,
    Finding,
    Forecast,
    Found,
    Held,
    Job,
    JobOptions,
    Kind,
    Lane,
    LaneReleased,
    Lease,
    LogState,
    Mute,
    NewJob,
    NewSchedule,
    NewToken,
    Operation,
    Preview,
    Queue,
    Reaped,
    Receipt,
    Relation,
    Schedule,
    Scope,
    Settled,
    Settlement,
    Slot,
    Strike,
    Success,
    System,
    Tended,
    Ticket,
    Watched,
    Webhook,
    WorkerRow,
)

_LEASE: LiteralString = (
    "id, kind, payload, priority, attempt, max_attempts, lease_until, run_at, created_at, "
    "key, lane, tenant, subject, headers"
)
_JOB = wire.columns(Job)
_QUEUE = wire.columns(Queue)
_SCHEDULE = wire.columns(Schedule)
_SLOT = wire.columns(Slot)
_OPERATION = wire.columns(Operation)
_STRIKE = wire.columns(Strike)
_TOKEN = wire.columns(ApiToken)
_ANOMALY = wire.columns(Anomaly)
_WEBHOOK = wire.columns(Webhook)
_MINUTE = timedelta(minutes=1)
_ACK: LiteralString = (
    "select id, outcome, detail from holdfast.ack("
    "ids => %s::uuid[], tokens => %s::uuid[], results => %s::jsonb, keep => %s)"
)
_SETTLE: LiteralString = (
    "select id, outcome, detail from holdfast.settle(items => %s::jsonb) order by ord"
)
_ENQUEUE: LiteralString = (
    "select id, created, duplicate_of, behind, holder, held_since "
    "from holdfast.enqueue(items => %s::jsonb, repeat => %s) order by ord"
)
# What one call surely stores before its deadline.
_MANY = 5000
_COPY: LiteralString = (
    "copy holdfast.job (part, id, queue, kind, priority, run_at, created_at, max_attempts, "
    "payload, headers, tenant, subject, by_kind) from stdin"
)
_COPIED: LiteralString = (
    "select holdfast.copied(queue => %s::text, kinds => %s::text[], counts => %s::bigint[])"
)
_SYSTEM: LiteralString = """
select (select max(m.version) from holdfast.migration m),
  (select m.release from holdfast.migration m order by m.applied_at desc limit 1),
  current_setting('server_version'), pg_database_size(current_database()),
  (select count(*) from pg_stat_activity a where a.datname = current_database()),
  current_setting('max_connections')::int,
  (select max(clock_timestamp() - a.xact_start) from pg_stat_activity a
   where a.datname = current_database() and a.pid <> pg_backend_pid())
"""
# Pages of one log are shown as one.
_RELATIONS: LiteralString = """
select regexp_replace(t.relname, '_([0-9]{8}.*|[0-9]{2}|rest)$', '') as name,
  sum(pg_total_relation_size(t.relid))::bigint as size, sum(t.n_live_tup)::bigint,
  sum(t.n_dead_tup)::bigint, max(greatest(t.last_vacuum, t.last_autovacuum))
from pg_stat_all_tables t
where t.schemaname = 'holdfast'
group by 1
order by 2 desc, 1
"""


class Client:
    """Speaks the protocol to one database, over a few connections made when needed.

    Every call has a deadline (`timeout`) and, where repeating it cannot do anything twice, is
    repeated on a new connection until then. Without a url, HOLDFAST_URL names the database;
    `source` says in errors where a url came from. `listen_url` is a direct address for whoever
    listens, needed when `url` is that of a pooler. Safe to share between threads.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool_size: int = 4,
        timeout: Duration = 10.0,
        listen_url: str | None = None,
        application_name: str = "holdfast",
        source: str = "",
    ) -> None:
        self.url, source = conninfo.locate(url, source)
        self.listen_url = listen_url or self.url
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self._door: Pool | Bound = Pool(
            self.url, source, size=pool_size, timeout=seconds, application_name=application_name
        )

    def on(self, connection: Connection[Any]) -> Self:
        """Return the same client bound to the caller's connection.

        Calls join its transaction and commit or roll back with it. Nothing about the connection
        is changed; nothing is retried, since only the caller can repeat a transaction.
        """
        bound = object.__new__(type(self))
        bound.url, bound.listen_url = self.url, self.listen_url
        bound._door = Bound(connection)
        return bound

    def close(self) -> None:
        """Close the client's connections. A bound client leaves the caller's open."""
        self._door.close()

    def widen(self, pool_size: int) -> None:
        """Have room for this many connections at least."""
        self._door.widen(pool_size)

    def abandon(self) -> None:
        """Hang up without a word, for a client whose event loop is gone."""
        self._door.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def enqueue(self, kind: str, payload: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Store one job; options are the fields of NewJob, as in `queue="mail", delay=60`.

        Answers the job's id, or that of the live job it is a duplicate of.
        """
        [enqueued] = self.enqueue_many([wire.new_job(kind, payload, options)])
        return enqueued

    def enqueue_many(self, jobs: Iterable[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        """Store jobs in one transaction; one answer for each, in their order.

        Ids are made here, so that the call can be repeated after a lost reply. `repeat` says that
        jobs with these ids may have been sent before: none of them is stored or run twice. Above
        some ten thousand jobs, `copy` is faster.
        """
        jobs = list(jobs)
        if not jobs:
            return []
        ids = wire.ids_of(jobs)
        with tracing.enqueueing(jobs, ids) as traced:
            answers = _enqueue(self._door, traced, ids, repeat)
        tell_enqueued(jobs, answers)
        return answers

    def copy(self, jobs: Iterable[NewJob]) -> int:
        """Store very many plain jobs by COPY, in one transaction; returns how many.

        Plain means without key, lane, delay, run_at and lease. Not repeated after a lost reply:
        UnknownOutcome then says that they may have been stored, all or none.
        """
        with tracing.copying(jobs) as traced:
            return _copy(self._door, traced)

    def claim(
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

        The token proves these leases: fresh for each claim, and made here unless given. After a
        lost reply the client asks what the token holds before it claims again.
        """
        claim = Claim(queue, worker, limit, lease, kinds, token or uuid4())
        return _leases(claim, self._door.run(_claim_call(claim, self._door.durable)))

    def exchange(
        self, settlements: Sequence[Settlement], claims: Sequence[Claim]
    ) -> tuple[list[Settled], list[list[Lease]]]:
        """Settle leases and claim the next ones in one round trip.

        Answers in the order given. Each call is a transaction of its own: what is settled stays
        settled whatever becomes of the claims. Needs the client's own connections.
        """
        plain = [one for one in settlements if wire.is_plain_ack(one)]
        other = [one for one in settlements if not wire.is_plain_ack(one)]
        calls = []
        if plain:
            held = wire.held_arrays([one.lease for one in plain])
            calls.append(Call("ack", _ACK, [*held, None, False]))
        if other:
            calls.append(Call("settle", _SETTLE, [wire.settlements(other)]))
        settling = len(calls)
        calls += [_claim_call(claim, self._door.durable) for claim in claims]
        answers = self._door.run_all(calls)

        acked = iter(answers[0]) if plain else iter(())
        rest = iter(answers[settling - 1]) if other else iter(())
        settled = [Settled(*next(acked if wire.is_plain_ack(one) else rest)) for one in settlements]
        leased = [
            _leases(claim, rows) for claim, rows in zip(claims, answers[settling:], strict=True)
        ]
        return settled, leased

    def held(self, tokens: Sequence[UUID]) -> list[Lease]:
        """Return the leases that are still held by the tokens of earlier claims."""
        sql = (
            f"select {_LEASE}, token, queue, worker, lease_for, length, error "
            "from holdfast.held(tokens => %s::uuid[])"
        )
        rows = self._door.run(Call("held", sql, [wire.array(tokens)], reads=True))
        return [Lease(*row) for row in rows]

    def touch(
        self,
        leases: Sequence[Held],
        lease: Duration | None = None,
        *,
        progress: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[Settled]:
        """Hold on to leases, for `lease` from now; each answer has the new `lease_until`.

        A lease that is lost cannot be had back: stop its work. `progress`, one for each, is what
        its job shows: `{"done": 3, "total": 20, "note": "page 3"}`; None leaves what it shows.
        """
        return _settle(
            self._door,
            "touch",
            "select id, outcome, detail, lease_until from holdfast.touch(ids => %s::uuid[], "
            "tokens => %s::uuid[], lease => %s::interval, progress => %s::jsonb)",
            [*wire.held_arrays(leases), wire.interval(lease), wire.progress(progress)],
        )

    def ack(
        self, leases: Sequence[Held], results: Sequence[Any] | None = None, *, keep: bool = False
    ) -> list[Settled]:
        """End leases with success; `results`, one for each, are kept if the queue keeps done jobs.

        `keep` puts them into the history whatever their queue does. Answers in the order given.
        For an exception instead of the outcome `lost`, call `raise_if_lost()` on an answer.
        """
        return _settle(
            self._door,
            "ack",
            _ACK,
            [*wire.held_arrays(leases), wire.results(results), keep],
        )

    def nack(
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

        Without a delay the queue's backoff decides. `final`: dead now, whatever attempts are left.
        """
        error = [wire.text(error_kind), wire.text(message), wire.text(traceback)]
        return _settle(
            self._door,
            "nack",
            "select id, outcome, detail from holdfast.nack(ids => %s::uuid[], "
            "tokens => %s::uuid[], error_kind => %s::text, message => %s::text, "
            "traceback => %s::text, delay => %s::interval, final => %s)",
            [*wire.held_arrays(leases), *error, wire.interval(delay), final],
        )

    def release(self, leases: Sequence[Held], *, delay: Duration | None = None) -> list[Settled]:
        """Give leases back unused: the attempts do not count."""
        return _settle(
            self._door,
            "release",
            "select id, outcome, detail from holdfast.release("
            "ids => %s::uuid[], tokens => %s::uuid[], delay => %s::interval)",
            [*wire.held_arrays(leases), wire.interval(delay)],
        )

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """End leases in different ways at once, answered in their order.

        A settlement is an Ack, Nack, Release or Cancel.
        """
        return _settle(
            self._door,
            "settle",
            _SETTLE,
            [wire.settlements(settlements)],
        )

    @contextmanager
    def transaction(
        self, lease: Held, result: Any = None, *, keep: bool = False
    ) -> Iterator[Connection[Any]]:
        """Give a connection for the work of a lease: what it writes and the ack commit together.

        Raises LeaseLost, with everything rolled back, if the lease is not held any more. Whether
        a commit whose reply was lost took place is looked up: this ends well if it did, and
        raises Unavailable if it did not. Never commit or close the connection yourself.
        """
        try:
            with self._door.transaction("transaction", plain=True) as door:
                yield door.connection
                [settled] = self.on(door.connection).ack([lease], [result], keep=keep)
                settled.raise_if_lost()
        except UnknownOutcome as error:
            # A touch waits for whatever still commits, so that its answer is the truth.
            [touched] = self.touch([lease])
            if touched.held:
                raise Unavailable(
                    "the transaction of the lease was not committed", why=error.reason
                ) from error
            [acked] = self.ack([lease])
            if acked.outcome != "already":
                acked.raise_if_lost()

    def hand_over(self, lease: Held, *, timeout: Duration, holder: str = "outside") -> Ticket:
        """Pass a lease to somebody outside, who has `timeout` to answer with the ticket.

        They ack, nack or touch with it; without an answer the attempt fails. The caller's own token
        proves nothing from then on. Raises LeaseLost if the lease is not held any more.
        """
        id, token = wire.id_and_token(lease)
        new_token = uuid4()
        sql = (
            "select outcome, detail, lease_until from holdfast.hand_over(id => %s::uuid, "
            "token => %s::uuid, new_token => %s::uuid, timeout => %s::interval, "
            "holder => %s::text)"
        )
        parameters = [id, token, new_token, wire.interval(timeout), holder]
        [row] = self._door.run(Call("hand_over", sql, parameters))
        settled = Settled(id, *row).raise_if_lost()
        assert settled.lease_until is not None
        return Ticket(id, new_token, settled.lease_until)

    def guard(self, lease: Held) -> bool:
        """Whether the output of a job is still to be made; on a bound client, inside a transaction.

        Whoever else does the job waits until that transaction ends, and then sees the output. Only
        of an adopted table the output can be seen; of other jobs it is the lease alone that is
        looked at. Raises LeaseLost if the lease is not held any more.
        """
        id, token = wire.id_and_token(lease)
        sql = "select holdfast.guard(id => %s::uuid, token => %s::uuid)"
        [(open,)] = self._door.run(Call("guard", sql, [id, token]))
        if open is None:
            raise LeaseLost(id, f"job {id} is not held any more")
        return bool(open)

    def declare_kinds(self, kinds: Iterable[Mapping[str, Any]]) -> int:
        """Say what kinds there are: `{"kind": "invoice", "done_when": True}`, and more about each.

        `done_when`: somebody can tell whether the work of such a job is done, and is to be asked
        before one whose worker vanished is run again. Returns how many were new or changed.
        """
        sql = "select holdfast.declare_kinds(kinds => %s::jsonb)"
        document = wire.encoded(list(kinds), "kinds").decode()
        return _number(self._door, Call("declare_kinds", sql, [document]))

    def doubtful(self, kinds: Sequence[str] | None = None, *, limit: int = 100) -> list[Doubtful]:
        """Return jobs of these kinds whose worker vanished and whose work may be done."""
        sql = (
            f"select {wire.columns(Doubtful)} from holdfast.doubtful("
            "kinds => %s::text[], max_jobs => %s::int)"
        )
        parameters = [None if kinds is None else list(kinds), limit]
        return [Doubtful(*row) for row in self._door.run(Call("doubtful", sql, parameters))]

    def reconcile(self, found: Sequence[tuple[Held, bool]]) -> list[Settled]:
        """Say of doubtful jobs whether their work is done: they end as done, or are run again.

        `lost` is the answer for one whose worker came back in between.
        """
        return _settle(
            self._door,
            "reconcile",
            "select id, outcome, detail from holdfast.reconcile("
            "ids => %s::uuid[], tokens => %s::uuid[], done => %s::bool[])",
            [*wire.held_arrays([held for held, _ in found]), [done for _, done in found]],
        )

    def reap(self, limit: int = 1000) -> list[Reaped]:
        """Take jobs back from workers that let their leases expire."""
        sql = f"select {wire.columns(Reaped)} from holdfast.reap(max_jobs => %s::int)"
        return [Reaped(*row) for row in self._door.run(Call("reap", sql, [limit]))]

    def promote(self, limit: int = 1000) -> int:
        """Let due and unblocked jobs into the ready order; returns how many."""
        sql = "select holdfast.promote(max_jobs => %s::int)"
        return _number(self._door, Call("promote", sql, [limit]))

    def raise_floors(self, patience: Duration = 10.0) -> int:
        """Let claims start behind finished jobs; returns how many floors rose."""
        sql = "select holdfast.raise_floors(patience => %s::interval)"
        return _number(self._door, Call("raise_floors", sql, [wire.interval(patience)]))

    def fold(self) -> int:
        """Fold counter deltas into totals; returns how many."""
        return _number(self._door, Call("fold", "select holdfast.fold()"))

    def upkeep(self, steps: Sequence[str] | None = None) -> dict[str, Any]:
        """Do all housekeeping once, or some steps of it, and say what was done.

        For whoever runs no worker. A turn does a bounded amount: `more` says that another would
        find work at once.
        """
        named = None if steps is None else list(steps)
        call = Call("upkeep", "select holdfast.upkeep(steps => %s::text[])", [named], reads=True)
        [(done,)] = self._door.run(call)
        return wire.decoded_object(done)

    def upkeep_steps(self) -> list[str]:
        """Return the names of the steps of upkeep, in their order."""
        call = Call("upkeep_steps", "select name from holdfast.upkeep_steps() order by nth")
        return [name for (name,) in self._door.run(call)]

    def read_only(self) -> bool:
        """Whether the database takes no changes: a standby, or one that was set so."""
        sql = "select current_setting('transaction_read_only') = 'on'"
        [(answer,)] = self._door.run(Call("read_only", sql, reads=True))
        return bool(answer)

    def system(self) -> System:
        """Return the versions and sizes of the database, the largest tables first."""
        [about] = self._door.run(Call("system", _SYSTEM, reads=True))
        rows = self._door.run(Call("relations", _RELATIONS, reads=True))
        return System(*(*about, [Relation(*row) for row in rows]))

    def now(self) -> datetime:
        """Return the time of the database, by which everything is decided."""
        [(at,)] = self._door.run(Call("now", "select holdfast.now()", reads=True))
        assert isinstance(at, datetime)
        return at

    def beat(self, worker: str, *, measured: Mapping[str, Any] | None = None, **facts: Any) -> bool:
        """Say that a worker lives, and what there is to know of it; whether it should stop.

        Facts that are left out stay as they were: host, pid, version, python, started_at, queues,
        kinds, slots, busy, rss, loop_lag, claimed, acked, failed, lost, busy_time, claimed_at,
        acked_at, claims. `measured` is what it measured since the last time, and is not repeated.
        """
        sql = (
            "select stop from holdfast.beat("
            "worker => %s::text, facts => %s::jsonb, measured => %s::jsonb)"
        )
        told = None if measured is None else wire.settings(measured, "measured")
        parameters = [worker, wire.settings(facts, "facts"), told]
        call = Call("beat", sql, parameters, repeatable=measured is None)
        [(stop,)] = self._door.run(call)
        return bool(stop)

    def leave(self, worker: str) -> bool:
        """Take a worker off the list; whether it was on it. Its leases are as they were."""
        sql = "select holdfast.leave(worker => %s::text)"
        [(left,)] = self._door.run(Call("leave", sql, [worker]))
        return bool(left)

    def stop_worker(self, worker: str, *, actor: str | None = None) -> bool:
        """Ask a worker to finish what it runs and end; False if there is none of that name."""
        sql = "select holdfast.stop_worker(worker => %s::text, actor => %s::text)"
        [(found,)] = self._door.run(Call("stop_worker", sql, [worker, actor]))
        return bool(found)

    def workers(self) -> list[WorkerRow]:
        """Return the workers of the last day, those seen last first."""
        sql = (
            f"select {wire.columns(WorkerRow)} from holdfast.workers order by seen_at desc, worker"
        )
        return [WorkerRow(*row) for row in self._door.run(Call("workers", sql, reads=True))]

    def lead(self, holder: str, *, length: Duration = 5.0) -> bool:
        """Whether `holder` is the one that does upkeep, for `length` from now.

        A saving, never a safety: two that lead do nothing twice.
        """
        sql = "select holdfast.lead(holder => %s::text, length => %s::interval)"
        [(leads,)] = self._door.run(Call("lead", sql, [holder, wire.interval(length)]))
        return bool(leads)

    def tend(
        self,
        holder: str,
        *,
        length: Duration = 5.0,
        steps: Sequence[str] | None = None,
        failed: Mapping[str, str] | None = None,
    ) -> Tended:
        """Do all housekeeping once, or some steps, if `holder` leads; see `lead` and `upkeep`.

        `failed` puts on record, by step, what kept the caller from doing it.
        """
        sql = (
            "select leads, done, next_slot, doubtful, operating, detecting, delivering "
            "from holdfast.tend(holder => %s::text, length => %s::interval, "
            "steps => %s::text[], failed => %s::jsonb)"
        )
        named = None if steps is None else list(steps)
        said = None if failed is None else wire.settings(failed, "failed")
        # Idempotent: a turn that takes too long is cancelled, not left to run on beside the next.
        call = Call("tend", sql, [holder, wire.interval(length), named, said], reads=True)
        [(leads, done, *rest)] = self._door.run(call)
        return Tended(leads, done and wire.decoded_object(done), *rest)

    def await_work(
        self,
        queues: Sequence[str],
        *,
        worker: str,
        patience: Duration = _MINUTE,
        kinds: Sequence[str] | None = None,
        ear: int | None = None,
    ) -> None:
        """Ask to be notified, within `patience`, of the next job in one of these queues.

        A notification is only a hint: poll as well. `kinds` are those the worker knows, if not
        all. `ear` is what `holdfast.hear()` gave to the session that listens: without it the
        worker is believed to hear until its patience ends.
        """
        sql = (
            "select holdfast.await_work(queues => %s::text[], worker => %s::text, "
            "patience => %s::interval, kinds => %s::text[], ear => %s::integer)"
        )
        known = None if kinds is None else list(kinds)
        parameters = [list(queues), worker, wire.interval(patience), known, ear]
        self._door.run(Call("await_work", sql, parameters))

    def pass_on(self, queue: str) -> None:
        """Hand a notification that one cannot use now to another worker that waits."""
        self._door.run(Call("pass_on", "select holdfast.pass_on(queue => %s::text)", [queue]))

    def ping(self, worker: str) -> None:
        """Notify a worker, as if to look at its leases: for testing whether it hears."""
        sql = "select holdfast.ping(worker => %s::text)"
        self._door.run(Call("ping", sql, [worker]))

    def cancel(
        self, ids: Iterable[UUID], *, reason: str | None = None, actor: str | None = None
    ) -> list[Change]:
        """Cancel queued and leased jobs; a running handler is told."""
        return _change(
            self._door,
            "cancel",
            "holdfast.cancel(ids => %s::uuid[], reason => %s::text, actor => %s::text)",
            [wire.array(ids), reason, actor],
        )

    def retry(
        self,
        ids: Iterable[UUID],
        *,
        reason: str | None = None,
        actor: str | None = None,
        delay: Duration | None = None,
    ) -> list[Change]:
        """Queue dead, cancelled or done jobs again, with all their attempts."""
        return _change(
            self._door,
            "retry",
            "holdfast.retry(ids => %s::uuid[], reason => %s::text, actor => %s::text, "
            "delay => %s::interval)",
            [wire.array(ids), reason, actor, wire.interval(delay)],
        )

    def edit(
        self,
        ids: Iterable[UUID],
        *,
        reason: str | None = None,
        actor: str | None = None,
        **changes: Any,
    ) -> list[Change]:
        """Change waiting jobs: payload, priority, run_at, max_attempts, lease, headers."""
        return _change(
            self._door,
            "edit",
            "holdfast.edit(ids => %s::uuid[], changes => %s::jsonb, reason => %s::text, "
            "actor => %s::text)",
            [wire.array(ids), wire.settings(changes, "changes"), reason, actor],
        )

    def move(
        self,
        ids: Iterable[UUID],
        queue: str,
        *,
        reason: str | None = None,
        actor: str | None = None,
    ) -> list[Change]:
        """Move jobs to another queue; each answer has the `new_id` the job has there.

        Not repeated after a lost reply: the ids are no longer what they were.
        """
        sql = (
            "select id, changed, state, detail, new_id from holdfast.move("
            "ids => %s::uuid[], queue => %s::text, reason => %s::text, actor => %s::text)"
        )
        parameters = [wire.array(ids), queue, reason, actor]
        rows = self._door.run(Call("move", sql, parameters, repeatable=False))
        return [Change(*row) for row in rows]

    def archive(
        self, ids: Iterable[UUID], *, reason: str | None = None, actor: str | None = None
    ) -> list[Change]:
        """Put ended jobs away, where nobody counts or groups them."""
        return _change(
            self._door,
            "archive",
            "holdfast.archive(ids => %s::uuid[], reason => %s::text, actor => %s::text)",
            [wire.array(ids), reason, actor],
        )

    def purge(
        self, ids: Iterable[UUID], *, reason: str | None = None, actor: str | None = None
    ) -> list[Change]:
        """Delete jobs for good; a leased job is refused."""
        return _change(
            self._door,
            "purge",
            "holdfast.purge(ids => %s::uuid[], reason => %s::text, actor => %s::text)",
            [wire.array(ids), reason, actor],
        )

    def find(
        self, filter: str = "", *, limit: int = 1000, before: UUID | None = None
    ) -> list[UUID]:
        """Return the ids of jobs that match a filter, newest first.

        `before` continues a search behind the last id of the one before.
        """
        sql = (
            "select unnest(holdfast.find("
            "filter => %s::text, max_jobs => %s::int, before => %s::uuid))"
        )
        rows = self._door.run(Call("find", sql, [filter, limit, before], reads=True))
        return [id for (id,) in rows]

    def search(
        self,
        filter: str = "",
        *,
        limit: int = 50,
        before: UUID | None = None,
        patience: Duration = 0.05,
    ) -> Found:
        """Return a page of jobs that match a filter, newest first, looked for not much longer.

        Where `searched_to` of the answer is an id, a search `before` it goes on.
        """
        sql = (
            f"select {_JOB}, searched_to, searched "
            "from (select (s.job).*, s.searched_to, s.searched "
            "from holdfast.search(filter => %s::text, max_jobs => %s::int, before => %s::uuid, "
            "patience => %s::interval) s) j"
        )
        parameters = [filter, limit, before, wire.interval(patience)]
        rows = self._door.run(Call("search", sql, parameters, reads=True))
        jobs = [Job(*row[:-2]) for row in rows if row[0] is not None]
        return Found(jobs, *(rows[0][-2:] if rows else (None, 0)))

    def count(self, filter: str = "", *, most: int = 10_000, patience: Duration = 0.05) -> Count:
        """Count the jobs that match a filter, up to `most` and not for much longer."""
        sql = (
            "select jobs, capped from holdfast.count_jobs("
            "filter => %s::text, most => %s::int, patience => %s::interval)"
        )
        call = Call("count", sql, [filter, most, wire.interval(patience)], reads=True)
        [row] = self._door.run(call)
        return Count(*row)

    def get(self, id: UUID) -> Job | None:
        """Return everything known of a job; None if there is none, or it was deleted when done."""
        sql = f"select {_JOB} from holdfast.get(id => %s::uuid)"
        rows = self._door.run(Call("get", sql, [id], reads=True))
        return Job(*rows[0]) if rows else None

    def attempts(self, id: UUID) -> list[Attempt]:
        """Return a job's failed attempts, the first one first."""
        sql = (
            f"select {wire.columns(Attempt)} from holdfast.attempts(id => %s::uuid) "
            "order by ended_at, attempt"
        )
        rows = self._door.run(Call("attempts", sql, [id], reads=True))
        return [Attempt(*row) for row in rows]

    def explain(self, id: UUID) -> str:
        """Say in one sentence why a job is not running."""
        sql = "select holdfast.explain(id => %s::uuid)"
        [(sentence,)] = self._door.run(Call("explain", sql, [id], reads=True))
        return str(sentence)

    def explain_queue(self, queue: str) -> str:
        """Say in one sentence how a queue does, and what keeps it back."""
        sql = "select holdfast.explain_queue(queue => %s::text)"
        [(sentence,)] = self._door.run(Call("explain_queue", sql, [queue], reads=True))
        return str(sentence)

    def explain_lane(self, queue: str, lane: str) -> str:
        """Say in one sentence who holds a lane, and what is next in it."""
        sql = "select holdfast.explain_lane(queue => %s::text, lane => %s::text)"
        [(sentence,)] = self._door.run(Call("explain_lane", sql, [queue, lane], reads=True))
        return str(sentence)

    def queues(self) -> list[Queue]:
        """Return every queue with its settings and what waits in it, by name."""
        sql = f"select {_QUEUE} from holdfast.queues order by queue"
        return [Queue(*row) for row in self._door.run(Call("queues", sql, reads=True))]

    def queue(self, name: str) -> Queue | None:
        """Return one queue; None if nobody has used it or set it up."""
        sql = f"select {_QUEUE} from holdfast.queues where queue = %s::text"
        rows = self._door.run(Call("queue", sql, [name], reads=True))
        return Queue(*rows[0]) if rows else None

    def queue_set(self, queue: str, *, actor: str | None = None, **settings: Any) -> Queue:
        """Change settings of a queue, as in `limit=10, keep_done=timedelta(days=7)`."""
        sql = (
            f"select {_QUEUE} from holdfast.queue_set("
            "queue => %s::text, settings => %s::jsonb, actor => %s::text)"
        )
        parameters = [queue, wire.settings(settings, "settings"), actor]
        [row] = self._door.run(Call("queue_set", sql, parameters))
        return Queue(*row)

    def sort_some(self, queue: str, *, after: UUID | None = None, limit: int = 2000) -> UUID | None:
        """Prepare a queue for `by_kind`, some of its jobs at a time, behind those up to `after`.

        Returns where to go on, or None at the end; `queue_set` has little left to do then.
        """
        sql = "select holdfast.sort_some(queue => %s::text, after => %s::uuid, max_jobs => %s::int)"
        [(last,)] = self._door.run(Call("sort_some", sql, [queue, after, limit]))
        return None if last is None else UUID(str(last))

    def lane_set(self, queue: str, lane: str, *, actor: str | None = None, **settings: Any) -> None:
        """Change settings of one lane: limit, on_failure, rate_limit, rate_period."""
        sql = (
            "select holdfast.lane_set(queue => %s::text, lane => %s::text, "
            "settings => %s::jsonb, actor => %s::text)"
        )
        parameters = [queue, lane, wire.settings(settings, "settings"), actor]
        self._door.run(Call("lane_set", sql, parameters))

    def pause(
        self,
        queue: str,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> Queue:
        """Hand out nothing more of a queue, for good or `until` then. Leases go on."""
        sql = (
            f"select {_QUEUE} from holdfast.pause(queue => %s::text, reason => %s::text, "
            "until => %s::timestamptz, actor => %s::text)"
        )
        end = until and wire.moment(until, "until")
        [row] = self._door.run(Call("pause", sql, [queue, reason, end, actor]))
        return Queue(*row)

    def resume(self, queue: str, *, actor: str | None = None) -> Queue:
        """Hand out jobs of a paused queue again."""
        sql = f"select {_QUEUE} from holdfast.resume(queue => %s::text, actor => %s::text)"
        [row] = self._door.run(Call("resume", sql, [queue, actor]))
        return Queue(*row)

    def schedules(self) -> list[Schedule]:
        """Return every schedule, by name."""
        sql = f"select {_SCHEDULE} from holdfast.schedules order by name"
        return [Schedule(*row) for row in self._door.run(Call("schedules", sql, reads=True))]

    def schedule(self, name: str) -> Schedule | None:
        """Return one schedule; None if there is none of that name."""
        sql = f"select {_SCHEDULE} from holdfast.schedules where name = %s::text"
        rows = self._door.run(Call("schedule", sql, [name], reads=True))
        return Schedule(*rows[0]) if rows else None

    def schedule_slots(self, name: str, *, limit: int = 100) -> list[Slot]:
        """Return what became of a schedule's last slots, the newest first; a thousand are kept."""
        sql = (
            f"select {_SLOT} from holdfast.schedule_slots where name = %s::text "
            "order by slot desc limit %s::int"
        )
        rows = self._door.run(Call("schedule_slots", sql, [name, limit], reads=True))
        return [Slot(*row) for row in rows]

    def schedule_declare(
        self, schedules: Iterable[NewSchedule], *, owner: str | None = None
    ) -> list[Declared]:
        """Store schedules as code has them; one answer for each, in their order.

        What a person edited stays as edited until the declaration itself changes. With an `owner`,
        what it declared before and does no more is withdrawn: it fires no more.
        """
        sql = (
            "select name, outcome from holdfast.schedule_declare("
            "items => %s::jsonb, owner => %s::text) order by ord"
        )
        call = Call("schedule_declare", sql, [wire.schedules(schedules), owner])
        return [Declared(*row) for row in self._door.run(call)]

    def schedule_set(self, name: str, *, actor: str | None = None, **settings: Any) -> Schedule:
        """Make or change a schedule: kind, cron or every, tz, missed, overlap, queue, payload …

        The settings are the fields of NewSchedule. A changed rule counts from now.
        """
        sql = (
            f"select {_SCHEDULE} from holdfast.schedule_set("
            "name => %s::text, settings => %s::jsonb, actor => %s::text)"
        )
        parameters = [name, wire.schedule_settings(name, settings), actor]
        [row] = self._door.run(Call("schedule_set", sql, parameters))
        return Schedule(*row)

    def schedule_due(self, limit: int = 100) -> list[DueSchedule]:
        """Return schedules with a slot that has come, by the clock of the database."""
        columns = wire.columns(DueSchedule)
        sql = f"select {columns} from holdfast.schedule_due(max_schedules => %s::int)"
        rows = self._door.run(Call("schedule_due", sql, [limit], reads=True))
        return [DueSchedule(*row) for row in rows]

    def schedule_fire(
        self,
        due: DueSchedule,
        slots: Iterable[datetime],
        next_at: datetime | None,
        *,
        problem: str | None = None,
    ) -> list[Slot]:
        """Make one job for each slot and move the schedule on to `next_at`; None: for good.

        Nothing happens, and nothing is answered, if the schedule no longer stands where `due` saw
        it: fired by somebody else, edited, paused. Safe to repeat.
        """
        sql = (
            f"select {_SLOT} from holdfast.schedule_fire(name => %s::text, "
            "expected_next => %s::timestamptz, slots => %s::timestamptz[], "
            "next_at => %s::timestamptz, revision => %s::bigint, problem => %s::text)"
        )
        parameters = [due.name, due.next_at, [*slots], next_at, due.revision, problem]
        rows = self._door.run(Call("schedule_fire", sql, parameters))
        return [Slot(*row) for row in rows]

    def schedule_fault(self, due: DueSchedule, problem: str) -> None:
        """Say with a schedule why its slots cannot be computed; it stays due."""
        sql = (
            "select holdfast.schedule_fault("
            "name => %s::text, revision => %s::bigint, problem => %s::text)"
        )
        self._door.run(Call("schedule_fault", sql, [due.name, due.revision, problem]))

    def schedule_run(self, name: str, *, actor: str | None = None) -> Slot:
        """Enqueue one job of a schedule now, whether or not it is paused.

        Not repeated after a lost reply: it could run twice.
        """
        sql = f"select {_SLOT} from holdfast.schedule_run(name => %s::text, actor => %s::text)"
        call = Call("schedule_run", sql, [name, actor], repeatable=False)
        [row] = self._door.run(call)
        return Slot(*row)

    def schedule_pause(
        self, name: str, *, reason: str | None = None, actor: str | None = None
    ) -> Schedule:
        """Fire no more slots of a schedule until it is resumed."""
        sql = (
            f"select {_SCHEDULE} from holdfast.schedule_pause("
            "name => %s::text, reason => %s::text, actor => %s::text)"
        )
        [row] = self._door.run(Call("schedule_pause", sql, [name, reason, actor]))
        return Schedule(*row)

    def schedule_resume(self, name: str, *, actor: str | None = None) -> Schedule:
        """Fire again from the next slot on; what came in the pause is not made up for."""
        sql = (
            f"select {_SCHEDULE} from holdfast.schedule_resume(name => %s::text, actor => %s::text)"
        )
        [row] = self._door.run(Call("schedule_resume", sql, [name, actor]))
        return Schedule(*row)

    def schedule_delete(self, name: str, *, actor: str | None = None) -> bool:
        """Delete a schedule; its jobs stay. False if there was none of that name."""
        sql = "select holdfast.schedule_delete(name => %s::text, actor => %s::text)"
        [(found,)] = self._door.run(Call("schedule_delete", sql, [name, actor]))
        return bool(found)

    def kinds(self) -> list[Kind]:
        """Return what workers declared of their kinds, by name."""
        sql = f"select {wire.columns(Kind)} from holdfast.kinds order by kind"
        return [Kind(*row) for row in self._door.run(Call("kinds", sql, reads=True))]

    def lanes(self, *, limit: int = 500) -> list[Lane]:
        """Return lanes that are in use or set up, the longest waiting first."""
        sql = (
            f"select {wire.columns(Lane)} from holdfast.lanes "
            "order by oldest desc nulls last, queue, lane limit %s::int"
        )
        rows = self._door.run(Call("lanes", sql, [limit], reads=True))
        return [Lane(*row) for row in rows]

    def lane_release(self, queue: str, lane: str, *, actor: str | None = None) -> LaneReleased:
        """Let a lane go on that is halted, or whose holder was not seen for a minute."""
        sql = (
            "select outcome, job, worker from holdfast.lane_release("
            "queue => %s::text, lane => %s::text, actor => %s::text)"
        )
        [row] = self._door.run(Call("lane_release", sql, [queue, lane, actor]))
        return LaneReleased(*row)

    def tell(
        self,
        worker: str,
        facts: Mapping[str, Any],
        counts: Mapping[str, float],
        measured: Mapping[str, Any] | None = None,
    ) -> bool:
        """Say for a worker that it lives, and what it did since; whether it should stop.

        Facts and what it measured are those of `beat`; counts (claimed, acked, failed, lost,
        busy_time) add up over all who tell.
        """
        sql = (
            "select stop from holdfast.tell(worker => %s::text, facts => %s::jsonb, "
            "counts => %s::jsonb, measured => %s::jsonb)"
        )
        said = [wire.settings(facts, "facts"), wire.settings(counts, "counts")]
        parameters = [
            worker,
            *said,
            None if measured is None else wire.settings(measured, "measured"),
        ]
        [(stop,)] = self._door.run(Call("tell", sql, parameters, repeatable=False))
        return bool(stop)

    def receipt(self, id: UUID) -> Receipt | None:
        """Return what is still known of a job that was done and deleted within minutes."""
        sql = f"select {wire.columns(Receipt)} from holdfast.receipt(id => %s::uuid)"
        rows = self._door.run(Call("receipt", sql, [id], reads=True))
        return Receipt(*rows[0]) if rows else None

    def once(
        self, key: str, work: Callable[[Self], str], *, caller: str, digest: str
    ) -> tuple[str | None, bool]:
        """Do work in a transaction, unless the caller had it done under this key before.

        `work` gets a client bound to the transaction, and returns the answer, which is kept for a
        day. Returns the answer, this one or that of then, and whether it was kept. None: the key
        was used with another `digest`, which says what was asked. A repeat that comes meanwhile
        waits.
        """
        with self._door.transaction("once") as door:
            sql = (
                "select known, same, answer from holdfast.once("
                "caller => %s::text, key => %s::text, digest => %s::text)"
            )
            [(known, same, kept)] = door.run(Call("once", sql, [caller, key, digest]))
            if known:
                return (kept if same else None), True
            answer = work(self.on(door.connection))
            sql = (
                "select holdfast.answered(caller => %s::text, key => %s::text, answer => %s::text)"
            )
            door.run(Call("answered", sql, [caller, key, answer]))
            return answer, False

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Keep a refusal inside from spoiling the transaction of a bound client: by a savepoint."""
        if isinstance(self._door, Bound):
            with self._door.connection.transaction():
                yield
        else:
            yield

    def tokens(self) -> list[ApiToken]:
        """Return the tokens that were made for programs, the newest first."""
        sql = (
            f"select {_TOKEN} from holdfast.api_tokens where sort = 'token' "
            "order by created_at desc, id"
        )
        return [ApiToken(*row) for row in self._door.run(Call("tokens", sql, reads=True))]

    def token_create(
        self,
        name: str,
        scopes: Sequence[Scope],
        *,
        queues: Sequence[str] | None = None,
        expires: Duration | None = None,
        sort: str = "token",
        parent: str | None = None,
        actor: str | None = None,
    ) -> NewToken:
        """Make a secret by which a program may call the server; it is told this once.

        `sort` is token, session (of a browser) or link (it signs in once); `parent` is the id of
        the token it was got by, and ends with it.
        """
        id, secret, hash = secrets.make()
        sql = (
            f"select {_TOKEN} from holdfast.token_create(id => %s::text, hash => %s::bytea, "
            "name => %s::text, scopes => %s::text[], queues => %s::text[], "
            "expires => %s::interval, sort => %s::text, parent => %s::text, actor => %s::text)"
        )
        limits = [None if queues is None else [*queues], wire.interval(expires)]
        parameters = [id, hash, name, [*scopes], *limits, sort, parent, actor]
        [row] = self._door.run(Call("token_create", sql, parameters, repeatable=False))
        return NewToken(ApiToken(*row), secret)

    def token_check(self, secret: str) -> Caller | None:
        """Return whom a secret stands for; None if it is wrong, revoked or expired."""
        id = secrets.id_in(secret)
        if id is None:
            return None
        sql = (
            "select name, scopes, queues, sort, expires_at, hash "
            "from holdfast.token_find(id => %s::text)"
        )
        rows = self._door.run(Call("token_check", sql, [id]))
        if not rows or not secrets.fits(secret, rows[0][-1]):
            return None
        return Caller(id, *rows[0][:-1])

    def link_spend(self, secret: str) -> Caller | None:
        """Use the secret of a sign-in link; None if it was used before, has expired or is none."""
        id = secrets.id_in(secret)
        if id is None:
            return None
        sql = (
            "select name, scopes, queues from holdfast.link_spend("
            "id => %s::text, hash => %s::bytea)"
        )
        call = Call("link_spend", sql, [id, secrets.digest(secret)], repeatable=False)
        for name, scopes, queues in self._door.run(call):
            return Caller(id, name, scopes, queues, "link")
        return None

    def token_revoke(self, id: str, *, actor: str | None = None) -> bool:
        """Let a token in no more; False if there is none of that id."""
        sql = "select holdfast.token_revoke(id => %s::text, actor => %s::text)"
        [(found,)] = self._door.run(Call("token_revoke", sql, [id, actor]))
        return bool(found)

    def operation_preview(
        self,
        verb: str,
        filter: str,
        *,
        most: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        **arguments: Any,
    ) -> Preview:
        """Count the jobs that a verb would be done to: retry, cancel, archive, purge or move.

        `most`: only so many, the newest. Arguments are `delay` for retry and `queue` for move.
        """
        sql = (
            f"select {wire.columns(Preview)} from holdfast.operation_preview(verb => %s::text, "
            "filter => %s::text, arguments => %s::jsonb, most => %s::bigint, "
            "reason => %s::text, actor => %s::text)"
        )
        given = {name: value for name, value in arguments.items() if value is not None}
        parameters = [verb, filter, wire.settings(given, "arguments"), most, reason, actor]
        [row] = self._door.run(Call("operation_preview", sql, parameters))
        return Preview(*row)

    def operation_start(
        self, token: UUID, *, rate: float | None = None, actor: str | None = None
    ) -> Operation | None:
        """Start what was previewed, at most `rate` jobs per second; None if there is no preview.

        It is done by whoever runs upkeep or a server. Starting it again changes nothing.
        """
        sql = (
            f"select {_OPERATION} from holdfast.operation_start("
            "token => %s::uuid, rate => %s::float8, actor => %s::text)"
        )
        rows = self._door.run(Call("operation_start", sql, [token, rate, actor]))
        return Operation(*rows[0]) if rows else None

    def operation_cancel(self, id: int, *, actor: str | None = None) -> Operation | None:
        """Stop an operation behind its last chunk; None if there is none of that id."""
        sql = (
            f"select {_OPERATION} from holdfast.operation_cancel("
            "id => %s::bigint, actor => %s::text)"
        )
        rows = self._door.run(Call("operation_cancel", sql, [id, actor]))
        return Operation(*rows[0]) if rows else None

    def operation_undo(
        self,
        id: int,
        *,
        rate: float | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Operation | None:
        """Start to undo an operation that has ended; None if there is none of that id.

        Jobs that are no longer as it left them stay as they are. Asking again answers the undo
        that runs. Purged jobs are gone for good.
        """
        sql = (
            f"select {_OPERATION} from holdfast.operation_undo(id => %s::bigint, "
            "rate => %s::float8, reason => %s::text, actor => %s::text)"
        )
        rows = self._door.run(Call("operation_undo", sql, [id, rate, reason, actor]))
        return Operation(*rows[0]) if rows else None

    def operation_step(self, limit: int = 500) -> Operation | None:
        """Do the next chunk of an operation that is due; None if there is none."""
        sql = f"select {_OPERATION} from holdfast.operation_step(max_jobs => %s::int)"
        rows = self._door.run(Call("operation_step", sql, [limit]))
        return Operation(*rows[0]) if rows else None

    def operations(self, *, limit: int = 100) -> list[Operation]:
        """Return operations that were started, the newest first."""
        sql = (
            f"select {_OPERATION} from holdfast.operations where started_at is not null "
            "order by id desc limit %s::int"
        )
        rows = self._door.run(Call("operations", sql, [limit], reads=True))
        return [Operation(*row) for row in rows]

    def operation(self, id: int) -> Operation | None:
        """Return one operation; None if there is none of that id."""
        sql = f"select {_OPERATION} from holdfast.operations where id = %s::bigint"
        rows = self._door.run(Call("operation", sql, [id], reads=True))
        return Operation(*rows[0]) if rows else None

    def activity(
        self,
        *,
        queues: Sequence[str] | None = None,
        kind: str | None = None,
        event: str | None = None,
        actor: str | None = None,
        worker: str | None = None,
        job: UUID | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 100,
        patience: Duration = 0.1,
    ) -> Activity:
        """Return what happened, newest first; `after` a place in the log, the oldest first.

        Looked for not much longer than `patience`: where `searched_to` of the answer is a place,
        a look `before` it, or `after` it, goes on.
        """
        sql = (
            f"select {wire.columns(Event)}, searched_to from (select (a.entry).*, a.searched_to "
            "from holdfast.activity(queues => %s::text[], kind => %s::text, event => %s::text, "
            "actor => %s::text, worker => %s::text, job => %s::uuid, since => %s::timestamptz, "
            "until => %s::timestamptz, before => %s::bigint, after => %s::bigint, "
            "max_events => %s::int, patience => %s::interval) a) e"
        )
        names = None if queues is None else [*queues]
        span = [since and wire.moment(since, "since"), until and wire.moment(until, "until")]
        place = [before, after, limit, wire.interval(patience)]
        parameters = [names, kind, event, actor, worker, job, *span, *place]
        rows = self._door.run(Call("activity", sql, parameters, reads=True))
        events = [Event(*row[:-1]) for row in rows if row[0] is not None]
        return Activity(events, rows[0][-1] if rows else None)

    def watch(
        self, queues: Sequence[str] | None = None, *, lasts: Duration = 30.0
    ) -> list[Watched]:
        """Have every event of these queues noted for so long; None is every queue.

        Said again before the time is up, nothing is left out in between.
        """
        sql = (
            "select queue, since, place, until "
            "from holdfast.watch(queues => %s::text[], lasts => %s::interval)"
        )
        names = None if queues is None else [*queues]
        rows = self._door.run(Call("watch", sql, [names, wire.interval(lasts)]))
        return [Watched(*row) for row in rows]

    def tail(
        self, after: int, *, missing: Sequence[tuple[int, int]] | None = None, limit: int = 1000
    ) -> list[Event]:
        """Return events behind a place in the log, and at places that were `missing`, in order.

        A place is missing while its transaction is open, and for ever if that was rolled back.
        """
        sql = (
            f"select {wire.columns(Event)} from holdfast.tail(after => %s::bigint, "
            "missing_from => %s::bigint[], missing_to => %s::bigint[], max_events => %s::int)"
        )
        first, last = [one for one, _ in missing or ()], [one for _, one in missing or ()]
        rows = self._door.run(Call("tail", sql, [after, first, last, limit], reads=True))
        return [Event(*row) for row in rows]

    def log_state(self) -> LogState:
        """Return where the activity log begins and ends, and who is writing to it."""
        sql = "select first, last, writers from holdfast.log_state()"
        [row] = self._door.run(Call("log_state", sql, [], reads=True))
        return LogState(*row)

    def series(
        self,
        metric: str,
        *,
        queues: Sequence[str] | None = None,
        kind: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: Duration = 60.0,
    ) -> list[tuple[datetime, float | None]]:
        """Return a metric over time, a value per `step`; where nobody looked there is none.

        Metrics are enqueued, done and failed, per second; queued, leased and dead; oldest, and
        p50, p95 and p99 of pickup and run, as in `run_p95`, in seconds.
        """
        sql = (
            "select at, value from holdfast.series(metric => %s::text, queues => %s::text[], "
            "kind => %s::text, since => %s::timestamptz, until => %s::timestamptz, "
            "step => %s::interval)"
        )
        names = None if queues is None else [*queues]
        span = [since and wire.moment(since, "since"), until and wire.moment(until, "until")]
        parameters = [metric, names, kind, *span, wire.interval(step)]
        rows = self._door.run(Call("series", sql, parameters, reads=True))
        return [(at, value) for at, value in rows]

    def strikes(self, *, all: bool = False) -> list[Strike]:
        """Return the strikes that are in force, the newest first; `all`: also those that are over.

        What is over is forgotten after 90 days.
        """
        sql = (
            f"select {_STRIKE} from holdfast.strikes where in_force or %s::boolean "
            "order by number desc"
        )
        return [Strike(*row) for row in self._door.run(Call("strikes", sql, [all], reads=True))]

    def strike_add(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        payload: Mapping[str, Any] | None = None,
        mode: str = "hold",
        reason: str | None = None,
        expires: Duration | None = None,
        actor: str | None = None,
    ) -> Strike:
        """Let no job run that is of this queue and kind and whose payload contains this one.

        Whoever claims after this has returned gets none of them. What runs goes on.
        """
        sql = (
            f"select {_STRIKE} from holdfast.strike_add(mode => %s::text, queue => %s::text, "
            "kind => %s::text, payload => %s::jsonb, reason => %s::text, expires => %s::interval, "
            "actor => %s::text)"
        )
        wanted = None if payload is None else wire.encoded(payload, "payload").decode()
        parameters = [mode, queue, kind, wanted, reason, wire.interval(expires), actor]
        [row] = self._door.run(Call("strike_add", sql, parameters, repeatable=False))
        return Strike(*row)

    def strike_lift(
        self, number: int, *, reason: str | None = None, actor: str | None = None
    ) -> Strike | None:
        """Let the jobs of a strike run again; None if there is none of that number."""
        sql = (
            f"select {_STRIKE} from holdfast.strike_lift("
            "number => %s::bigint, reason => %s::text, actor => %s::text)"
        )
        rows = self._door.run(Call("strike_lift", sql, [number, reason, actor]))
        return Strike(*rows[0]) if rows else None

    def detect(self, codes: Sequence[str] | None = None) -> list[AnomalyChange]:
        """Run the detectors that are due, or those named; returns what changed."""
        columns = wire.columns(AnomalyChange)
        sql = f"select {columns} from holdfast.detect(codes => %s::text[])"
        rows = self._door.run(Call("detect", sql, [None if codes is None else [*codes]]))
        return [AnomalyChange(*row) for row in rows]

    def detector_due(self, code: str, *, every: Duration = 60.0) -> bool:
        """Whether a detector of one's own should look now: one caller in each span is told so."""
        sql = "select holdfast.detector_due(code => %s::text, every => %s::interval)"
        [(due,)] = self._door.run(Call("detector_due", sql, [code, wire.interval(every)]))
        return bool(due)

    def report(self, code: str, findings: Iterable[Finding]) -> list[AnomalyChange]:
        """Say all that a detector of one's own finds now; what it finds no more is over."""
        sql = (
            "select id, %s::text, change, severity, queue, subject, title, muted "
            "from holdfast.report(code => %s::text, findings => %s::jsonb)"
        )
        parameters = [code, code, wire.findings(findings)]
        rows = self._door.run(Call("report", sql, parameters))
        return [AnomalyChange(*row) for row in rows]

    def anomalies(self, *, over: bool = False, limit: int = 500) -> list[Anomaly]:
        """Return what looks wrong, the worst and newest first; `over`: what did within a week."""
        sql = (
            f"select {_ANOMALY} from holdfast.anomalies where (resolved_at is not null) = %s "
            "order by muted, array_position(array['critical', 'warning', 'info'], severity), "
            "raised_at desc, id limit %s::int"
        )
        rows = self._door.run(Call("anomalies", sql, [over, limit], reads=True))
        return [Anomaly(*row) for row in rows]

    def anomaly(self, id: str) -> Anomaly | None:
        """Return one anomaly; None if there is none of that id."""
        sql = f"select {_ANOMALY} from holdfast.anomalies where id = %s::text"
        rows = self._door.run(Call("anomaly", sql, [id], reads=True))
        return Anomaly(*rows[0]) if rows else None

    def anomaly_ack(
        self, id: str, *, note: str | None = None, actor: str | None = None
    ) -> Anomaly | None:
        """Say that somebody knows and cares; None if there is none of that id."""
        sql = (
            f"select {_ANOMALY} from holdfast.anomaly_ack("
            "id => %s::text, note => %s::text, actor => %s::text)"
        )
        rows = self._door.run(Call("anomaly_ack", sql, [id, note, actor]))
        return Anomaly(*rows[0]) if rows else None

    def anomaly_mute(
        self,
        code: str,
        *,
        until: datetime | None = None,
        queue: str | None = None,
        subject: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Tell nobody of what a detector finds, in all queues or one, for good or `until` then."""
        sql = (
            "select holdfast.anomaly_mute(code => %s::text, until => %s::timestamptz, "
            "queue => %s::text, subject => %s::text, reason => %s::text, actor => %s::text)"
        )
        end = until and wire.moment(until, "until")
        parameters = [code, end, queue, subject, reason, actor]
        self._door.run(Call("anomaly_mute", sql, parameters))

    def anomaly_unmute(
        self,
        code: str,
        *,
        queue: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Tell again of what was muted; False if it was not."""
        sql = (
            "select holdfast.anomaly_unmute(code => %s::text, queue => %s::text, "
            "subject => %s::text, actor => %s::text)"
        )
        parameters = [code, queue, subject, actor]
        [(found,)] = self._door.run(Call("anomaly_unmute", sql, parameters))
        return bool(found)

    def mutes(self) -> list[Mute]:
        """Return what nobody is told of."""
        sql = f"select {wire.columns(Mute)} from holdfast.mutes order by code, queue, subject"
        return [Mute(*row) for row in self._door.run(Call("mutes", sql, reads=True))]

    def detectors(self) -> list[Detector]:
        """Return every detector, by its code."""
        sql = f"select {wire.columns(Detector)} from holdfast.detectors order by code"
        return [Detector(*row) for row in self._door.run(Call("detectors", sql, reads=True))]

    def detector_set(
        self, code: str, *, queue: str | None = None, actor: str | None = None, **settings: Any
    ) -> Detector:
        """Change how closely a detector looks, at all queues or one: `enabled`, thresholds.

        Thresholds are numbers; None goes back to what is usual.
        """
        sql = (
            f"select {wire.columns(Detector)} from holdfast.detector_set(code => %s::text, "
            "settings => %s::jsonb, queue => %s::text, actor => %s::text)"
        )
        parameters = [code, wire.settings(settings, "settings"), queue, actor]
        [row] = self._door.run(Call("detector_set", sql, parameters))
        return Detector(*row)

    def webhooks(self) -> list[Webhook]:
        """Return who is told of anomalies by HTTP, by name; without the secrets."""
        sql = f"select {_WEBHOOK} from holdfast.webhooks order by name"
        return [Webhook(*row) for row in self._door.run(Call("webhooks", sql, reads=True))]

    def webhook_set(self, name: str, *, actor: str | None = None, **settings: Any) -> Webhook:
        """Make or change a webhook: url, secret, severity, codes, queues."""
        sql = (
            f"select {_WEBHOOK} from holdfast.webhook_set("
            "name => %s::text, settings => %s::jsonb, actor => %s::text)"
        )
        parameters = [name, wire.settings(settings, "settings"), actor]
        [row] = self._door.run(Call("webhook_set", sql, parameters))
        return Webhook(*row)

    def webhook_delete(self, name: str, *, actor: str | None = None) -> bool:
        """Tell a webhook nothing more; False if there was none of that name."""
        sql = "select holdfast.webhook_delete(name => %s::text, actor => %s::text)"
        [(found,)] = self._door.run(Call("webhook_delete", sql, [name, actor]))
        return bool(found)

    def webhook_target(self, name: str) -> tuple[str, str] | None:
        """Return where a webhook is and its secret, for whoever delivers; None if it is gone."""
        sql = "select url, secret from holdfast.webhook_target(name => %s::text)"
        for url, secret in self._door.run(Call("webhook_target", sql, [name], reads=True)):
            return url, secret
        return None

    def forecast(
        self,
        queue: str | None = None,
        *,
        target: Duration | None = None,
        span: Duration = 300.0,
    ) -> list[Forecast]:
        """Say for each queue, or one, when it will have drained at the pace of the last `span`.

        With a `target`, how many slots would have to be at work to have it drained within that.
        """
        sql = (
            f"select {wire.columns(Forecast)} from holdfast.forecast(only_queue => %s::text, "
            "target => %s::interval, span => %s::interval)"
        )
        parameters = [queue, wire.interval(target), wire.interval(span)]
        rows = self._door.run(Call("forecast", sql, parameters, reads=True))
        return [Forecast(*row) for row in rows]

    def success(self, queue: str | None = None, *, span: Duration = 3600.0) -> list[Success]:
        """Return which share of attempts ended well in the last `span`, by queue and kind.

        A row without a kind covers the whole queue. Queues without a finished attempt are left out.
        """
        sql = (
            f"select {wire.columns(Success)} from holdfast.success("
            "only_queue => %s::text, span => %s::interval)"
        )
        call = Call("success", sql, [queue, wire.interval(span)], reads=True)
        return [Success(*row) for row in self._door.run(call)]

    def doctor(self) -> list[Checkup]:
        """Return what the database says of its own health."""
        sql = f"select {wire.columns(Checkup)} from holdfast.doctor()"
        return [Checkup(*row) for row in self._door.run(Call("doctor", sql))]

    def depth(self) -> list[Depth]:
        """Return how many jobs there are by queue, kind and state, from kept counters."""
        sql = f"select {wire.columns(Depth)} from holdfast.depth order by queue, kind, state"
        return [Depth(*row) for row in self._door.run(Call("depth", sql, reads=True))]

    def dead_oldest(self) -> dict[str, timedelta]:
        """Return how long ago the first of the dead jobs died, for each queue that has some."""
        sql: LiteralString = "select queue, oldest from holdfast.dead_ages"
        return dict(self._door.run(Call("dead_oldest", sql, reads=True)))

    def dead_groups(self) -> list[DeadGroup]:
        """Return dead jobs grouped by how they failed, the largest group first."""
        sql = (
            f"select {wire.columns(DeadGroup)} from holdfast.dead_groups "
            "order by jobs desc, last_at desc"
        )
        rows = self._door.run(Call("dead_groups", sql, reads=True))
        return [DeadGroup(*row) for row in rows]

    def died(
        self,
        filter: str = "",
        *,
        limit: int = 100,
        before: Job | tuple[datetime, UUID] | None = None,
    ) -> Sequence[Job]:
        """Return dead jobs that match a filter, those that failed last first.

        `before` is the last job of the page before, or when it ended and its id.
        """
        sql = (
            f"select {_JOB} from holdfast.died(filter => %s::text, max_jobs => %s::int, "
            "before => %s::timestamptz, before_id => %s::uuid)"
        )
        if isinstance(before, Job):
            behind: Sequence[Any] = [before.ended_at, before.id]
        else:
            behind = before or [None, None]
        rows = self._door.run(Call("died", sql, [filter, limit, *behind], reads=True))
        return [Job(*row) for row in rows]

    def upcoming(self, queue: str = "default", *, limit: int = 100) -> Sequence[Job]:
        """Return what waits in a queue, in the order in which it will run."""
        sql = f"select {_JOB} from holdfast.upcoming(queue => %s::text, max_jobs => %s::int)"
        rows = self._door.run(Call("upcoming", sql, [queue, limit], reads=True))
        return [Job(*row) for row in rows]

    # Last of the public methods: behind it, `list` in this class is the method.
    def list(
        self, filter: str = "", *, limit: int = 100, before: UUID | None = None
    ) -> Sequence[Job]:
        """Return jobs that match a filter, newest first; `before` continues behind an id."""
        sql = (
            f"select {_JOB} from holdfast.list("
            "filter => %s::text, max_jobs => %s::int, before => %s::uuid)"
        )
        rows = self._door.run(Call("list", sql, [filter, limit, before], reads=True))
        return [Job(*row) for row in rows]


def _claim_call(claim: Claim, durable: bool) -> Call:
    held: LiteralString = (
        f"select {_LEASE}, lease_for, length, error from holdfast.held(tokens => %s::uuid[])"
    )
    return Call(
        "claim",
        f"select {_LEASE}, lease_for, length, error from holdfast.claim("
        "queue => %s::text, worker => %s::text, token => %s::uuid, max_jobs => %s::int, "
        "lease => %s::interval, kinds => %s::text[], durable => %s)",
        [
            claim.queue,
            claim.worker,
            claim.token,
            claim.limit,
            wire.interval(claim.lease),
            None if claim.kinds is None else list(claim.kinds),
            durable,
        ],
        again=Call("held", held, [[claim.token]]),
    )


def _leases(claim: Claim, rows: Sequence[Row]) -> list[Lease]:
    assert len(rows) <= claim.limit, f"claimed {len(rows)} jobs, asked for {claim.limit}"
    held = (claim.token, claim.queue, claim.worker)
    return [Lease(*(*row[:-3], *held, *row[-3:])) for row in rows]


def _enqueue(
    door: Pool | Bound, jobs: Sequence[NewJob], ids: Sequence[UUID], repeat: bool
) -> list[Enqueued]:
    if len(jobs) > _MANY:
        return _enqueue_in_steps(door, jobs, ids, repeat)
    items = wire.items(jobs, ids)
    again = Call("enqueue", _ENQUEUE, [items, True])
    first = again if repeat else Call("enqueue", _ENQUEUE, [items, False], again=again, ids=ids)
    return [Enqueued(*row) for row in door.run(first)]


def _enqueue_in_steps(
    door: Pool | Bound, jobs: Sequence[NewJob], ids: Sequence[UUID], repeat: bool
) -> list[Enqueued]:
    """Store jobs by several calls in one transaction; if it is cut, all of them once more."""
    unknown: UnknownOutcome | None = None
    for turn in range(1, 4):
        answers: list[Enqueued] = []
        try:
            with door.transaction("enqueue") as bound:
                for start in range(0, len(jobs), _MANY):
                    some = slice(start, start + _MANY)
                    items = wire.items(jobs[some], ids[some])
                    rows = bound.run(Call("enqueue", _ENQUEUE, [items, repeat]))
                    answers += [Enqueued(*row) for row in rows]
            return answers
        except UnknownOutcome as error:
            unknown, repeat = error, True
        except Unavailable as error:
            if turn == 3 or isinstance(error, CannotConnect):
                if unknown is None:
                    raise
                break
        except psycopg.Error as error:
            # Only the caller can repeat what was done on the caller's connection.
            if turn == 3 or isinstance(door, Bound) or not may_retry(error, turn):
                raise
    reason = unknown.reason if unknown else ""
    fix = "Repeat it with the same ids and repeat=True."
    raise UnknownOutcome("enqueue", reason, fix=fix, ids=ids)


def _copy(door: Pool | Bound, jobs: Iterable[NewJob]) -> int:
    jobs = iter(jobs)
    queues: dict[str, wire.CopySettings] = {}
    counts: Counter[tuple[str, str]] = Counter()
    with door.transaction("copy") as bound:
        [(now,)] = bound.run(Call("copy", "select holdfast.now()::text"))
        while some := list(islice(jobs, 2000)):
            unseen = {job.queue for job in some} - queues.keys()
            queues.update(_copy_settings(bound, unseen))
            bound.copy(_COPY, wire.copy_rows(some, queues, now))
            counts.update((job.queue, job.kind) for job in some)
        for queue in queues:
            kinds = {kind: stored for (name, kind), stored in counts.items() if name == queue}
            bound.run(Call("copied", _COPIED, [queue, list(kinds), list(kinds.values())]))
    return counts.total()


def _settle(
    door: Pool | Bound, name: str, sql: LiteralString, parameters: Sequence[Any]
) -> list[Settled]:
    if parameters[0] in ("{}", "[]"):
        return []
    return [Settled(*row) for row in door.run(Call(name, sql, parameters))]


def _change(
    door: Pool | Bound, name: str, function: LiteralString, parameters: Sequence[Any]
) -> list[Change]:
    if parameters[0] == "{}":
        return []
    sql = f"select id, changed, state, detail from {function}"
    return [Change(*row) for row in door.run(Call(name, sql, parameters))]


def _number(door: Pool | Bound, call: Call) -> int:
    [(number,)] = door.run(call)
    return int(number)


def _copy_settings(door: Bound, queues: Iterable[str]) -> dict[str, wire.CopySettings]:
    unseen = dict.fromkeys(queues, wire.CopySettings())
    if unseen:
        sql = (
            f"select queue, {wire.columns(wire.CopySettings)} from holdfast.queues "
            "where queue = any(%s::text[])"
        )
        rows = door.run(Call("queues", sql, [list(unseen)]))
        unseen.update((name, wire.CopySettings(*settings)) for name, *settings in rows)
    return unseen
