"""Install, migrate and verify the schema `holdfast`.

Numbered migrations own the shape of the data and are applied once. Functions, views and grants own
the behaviour and are replaced together whenever their text differs from what is installed. All of
it is one transaction under one transaction-level lock, so any number of processes may migrate at
once, through a pooler too, and callers see either the old behaviour or the new.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import LiteralString

import psycopg
from psycopg import errors as pg
from psycopg.rows import class_row, scalar_row

from holdfast import __version__, conninfo
from holdfast.errors import (
    MigrationBlocked,
    NotMigrated,
    Refused,
    SchemaDrift,
    SchemaError,
    SchemaTooNew,
    Unavailable,
)
from holdfast.jitter import random_between

BEHAVIOUR = "functions, views and grants"
# A server that takes longer than this to read a few rows will not answer at all.
_ANSWERS_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class Applied:
    """One thing that was installed: a migration, or as version 0 the behaviour."""

    version: int
    name: str
    checksum: str
    release: str
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class Status:
    """What a database has and what this program would add to it."""

    database: str
    found: int | None
    needed: int
    applied: tuple[Applied, ...]
    pending: tuple[str, ...]
    problem: SchemaError | None


def migrate(
    url: str, *, source: str = "", patience: timedelta = timedelta(seconds=60)
) -> list[str]:
    """Bring the schema up to this program's version; returns the names of what was applied.

    Nothing is changed when it is up to date, or when it fails. DDL waits at most two seconds for
    a lock, so that queued writers are never held up for longer, and is tried again for `patience`.
    """
    with _connection(url, source) as connection:
        if not _status(connection).pending:
            return _mend_tables(connection)
        give_up = time.monotonic() + patience.total_seconds()
        while True:
            try:
                with connection.transaction():
                    return _migrate(connection)
            except (pg.LockNotAvailable, pg.DeadlockDetected) as error:
                if time.monotonic() > give_up:
                    raise _blocked(connection, patience) from error
                time.sleep(random_between(0.1, 0.5))


def _mend_tables(connection: psycopg.Connection) -> list[str]:
    """Generate functions of adopted tables again that were dropped."""
    cursor = connection.cursor(row_factory=scalar_row)
    with connection.transaction():
        cursor.execute("set local lock_timeout = '2s'")
        try:
            mended = cursor.execute("select holdfast.mend_adopted()").fetchall()
        except pg.InsufficientPrivilege:
            return []  # left to a role with the right to do so
    return [f"what is generated for {table}" for table in mended]


def plan(url: str, *, source: str = "") -> list[str]:
    """Return the names of what `migrate` would apply now, in order."""
    return list(status(url, source=source).pending)


def status(url: str, *, source: str = "") -> Status:
    """Return what is installed, what is pending and what is wrong, without raising an error."""
    with _connection(url, source) as connection, _answered_soon(connection):
        return _status(connection)


def check(url: str, *, source: str = "") -> None:
    """Raise NotMigrated, SchemaTooNew or SchemaDrift unless the schema is exactly this program's.

    One query of a table of a few rows.
    """
    found = status(url, source=source)
    if found.problem:
        raise found.problem


def sql() -> str:
    """Return the whole installation as a script for an empty database, to read or pipe to psql."""
    script = [
        f"-- Holdfast {__version__}, schema {_migrations()[-1].version}, for a database without it",
        "begin;",
        f"{_LOCK};\n{_SETTINGS};",
        _BOOKKEEPING,
    ]
    for migration in _migrations():
        script += [f"-- {migration.name}", migration.text, _record_literal(migration)]
    for file in _behaviour():
        script += [f"-- {file.name}", file.text]
    script += [_record_literal(_whole_behaviour()), "commit;"]
    return "\n\n".join(script) + "\n"


def describe(url: str, *, source: str = "") -> str:
    """Return the net schema as text: tables, indexes, constraints, views, signatures of functions.

    Made from the catalog and free of dates and names of this installation, so that two databases
    can be compared, and a review of the snapshot in git shows what a migration comes to.
    """
    with _connection(url, source) as connection:
        lines = connection.cursor(row_factory=scalar_row).execute(_DESCRIBE).fetchall()
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Piece:
    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return sha256(self.text.encode()).hexdigest()


@cache
def _migrations() -> tuple[_Piece, ...]:
    found = sorted(_sql_files("migrations"), key=lambda file: file.name)
    pieces = tuple(_Piece(int(f.name[:4]), f.name.removesuffix(".sql"), _text(f)) for f in found)
    # Numbers may be left out: they are given before it is known whether each is needed.
    assert len({p.version for p in pieces}) == len(pieces), "two migrations have one number"
    return pieces


@cache
def _behaviour() -> tuple[_Piece, ...]:
    """The files in the order in which each finds what it stands on.

    Numbered function files are what views are made with; the others may return rows of views.
    """
    functions = sorted(_sql_files("functions"), key=lambda file: file.name)
    numbered = [file for file in functions if file.name[0].isdigit()]
    others = [file for file in functions if not file.name[0].isdigit()]
    root = files("holdfast") / "sql"
    ordered = [*numbered, root / "views.sql", *others, root / "grants.sql"]
    return tuple(_Piece(0, file.name, _text(file)) for file in ordered if file.is_file())


@cache
def _whole_behaviour() -> _Piece:
    return _Piece(0, BEHAVIOUR, "".join(file.text for file in _behaviour()))


def _sql_files(folder: str) -> list[Traversable]:
    return [f for f in (files("holdfast") / "sql" / folder).iterdir() if f.name.endswith(".sql")]


def _text(file: Traversable) -> str:
    return file.read_text("utf-8").replace("\r\n", "\n")


@contextmanager
def _connection(url: str, source: str) -> Iterator[psycopg.Connection]:
    parameters = conninfo.parameters(url, application_name="holdfast migrate")
    try:
        connection = psycopg.connect(**parameters)
    except psycopg.OperationalError as error:
        raise conninfo.cannot_connect(url, error, source=source) from error
    with connection:
        # A database may default to stricter ones; what was committed while we waited must be seen.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        try:
            yield connection
        except pg.InsufficientPrivilege as error:
            raise Refused(
                f"user {connection.info.user} may not do this: {error.diag.message_primary}",
                fix="Run holdfast migrate as the owner of the database, "
                "or give its owner the script:  holdfast migrate --sql",
            ) from error


@contextmanager
def _answered_soon(connection: psycopg.Connection) -> Iterator[None]:
    """Close the connection if the server does not respond, instead of waiting silently."""
    line = socket.socket(fileno=os.dup(connection.fileno()))
    with line:
        timer = threading.Timer(_ANSWERS_WITHIN, line.shutdown, [socket.SHUT_RDWR])
        timer.start()
        try:
            yield
        except psycopg.OperationalError as error:
            raise Unavailable(
                f"no answer from {conninfo.server(connection.info.dsn)}", why=str(error)
            ) from error
        finally:
            timer.cancel()
            timer.join()


def _status(connection: psycopg.Connection) -> Status:
    try:
        applied = _applied(connection)
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        applied = []
    database = connection.info.dbname
    needed = _migrations()[-1].version
    found = max((row.version for row in applied), default=None)
    pending = _pending(applied)
    problem: SchemaError | None = _conflict(applied)
    if problem is None and (found or 0) < needed:
        problem = NotMigrated(database, found=found, needed=needed)
    elif problem is None and pending:
        problem = SchemaDrift(
            f'the functions in database "{database}" are not those of this program',
            why=f"Installed by holdfast {applied[0].release} at {applied[0].applied_at:%F %T}, "
            f"this is {__version__}.",
            fix="Run:  holdfast migrate",
        )
    return Status(database, found, needed, tuple(applied), tuple(pending), problem)


def _applied(connection: psycopg.Connection) -> list[Applied]:
    cursor = connection.cursor(row_factory=class_row(Applied))
    return cursor.execute(
        "select version, name, checksum, release, applied_at "
        "from holdfast.migration order by version"
    ).fetchall()


def _pending(applied: list[Applied]) -> list[str]:
    checksums = {row.version: row.checksum for row in applied}
    pending = [piece.name for piece in _migrations() if piece.version not in checksums]
    if checksums.get(0) != _whole_behaviour().checksum:
        pending.append(BEHAVIOUR)
    return pending


def _conflict(applied: list[Applied]) -> SchemaError | None:
    known = {piece.version: piece for piece in _migrations()}
    for row in applied:
        if row.version == 0:
            if _order(row.release) > _order(__version__):
                return SchemaTooNew(found=row.release, known=__version__)
        elif row.version not in known:
            return SchemaTooNew(found=applied[-1].version, known=max(known))
        elif row.checksum != known[row.version].checksum:
            return SchemaDrift(
                f"migration {row.name} was applied with a different text from this program's",
                why=f"It was applied by holdfast {row.release} on {row.applied_at:%Y-%m-%d}.",
                fix="A migration never changes once released: install an unmodified holdfast.",
            )
    return None


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def _migrate(connection: psycopg.Connection) -> list[str]:
    connection.execute(f"set local lock_timeout = '30s'; {_LOCK}; {_SETTINGS}")
    # In a Citus cluster each node has its own: what is made here is not for the others.
    if connection.execute("select 1 from pg_extension where extname = 'citus'").fetchone():
        connection.execute("set local citus.enable_ddl_propagation = off")
    # `create schema if not exists` asks for the right to create one even when it exists.
    if connection.execute("select to_regclass('holdfast.migration')").fetchone() == (None,):
        connection.execute(_BOOKKEEPING)
    applied = _applied(connection)
    if conflict := _conflict(applied):
        raise conflict

    pending = _pending(applied)
    for migration in _migrations():
        if migration.name in pending:
            _run(connection, migration)
            _record(connection, migration)
    if BEHAVIOUR in pending:
        _replace_behaviour(connection)
        _record(connection, _whole_behaviour())
    return pending


def _replace_behaviour(connection: psycopg.Connection) -> None:
    """Replace functions in place, so that callers always find them; drop undefined ones."""
    before = connection.execute(_BEHAVIOUR_ROWS).fetchall()
    *definitions, grants = _behaviour()
    try:
        with connection.transaction():
            for file in definitions:
                _run(connection, file)
    except (pg.InvalidFunctionDefinition, pg.InvalidTableDefinition):
        # The columns of a function or view changed, which PostgreSQL does not do in place.
        _drop_behaviour(connection)
        for file in definitions:
            _run(connection, file)
    after = connection.execute(_BEHAVIOUR_ROWS).fetchall()
    # Whatever was defined again is a new row version, so what did not change was not defined.
    for drop in sorted({row[0] for row in set(before) & set(after)}):
        connection.execute(drop)
    _run(connection, grants)


def _drop_behaviour(connection: psycopg.Connection) -> None:
    try:
        connection.execute(_DROP_BEHAVIOUR)
    except pg.DependentObjectsStillExist as error:
        raise SchemaError(
            f"cannot replace the views of Holdfast: {error.diag.message_primary}",
            why=error.diag.message_detail or "",
            fix="Drop what depends on them, run holdfast migrate, and recreate it.",
        ) from error


def _run(connection: psycopg.Connection, piece: _Piece) -> None:
    try:
        connection.execute(piece.text)
    except psycopg.Error as error:
        line = piece.text.count("\n", 0, int(error.diag.statement_position or 1) - 1) + 1
        error.add_note(f"in {piece.name}, line {line}")
        raise


def _record(connection: psycopg.Connection, piece: _Piece) -> None:
    connection.execute(_record_literal(piece))


def _record_literal(piece: _Piece) -> str:
    return (
        "insert into holdfast.migration (version, name, checksum, release) "
        f"values ({piece.version}, '{piece.name}', '{piece.checksum}', '{__version__}') "
        "on conflict (version) do update "
        "set checksum = excluded.checksum, release = excluded.release, "
        "applied_at = excluded.applied_at;"
    )


def _blocked(connection: psycopg.Connection, patience: timedelta) -> MigrationBlocked:
    holders = connection.execute(_HOLDERS).fetchall()
    sessions = [
        f"process {pid} ({application or 'no name'}, user {user}) holds {table}, "
        f"in a transaction since {since:%H:%M:%S}"
        for pid, application, user, table, since in holders
    ]
    return MigrationBlocked(
        f"other sessions held locks for {patience.total_seconds():.0f} s, nothing was changed",
        why="\n".join(sessions) or "They are no longer held.",
        fix="End these transactions, then run:  holdfast migrate",
    )


_LOCK: LiteralString = "select pg_advisory_xact_lock(x'686f6c6466617374'::bigint)"  # "holdfast"

# Bodies name functions of files that come later. A waiting DDL statement makes everyone after it
# wait as well, so it must not wait for long.
_SETTINGS: LiteralString = (
    "set local lock_timeout = '2s'; "
    "set local check_function_bodies = off; "
    "set local client_min_messages = warning"
)

_BOOKKEEPING: LiteralString = """\
create schema if not exists holdfast;
-- What was installed; version 0 is the behaviour: functions, views and grants.
create table holdfast.migration (
  version    integer     primary key,
  name       text        not null,
  checksum   text        not null,
  release    text        not null,
  applied_at timestamptz not null default now()
);"""

# Routines and views, with the version of their row and the statement that would drop them.
_BEHAVIOUR_ROWS: LiteralString = """
select format('drop routine %s', oid::regprocedure), oid, xmin::text
from pg_proc
where pronamespace = 'holdfast'::regnamespace
union all
select format('drop view %s', r.ev_class::regclass), r.ev_class, r.xmin::text
from pg_rewrite r
join pg_class c on c.oid = r.ev_class
where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'v'
"""

# Functions return rows of views and views call functions: whatever stands on nothing goes first.
# Functions that a table stands on (a default, an index) stay, and are replaced in place.
_DROP_BEHAVIOUR: LiteralString = """
do $$
declare
  statement text;
  dropped   boolean;
  views     text;
begin
  loop
    dropped := false;
    for statement in
      select format('drop routine %s', oid::regprocedure) from pg_proc
      where pronamespace = 'holdfast'::regnamespace
      union all
      select format('drop view %s', oid::regclass) from pg_class
      where relnamespace = 'holdfast'::regnamespace and relkind = 'v'
    loop
      begin
        execute statement;
        dropped := true;
      exception when dependent_objects_still_exist then
        null;
      end;
    end loop;
    exit when not dropped;
  end loop;
  select string_agg(oid::regclass::text, ', ') into views
  from pg_class
  where relnamespace = 'holdfast'::regnamespace and relkind = 'v';
  if views is not null then
    execute format('drop view %s', views);   -- something of the user's stands on them: it says what
  end if;
end
$$
"""

_HOLDERS: LiteralString = """
select a.pid, a.application_name, a.usename, min(l.relation::regclass::text), a.xact_start
from pg_locks l
join pg_class c on c.oid = l.relation
join pg_stat_activity a on a.pid = l.pid
where c.relnamespace = to_regnamespace('holdfast')
  and l.granted and a.pid <> pg_backend_pid() and a.xact_start is not null
group by a.pid, a.application_name, a.usename, a.xact_start
order by a.xact_start
limit 5
"""

_DESCRIBE: LiteralString = """
with shaped as (
  -- partitions by day are made as days come
  select c.oid, c.relname as name, c.relkind, c.reloptions, c.relpersistence, c.relispartition,
    pg_get_expr(c.relpartbound, c.oid) as bound
  from pg_class c
  where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'v')
    and coalesce(pg_get_expr(c.relpartbound, c.oid), '') not like 'FOR VALUES FROM%'
), columns as (
  select s.oid, 2 as place, a.attnum as ord, concat_ws(' ', ' ', a.attname,
    format_type(a.atttypid, a.atttypmod),
    case when a.attcollation <> t.typcollation then 'collate ' || quote_ident(l.collname) end,
    case when a.attnotnull then 'not null' end,
    case when a.attidentity <> '' then 'identity' end,
    'default ' || pg_get_expr(d.adbin, d.adrelid)) as line
  from shaped s
  join pg_attribute a on a.attrelid = s.oid and a.attnum > 0 and not a.attisdropped
  join pg_type t on t.oid = a.atttypid
  left join pg_collation l on l.oid = a.attcollation
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  where not s.relispartition
), lines as (
  select s.oid, s.relkind <> 'v' as is_table, s.name, 1 as place, 0 as ord, concat_ws(' ',
    case when s.relpersistence = 'u' then 'unlogged' end,
    case s.relkind when 'v' then 'view' else 'table' end, s.name,
    (select 'partition of ' || i.inhparent::regclass from pg_inherits i where i.inhrelid = s.oid),
    s.bound, 'partition by ' || pg_get_partkeydef(s.oid),
    'with (' || array_to_string(s.reloptions, ', ') || ')') as line
  from shaped s
  union all
  select s.oid, s.relkind <> 'v', s.name, c.place, c.ord, c.line
  from shaped s join columns c using (oid)
  union all
  select s.oid, true, s.name, 3, row_number() over (order by k.conname),
    format('  constraint %I %s', k.conname, pg_get_constraintdef(k.oid))
  from shaped s join pg_constraint k on k.conrelid = s.oid
  where k.contype <> 'n' and k.conislocal and k.conparentid = 0
  union all
  select s.oid, true, s.name, 4, row_number() over (order by i.relname),
    '  ' || pg_get_indexdef(x.indexrelid)
  from shaped s join pg_index x on x.indrelid = s.oid join pg_class i on i.oid = x.indexrelid
  where not i.relispartition
    and not exists (
      select from pg_constraint k where k.conindid = i.oid and k.contype in ('p', 'u'))
  union all
  select s.oid, true, s.name, 5, row_number() over (order by g.tgname),
    '  ' || pg_get_triggerdef(g.oid)
  from shaped s join pg_trigger g on g.tgrelid = s.oid
  where not g.tgisinternal
), routines as (
  select p.proname, pg_get_function_identity_arguments(p.oid) as arguments,
    concat_ws(' ',
      case p.prokind when 'p' then 'procedure' else 'function' end,
      format('%I(%s)', p.proname, pg_get_function_arguments(p.oid)),
      'returns ' || pg_get_function_result(p.oid),
      case p.provolatile when 'i' then 'immutable' when 's' then 'stable' end,
      case when p.prosecdef then 'security definer' end,
      'set ' || array_to_string(p.proconfig, ', ')) as line
  from pg_proc p
  where p.pronamespace = 'holdfast'::regnamespace
)
select line from (
  select 1 as section, c.relname::text as name, 0 as place, 0::bigint as ord,
    'sequence ' || c.relname as line
  from pg_class c
  where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'S'
    and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i')
  union all
  select case when l.is_table then 2 else 3 end, l.name, l.place, l.ord, l.line from lines l
  union all
  select 4, r.proname, 0, row_number() over (order by r.proname, r.arguments), r.line
  from routines r
) described
order by section, name collate "C", place, ord
"""
