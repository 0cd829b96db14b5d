"""Four tables as applications have them, of any size, and what adopting each needs to be told."""

import re
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg

from holdfast.adopt import Choices


@dataclass(frozen=True)
class Shape:
    """A table: how it is made and filled with `rows`, and how many of them wait."""

    name: str
    table: str
    make: str
    fill: str
    choices: Choices
    insert: str
    marker: str
    written: tuple[str, ...]
    key: str
    before: str = ""
    waiting: int = field(default=20)

    def create(self, connection: psycopg.Connection, rows: int) -> None:
        """Make the table; one row in `waiting` is queued, the others have ended."""
        connection.execute(self.make)
        connection.execute(self.fill.format(rows=rows, waiting=self.waiting))
        connection.execute(f"analyze {self.table}")

    def columns(self, connection: psycopg.Connection) -> list[str]:
        """The columns that only the application writes."""
        found = connection.execute(
            "select quote_ident(attname) from pg_attribute "
            "where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
            [self.table],
        ).fetchall()
        return [name for (name,) in found if name not in self.written]

    def digest(self, connection: psycopg.Connection, columns: list[str] | None = None) -> str:
        """A digest of all rows, with these columns; else those only the application writes."""
        named = ", ".join(columns if columns is not None else self.columns(connection))
        row = connection.execute(
            f"select md5(string_agg(md5(row({named})::text), '' order by row({named})::text)) "
            f"from {self.table}"
        ).fetchone()
        assert row
        return str(row[0])

    def structure(self, connection: psycopg.Connection) -> list[str]:
        """Columns, constraints, indexes and triggers, as the catalog has them."""
        lines = connection.execute(_STRUCTURE, {"table": self.table}).fetchall()
        # PostgreSQL reads back what it wrote with its casts in other places, as after a dump.
        return [re.sub(r"::(character varying|text)(\[\])?|[()]", "", line) for (line,) in lines]


REPORTS = Shape(
    name="bigint key, varchar with a check, times without a zone",
    table="public.report_jobs",
    make="""
        create table report_jobs (
          id bigserial primary key, title text not null, body jsonb,
          status varchar(20) not null default 'queued'
            constraint report_jobs_status check (status in ('queued', 'started', 'completed')),
          created_at timestamp not null default now(), started_at timestamp,
          completed_at timestamp);
        create table reports (id bigserial primary key, job_id bigint, content text);
    """,
    fill="""
        insert into report_jobs (title, body, status, created_at)
        select 'report ' || g, jsonb_build_object('n', g, 'text', repeat('x', g %% 40)),
          case when g %% {waiting} = 0 then 'queued' else 'completed' end,
          now() - g * interval '1 second'
        from generate_series(1, {rows}) g
    """.replace("%%", "%"),
    choices=Choices(queue="reports", output="reports.job_id", stuck_after=timedelta(minutes=10)),
    insert="insert into report_jobs (title) values ('another {n}')",
    marker="title = 'another {n}'",
    written=("status", "started_at", "completed_at"),
    key="id",
)

ORDERS = Shape(
    name="uuid key, enum, another schema, names that need quotes",
    table='"Shop Floor"."Order"',
    make="""
        create schema "Shop Floor";
        create type "Shop Floor"."Order State" as enum ('new', 'in progress', 'shipped', 'broken');
        create table "Shop Floor"."Order" (
          "order" uuid primary key default gen_random_uuid(), "select" text, "Total" numeric(12, 2),
          state "Shop Floor"."Order State" not null default 'new',
          "createdAt" timestamptz default now(), retry_count integer default 0, priority integer);
    """,
    fill="""
        insert into "Shop Floor"."Order" ("order", "select", "Total", state, "createdAt", priority)
        select md5('order ' || g)::uuid, 'it''s "' || g || '"', g / 7.0,
          case when g %% {waiting} = 0 then 'new' else 'shipped' end::"Shop Floor"."Order State",
          now() - g * interval '1 second', g %% 10
        from generate_series(1, {rows}) g
    """.replace("%%", "%"),
    choices=Choices(
        queue="orders",
        states={
            "queued": ["new"],
            "leased": ["in progress"],
            "done": ["shipped"],
            "dead": ["broken"],
        },
    ),
    insert="""insert into "Shop Floor"."Order" ("select") values ('one more {n}')""",
    marker="\"select\" = 'one more {n}'",
    written=("state", "retry_count"),
    key='"order"',
)

PAGES = Shape(
    name="composite key of text and integer, no status yet",
    table="public.pages",
    make="""
        create table pages (
          site text, number integer, address varchar(200) not null, fetched_at timestamptz,
          primary key (site, number));
    """,
    fill="""
        insert into pages
        select 'site:' || g %% 97, g, 'https://example.org/' || g, now()
        from generate_series(1, {rows}) g
    """.replace("%%", "%"),
    choices=Choices(queue="pages", existing="done", columns={"lane": "site"}),
    insert="insert into pages values ('new {n}', -1, 'https://example.org/new')",
    marker="site = 'new {n}'",
    written=("status",),
    key="number",
    before="update pages set status = 'queued' where number % 20 = 0",
)

IMAGES = Shape(
    name="text key, a state that is not in the check, attempts and errors of its own",
    table="public.images",
    make="""
        create table images (
          name text primary key, width integer, pixels bytea, owner text,
          status text not null default 'pending'
            check (status = any (array['pending', 'processing', 'done'])),
          attempts integer default 0, max_attempts integer default 5, error_message varchar(80),
          created_at timestamptz default now(), started_at timestamptz, finished_at timestamptz);
    """,
    fill="""
        insert into images (name, width, pixels, owner, status)
        select 'image ' || g || '.png', g %% 4000, decode(md5(g::text), 'hex'), 'owner ' || g %% 50,
          case when g %% {waiting} = 0 then 'pending' else 'done' end
        from generate_series(1, {rows}) g
    """.replace("%%", "%"),
    choices=Choices(queue="images", payload=["name", "width"], columns={"tenant": "owner"}),
    insert="insert into images (name) values ('new {n}.png')",
    marker="name = 'new {n}.png'",
    written=("status", "attempts", "error_message", "started_at", "finished_at"),
    key="name",
)

SHAPES = [REPORTS, ORDERS, PAGES, IMAGES]

_STRUCTURE = """
select format('column %%s %%s %%s %%s', attname, format_type(atttypid, atttypmod), attnotnull,
  (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d
   where d.adrelid = a.attrelid and d.adnum = a.attnum))
from pg_attribute a where attrelid = %(table)s::regclass and attnum > 0 and not attisdropped
union all
select format('constraint %%s %%s %%s', conname, pg_get_constraintdef(oid), convalidated)
from pg_constraint where conrelid = %(table)s::regclass and contype <> 'n'
union all
select pg_get_indexdef(indexrelid) from pg_index where indrelid = %(table)s::regclass
union all
select pg_get_triggerdef(oid) from pg_trigger where tgrelid = %(table)s::regclass
order by 1
"""
