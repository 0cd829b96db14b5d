"""What a table refuses: found out before a queue writes it, without writing anything."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import errors as pg

from holdfast.adopt.catalog import Column, ask_owner, literal_sql, name_sql, names_in_full
from holdfast.errors import CannotAdopt

# So many rows that wait or run are tried on each constraint.
SAMPLE = 100


@dataclass(frozen=True, slots=True)
class Check:
    """A check constraint: its condition, the columns it is about, the texts it mentions."""

    name: str
    condition: str
    columns: list[str]
    words: list[str]
    valid: bool
    no_inherit: bool
    comment: str | None


@dataclass(frozen=True, slots=True)
class Unique:
    """A unique index; `plain` ones are of columns alone and hold for all rows."""

    index: str
    constraint: str | None
    columns: list[str]
    touches: list[str]
    plain: bool
    excludes: bool
    index_definition: str
    constraint_definition: str | None
    comment: str | None

    @property
    def called(self) -> str:
        return f"constraint {self.constraint}" if self.constraint else f"index {self.index}"


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key: from these columns to those of another table."""

    name: str
    columns: list[str]
    table: str
    others: list[str]
    on_delete: str


class Survey:
    """Reads what a table allows."""

    def __init__(self, connection: psycopg.Connection, relation: str) -> None:
        self.connection = connection
        self.relation = relation

    def refuse_rules(self, events: Sequence[str]) -> None:
        """Refuse rules on what the queue does: its statements cannot be rewritten."""
        for name, event in self._rows(_RULES, [self.relation]):
            if event in events:
                raise CannotAdopt(
                    f"table {self.relation} has a rule {name_sql(name)} on {event}",
                    why="PostgreSQL cannot apply rules to the statements of a queue.",
                    fix="Make it a trigger, and drop the rule.",
                )

    def refuse_row_security(self) -> None:
        """Refuse policies that would hide rows from the queue, which acts for the owner."""
        [(forced, owner)] = self._rows(_FORCED, [self.relation])
        if forced:
            raise CannotAdopt(
                f"row level security is forced on {self.relation}",
                why=f"The queue acts for its owner {owner}, and would not see every row.",
                fix=f"Let the owner see them:  alter table {self.relation} "
                "no force row level security",
            )

    def refuse_triggers(self) -> None:
        """Refuse triggers with the names of those that will be made, and those of others."""
        for (name,) in self._rows(_TRIGGERS, [self.relation]):
            raise CannotAdopt(
                f"{self.relation} has a trigger {name} already",
                why="It is yours, or an earlier adoption left it.",
                fix=f"Rename or drop it:  drop trigger {name} on {self.relation}",
            )
        [(strange,)] = self._rows("select holdfast.strange_trigger(%s::regclass)", [self.relation])
        if strange:
            raise CannotAdopt(
                f"{strange}, with the rights of the owner of the table",
                why="Workers write the table as its owner, whoever made the trigger.",
                fix="Drop the trigger, or make its function the owner's; and have nobody else "
                f"make one:  revoke trigger on {self.relation} from ...",
            )

    def free(self, schema: str, name: str) -> bool:
        """Whether an index can be called so."""
        [(taken,)] = self._rows(
            "select to_regclass(format('%%I.%%I', %s::text, %s::text)) is not null", [schema, name]
        )
        return not taken

    def holds(self, column: Column, value: str) -> bool:
        """Whether a column gives a value back as it was written."""
        try:
            [[holds]] = self.asked(
                f"select {literal_sql(value)}::{column.type}::text = {literal_sql(value)} as holds"
            )
        except (pg.DataError, pg.IntegrityError, pg.ProgrammingError):
            return False
        return bool(holds)

    def orders(self, column: Column) -> bool:
        """Whether rows can be put into the order of a column."""
        try:
            with self.connection.transaction():
                self.connection.execute(
                    f"select null::{column.type} as x order by x, null::{column.type} < null"
                )
        except pg.ProgrammingError:
            return False
        return True

    def checks(self) -> list[Check]:
        with names_in_full(self.connection):
            return [
                Check(name, condition, columns, [_text(w) for w in words], *rest)
                for name, condition, columns, words, *rest in self._rows(_CHECKS, [self.relation])
            ]

    def uniques(self, written: Iterable[str]) -> list[Unique]:
        """Unique indexes that say anything of these columns; not the primary key."""
        with names_in_full(self.connection):
            rows = self._rows(_UNIQUES, {"table": self.relation, "written": list(written)})
        return [Unique(*row) for row in rows]

    def references(self) -> list[Reference]:
        return [Reference(*row) for row in self._rows(_REFERENCES, [self.relation])]

    def referenced(self) -> list[tuple[str, str]]:
        """Who refers to the table, and what a deleted row does to them."""
        return self._rows(_REFERENCED, [self.relation])

    def words_of(self, reference: Reference, column: str) -> list[str]:
        """The values that a foreign key allows a column, if there are few."""
        other = reference.others[reference.columns.index(column)]
        rows = self._rows(
            f"select format('%s', {name_sql(other)}) from {reference.table} limit 51", None
        )
        return [word for (word,) in rows] if len(rows) <= 50 else []

    def allows(self, check: Check, column: Column, value: str) -> bool:
        """Whether a check on one column takes a value."""
        row = f"select {literal_sql(value)}::{column.type} as {name_sql(column.name)}"
        return not self._refused(check, row)

    def refuses(
        self,
        check: Check,
        columns: Mapping[str, Column],
        live: str,
        changes: Sequence[Mapping[str, str]],
    ) -> bool:
        """Whether a check refuses rows that are `live` once these columns are changed, in turn."""
        if not self.asked(f"select 1 as found from {self.relation} job where {live} limit 1"):
            row = ", ".join(f"null::{c.type} as {name_sql(c.name)}" for c in columns.values())
            source = f"select {row}"
        else:
            source = f"select job.* from {self.relation} job where {live} limit {SAMPLE}"
        for change in changes:
            row = ", ".join(
                f"({change[c.name]})::{c.type} as {name_sql(c.name)}"
                if c.name in change
                else name_sql(c.name)
                for c in columns.values()
            )
            source = f"select {row} from ({source}) job"
        return self._refused(check, source)

    def _refused(self, check: Check, rows: str) -> bool:
        try:
            [[refused]] = self.asked(
                f"select exists (select from ({rows}) job where not ({check.condition})) as refused"
            )
            return bool(refused)
        except pg.InsufficientPrivilege:
            return False
        except psycopg.Error:
            return True

    def asked(self, query: str) -> list[list[Any]]:
        """Query as the owner, who may have written the functions of types and constraints."""
        return ask_owner(self.connection, self.relation, query)

    def _one(self, query: str, values: Any = None) -> Any:
        [(value,)] = self._rows(query, values)
        return value

    def _rows(self, query: str, values: Any) -> list[Any]:
        return self.connection.execute(query, values).fetchall()


def each(items: Iterable[str], said: Callable[[str], str] = str) -> str:
    """Names in a sentence: a, b and c."""
    words = [said(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _text(literal: str) -> str:
    return literal.replace("''", "'")


_RULES: LiteralString = """
select r.rulename, case r.ev_type when '2' then 'update' when '3' then 'insert' else 'delete' end
from pg_rewrite r where r.ev_class = %s::regclass and r.ev_type in ('2', '4') order by 1
"""
_FORCED: LiteralString = """
select c.relrowsecurity and c.relforcerowsecurity and not (o.rolsuper or o.rolbypassrls), o.rolname
from pg_class c join pg_roles o on o.oid = c.relowner where c.oid = %s::regclass
"""
_TRIGGERS: LiteralString = """
select t.tgname from pg_trigger t where t.tgrelid = %s::regclass
  and t.tgname in ('holdfast_inserted', 'holdfast_updated', 'holdfast_deleted',
    'holdfast_truncated')
"""
_OWNER: LiteralString = """
select o.rolname from pg_class c join pg_roles o on o.oid = c.relowner where c.oid = %s::regclass
"""
# Constraints that are not enforced (PostgreSQL 18) refuse nothing.
_CHECKS: LiteralString = """
select c.conname, e.condition,
  array(select a.attname::text from pg_attribute a
        where a.attrelid = c.conrelid and a.attnum = any(c.conkey) order by a.attnum),
  array(select m[1] from regexp_matches(e.condition, '''((?:[^'']|'''')*)''', 'g') m),
  c.convalidated, c.connoinherit, obj_description(c.oid, 'pg_constraint')
from pg_constraint c
cross join lateral (select pg_get_expr(c.conbin, c.conrelid) as condition) e
where c.conrelid = %s::regclass and c.contype = 'c'
  and coalesce((to_jsonb(c) -> 'conenforced')::boolean, true)
order by c.conname
"""
_UNIQUES: LiteralString = """
select i.relname, c.conname, k.columns, t.touches,
  x.indexprs is null and x.indpred is null and not x.indisexclusion
    and not coalesce(c.condeferrable, false) and x.indnkeyatts = x.indnatts
    and not coalesce((to_jsonb(c) -> 'conperiod')::boolean, false),
  x.indisexclusion, pg_get_indexdef(i.oid), pg_get_constraintdef(c.oid),
  coalesce(obj_description(c.oid, 'pg_constraint'), obj_description(i.oid, 'pg_class'))
from pg_index x
join pg_class i on i.oid = x.indexrelid
left join pg_constraint c on c.conindid = i.oid and c.conrelid = x.indrelid
  and c.contype in ('u', 'x')
cross join lateral (
  select array(select a.attname::text from unnest(x.indkey::smallint[]) with ordinality n(nr, nth)
    join pg_attribute a on a.attrelid = x.indrelid and a.attnum = n.nr
    where n.nth <= x.indnkeyatts order by n.nth)) k(columns)
cross join lateral (
  select array(select a.attname::text from pg_attribute a
    where a.attrelid = x.indrelid and a.attname = any(%(written)s)
      and (a.attnum = any(x.indkey::smallint[]) or exists (
        select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = i.oid
          and d.refclassid = 'pg_class'::regclass and d.refobjid = x.indrelid
          and d.refobjsubid = a.attnum))
    order by a.attnum)) t(touches)
where x.indrelid = %(table)s::regclass and (x.indisunique or x.indisexclusion)
  and not x.indisprimary and t.touches <> '{}'
order by i.relname
"""
_REFERENCES: LiteralString = """
select c.conname,
  array(select a.attname::text from unnest(c.conkey) with ordinality n(nr, nth)
        join pg_attribute a on a.attrelid = c.conrelid and a.attnum = n.nr order by n.nth),
  format('%%I.%%I', s.nspname, t.relname),
  array(select a.attname::text from unnest(c.confkey) with ordinality n(nr, nth)
        join pg_attribute a on a.attrelid = c.confrelid and a.attnum = n.nr order by n.nth),
  c.confdeltype::text
from pg_constraint c join pg_class t on t.oid = c.confrelid
join pg_namespace s on s.oid = t.relnamespace
where c.conrelid = %s::regclass and c.contype = 'f'
  and coalesce((to_jsonb(c) -> 'conenforced')::boolean, true)
order by c.conname
"""
_REFERENCED: LiteralString = """
select format('%%I.%%I', s.nspname, t.relname), c.confdeltype::text
from pg_constraint c join pg_class t on t.oid = c.conrelid
join pg_namespace s on s.oid = t.relnamespace
where c.confrelid = %s::regclass and c.contype = 'f' and c.conparentid = 0
  and coalesce((to_jsonb(c) -> 'conenforced')::boolean, true)
order by 1
"""
