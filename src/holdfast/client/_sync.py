"""Generated from _async.py by tools/generate_sync_client.py: edit that."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Any, LiteralString, Self, Unpack
from uuid import UUID, uuid4

from psycopg import Connection

from holdfast import conninfo
from holdfast.client import _wire as wire
from holdfast.client._call import Call
from holdfast.client._sync_doors import Bound, Pool
from holdfast.model import (
    Attempt,
    Change,
    DeadGroup,
    Depth,
    Duration,
    Enqueued,
    Held,
    Job,
    JobOptions,
    Lease,
    NewJob,
    Queue,
    Reaped,
    Settled,
    Settlement,
)

_LEASE: LiteralString = (
    "id, kind, payload, priority, attempt, max_attempts, lease_until, run_at, created_at, "
    "key, lane, tenant, subject, headers"
)
_JOB = wire.columns(Job)
_QUEUE = wire.columns(Queue)
_MINUTE = timedelta(minutes=1)
_COPY: LiteralString = (
    "copy holdfast.job (part, id, queue, kind, priority, run_at, created_at, max_attempts, "
    "payload, headers, tenant, subject, by_kind) from stdin"
)
_COPIED: LiteralString = (
    "select holdfast.copied(queue => %s::text, kinds => %s::text[], counts => %s::bigint[])"
)


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
        items = wire.items(jobs, ids)
        sql = (
            "select id, created, duplicate_of "
            "from holdfast.enqueue(items => %s::jsonb, repeat => %s) order by ord"
        )
        again = Call("enqueue", sql, [items, True])
        first = again if repeat else Call("enqueue", sql, [items, False], again=again, ids=ids)
        return [Enqueued(*row) for row in self._door.run(first)]

    def copy(self, jobs: Iterable[NewJob]) -> int:
        """Store very many plain jobs by COPY, in one transaction; returns how many.

        Plain means without key, lane, delay, run_at and lease. Not repeated after a lost reply:
        UnknownOutcome then says that they may have been stored, all or none.
        """
        jobs = iter(jobs)
        queues: dict[str, wire.CopySettings] = {}
        counts: Counter[tuple[str, str]] = Counter()
        with self._door.transaction("copy") as door:
            [(now,)] = door.run(Call("copy", "select holdfast.now()::text"))
            while some := list(islice(jobs, 2000)):
                unseen = {job.queue for job in some} - queues.keys()
                queues.update(_copy_settings(door, unseen))
                door.copy(_COPY, wire.copy_rows(some, queues, now))
                counts.update((job.queue, job.kind) for job in some)
            for queue in queues:
                kinds = {kind: jobs for (name, kind), jobs in counts.items() if name == queue}
                door.run(Call("copied", _COPIED, [queue, list(kinds), list(kinds.values())]))
        return counts.total()

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
        token = token or uuid4()
        lost = Call("held", f"select {_LEASE} from holdfast.held(tokens => %s::uuid[])", [[token]])
        rows = self._door.run(
            Call(
                "claim",
                f"select {_LEASE} from holdfast.claim(queue => %s::text, worker => %s::text, "
                "token => %s::uuid, max_jobs => %s::int, lease => %s::interval, "
                "kinds => %s::text[], durable => %s)",
                [
                    queue,
                    worker,
                    token,
                    limit,
                    wire.interval(lease),
                    None if kinds is None else list(kinds),
                    self._door.durable,
                ],
                again=lost,
            )
        )
        assert len(rows) <= limit, f"claimed {len(rows)} jobs, asked for {limit}"
        return [Lease(*(*row, token, queue, worker)) for row in rows]

    def held(self, tokens: Sequence[UUID]) -> list[Lease]:
        """Return the leases that are still held by the tokens of earlier claims."""
        sql = f"select {_LEASE}, token, queue, worker from holdfast.held(tokens => %s::uuid[])"
        rows = self._door.run(Call("held", sql, [wire.array(tokens)], reads=True))
        return [Lease(*row) for row in rows]

    def touch(self, leases: Sequence[Held], lease: Duration | None = None) -> list[Settled]:
        """Hold on to leases, for `lease` from now; each answer has the new `lease_until`.

        A lease that is lost cannot be had back: stop its work.
        """
        return _settle(
            self._door,
            "touch",
            "select id, outcome, detail, lease_until from holdfast.touch("
            "ids => %s::uuid[], tokens => %s::uuid[], lease => %s::interval)",
            [*wire.held_arrays(leases), wire.interval(lease)],
        )

    def ack(self, leases: Sequence[Held], results: Sequence[Any] | None = None) -> list[Settled]:
        """End leases with success; `results`, one for each, are kept if the queue keeps done jobs.

        Answers in the order given. For an exception instead of the outcome `lost`, call
        `raise_if_lost()` on an answer.
        """
        return _settle(
            self._door,
            "ack",
            "select id, outcome, detail from holdfast.ack("
            "ids => %s::uuid[], tokens => %s::uuid[], results => %s::jsonb)",
            [*wire.held_arrays(leases), wire.results(results)],
        )

    def nack(
        self,
        leases: Sequence[Held],
        *,
        error_kind: str | None = None,
        message: str | None = None,
        traceback: str | None = None,
        delay: Duration | None = None,
    ) -> list[Settled]:
        """End leases with one failure; each job is queued again after `delay`, or dies.

        Without a delay the queue's backoff decides.
        """
        error = [wire.text(error_kind), wire.text(message), wire.text(traceback)]
        return _settle(
            self._door,
            "nack",
            "select id, outcome, detail from holdfast.nack(ids => %s::uuid[], "
            "tokens => %s::uuid[], error_kind => %s::text, message => %s::text, "
            "traceback => %s::text, delay => %s::interval)",
            [*wire.held_arrays(leases), *error, wire.interval(delay)],
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
        """End leases in different ways at once: Ack, Nack and Release, answered in their order."""
        return _settle(
            self._door,
            "settle",
            "select id, outcome, detail from holdfast.settle(items => %s::jsonb) order by ord",
            [wire.settlements(settlements)],
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

    def upkeep(self) -> dict[str, Any]:
        """Do all housekeeping once and say what was done; for whoever runs no worker."""
        [(done,)] = self._door.run(Call("upkeep", "select holdfast.upkeep()"))
        return wire.decoded_object(done)

    def await_work(
        self, queues: Sequence[str], *, worker: str, patience: Duration = _MINUTE
    ) -> None:
        """Ask to be notified, within `patience`, of the next job in one of these queues.

        A notification is only a hint: poll as well.
        """
        sql = (
            "select holdfast.await_work("
            "queues => %s::text[], worker => %s::text, patience => %s::interval)"
        )
        parameters = [list(queues), worker, wire.interval(patience)]
        self._door.run(Call("await_work", sql, parameters))

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

    def depth(self) -> list[Depth]:
        """Return how many jobs there are by queue, kind and state, from kept counters."""
        sql = f"select {wire.columns(Depth)} from holdfast.depth order by queue, kind, state"
        return [Depth(*row) for row in self._door.run(Call("depth", sql, reads=True))]

    def dead_groups(self) -> list[DeadGroup]:
        """Return dead jobs grouped by how they failed, the largest group first."""
        sql = (
            f"select {wire.columns(DeadGroup)} from holdfast.dead_groups "
            "order by jobs desc, last_at desc"
        )
        rows = self._door.run(Call("dead_groups", sql, reads=True))
        return [DeadGroup(*row) for row in rows]

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
