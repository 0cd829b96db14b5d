"""What the catalog contains about a table, and how names are written in SQL."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import errors as pg
from psycopg import sql

from holdfast.errors import CannotAdopt


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type with its schema, and the base type of a domain."""

    name: str
    type: str
    base: str
    default: str | None
    not_null: bool
    generated: bool
    constrained: bool


def pin_names(connection: psycopg.Connection) -> None:
    """Let names refer only to PostgreSQL's own objects; see `locate`."""
    connection.execute(_PIN)


def locate(connection: psycopg.Connection, table: str) -> tuple[str, str, str]:
    """The table as PostgreSQL names it, quoted, and its schema and name.

    A name without a schema is looked for where this user's names are.
    """
    row = _relation(connection, table)
    if row is None:
        # A name that exists exactly as typed is used as it is.
        row = _relation(connection, name_sql(table))
    if row is None:
        raise CannotAdopt(f"table {table} does not exist", fix="Name its schema too:  shop.orders")
    relation, schema, name, kind, persistence = row
    if kind == "p":
        raise CannotAdopt(
            f"{relation} is partitioned",
            why="A claim locks rows by their place, and each partition counts its places anew.",
            fix="Enqueue jobs that name its rows instead: see holdfast link.",
        )
    if kind != "r" or schema in ("holdfast", "pg_catalog", "information_schema"):
        raise CannotAdopt(f"{relation} is not a plain table", fix="Adopt a table of your own.")
    if persistence == "t":
        raise CannotAdopt(
            f"{relation} is a temporary table", fix="Other sessions cannot see it: adopt another."
        )
    return relation, schema, name


def refuse_kin(connection: psycopg.Connection, relation: str) -> None:
    """Refuse a table whose rows are written through another one, or that is written through it."""
    row = connection.execute(_KIN, [relation]).fetchone()
    assert row
    partition, parent, child, kind = row
    if partition:
        raise CannotAdopt(
            f"{relation} is a partition of {parent}",
            why=f"Rows written through {parent} would not be noticed.",
            fix="Detach it first, or adopt a table without partitions.",
        )
    if parent:
        raise CannotAdopt(
            f"{relation} inherits from {parent}",
            why=f"Rows written through {parent} would not be noticed.",
            fix=f"Separate them first:  alter table {relation} no inherit {parent}",
        )
    if child:
        raise CannotAdopt(
            f"{relation} has child tables such as {child}",
            why="A claim locks rows by their place, and each child counts its places anew.",
            fix=f"Separate them first:  alter table {child} no inherit {relation}",
        )
    if kind:
        raise CannotAdopt(
            f"{relation} is a table of type {kind}, which takes no columns",
            fix=f"Separate them first:  alter table {relation} not of",
        )


def refuse_kept_columns(connection: psycopg.Connection, relation: str) -> None:
    """Refuse to give back a table whose columns its parent keeps it from dropping."""
    row = connection.execute(_KIN, [relation]).fetchone()
    assert row
    partition, parent, _, _ = row
    if parent:
        raise CannotAdopt(
            f"{relation} is a child of {parent}, which keeps its columns",
            fix=f"Detach it first:  alter table {parent} detach partition {relation}"
            if partition
            else f"Separate them first:  alter table {relation} no inherit {parent}",
        )


def _relation(connection: psycopg.Connection, name: str) -> Any:
    try:
        with connection.transaction():
            connection.execute(_UNPIN)
            oid = connection.execute("select to_regclass(%s)::oid", [name]).fetchone()
    except (pg.InvalidName, pg.SyntaxError, pg.UndefinedTable, pg.InsufficientPrivilege):
        return None
    connection.execute(_PIN)
    return connection.execute(_RELATION, oid).fetchone()


def act_for(connection: psycopg.Connection, relation: str) -> None:
    """Refuse unless this user may take the place of the table's owner, and of Holdfast's.

    What is generated for a table belongs to its owner, and what counts its rows to Holdfast's.
    """
    missing = connection.execute(_MISSING, [relation, relation]).fetchall()
    if missing:
        me = connection.info.user
        owners = " and ".join(f"{role}, who owns {what}" for role, what in missing)
        raise CannotAdopt(
            f"user {me} may not act for {owners}",
            fix="Adopt as a superuser, or have one type:  "
            + " ".join(f"grant {name_sql(role)} to {name_sql(me)};" for role, _ in missing),
        )


def ask_owner(connection: psycopg.Connection, relation: str, query: str) -> list[list[Any]]:
    """The rows of a query, run with only the rights of the table's owner.

    Types, domains and checks of a table call code of its owner. Nothing is left behind.
    """
    with connection.transaction(force_rollback=True):
        row = connection.execute(
            "select holdfast.run_as_owner(%s::regclass, %s, true)",
            [relation, f"select json_agg(asked) from ({query}) asked"],
        ).fetchone()
    assert row
    return [list(found.values()) for found in json.loads(row[0] or "[]")]


def key_of(connection: psycopg.Connection, relation: str) -> list[str]:
    key = [name for (name,) in connection.execute(_KEY, [relation]).fetchall()]
    if not key:
        raise CannotAdopt(
            f"{relation} has no primary key", fix="A row needs one to be found again: add it first."
        )
    return key


def columns_of(connection: psycopg.Connection, relation: str) -> list[Column]:
    with names_in_full(connection):
        return [Column(*row) for row in connection.execute(_COLUMNS, {"table": relation})]


@contextmanager
def names_in_full(connection: psycopg.Connection) -> Iterator[None]:
    """What the catalog prints inside is understood whatever the search path is."""
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog")
        yield


def name_sql(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def literal_sql(value: str) -> str:
    return sql.Literal(value).as_string(None)


_RELATION: LiteralString = """
select format('%%I.%%I', n.nspname, c.relname), n.nspname, c.relname, c.relkind::text,
  c.relpersistence::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = %s
"""
_PIN: LiteralString = """
select set_config('holdfast.names', coalesce(nullif(current_setting('holdfast.names', true), ''),
    current_setting('search_path')), false),
  set_config('search_path', 'pg_catalog, pg_temp', false)
"""
_UNPIN: LiteralString = """
select set_config('search_path', coalesce(nullif(current_setting('holdfast.names', true), ''),
  current_setting('search_path')), true)
"""
_MISSING: LiteralString = """
select r.role, r.what
from (
  select pg_get_userbyid(c.relowner) as role, %s as what from pg_class c where c.oid = %s::regclass
  union all
  select pg_get_userbyid(n.nspowner), 'Holdfast' from pg_namespace n where n.nspname = 'holdfast') r
where not pg_has_role(session_user, r.role, case
  when current_setting('server_version_num')::integer >= 160000 then 'SET' else 'MEMBER' end)
"""
_KIN: LiteralString = """
select c.relispartition,
  (select format('%%I.%%I', n.nspname, p.relname) from pg_inherits i
   join pg_class p on p.oid = i.inhparent join pg_namespace n on n.oid = p.relnamespace
   where i.inhrelid = c.oid limit 1),
  (select format('%%I.%%I', n.nspname, p.relname) from pg_inherits i
   join pg_class p on p.oid = i.inhrelid join pg_namespace n on n.oid = p.relnamespace
   where i.inhparent = c.oid limit 1),
  (select format('%%I.%%I', n.nspname, t.typname) from pg_type t
   join pg_namespace n on n.oid = t.typnamespace
   where t.oid = c.reloftype)
from pg_class c where c.oid = %s::regclass
"""
_KEY: LiteralString = """
select a.attname from pg_index i
cross join unnest(i.indkey::smallint[]) with ordinality k(number, nth)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
where i.indrelid = %s::regclass and i.indisprimary and k.nth <= i.indnkeyatts order by k.nth
"""
_COLUMNS: LiteralString = """
with recursive domain as (
  select a.attnum, a.atttypid as type, a.atttypmod as mod, false as constrained
  from pg_attribute a where a.attrelid = %(table)s::regclass and a.attnum > 0
  union all
  select d.attnum, t.typbasetype, t.typtypmod, d.constrained or t.typnotnull
    or exists (select from pg_constraint c where c.contypid = t.oid)
  from domain d join pg_type t on t.oid = d.type where t.typtype = 'd'
)
select a.attname, format_type(a.atttypid, a.atttypmod), format_type(d.type, d.mod),
  pg_get_expr(f.adbin, f.adrelid), a.attnotnull, a.attgenerated <> '' or a.attidentity = 'a',
  d.constrained
from pg_attribute a
join domain d on d.attnum = a.attnum
join pg_type t on t.oid = d.type and t.typtype <> 'd'
left join pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum
where a.attrelid = %(table)s::regclass and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
