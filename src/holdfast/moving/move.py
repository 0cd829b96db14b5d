"""One transaction: lock the rows that wait, store their jobs, take the rows from the old queue."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from msgspec import structs
from psycopg import sql
from psycopg.rows import namedtuple_row

from holdfast import conninfo
from holdfast.app import App
from holdfast.client import Client, client_on
from holdfast.errors import Misuse, Refused
from holdfast.jsonb import Encoded
from holdfast.moving import odd
from holdfast.moving.found import Found, Rows, Unreadable
from holdfast.records import NewJob, NewSchedule
from holdfast.records.fields import declared

# How many rows are read, stored and taken at a time.
_STRETCH = 1000
# Fields of a job that every job of a schedule has.
_REPEATED = ("priority", "lane", "key", "max_attempts", "expires")
[_PRIORITY] = [one.limits for one in declared(NewJob) if one.name == "priority" and one.limits]


@dataclass(frozen=True)
class Wishes:
    """What the caller wants otherwise.

    With an `app`, jobs are checked as if its tasks enqueued them, and positional arguments get the
    names of their parameters. `kinds` maps old names of tasks to kinds; `queues` limits the move to
    these queues of the old one; `into` is the queue for all of them; `schema` has the old tables.
    Calls are stored for tasks of Django's if `of_django`.
    """

    app: App | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    queues: Sequence[str] = ()
    into: str | None = None
    schema: str | None = None
    of_django: bool = False


@dataclass(frozen=True)
class Moved:
    """Jobs of one kind that are in a queue of Holdfast now; `later` of them wait for their time.

    `schedules` are moved, too; `duplicates` were not stored, because a live job has their key.
    """

    queue: str
    kind: str
    jobs: int = 0
    later: int = 0
    schedules: int = 0
    duplicates: int = 0


@dataclass(frozen=True)
class Left:
    """Rows that stay in the old queue, why, and the id of one of them."""

    kind: str
    rows: int
    why: str
    example: str


@dataclass(frozen=True)
class Report:
    """What was moved, what stays, and what the old workers are running."""

    package: str
    dry_run: bool
    moved: list[Moved]
    left: list[Left]
    running: Mapping[str, int]
    notes: list[str]


def move(
    url: str,
    package: str,
    tables: Iterable[Rows],
    wishes: Wishes,
    *,
    configured: Iterable[Found] = (),
    dry_run: bool = False,
    source: str = "",
) -> Report:
    """Move what waits in `tables`, and the schedules that are `configured` in code.

    A dry run does all of it and rolls back, so that its report is what would have happened.
    """
    with _connection(url, source) as connection, connection.transaction(force_rollback=dry_run):
        moving = _Move(connection, package, wishes)
        try:
            moving.configured(configured)
            for rows in tables:
                moving.rows(rows)
        except psycopg.errors.InsufficientPrivilege as error:
            raise Refused(
                f"{connection.info.user}: {error.diag.message_primary}",
                fix=f"Run it as the owner of the tables of {package}.",
            ) from error
        return moving.report(dry_run)


class _Move:
    def __init__(self, connection: psycopg.Connection[Any], package: str, wishes: Wishes) -> None:
        self._connection = connection
        self._client: Client = client_on(connection)
        self._package = package
        self._wishes = wishes
        self._moved: Counter[tuple[str, str, str]] = Counter()
        self._left: dict[tuple[str, str], Left] = {}
        self._running: Counter[str] = Counter()
        self._notes: dict[str, None] = {}
        [[self._now]] = connection.execute("select now()").fetchall()
        if wishes.schema:
            # Their triggers name their tables without a schema.
            path = sql.Identifier(wishes.schema).as_string(connection)
            connection.execute("select set_config('search_path', %s, true)", [path])

    def rows(self, rows: Rows) -> None:
        self._require(rows.table)
        with self._connection.cursor("waiting", row_factory=namedtuple_row) as waiting:
            odd.allow(waiting)
            waiting.execute(rows.waiting)
            while some := waiting.fetchmany(_STRETCH):
                found = [one for row in some if (one := self._read(rows, row))]
                if taken := self._store(found):
                    self._connection.execute(rows.take, [taken])
        # Counted last: a worker may have claimed a row that this waited for.
        for kind, number in self._connection.execute(rows.running):
            self._running[kind] += number

    def configured(self, schedules: Iterable[Found]) -> None:
        self._store(list(schedules))

    def report(self, dry_run: bool) -> Report:
        counts: dict[tuple[str, str], dict[str, int]] = {}
        for (queue, kind, what), number in sorted(self._moved.items()):
            counts.setdefault((queue, kind), {})[what] = number
        return Report(
            package=self._package,
            dry_run=dry_run,
            moved=[Moved(queue, kind, **known) for (queue, kind), known in counts.items()],
            left=list(self._left.values()),
            running=dict(sorted(self._running.items())),
            notes=list(self._notes),
        )

    def _require(self, table: str) -> None:
        if self._connection.execute("select to_regclass(%s)", [table]).fetchone() == (None,):
            name = self._connection.info.dbname
            within = f" in schema {self._wishes.schema!r}" if self._wishes.schema else ""
            raise Misuse(
                f"database {name!r} has no table {table}{within}",
                why=f"The tables of {self._package} must be in the database that Holdfast is in: "
                "the move is one transaction.",
                fix="If they are in another schema:  --schema NAME",
            )

    def _read(self, rows: Rows, row: Any) -> Found | None:
        # Whatever a row holds, the others are moved.
        try:
            odd.refuse(row)
            found = rows.read(row)
        except Exception as error:
            self._leave(row.kind, row.id, error)
            return None
        queues = self._wishes.queues
        return found if not queues or (found.options.get("queue") or "default") in queues else None

    def _leave(self, kind: str, id: Any, error: Exception) -> None:
        if isinstance(error, Unreadable):
            why = str(error)
        elif isinstance(error, Misuse):
            why = error.what
        else:
            why = f"it cannot be read: {type(error).__name__}: {error}"
        left = self._left.setdefault((kind, why), Left(kind, 0, why, str(id)))
        self._left[kind, why] = replace(left, rows=left.rows + 1)

    def _store(self, found: Sequence[Found]) -> list[Any]:
        """Store what can be stored; returns the ids of those rows."""
        schedules = [one for one in found if one.schedule is not None]
        taken = [one.id for one in schedules if self._store_schedule(one)]
        ready = list(self._jobs(one for one in found if one.schedule is None))
        try:
            taken += self._enqueue(ready)
        except Misuse:
            # One of them is refused, and with it all: they are tried one by one.
            for pair in ready:
                try:
                    taken += self._enqueue([pair])
                except Misuse as error:
                    self._leave(pair[0].kind, pair[0].id, error)
        return taken

    def _jobs(self, found: Iterable[Found]) -> Iterator[tuple[Found, NewJob]]:
        for one in found:
            try:
                yield one, self._job(one)
            except Exception as error:
                self._leave(one.kind, one.id, error)

    def _enqueue(self, ready: Sequence[tuple[Found, NewJob]]) -> list[Any]:
        with self._connection.transaction():
            enqueued = self._client.enqueue_many([job for _, job in ready]) if ready else []
        for (_, job), one in zip(ready, enqueued, strict=True):
            self._count(job, "jobs" if one.created else "duplicates")
            if one.created and job.run_at and job.run_at > self._now:
                self._count(job, "later")
        return [one.id for one, _ in ready]

    def _count(self, job: NewJob | NewSchedule, what: str) -> None:
        self._moved[job.queue, job.kind, what] += 1

    def _job(self, found: Found) -> NewJob:
        if found.problem:
            raise Unreadable(found.problem)
        kind = self._wishes.kinds.get(found.kind, found.kind)
        options = {name: value for name, value in found.options.items() if value is not None}
        if self._wishes.into:
            options["queue"] = self._wishes.into
        if "priority" in options:
            options["priority"] = self._priority(options["priority"])
        options["headers"] = {
            **(options.get("headers") or {}),
            "imported_from": f"{self._package} {found.id}",
        }
        if self._wishes.app is None:
            of_django = found.of_django or self._wishes.of_django
            return NewJob(kind=kind, payload=_payload(found, of_django), **options)
        return _checked(self._wishes.app, kind, found, options)

    def _priority(self, theirs: int) -> int:
        lowest, highest = int(_PRIORITY.ge or 0), int(_PRIORITY.le or 0)
        ours = min(max(theirs, lowest), highest)
        if ours != theirs:
            self._notes[
                f"priorities outside {lowest} to {highest} became {lowest} or {highest}; "
                "those jobs keep their order among themselves"
            ] = None
        return ours

    def _store_schedule(self, found: Found) -> bool:
        try:
            schedule = self._schedule(found)
            if self._client.schedules.get(schedule.name):
                raise Unreadable(f"Holdfast already has a schedule {schedule.name!r}")
            with self._connection.transaction():
                self._client.schedules.declare([schedule])
        except (Unreadable, Misuse) as error:
            self._leave(found.kind, found.id, error)
            return False
        self._count(schedule, "schedules")
        return True

    def _schedule(self, found: Found) -> NewSchedule:
        try:
            job = self._job(found)
        except TypeError as error:
            raise Unreadable(f"it cannot be read: {error}") from error
        options = {name: value for name in _REPEATED if (value := getattr(job, name))}
        return NewSchedule(
            kind=job.kind,
            queue=job.queue,
            payload=json.loads(job.payload) if type(job.payload) is Encoded else job.payload,
            options=options or None,
            **found.schedule or {},
        )


def _payload(found: Found, of_django: bool) -> Any:
    if of_django:
        return {"args": list(found.args), "kwargs": dict(found.kwargs)}
    if found.args:
        raise Unreadable("its arguments have no names; name the app that has the task:  --app")
    return found.kwargs if found.payload is None else found.payload


def _checked(app: App, kind: str, found: Found, options: dict[str, Any]) -> NewJob:
    """Return the job that a task of the app would enqueue, with the attempts that are left."""
    if (task := app.tasks.get(kind)) is None:
        raise Unreadable(
            f"the app has no task of the kind {kind!r}; name it:  --map {found.kind}=KIND"
        )
    if found.payload is not None and not isinstance(found.payload, Mapping):
        raise Unreadable("its payload is not an object with the arguments of a task")
    job = task.options(**options).call(*found.args, **found.kwargs).job
    if found.attempts and job.max_attempts:
        job = structs.replace(job, max_attempts=max(1, job.max_attempts - found.attempts))
    if task.codec and job.payload is not None:
        job = structs.replace(job, payload=task.codec.payload(job.payload))
    return job


def _connection(url: str, source: str) -> psycopg.Connection[Any]:
    try:
        return psycopg.connect(**conninfo.parameters(url, application_name="holdfast import"))
    except psycopg.OperationalError as error:
        raise conninfo.cannot_connect(url, error, source=source) from error
