"""What the catalog says of a table, and how names are written in SQL."""

from typing import LiteralString

import psycopg
from psycopg import errors as pg
from psycopg import sql

from holdfast.errors import CannotAdopt


def locate(connection: psycopg.Connection, table: str) -> tuple[str, str, str]:
    """The table as PostgreSQL names it, quoted, and its schema and name."""
    try:
        row = connection.execute(_RELATION, [table]).fetchone()
    except (pg.InvalidName, pg.SyntaxError, pg.UndefinedTable):
        row = None
    if row is None:
        # Somebody who types a name as it is means it as it is.
        row = connection.execute(_RELATION, [name_sql(table)]).fetchone()
    if row is None:
        raise CannotAdopt(f"there is no table {table}", fix="Name its schema too:  shop.orders")
    relation, schema, name, kind = row
    if kind != "r" or schema in ("holdfast", "pg_catalog"):
        raise CannotAdopt(f"{relation} is not a plain table", fix="Views and partitions cannot be.")
    return relation, schema, name


def key_of(connection: psycopg.Connection, relation: str) -> list[str]:
    key = [name for (name,) in connection.execute(_KEY, [relation]).fetchall()]
    if not key:
        raise CannotAdopt(
            f"{relation} has no primary key", fix="A row needs one to be found again: add it first."
        )
    return key


def name_sql(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def literal_sql(value: str) -> str:
    return sql.Literal(value).as_string(None)


_RELATION: LiteralString = """
select format('%%I.%%I', n.nspname, c.relname), n.nspname, c.relname, c.relkind::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass(%s)
"""
_KEY: LiteralString = """
select a.attname from pg_index i
cross join unnest(i.indkey::smallint[]) with ordinality k(number, nth)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
where i.indrelid = %s::regclass and i.indisprimary order by k.nth
"""
