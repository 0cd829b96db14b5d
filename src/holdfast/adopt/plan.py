"""Read a table's shape, and say how it becomes a queue."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, LiteralString, cast

import psycopg
from psycopg.types.json import Jsonb

from holdfast.adopt.catalog import key_of, literal_sql, locate, name_sql
from holdfast.errors import CannotAdopt

STATES = ("queued", "leased", "done", "dead", "cancelled")


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a plan, and what undoes it; `alone` cannot run inside a transaction."""

    name: str
    do: str
    undo: str = ""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """How a table becomes a queue: what its columns and values mean, and the statements."""

    queue: str
    relation: str
    part: int
    spec: Mapping[str, Any]
    steps: Sequence[Step]
    existing: Mapping[str, int]
    warnings: Sequence[str] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)
    code: str = ""
    done: Sequence[str] = ()

    @property
    def sql(self) -> str:
        """The whole plan as a script, to read."""
        parts = [f"-- {step.name}\n{step.do};" for step in self.steps]
        return "\n\n".join(parts) + f"\n\n-- what the verbs do with the table\n{self.code}"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the plan cannot find out by itself, or should do otherwise."""

    queue: str | None = None
    kind: str | None = None
    status: str | None = None
    order: str | None = None
    states: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    payload: Sequence[str] = ()
    existing: str | None = None
    output: str | None = None
    done_when: str | None = None
    stuck_after: timedelta | None = None


class Planner:
    """Reads a table's shape and proposes what it means."""

    def __init__(self, connection: psycopg.Connection, table: str, choices: Choices) -> None:
        self.connection = connection
        self.choices = choices
        self.relation, self.schema, self.name = locate(connection, table)
        rows = connection.execute(_COLUMNS, [self.relation]).fetchall()
        self.types: dict[str, str] = {name: type for name, type, _ in rows}
        self.defaults: dict[str, str | None] = {name: default for name, _, default in rows}
        self.warnings: list[str] = []
        self.unknown: dict[str, int] = {}
        self.widened: dict[str, list[str]] = {}
        self.steps: list[Step] = []

    def plan(self) -> Plan:
        chosen = self.choices
        queue = chosen.queue or self.name
        part = self._part(queue)
        key = key_of(self.connection, self.relation)
        if unfit := [name for name in key if self.types[name].split("(")[0] not in _KEY_TYPES]:
            raise CannotAdopt(
                f"column {unfit[0]} of the key of {self.relation} is {self.types[unfit[0]]}",
                fix="A key is made of integers, uuids and texts.",
            )
        status = self._status()
        columns = self._columns(status)
        added = self._add_columns(columns, status)
        states, existing = self._states(status)
        order = [*self._order(columns), *key]
        spec: dict[str, Any] = {
            "key": key,
            "status": status,
            "status_type": self.types[status],
            "states": states,
            "order": list(dict.fromkeys(order)),
            "columns": columns,
            "types": {meaning: self.types[name] for meaning, name in columns.items()},
            "hidden": self._hidden(status, columns, added),
            "widened": self.widened,
            "timezone": self._one("select current_setting('TimeZone')"),
            **({"kind": chosen.kind} if chosen.kind else {}),
        }
        if chosen.payload:
            self._known(chosen.payload)
            single = len(chosen.payload) == 1 and "json" in self.types[chosen.payload[0]]
            spec |= {"payload_column": chosen.payload[0]} if single else {"payload": chosen.payload}
        if chosen.stuck_after:
            if "started_at" not in columns:
                raise CannotAdopt(
                    "there is no column that tells when other code took a row",
                    fix="Name it:  --column started_at=COLUMN, or leave out --stuck-after.",
                )
            spec["stuck_after"] = f"{chosen.stuck_after.total_seconds()} seconds"
        self._output(spec, part)
        self._indexes(spec, part)
        self._grants()
        code = self._code(part, queue, spec)
        self._verbs(part, queue)
        return Plan(
            queue,
            self.relation,
            part,
            spec,
            self.steps,
            existing,
            self.warnings,
            self.unknown,
            code,
        )

    def _part(self, queue: str) -> int:
        taken = self._one("select relation from holdfast.adopted where queue = %s", queue)
        if taken:
            raise CannotAdopt(
                f"queue {queue} is table {taken} already", fix="Name another:  --queue NAME"
            )
        if self._one("select from holdfast.job where queue = %s limit 1", queue, found=True):
            raise CannotAdopt(
                f"queue {queue} has jobs of its own", fix="Name another:  --queue NAME"
            )
        return cast(int, self._one(_FREE_PART))

    def _status(self) -> str:
        named = self.choices.status
        if named and named in self.types:
            return named
        found = next((name for name in _GUESSES["status"] if name in self.types), None)
        if found and not named:
            return found
        # There is none: rows of before are what their owner says, new ones wait.
        name = named or "status"
        existing = self.choices.existing
        if existing is None:
            raise CannotAdopt(
                f"{self.relation} has no column for the status of a row",
                why="One would be added, and every row that exists needs a state.",
                fix="Say what they are:  --existing done (or queued, dead, cancelled); "
                "or name the column:  --column status=COLUMN",
            )
        if existing not in _WORDS:
            raise CannotAdopt(
                f"--existing {existing} is no state", fix=f"States are: {', '.join(_WORDS)}."
            )
        quoted = name_sql(name)
        self.steps.append(
            Step(
                f"column {name}: existing rows are {_WORDS[existing]}",
                # The first default is that of rows of before, which are not written.
                f"alter table {self.relation} add column if not exists {quoted} varchar(20) "
                f"not null default {literal_sql(_WORDS[existing])};\n"
                f"alter table {self.relation} alter column {quoted} "
                f"set default {literal_sql(_WORDS['queued'])}",
                f"alter table {self.relation} drop column if exists {quoted}",
            )
        )
        self.types[name] = "character varying(20)"
        self.defaults[name] = None
        self._status_added = True
        return name

    _status_added = False

    def _columns(self, status: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for meaning, names in _GUESSES.items():
            if meaning == "status":
                continue
            right = [n for n in names if n in self.types and _fits(meaning, self.types[n])]
            if right:
                found[meaning] = right[0]
        for meaning, name in self.choices.columns.items():
            if meaning not in _MEANINGS:
                raise CannotAdopt(
                    f"--column {meaning}={name}: there is no such meaning",
                    fix=f"Meanings are: {', '.join(sorted(_MEANINGS))}.",
                )
            if name.lower() == "none":
                found.pop(meaning, None)
                continue
            self._known([name])
            if not _fits(meaning, self.types[name]):
                raise CannotAdopt(f"column {name} is {self.types[name]}, which cannot be {meaning}")
            found[meaning] = name
        if status in found.values():
            raise CannotAdopt(f"column {status} is the status and cannot be something else")
        return found

    def _add_columns(self, columns: dict[str, str], status: str) -> list[str]:
        added = []
        for meaning, type in _ADDED.items():
            if meaning not in columns:
                columns[meaning] = f"holdfast_{meaning}"
                self.types[columns[meaning]] = type.split(" not null")[0].split(" default")[0]
                added.append((columns[meaning], type))
        adds = ",\n  ".join(f"add column if not exists {name_sql(n)} {t}" for n, t in added)
        drops = ",\n  ".join(f"drop column if exists {name_sql(name)}" for name, _ in added)
        self.steps.append(
            Step(
                "columns of the lease",
                f"alter table {self.relation}\n  {adds}",
                f"alter table {self.relation}\n  {drops}",
            )
        )
        return [name for name, _ in added] + ([status] if self._status_added else [])

    def _states(self, status: str) -> tuple[dict[str, list[str]], dict[str, int]]:
        counts: dict[str, int] = {}
        if not self._status_added:
            counts = dict(
                self.connection.execute(
                    f"select {name_sql(status)}::text, count(*) from {self.relation} "
                    "group by 1 order by 2 desc limit 50"
                ).fetchall()
            )
        labels = [
            label
            for (label,) in self.connection.execute(_LABELS, [self.relation, status]).fetchall()
        ]
        checks = self._checks(status)
        words = [w for c in checks for w in c.words]
        known = list(dict.fromkeys([*labels, *words, *filter(None, counts)]))
        states: dict[str, list[str]] = {s: [v for v in known if _means(s, v)] for s in STATES}
        for state, values in self.choices.states.items():
            if state not in STATES:
                raise CannotAdopt(
                    f"--map {state}: there is no such state",
                    fix=f"States are: {', '.join(STATES)}.",
                )
            for other in states.values():
                other[:] = [value for value in other if value not in values]
            states[state] = list(values)
        for state in ("queued", "leased", "done", "dead"):
            if not states[state]:
                states[state] = [_WORDS[state]]
        self._allow(status, states, labels, checks)
        understood = {value: state for state, values in states.items() for value in values}
        for value in known:
            if value not in understood:
                rows = self.unknown[value] = counts.get(value, 0)
                self.warnings.append(
                    f"status {value!r} ({rows} rows) is no state: such rows are left alone; "
                    f"else say  --map STATE={value}"
                )
        existing: dict[str, int] = {}
        for value, rows in counts.items():
            state = understood.get(value, "left alone")
            existing[state] = existing.get(state, 0) + rows
        return states, existing

    def _allow(
        self,
        status: str,
        states: Mapping[str, Sequence[str]],
        labels: Sequence[str],
        checks: "Sequence[_Check]",
    ) -> None:
        """Let the column take the values that will be written."""
        written = [values[0] for values in states.values() if values]
        if labels:
            for value in written:
                if value not in labels:
                    self.steps.append(
                        Step(
                            f"value {value} of {self.types[status]}",
                            f"alter type {self.types[status]} add value if not exists "
                            f"{literal_sql(value)}",
                            alone=True,
                        )
                    )
                    self.warnings.append(
                        f"value {value!r} is added to type {self.types[status]} and stays there"
                    )
        for check in checks:
            missing = [value for value in written if value not in check.words]
            if not missing:
                continue
            self.widened[check.name] = missing
            more = ", ".join(map(literal_sql, missing))
            new, old = name_sql(f"{check.name[:50]}_holdfast"), name_sql(check.name)
            wider = f"check (({check.condition}) or {name_sql(status)}::text in ({more}))"
            table = f"alter table {self.relation}"
            self.steps += [
                Step(
                    f"constraint {check.name}: also {', '.join(missing)}",
                    f"{table} drop constraint if exists {new}, "
                    f"add constraint {new} {wider} not valid",
                    f"{table} drop constraint if exists {new}",
                ),
                Step(
                    f"constraint {check.name}: look at the rows",
                    f"{table} validate constraint {new}",
                    # The last of the undoing: what was there before holds again.
                    f"{table} validate constraint {old}" if check.valid else "",
                ),
                Step(
                    f"constraint {check.name}: in place of the old",
                    f"{table} drop constraint if exists {old}",
                    f"{table} drop constraint if exists {old}, "
                    f"add constraint {old} check ({check.condition}) not valid",
                ),
            ]

    def _checks(self, status: str) -> "list[_Check]":
        rows = self.connection.execute(_CHECKS, [self.relation, status]).fetchall()
        return [_Check(*row) for row in rows]

    def _order(self, columns: Mapping[str, str]) -> list[str]:
        if self.choices.order:
            order = [part.strip() for part in self.choices.order.split(",")]
            self._known(order)
            return order
        return [columns["created_at"]] if "created_at" in columns else []

    def _output(self, spec: dict[str, Any], part: int) -> None:
        chosen = self.choices
        if chosen.done_when:
            spec["done_when"] = chosen.done_when
        if not chosen.output:
            return
        table, _, column = chosen.output.rpartition(".")
        if not table:
            raise CannotAdopt(
                f"--output {chosen.output} names no column",
                fix="For example:  --output reports.job_id",
            )
        relation, _, name = locate(self.connection, table)
        if len(spec["key"]) != 1:
            raise CannotAdopt(
                f"the key of {self.relation} has {len(spec['key'])} columns",
                fix='Say it in SQL, of the row `job`:  --done-when "exists (select …)"',
            )
        known = [row[0] for row in self.connection.execute(_COLUMNS, [relation]).fetchall()]
        if column not in known:
            raise CannotAdopt(
                f"table {relation} has no column {column}", fix=f"It has: {', '.join(known)}."
            )
        spec["done_when"] = (
            f"exists (select from {relation} made "
            f"where made.{name_sql(column)} = job.{name_sql(spec['key'][0])})"
        )
        twice = self._one(
            f"select {name_sql(column)}::text from {relation} where {name_sql(column)} is not null "
            f"group by {name_sql(column)} having count(*) > 1 limit 1"
        )
        if twice is not None:
            self.warnings.append(
                f"{relation} has two outputs of {twice}: no unique index can be made; "
                "remove the duplicates and adopt again"
            )
            return
        if self._one(_UNIQUE, relation, column, found=True):
            return
        index = f"{name[:40]}_once"
        self._index(
            f"one output per job: {relation}",
            _index_name(relation, index),
            f"create unique index concurrently if not exists {name_sql(index)} "
            f"on {relation} ({name_sql(column)}) where {name_sql(column)} is not null",
        )

    def _indexes(self, spec: Mapping[str, Any], part: int) -> None:
        words = self._words(part, spec)
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
            self._index(
                f"index: {purposes[sort]}",
                _index_name(self.relation, named[sort]),
                f"create {unique + ' ' if unique else ''}index concurrently if not exists "
                f"{name_sql(named[sort])} on {self.relation} {rest}",
            )

    def _index(self, name: str, index: str, do: str) -> None:
        undo = f"drop index concurrently if exists {index}"
        self.steps.append(Step(name, do, undo, alone=True))

    def _grants(self) -> None:
        owner = cast(str, self._one(_OWNER))
        if not self._one(_MAY_WRITE, owner, self.relation, owner, self.relation):
            self.steps.append(
                Step(
                    f"grant to {owner}, who owns the verbs",
                    f"grant select, update on {self.relation} to {name_sql(owner)}",
                    f"revoke select, update on {self.relation} from {name_sql(owner)}",
                )
            )

    def _words(self, part: int, spec: Mapping[str, Any]) -> dict[str, str]:
        row = self.connection.execute(
            f"select holdfast.adopted_words({_ROW}, '')", self._row(part, spec)
        ).fetchone()
        assert row
        return cast("dict[str, str]", row[0])

    def _code(self, part: int, queue: str, spec: Mapping[str, Any]) -> str:
        return cast(
            str, self._one(f"select holdfast.adopted_code({_ROW})", *self._row(part, spec, queue))
        )

    def _row(self, part: int, spec: Mapping[str, Any], queue: str = "") -> list[Any]:
        return [part, queue or self.name, self.relation, Jsonb(dict(spec))]

    def _verbs(self, part: int, queue: str) -> None:
        name = literal_sql(queue)
        triggers = {
            "inserted": "insert on {t} referencing new table as new_rows",
            "updated": "update on {t} referencing old table as old_rows new table as new_rows",
            "deleted": "delete on {t} referencing old table as old_rows",
        }
        self.steps.append(
            Step(
                "the verbs",
                f"update holdfast.adopted set live = true where part = {part};\n"
                "select holdfast.readopt()",
                f"update holdfast.adopted set live = false where part = {part};\n"
                f"select holdfast.readopt();\nselect holdfast.forget_adopted({part}::smallint)",
            )
        )
        for event, where in triggers.items():
            self.steps.append(
                Step(
                    f"trigger: count what is {event}",
                    f"create or replace trigger holdfast_{event} after "
                    f"{where.format(t=self.relation)} for each statement "
                    f'execute function holdfast_adopted."{part}_{event}"()',
                    f"drop trigger if exists holdfast_{event} on {self.relation}",
                )
            )
        self.steps.append(
            Step(
                "trigger: count what is truncated",
                f"create or replace trigger holdfast_truncated after truncate on {self.relation} "
                f'for each statement execute function holdfast_adopted."{part}_deleted"()',
                f"drop trigger if exists holdfast_truncated on {self.relation}",
            )
        )
        self.steps.append(
            Step(
                "counters and queue",
                f"select holdfast.recount_adopted({part}::smallint);\n"
                f"insert into holdfast.queue (name, adopted) values ({name}, {part}) "
                f"on conflict (name) do update set adopted = {part}",
                f"delete from holdfast.queue where name = {name} and adopted = {part};\n"
                f"delete from holdfast.tally where part = {part};\n"
                f"delete from holdfast.total where part = {part};\n"
                f"delete from holdfast.adopted_note where part = {part};\n"
                f"delete from holdfast.lease where part = {part}",
            )
        )

    @staticmethod
    def _hidden(status: str, columns: Mapping[str, str], added: Sequence[str]) -> list[str]:
        """What handlers are not told: what the queue itself writes."""
        written = [columns[m] for m in _WRITTEN if m in columns]
        return list(dict.fromkeys([status, *written, *added]))

    def _known(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.types:
                raise CannotAdopt(
                    f"{self.relation} has no column {name}",
                    fix=f"It has: {', '.join(self.types)}.",
                )

    def _one(self, query: str, *values: Any, found: bool = False) -> Any:
        cursor = self.connection.execute(query, list(values) or None)
        row = cursor.fetchone()
        return row is not None if found else row and row[0]


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    condition: str
    words: list[str]
    valid: bool


def _index_name(relation: str, index: str) -> str:
    """An index lives in the schema of its table."""
    cut = relation.rindex(".") if not relation.endswith('"') else relation.rindex('."')
    return f"{relation[:cut]}.{name_sql(index)}"


def _means(state: str, value: str) -> bool:
    return value.lower().replace("-", "_").replace(" ", "_") in _VALUES[state]


def _fits(meaning: str, type: str) -> bool:
    wanted = _MEANINGS[meaning]
    return wanted == "any" or any(type.startswith(one) for one in wanted.split("|"))


_KEY_TYPES = {"smallint", "integer", "bigint", "uuid", "text", "character varying", "character"}
_INTEGER = "smallint|integer|bigint"
_TEXT = "text|character varying"
_MEANINGS = {
    "token": "uuid",
    "lease_until": "timestamp with time zone",
    "worker": _TEXT,
    "attempt": _INTEGER,
    "max_attempts": _INTEGER,
    "run_at": "timestamp with time zone",
    "error": _TEXT,
    "reason": _TEXT,
    "started_at": "timestamp",
    "ended_at": "timestamp",
    "created_at": "timestamp",
    "priority": _INTEGER,
    "lane": "any",
    "tenant": "any",
    "kind": "any",
}
_ADDED = {
    "token": "uuid",
    "lease_until": "timestamp with time zone",
    "worker": "text",
    "attempt": "integer",
    "run_at": "timestamp with time zone",
    "error": "text",
    "reason": "text",
    "at": "timestamp with time zone",
}
_WRITTEN = (*_ADDED, "started_at", "ended_at", "max_attempts")
_GUESSES: dict[str, tuple[str, ...]] = {
    "status": ("status", "state"),
    "attempt": ("attempts", "attempt", "attempt_count", "retry_count", "tries"),
    "max_attempts": ("max_attempts", "max_retries"),
    "error": ("error", "error_message", "last_error", "errorMessage"),
    "started_at": ("started_at", "processing_started_at", "startedAt"),
    "ended_at": ("completed_at", "finished_at", "processed_at", "ended_at", "completedAt"),
    "created_at": ("queued_at", "created_at", "inserted_at", "createdAt"),
    "priority": ("priority",),
}
_VALUES = {
    "queued": {"queued", "pending", "new", "waiting", "ready", "open", "todo", "scheduled"},
    "leased": {"started", "processing", "running", "in_progress", "active", "leased", "working"},
    "done": {"completed", "complete", "done", "finished", "success", "succeeded", "processed"},
    "dead": {"failed", "error", "dead", "errored", "failure"},
    "cancelled": {"cancelled", "canceled", "aborted"},
}
# What is written where a table has no word of its own.
_WORDS = {
    "queued": "queued",
    "leased": "started",
    "done": "completed",
    "dead": "failed",
    "cancelled": "cancelled",
}
_ROW = "row(%s::smallint, %s, %s, %s, '[]', false, now(), null)::holdfast.adopted"

_COLUMNS: LiteralString = """
select a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid)
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
_LABELS: LiteralString = """
select e.enumlabel from pg_attribute a join pg_enum e on e.enumtypid = a.atttypid
where a.attrelid = %s::regclass and a.attname = %s order by e.enumsortorder
"""
_CHECKS: LiteralString = """
select c.conname, e.condition,
  array(select m[1] from regexp_matches(e.condition, '''([^'']*)''', 'g') m), c.convalidated
from pg_constraint c join pg_attribute a on a.attrelid = c.conrelid
cross join lateral (select pg_get_expr(c.conbin, c.conrelid) as condition) e
where c.conrelid = %s::regclass and a.attname = %s and c.contype = 'c'
  and c.conkey = array[a.attnum]
order by c.conname
"""
_MAY_WRITE: LiteralString = """
select has_table_privilege(%s, %s, 'select') and has_table_privilege(%s, %s, 'update')
"""
_UNIQUE: LiteralString = """
select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
where i.indrelid = %s::regclass and i.indisunique and i.indnkeyatts = 1 and a.attname = %s
"""
_FREE_PART: LiteralString = """
select min(p)::integer from generate_series(64, 4095) p
where not exists (select from holdfast.adopted a where a.part = p)
"""
_OWNER: LiteralString = """
select r.rolname from pg_proc p join pg_roles r on r.oid = p.proowner
where p.oid = 'holdfast.readopt()'::regprocedure
"""
