"""The steps that every plan has: one output per job, indexes, verbs, triggers, counters."""

from collections.abc import Mapping
from typing import Any, LiteralString, cast

import psycopg

from holdfast.adopt.catalog import columns_of, literal_sql, locate, name_sql
from holdfast.adopt.draft import Draft
from holdfast.adopt.plan import Step
from holdfast.errors import CannotAdopt


def add_output(draft: Draft, spec: dict[str, Any]) -> None:
    chosen = draft.choices
    if chosen.done_when:
        spec["done_when"] = chosen.done_when
    if chosen.output:
        _add_made(draft, spec, chosen.output)
    if "done_when" in spec:
        spec["done_when_sql"] = _resolved(draft, spec["done_when"])


def _resolved(draft: Draft, condition: str) -> str:
    """The condition with every name in it written out as what it means now."""
    try:
        with draft.connection.transaction():
            query = "select holdfast.resolved(%s, %s)"
            return cast(str, draft.one(query, draft.relation, condition))
    except psycopg.Error as error:
        raise CannotAdopt(
            f"the condition {condition} cannot be read: {error.diag.message_primary}",
            fix='It is SQL on the row `job`:  --done-when "exists (select … = job.id)"',
        ) from error


def _add_made(draft: Draft, spec: dict[str, Any], output: str) -> None:
    table, _, column = output.rpartition(".")
    if not table:
        raise CannotAdopt(
            f"--output {output} names no column",
            fix="For example:  --output reports.job_id",
        )
    relation, _, name = locate(draft.connection, table)
    if len(spec["key"]) != 1:
        raise CannotAdopt(
            f"the key of {draft.relation} has {len(spec['key'])} columns",
            fix='Say it in SQL, of the row `job`:  --done-when "exists (select …)"',
        )
    known = [c.name for c in columns_of(draft.connection, relation)]
    if column not in known:
        raise CannotAdopt(
            f"table {relation} has no column {column}", fix=f"It has: {', '.join(known)}."
        )
    spec["done_when"] = (
        f"exists (select from {relation} made "
        f"where made.{name_sql(column)} = job.{name_sql(spec['key'][0])})"
    )
    twice = draft.one(
        f"select format('%s', {name_sql(column)}) from {relation} "
        f"where {name_sql(column)} is not null group by {name_sql(column)} "
        "having count(*) > 1 limit 1"
    )
    if twice is not None:
        draft.warnings.append(
            f"{relation} has two outputs of {twice}: no unique index can be made; "
            "remove the duplicates and adopt again"
        )
        return
    if draft.one(_UNIQUE, relation, column, found=True):
        return
    index = f"{name[:40]}_once"
    draft.index(
        f"one output per job: {relation}",
        index,
        f"create unique index concurrently if not exists {name_sql(index)} "
        f"on {relation} ({name_sql(column)}) where {name_sql(column)} is not null",
        relation,
    )


def add_indexes(draft: Draft, spec: Mapping[str, Any], part: int) -> None:
    words = draft.words(part, spec)
    named = {sort: f"holdfast_{part}_{sort}" for sort in ("id", "ready", "leased", "lane")}
    lane = spec["columns"].get("lane")
    taken = spec["columns"].get("started_at", spec["columns"]["lease_until"])
    wanted = {
        "id": f"unique|(({words['id']}))",
        "ready": f"|({words['by_priority']}{words['order']}) where {words['is_queued']}",
        "leased": f"|({name_sql(lane) + ', ' if lane else ''}{name_sql(taken)}) "
        f"where {words['is_leased']}",
    }
    if lane:
        wanted["lane"] = f"|({name_sql(lane)}, {words['order']}) where {words['is_queued']}"
    purposes = {
        "id": "find a row by the id of its job",
        "ready": "the order of what waits",
        "leased": "what is taken",
        "lane": "the order of each lane",
    }
    for sort, definition in wanted.items():
        unique, _, rest = definition.partition("|")
        draft.index(
            f"index: {purposes[sort]}",
            named[sort],
            f"create {unique + ' ' if unique else ''}index concurrently if not exists "
            f"{name_sql(named[sort])} on {draft.relation} {rest}",
        )


def add_verbs(draft: Draft, part: int, queue: str) -> None:
    name = literal_sql(queue)
    triggers = {
        "inserted": "insert on {t} referencing new table as new_rows",
        "updated": "update on {t} referencing old table as old_rows new table as new_rows",
        "deleted": "delete on {t} referencing old table as old_rows",
    }
    draft.steps.append(
        Step(
            "the verbs",
            f"select holdfast.begin_verbs({part}::smallint)",
            f"select holdfast.end_verbs({part}::smallint)",
        )
    )
    for event, where in triggers.items():
        draft.steps.append(
            Step(
                f"trigger: count what is {event}",
                f"create or replace trigger holdfast_{event} after "
                f"{where.format(t=draft.relation)} for each statement "
                f'execute function holdfast_adopted."{part}_{event}"()',
                f"drop trigger if exists holdfast_{event} on {draft.relation}",
            )
        )
    draft.steps.append(
        Step(
            "trigger: count what is truncated",
            f"create or replace trigger holdfast_truncated after truncate on {draft.relation} "
            f'for each statement execute function holdfast_adopted."{part}_deleted"()',
            f"drop trigger if exists holdfast_truncated on {draft.relation}",
        )
    )
    draft.steps.append(
        Step(
            "counters and queue",
            f"select holdfast.begin_queue({part}::smallint, {name})",
            f"select holdfast.end_queue({part}::smallint, {name})",
        )
    )


_UNIQUE: LiteralString = """
select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
where i.indrelid = %s::regclass and i.indisunique and i.indnkeyatts = 1 and a.attname = %s
"""
