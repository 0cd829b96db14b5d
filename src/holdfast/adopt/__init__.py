"""Adopt a table of the application as a queue, and undo that.

The plan is a list of statements, each with the one that undoes it. Each is applied by itself, waits
for locks so briefly that writers do not notice, and is remembered, so that adoption can be taken up
again where it failed. What the rows are worth is decided by their status, before and after.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
from psycopg import errors as pg
from psycopg.rows import dict_row, scalar_row
from psycopg.types.json import Jsonb

from holdfast import conninfo
from holdfast.adopt.catalog import (
    act_for,
    ask_owner,
    key_of,
    literal_sql,
    locate,
    name_sql,
    pin_names,
    refuse_kept_columns,
)
from holdfast.adopt.plan import Choices, Plan, Step
from holdfast.adopt.planner import make_plan
from holdfast.errors import AdoptionBlocked, CannotAdopt, Refused
from holdfast.jitter import random_between

__all__ = [
    "Choices",
    "Plan",
    "Step",
    "adopt",
    "adopted",
    "link",
    "plan",
    "reconcile",
    "refresh",
    "report",
    "unadopt",
    "unlink",
]

# How long a statement may block writers while it waits for a lock.
WAITS = timedelta(milliseconds=50)


def plan(url: str, table: str, choices: Choices | None = None, *, source: str = "") -> Plan:
    """Read the catalog and return what adopting a table would do; nothing is changed.

    A plan that was begun is returned unchanged, with its progress.
    """
    with _connection(url, source) as connection:
        act_for(connection, locate(connection, table)[0])
        return _begun(connection, table) or make_plan(connection, table, choices or Choices())


def adopt(
    url: str,
    made: Plan,
    *,
    actor: str | None = None,
    source: str = "",
    told: Callable[[str], None] = lambda _: None,
    patience: timedelta = timedelta(seconds=60),
) -> None:
    """Apply a plan, step by step; what was done before is not done again."""
    with _connection(url, source) as connection:
        _begin(connection, made, actor)
        done = _done(connection, made.part)
        for number, step in enumerate(made.steps, 1):
            if step.name in done:
                continue
            told(f"{number}/{len(made.steps)} {step.name}")
            if step.do:
                _apply(connection, step, step.do, relation=made.relation, patience=patience)
            _mark(connection, made.part, step.name, True)


def unadopt(
    url: str,
    table: str,
    *,
    force: bool = False,
    source: str = "",
    told: Callable[[str], None] = lambda _: None,
    patience: timedelta = timedelta(seconds=60),
) -> Plan:
    """Undo an adoption, in the opposite order; the rows keep their contents.

    Raises CannotAdopt while Holdfast has leases in the table, or rows have a status that was not
    allowed before, unless `force` gives the leases back and lets such a constraint be.
    """
    with _connection(url, source) as connection:
        made = _begun(connection, table)
        if made is None:
            raise CannotAdopt(f"table {table} is not adopted", fix="See:  holdfast adopted")
        _refuse_renamed(connection, made)
        there = connection.execute("select to_regclass(%s)", [made.relation]).fetchone() != (None,)
        if there:
            act_for(connection, made.relation)
            refuse_kept_columns(connection, made.relation)
            _let_go(connection, made, force)
        wider = _wider(connection, made, force) if there else ()
        for step in reversed(made.steps):
            on_table = step.name not in ("the verbs", "counters and queue")
            if on_table and not there:
                continue
            if step.undo and step.name in made.done and not step.name.startswith(wider):
                told(f"undo {step.name}")
                _apply(connection, step, step.undo, relation=made.relation, patience=patience)
                _mark(connection, made.part, step.name, False)
        connection.execute("select holdfast.end_adoption(%s::smallint)", [made.part])
    return made


def refresh(url: str, table: str, *, source: str = "") -> Plan:
    """Generate the functions of an adopted table again, after it or its owner was changed.

    Columns that were renamed are followed; rows that could not be written stay to be retried.
    """
    with _connection(url, source) as connection:
        made = _begun(connection, table)
        if made is None:
            raise CannotAdopt(
                f"table {table} is not adopted", fix="Adopt it:  holdfast adopt TABLE"
            )
        relation, _, _ = locate(connection, table)
        act_for(connection, relation)
        try:
            with connection.transaction():
                connection.execute("select holdfast.readopt_one(%s::smallint)", [made.part])
        except psycopg.Error as error:
            raise CannotAdopt(
                f"{relation}: {error.diag.message_primary}", fix=error.diag.message_hint or ""
            ) from error
        for step in made.steps:
            if step.name.startswith("trigger: "):
                statement = step.do.replace(f" on {made.relation} ", f" on {relation} ")
                _apply(
                    connection, step, statement, relation=relation, patience=timedelta(seconds=60)
                )
        connection.execute("select from holdfast.recount_adopted(%s::smallint)", [made.part])
        renewed = _begun(connection, table)
        assert renewed
        return renewed


def adopted(url: str, *, source: str = "") -> list[dict[str, Any]]:
    """Return what is adopted: table, queue, whether it is finished, and its depths."""
    with _connection(url, source) as connection:
        return connection.cursor(row_factory=dict_row).execute(_ADOPTED).fetchall()


def report(url: str, table: str, *, source: str = "") -> list[dict[str, Any]]:
    """Return what other code did to the rows of a table, and what Holdfast found of it."""
    with _connection(url, source) as connection:
        made = _begun(connection, table)
        if made is None:
            raise CannotAdopt(f"table {table} is not adopted", fix="See:  holdfast adopted")
        cursor = connection.cursor(row_factory=dict_row)
        return cursor.execute(_REPORT, [made.part]).fetchall()


def reconcile(
    url: str, table: str, *, dry_run: bool = True, source: str = ""
) -> list[dict[str, Any]]:
    """Check whether the output of leased rows exists; settle those that are no longer held.

    `verdict` is the outcome for a row: done, queued or dead; `held` rows are not changed.
    """
    with _connection(url, source) as connection:
        made = _begun(connection, table)
        if made is None:
            raise CannotAdopt(f"table {table} is not adopted", fix="See:  holdfast adopted")
        cursor = connection.cursor(row_factory=dict_row)
        return cursor.execute(
            "select * from holdfast.reconcile_adopted(%s::smallint, dry_run => %s)",
            [made.part, dry_run],
        ).fetchall()


def link(
    url: str,
    table: str,
    *,
    prefix: str | None = None,
    source: str = "",
    patience: timedelta = timedelta(seconds=60),
) -> str:
    """Have jobs that wait for a row of a table forgotten when it is deleted.

    Jobs name the row by their subject: `prefix` and the key. Returns the form of the subjects.
    """
    with _connection(url, source) as connection:
        relation, _, name = locate(connection, table)
        key = key_of(connection, relation)
        prefix = f"{name}:" if prefix is None else prefix
        words = ", ".join(literal_sql(word) for word in (prefix, *key))
        _run(
            connection,
            "link",
            f"create or replace trigger holdfast_link after delete on {relation} "
            "referencing old table as gone_rows for each statement "
            f"execute function holdfast.linked({words})",
            patience=patience,
        )
    return prefix + ",".join(f"{{{column}}}" for column in key)


def unlink(
    url: str, table: str, *, source: str = "", patience: timedelta = timedelta(seconds=60)
) -> None:
    """Undo `link`."""
    with _connection(url, source) as connection:
        relation, _, _ = locate(connection, table)
        _run(
            connection,
            "unlink",
            f"drop trigger if exists holdfast_link on {relation}",
            patience=patience,
        )


def _connection(url: str, source: str) -> psycopg.Connection:
    parameters = conninfo.parameters(url, application_name="holdfast adopt")
    try:
        connection = psycopg.connect(**parameters)
    except psycopg.OperationalError as error:
        raise conninfo.cannot_connect(url, error, source=source) from error
    pin_names(connection)
    return connection


def _begun(connection: psycopg.Connection, table: str) -> Plan | None:
    """The plan of a table that is adopted, by its name of now or, if it is gone, of then."""
    try:
        relation, _, name = locate(connection, table)
    except CannotAdopt:
        relation, name = "", table
    row = connection.execute(_BEGUN, [relation, relation or None, name, name]).fetchone()
    if row is None:
        if not relation:
            locate(connection, table)  # says what is wrong with the name
        return None
    queue, part, spec, stored, relation = row
    steps = [Step(s["name"], s["do"], s["undo"], s["alone"], s.get("index", "")) for s in stored]
    done = tuple(s["name"] for s in stored if s["done"])
    return Plan(queue, relation, part, spec, steps, {}, done=done)


def _begin(connection: psycopg.Connection, made: Plan, actor: str | None) -> None:
    """Remember the plan before the first step, unless it was begun before."""
    steps = [asdict(step) | {"done": False} for step in made.steps]
    row = connection.execute(
        "select holdfast.begin_adoption(%s::smallint, %s, %s, %s, %s, %s)",
        [made.part, made.queue, made.relation, Jsonb(dict(made.spec)), Jsonb(steps), actor],
    ).fetchone()
    if row and row[0]:
        raise CannotAdopt(row[0], fix="Make the plan again.")


def _done(connection: psycopg.Connection, part: int) -> set[str]:
    cursor = connection.cursor(row_factory=scalar_row)
    return set(
        cursor.execute(
            "select s ->> 'name' from holdfast.adopted a, jsonb_array_elements(a.steps) s "
            "where a.part = %s and (s -> 'done')::boolean",
            [part],
        )
    )


def _mark(connection: psycopg.Connection, part: int, name: str, done: bool) -> None:
    connection.execute(
        "select holdfast.mark_step(%s::smallint, %s, %s::boolean)", [part, name, done]
    )


def _apply(
    connection: psycopg.Connection,
    step: Step,
    statement: str,
    *,
    relation: str,
    patience: timedelta,
) -> None:
    """Run a statement of a plan; what changes the table, with the rights of the table's owner.

    To look at the rows for a constraint calls what its owner has put there.
    """
    if step.alone:
        _apply_alone(connection, statement, step.index)
    elif statement.startswith(("alter table", "create or replace trigger", "drop trigger")):
        # A trigger names what is generated, and calls nothing when it is made.
        makes = str(statement.startswith("create or replace trigger"))
        query = "select holdfast.run_as_owner(%s::regclass, %s, makes => %s::boolean)"
        _run(connection, step.name, query, [relation, statement, makes], patience=patience)
    else:
        _run(connection, step.name, statement, patience=patience)


def _run(
    connection: psycopg.Connection,
    name: str,
    statement: str,
    values: Sequence[str] | None = None,
    *,
    patience: timedelta,
) -> None:
    give_up = time.monotonic() + patience.total_seconds()
    while True:
        try:
            with connection.transaction():
                connection.execute(f"set local lock_timeout = {WAITS // timedelta(milliseconds=1)}")
                connection.execute(statement, values)
            return
        except pg.InsufficientPrivilege as error:
            raise Refused(
                f"user {connection.info.user} may not do this: {error.diag.message_primary}",
                why=f"It was step {name!r}; completed steps are kept.",
                fix="Adopt as a superuser, or as a member of the table's owner and of Holdfast's.",
            ) from error
        except (pg.LockNotAvailable, pg.DeadlockDetected) as error:
            if time.monotonic() > give_up:
                raise AdoptionBlocked(
                    f"step {name!r} could not get its lock for {patience.total_seconds():.0f} s",
                    why=_blockers(connection),
                    fix="Completed steps are kept. End these transactions and run it again.",
                ) from error
            # Writers that queued behind it get through first.
            time.sleep(random_between(0.05, 0.25))


def _apply_alone(connection: psycopg.Connection, statement: str, index: str) -> None:
    """Run a slow statement that does not block writers; a failed index is created again."""
    if index and statement.startswith("create "):
        broken = connection.execute(_BROKEN, [index]).fetchone()
        if broken is not None:
            connection.execute(f"drop index concurrently if exists {index}")
    connection.execute(statement)


def _let_go(connection: psycopg.Connection, made: Plan, force: bool) -> None:
    if "the verbs" not in made.done:
        return
    held = connection.execute(
        "select array_agg(h.id), array_agg(h.token) from holdfast.adopted_held(%s::smallint) h",
        [made.part],
    ).fetchone()
    assert held
    ids, tokens = held
    if not ids:
        return
    if not force:
        raise CannotAdopt(
            f"Holdfast has {len(ids)} rows of {made.relation} leased",
            fix="Stop its workers and wait for them, or requeue the rows with --force.",
        )
    connection.execute("select from holdfast.release(%s, %s)", [ids, tokens])


def _refuse_renamed(connection: psycopg.Connection, made: Plan) -> None:
    """Refuse to undo by names that are no longer those of the table: nothing would be undone."""
    for kind, old, new, back in connection.execute(_RENAMED, [made.part]):
        raise CannotAdopt(
            f"{kind} {old} was renamed to {new} after {made.relation} was adopted",
            why="What was added to the table is found by its names.",
            fix=f"Give it its old name first:  {back}",
        )


def _wider(connection: psycopg.Connection, made: Plan, force: bool) -> tuple[str, ...]:
    """The beginnings of steps that cannot be undone, since rows have come to need them."""
    needed = []
    status = name_sql(made.spec["status"])
    for constraint, values in made.spec["widened"].items():
        words = ", ".join(map(literal_sql, values))
        [[rows]] = ask_owner(
            connection,
            made.relation,
            f"select count(*) as rows from {made.relation} where {status}::text in ({words})",
        )
        if rows and not force:
            raise CannotAdopt(
                f"{rows} rows of {made.relation} are {' or '.join(values)}",
                why=f"Constraint {constraint} did not allow that before.",
                fix="Give them another status first, or keep the extended constraint with --force.",
            )
        if rows:
            needed.append(f"constraint {constraint}:")
    for index, columns in made.spec.get("relaxed", {}).items():
        if f"unique {index}: as it was" not in made.done:
            continue
        named = ", ".join(map(name_sql, columns))
        row = connection.execute(
            f"select format('%s', row({named})) from {made.relation} where num_nulls({named}) = 0 "
            f"group by {named} having count(*) > 1 limit 1"
        ).fetchone()
        if row and not force:
            raise CannotAdopt(
                f"{made.relation} has two rows with {', '.join(columns)} = {row[0]}",
                why=f"{index} did not allow that before.",
                fix="Delete one of them first, or drop the unique constraint with --force.",
            )
        if row:
            needed += [f"unique {index}: as it was", f"unique {index}: in place of the old"]
    return tuple(needed)


def _blockers(connection: psycopg.Connection) -> str:
    rows = connection.execute(_BLOCKERS).fetchall()
    return "\n".join(
        f"process {pid} ({application or 'no name'}) in a transaction since {since:%H:%M:%S}"
        for pid, application, since in rows
    )


_BEGUN: LiteralString = """
select a.queue, a.part, a.spec, a.steps, a.relation
from holdfast.adopted a
where a.relation = %s or holdfast.table_of(a) = to_regclass(%s)::oid or a.relation = %s
  or holdfast.table_of(a) is null and (parse_ident(a.relation))[2] = %s
order by a.part
limit 1
"""
_RENAMED: LiteralString = """
with adoption as (
  select a.relation, parse_ident(a.relation) as was, a.shape, n.nspname as schema,
    c.relname as name, c.oid
  from holdfast.adopted a
  join pg_class c on c.oid = holdfast.table_of(a)
  join pg_namespace n on n.oid = c.relnamespace
  where a.part = %s
)
select 'table', a.relation, format('%%I.%%I', a.schema, a.name),
  case when a.schema <> a.was[1]
    then format('alter table %%I.%%I set schema %%I', a.schema, a.name, a.was[1])
    else format('alter table %%I.%%I rename to %%I', a.schema, a.name, a.was[2]) end
from adoption a
where format('%%I.%%I', a.schema, a.name) <> a.relation
union all
select 'column', s.key, t.attname::text,
  format('alter table %%I.%%I rename %%I to %%I', a.schema, a.name, t.attname, s.key)
from adoption a
cross join jsonb_each(a.shape) s
join pg_attribute t on t.attrelid = a.oid and t.attnum = (s.value -> 'number')::smallint
  and not t.attisdropped and t.attname <> s.key
limit 1
"""
_BROKEN: LiteralString = """
select from pg_index x where x.indexrelid = to_regclass(%s) and not x.indisvalid
"""
_BLOCKERS: LiteralString = """
select a.pid, a.application_name, a.xact_start from pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start is not null
order by a.xact_start limit 5
"""
_ADOPTED: LiteralString = """
select a.relation as "table", a.queue, a.live, coalesce(q.queued, 0) as queued,
  coalesce(q.leased, 0) as leased, coalesce(q.done, 0) as done, coalesce(q.dead, 0) as dead
from holdfast.adopted a left join holdfast.queues q on q.queue = a.queue order by a.relation
"""
_REPORT: LiteralString = """
select n.who, n.what, sum(n.jobs)::bigint as jobs, min(n.sample) as sample, max(n.hour) as last_hour
from holdfast.adopted_note n where n.part = %s group by n.who, n.what order by 3 desc
"""
