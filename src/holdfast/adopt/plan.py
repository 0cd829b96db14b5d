"""Read a table's shape, and say how it becomes a queue."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, LiteralString, cast

import psycopg
from psycopg.types.json import Jsonb

from holdfast.adopt.catalog import (
    Column,
    ask_owner,
    columns_of,
    key_of,
    literal_sql,
    locate,
    name_sql,
    refuse_kin,
)
from holdfast.adopt.survey import Check, Survey, Unique, each
from holdfast.errors import CannotAdopt

STATES = ("queued", "leased", "done", "dead", "cancelled")


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a plan, and what undoes it.

    One that is `alone` cannot run inside a transaction; `index` is what it makes.
    """

    name: str
    do: str
    undo: str = ""
    alone: bool = False
    index: str = ""


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
        parts = [f"-- {step.name}\n{step.do};" for step in self.steps if step.do]
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
    on_success: str | None = None
    unique_live: bool = False
    where: Mapping[str, str] = field(default_factory=dict)


class Planner:
    """Reads a table's shape and proposes what it means."""

    def __init__(self, connection: psycopg.Connection, table: str, choices: Choices) -> None:
        self.connection = connection
        self.choices = choices
        self.relation, self.schema, self.name = locate(connection, table)
        self.survey = Survey(connection, self.relation)
        self.found: dict[str, Column] = {c.name: c for c in columns_of(connection, self.relation)}
        self.types: dict[str, str] = {name: column.type for name, column in self.found.items()}
        self.deletes = choices.on_success == "delete"
        self.warnings: list[str] = []
        self.unknown: dict[str, int] = {}
        self.widened: dict[str, list[str]] = {}
        self.relaxed: dict[str, list[str]] = {}
        self.steps: list[Step] = []

    def plan(self) -> Plan:
        chosen = self.choices
        queue = chosen.queue or self.name
        part = self._part(queue)
        self._refuse_what_cannot_be()
        key = key_of(self.connection, self.relation)
        if unfit := [name for name in key if self.found[name].base.split("(")[0] not in _KEY_TYPES]:
            raise CannotAdopt(
                f"column {unfit[0]} of the key of {self.relation} is {self.types[unfit[0]]}",
                fix="A key is made of integers, uuids and texts.",
            )
        status = self._status()
        columns = self._columns(status)
        self._refuse_a_changing_key(key, status, columns)
        self._refuse_filter(status, columns)
        added = self._add_columns(columns, status)
        states, existing = self._states(status)
        self._try_constraints(status, states, columns)
        order = [*self._order(columns), *key]
        hidden = self._hidden(status, columns, added)
        spec: dict[str, Any] = {
            "key": key,
            "status": status,
            "status_type": self.types[status],
            "states": states,
            "order": list(dict.fromkeys(order)),
            "columns": columns,
            "types": {meaning: self.types[name] for meaning, name in columns.items()},
            "hidden": hidden,
            # What handlers get: they do not know columns that come later.
            "row": [name for name in self.types if name not in hidden],
            "widened": self.widened,
            "relaxed": self.relaxed,
            **({"on_success": "delete"} if self.deletes else {}),
            **({"where": self._where()} if chosen.where else {}),
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
        self._relax(spec, part)
        self._indexes(spec, part)
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
        self._add(name, "character varying(20)")
        self._status_added = True
        return name

    def _add(self, name: str, type: str) -> None:
        self.types[name] = type
        self.found[name] = Column(name, type, type, None, False, False, False)

    def _refuse_what_cannot_be(self) -> None:
        if self.choices.on_success not in (None, "keep", "delete"):
            raise CannotAdopt(
                f"--on-success {self.choices.on_success} is not keep or delete",
                fix="Delete rows that are done, or keep them:  --on-success delete",
            )
        refuse_kin(self.connection, self.relation)
        for name in self.found:
            if name.startswith("hf_"):
                raise CannotAdopt(
                    f"{self.relation} has a column {name}",
                    why="Names that begin with hf_ are those of the functions that are generated.",
                    fix=f"Rename it:  alter table {self.relation} rename {name_sql(name)} to …",
                )
        self.survey.refuse_rules(["update", "delete"] if self.deletes else ["update"])
        self.survey.refuse_row_security()
        self.survey.refuse_triggers()

    def _refuse_a_changing_key(
        self, key: Sequence[str], status: str, columns: Mapping[str, str]
    ) -> None:
        for name in (status, *self._written(columns)):
            if name in key:
                raise CannotAdopt(
                    f"column {name} is part of the primary key of {self.relation}",
                    why="The queue writes it, and a row could not be found again.",
                    fix="Give the table a key that stays, such as an id.",
                )

    def _refuse_filter(self, status: str, columns: Mapping[str, str]) -> None:
        self._known(self.choices.where)
        for name, value in self.choices.where.items():
            if name in (status, *self._written(columns)):
                raise CannotAdopt(
                    f"column {name} is written by the queue and cannot choose its rows",
                    fix="Name a column that stays:  --where-column environment=production",
                )
            self._refuse_cut(name, value, f"--where-column {name}=VALUE")

    def _refuse_cut(self, name: str, value: str, option: str) -> None:
        column = self.found[name]
        if not self.survey.holds(column, value):
            raise CannotAdopt(
                f"column {name} is {column.type} and cannot hold {value!r}",
                fix=f"Name a value that it can hold:  {option}; or change the type of the column.",
            )

    def _where(self) -> list[dict[str, str]]:
        return [
            {"column": name, "value": value, "type": self.types[name]}
            for name, value in self.choices.where.items()
        ]

    def _mine(self) -> str:
        """The rows that are jobs, whatever their status."""
        mine = [
            f"job.{name_sql(one['column'])} = {literal_sql(one['value'])}::{one['type']}"
            for one in self._where()
        ]
        return " and ".join(mine) or "true"

    @staticmethod
    def _written(columns: Mapping[str, str]) -> list[str]:
        return [columns[meaning] for meaning in _CHANGED if meaning in columns]

    _status_added = False

    def _columns(self, status: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for meaning, names in _GUESSES.items():
            if meaning == "status":
                continue
            right = [n for n in names if n in self.found and _fits(meaning, self.found[n].base)]
            for name in right:
                why = self._unfit(meaning, name)
                if not why:
                    found[meaning] = name
                    break
                self.warnings.append(
                    f"column {name} is not used for {meaning}: {why}; a column is added instead"
                    if meaning in _ADDED
                    else f"column {name} is not used for {meaning}: {why}"
                )
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
            if not _fits(meaning, self.found[name].base):
                raise CannotAdopt(f"column {name} is {self.types[name]}, which cannot be {meaning}")
            if why := self._unfit(meaning, name):
                raise CannotAdopt(
                    f"column {name} cannot be {meaning}: {why}",
                    fix=f"Name another, or none:  --column {meaning}=none",
                )
            found[meaning] = name
        if "max_attempts" in found and "max_retries" in found:
            found.pop("max_retries")
        if status in found.values():
            raise CannotAdopt(f"column {status} is the status and cannot be something else")
        return found

    def _unfit(self, meaning: str, name: str) -> str:
        """Why a column would refuse what is written to it; nothing if it would not."""
        column = self.found[name]
        if meaning not in _CHANGED:
            return ""
        if column.generated:
            return "PostgreSQL generates it"
        if column.not_null and meaning in _EMPTIED:
            return "it is not null, and the queue empties it"
        if column.constrained:
            return f"its type {column.type} has constraints of its own"
        for reference in self.survey.references():
            if name in reference.columns:
                return f"it references {reference.table}"
        return ""

    def _add_columns(self, columns: dict[str, str], status: str) -> list[str]:
        added = []
        if self._status_added:
            # Whoever adds a status means the times that go with it; other code writes them too.
            for meaning, name in (("started_at", "started_at"), ("ended_at", "completed_at")):
                if meaning not in columns and self.choices.columns.get(meaning) != "none":
                    columns[meaning] = name if name not in self.found else f"holdfast_{name}"
                    added.append((columns[meaning], "timestamp with time zone"))
        for meaning, type in _ADDED.items():
            if meaning not in columns:
                columns[meaning] = f"holdfast_{meaning}"
                added.append((columns[meaning], type))
        for name, type in added:
            if name in self.found:
                raise CannotAdopt(
                    f"{self.relation} has a column {name} already",
                    why="It is yours, or an earlier adoption left it.",
                    fix="Rename or drop it:  "
                    f"alter table {self.relation} drop column {name_sql(name)}",
                )
            self._add(name, type)
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
            # As it is stored, and as the owner: types and their casts may be the owner's.
            counts = dict(
                ask_owner(
                    self.connection,
                    self.relation,
                    f"select case when {name_sql(status)} is not null "
                    f"then format('%s', {name_sql(status)}) end as status, count(*) as rows "
                    f"from {self.relation} job where {self._mine()} "
                    f"group by {name_sql(status)} order by 2 desc limit 50",
                )
            )
        labels = [
            label
            for (label,) in self.connection.execute(_LABELS, [self.relation, status]).fetchall()
        ]
        checks = [c for c in self.survey.checks() if c.columns == [status]]
        words = [w for c in checks for w in c.words]
        default = _constant(self.found[status].default)
        lookups = [r for r in self.survey.references() if status in r.columns]
        words += [w for r in lookups for w in self.survey.words_of(r, status)]
        known = list(
            dict.fromkeys([*labels, *words, *([default] if default else []), *filter(None, counts)])
        )
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
        if not states["queued"]:
            self._queued_by_default(status, states, default)
        needed = (
            ("queued", "leased", "dead") if self.deletes else ("queued", "leased", "done", "dead")
        )
        for state in needed:
            if not states[state]:
                states[state] = [_WORDS[state]]
        for state, value in self._words_written(states).items():
            if not (labels and value not in labels):
                self._refuse_cut(status, value, f"--map {state}=VALUE")
            for lookup in lookups:
                allowed = self.survey.words_of(lookup, status)
                if allowed and value not in allowed:
                    raise CannotAdopt(
                        f"column {status} references {lookup.table}, which has no {value!r}",
                        why=f"It has: {', '.join(allowed)}.",
                        fix=f"Insert it there, or name one of them:  --map {state}=VALUE",
                    )
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

    def _queued_by_default(
        self, status: str, states: dict[str, list[str]], default: str | None
    ) -> None:
        """New rows have the default: if nothing else says queued, they are the jobs."""
        meant = {value for values in states.values() for value in values}
        if default and default not in meant:
            states["queued"] = [default]
            self.warnings.append(
                f"status {default!r}, the default of column {status}, is taken for queued; "
                "else say  --map queued=VALUE"
            )
        elif not self._status_added:
            self.warnings.append(
                f"nothing in {self.relation} says that a row waits: a row is a job when its "
                f"status is {_WORDS['queued']!r}; else say  --map queued=VALUE"
            )

    def _words_written(self, states: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Of several values for a state the first is written."""
        return {
            state: values[0]
            for state, values in states.items()
            if values and not (self.deletes and state == "done")
        }

    def _try_constraints(
        self, status: str, states: Mapping[str, Sequence[str]], columns: Mapping[str, str]
    ) -> None:
        """Say what the table will refuse, and the way out."""
        written = [status, *self._written(columns)]
        live = self._live(status, states)
        for check in self.survey.checks():
            if check.columns == [status] or not set(check.columns) & set(written):
                continue
            refused = [
                state
                for state, changes in self._changes(status, states, columns).items()
                if self.survey.refuses(check, self._before(), live, changes)
            ]
            if refused:
                self.warnings.append(
                    f"constraint {check.name} refuses rows that are {each(refused)}: "
                    f"CHECK ({check.condition}); such jobs cannot be written. "
                    "Change or drop the constraint first"
                )
        for unique in self.survey.uniques(written):
            self._tell_unique(unique, status)
        for reference in self.survey.references():
            if len(reference.columns) > 1 and set(reference.columns) & set(written):
                self.warnings.append(
                    f"constraint {reference.name} references {reference.table} by "
                    f"{each(reference.columns)}: rows are refused unless that has what is written"
                )
        if self.deletes:
            self._tell_referenced()

    def _tell_unique(self, unique: Unique, status: str) -> None:
        if self.choices.unique_live and unique.plain and status in unique.columns:
            return
        over = each(unique.columns) if unique.columns else unique.index_definition
        ways = []
        if unique.plain and status in unique.columns and len(unique.columns) > 1:
            rest = each(name for name in unique.columns if name != status)
            ways.append(f"--unique-live lets {rest} repeat only in rows that have ended")
        if not self.deletes:
            ways.append("--on-success delete keeps no rows that are done")
        self.warnings.append(
            f"{unique.called} is unique over {over}, and the queue writes {each(unique.touches)}: "
            "a job that would make two rows alike cannot be written"
            + (f". {'; '.join(ways)}" if ways else "")
        )

    def _tell_referenced(self) -> None:
        for table, on_delete in self.survey.referenced():
            self.warnings.append(
                {
                    "c": f"rows of {table} are deleted with a job that is done: they reference it",
                    "n": f"rows of {table} lose their reference when a job is done",
                    "d": f"rows of {table} lose their reference when a job is done",
                }.get(
                    on_delete,
                    f"a job that rows of {table} reference cannot be deleted when it is done",
                )
            )

    def _live(self, status: str, states: Mapping[str, Sequence[str]]) -> str:
        """Rows that wait or run."""
        if self._status_added:
            return self._mine()
        column = self.found[status]
        values = [
            f"{literal_sql(value)}::{column.type}"
            for state in ("queued", "leased")
            for value in states[state]
            # a value that is yet to be added to an enumeration
            if self.survey.holds(column, value)
        ]
        return f"job.{name_sql(status)} in ({', '.join(values)}) and {self._mine()}"

    def _before(self) -> dict[str, Column]:
        """The columns that the table has now."""
        return {c.name: c for c in columns_of(self.connection, self.relation)}

    def _changes(
        self, status: str, states: Mapping[str, Sequence[str]], columns: Mapping[str, str]
    ) -> dict[str, list[dict[str, str]]]:
        """What is written to a row, by the state it comes to: first the claim, then the end."""
        words = self._words_written(states)
        ends = {
            "queued": {"error": "'error'", "run_at": "now()"},
            "done": {"ended_at": "now()"},
            "dead": {"error": "'error'", "ended_at": "now()", "failed_at": "now()"},
        }
        tries = f"coalesce({name_sql(columns['attempt'])}, 0) + 1"
        claim = {
            "token": "gen_random_uuid()",
            "lease_until": "now()",
            "worker": "'worker'",
            "started_at": "now()",
            "attempt": tries,
        }
        cleared = {"token": "null", "lease_until": "null", "worker": "'worker'"}
        found: dict[str, list[dict[str, str]]] = {}
        before = self._before()
        for state, value in words.items():
            if state == "cancelled":
                continue
            changes = [claim | {"status": literal_sql(words["leased"])}]
            if state != "leased":
                empty = {"started_at": "null", "worker": "null"} if state == "queued" else {}
                changes.append(
                    cleared
                    | {"run_at": "null", "ended_at": "null", "failed_at": "null"}
                    | empty
                    | ends[state]
                    | {"status": literal_sql(value)}
                )
            named = {"status": status, **columns}
            found[state] = [
                {named[m]: v for m, v in change.items() if m in named and named[m] in before}
                for change in changes
            ]
        return found

    def _relax(self, spec: Mapping[str, Any], part: int) -> None:
        """Have what is unique with the status hold for rows that wait or run only."""
        status = spec["status"]
        uniques = [
            u
            for u in self.survey.uniques([status])
            if u.plain and status in u.columns and len(u.columns) > 1
        ]
        if not self.choices.unique_live:
            return
        if not uniques:
            raise CannotAdopt(
                f"{self.relation} has nothing that is unique over its status and other columns",
                fix="Leave out --unique-live.",
            )
        words = self._words(part, spec)
        live = f"({words['is_queued']} or {words['is_leased']})"
        for number, unique in enumerate(uniques, 1):
            rest = [name for name in unique.columns if name != status]
            named = ", ".join(map(name_sql, rest))
            twice = ask_owner(
                self.connection,
                self.relation,
                f"select row({named})::text as twice from {self.relation} job "
                f"where {self._live(status, spec['states'])} "
                f"and num_nulls({named}) = 0 group by {named} having count(*) > 1 limit 1",
            )
            if twice:
                raise CannotAdopt(
                    f"{self.relation} has two rows of {each(rest)} {twice[0][0]} that wait or run",
                    fix="Remove one of them, or leave out --unique-live.",
                )
            self.relaxed[unique.index] = list(unique.columns)
            index = f"holdfast_{part}_live{number}"
            table = f"alter table {self.relation}"
            place = _index_name(self.relation, unique.index)
            self._index(
                f"unique {unique.index}: one row that waits or runs",
                index,
                f"create unique index concurrently if not exists {name_sql(index)} "
                f"on {self.relation} ({named}) where {live}",
            )
            if unique.constraint:
                gone = f"{table} drop constraint if exists {name_sql(unique.constraint)}"
                back = (
                    f"{table} add constraint {name_sql(unique.constraint)} "
                    f"unique using index {name_sql(unique.index)}"
                )
                if unique.comment:
                    back += (
                        f";\ncomment on constraint {name_sql(unique.constraint)} "
                        f"on {self.relation} is {literal_sql(unique.comment)}"
                    )
            else:
                gone = f"drop index if exists {place}"
                back = (
                    f"comment on index {place} is {literal_sql(unique.comment)}"
                    if unique.comment
                    else ""
                )
            make = unique.index_definition.replace(
                "CREATE UNIQUE INDEX ", "create unique index concurrently if not exists ", 1
            )
            self.steps += [
                Step(f"unique {unique.index}: in place of the old", gone, back),
                # The undoing begins here: the index is there before the constraint is.
                Step(f"unique {unique.index}: as it was", "", make, alone=True, index=place),
            ]

    def _allow(
        self,
        status: str,
        states: Mapping[str, Sequence[str]],
        labels: Sequence[str],
        checks: Sequence[Check],
    ) -> None:
        """Let the column take the values that will be written."""
        written = list(self._words_written(states).values())
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
            column = self.found[status]
            missing = [
                value
                for value in written
                # what an enumeration does not know yet, the check cannot either
                if (labels and value not in labels) or not self.survey.allows(check, column, value)
            ]
            if not missing:
                continue
            self.widened[check.name] = missing
            more = ", ".join(map(literal_sql, missing))
            new, old = name_sql(f"{check.name[:50]}_holdfast"), name_sql(check.name)
            wider = f"check (({check.condition}) or {name_sql(status)}::text in ({more}))"
            only = " no inherit" if check.no_inherit else ""
            wider += only
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
                    f"add constraint {old} check ({check.condition}){only} not valid"
                    + (
                        f";\ncomment on constraint {old} on {self.relation} "
                        f"is {literal_sql(check.comment)}"
                        if check.comment
                        else ""
                    ),
                ),
            ]

    def _order(self, columns: Mapping[str, str]) -> list[str]:
        if self.choices.order:
            order = [part.strip() for part in self.choices.order.split(",")]
            self._known(order)
            for name in order:
                if not self.survey.orders(self.found[name]):
                    raise CannotAdopt(
                        f"column {name} is {self.types[name]}, which has no order",
                        fix="Name another:  --order COLUMN",
                    )
            return order
        return [columns["created_at"]] if "created_at" in columns else []

    def _output(self, spec: dict[str, Any], part: int) -> None:
        chosen = self.choices
        if chosen.done_when:
            spec["done_when"] = chosen.done_when
        if chosen.output:
            self._made(spec, chosen.output)
        if "done_when" in spec:
            spec["done_when_sql"] = self._resolved(spec["done_when"])

    def _resolved(self, condition: str) -> str:
        """The condition with every name in it written out as what it means now."""
        try:
            with self.connection.transaction():
                query = "select holdfast.resolved(%s, %s)"
                return cast(str, self._one(query, self.relation, condition))
        except psycopg.Error as error:
            raise CannotAdopt(
                f"the condition {condition} cannot be read: {error.diag.message_primary}",
                fix='It is SQL on the row `job`:  --done-when "exists (select … = job.id)"',
            ) from error

    def _made(self, spec: dict[str, Any], output: str) -> None:
        table, _, column = output.rpartition(".")
        if not table:
            raise CannotAdopt(
                f"--output {output} names no column",
                fix="For example:  --output reports.job_id",
            )
        relation, _, name = locate(self.connection, table)
        if len(spec["key"]) != 1:
            raise CannotAdopt(
                f"the key of {self.relation} has {len(spec['key'])} columns",
                fix='Say it in SQL, of the row `job`:  --done-when "exists (select …)"',
            )
        known = [c.name for c in columns_of(self.connection, relation)]
        if column not in known:
            raise CannotAdopt(
                f"table {relation} has no column {column}", fix=f"It has: {', '.join(known)}."
            )
        spec["done_when"] = (
            f"exists (select from {relation} made "
            f"where made.{name_sql(column)} = job.{name_sql(spec['key'][0])})"
        )
        twice = self._one(
            f"select format('%s', {name_sql(column)}) from {relation} "
            f"where {name_sql(column)} is not null group by {name_sql(column)} "
            "having count(*) > 1 limit 1"
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
            index,
            f"create unique index concurrently if not exists {name_sql(index)} "
            f"on {relation} ({name_sql(column)}) where {name_sql(column)} is not null",
            relation,
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
                named[sort],
                f"create {unique + ' ' if unique else ''}index concurrently if not exists "
                f"{name_sql(named[sort])} on {self.relation} {rest}",
            )

    def _index(self, name: str, index: str, do: str, relation: str = "") -> None:
        place = _index_name(relation or self.relation, index)
        if self._one("select to_regclass(%s)::text", place):
            raise CannotAdopt(
                f"there is an index or table {place} already",
                why="It is yours, or an earlier adoption left it.",
                fix=f"Rename or drop it:  drop index {place}",
            )
        self.steps.append(
            Step(name, do, f"drop index concurrently if exists {place}", alone=True, index=place)
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
                f"select holdfast.readopt_one({part}::smallint)",
                f"update holdfast.adopted set live = false where part = {part};\n"
                f"select holdfast.forget_adopted({part}::smallint)",
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


def _index_name(relation: str, index: str) -> str:
    """An index lives in the schema of its table."""
    cut = relation.rindex(".") if not relation.endswith('"') else relation.rindex('."')
    return f"{relation[:cut]}.{name_sql(index)}"


def _constant(default: str | None) -> str | None:
    """The text that a default is, if it is one."""
    found = re.fullmatch(r"'((?:[^']|'')*)'(?:::.*)?", default or "")
    return found[1].replace("''", "'") if found else None


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
    "max_retries": _INTEGER,
    "run_at": "timestamp with time zone",
    "error": _TEXT,
    "reason": _TEXT,
    "started_at": "timestamp",
    "ended_at": "timestamp",
    "failed_at": "timestamp",
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
_CHANGED = (*_ADDED, "started_at", "ended_at", "failed_at")
_WRITTEN = (*_CHANGED, "max_attempts", "max_retries")
# Some states have none.
_EMPTIED = (
    "token",
    "lease_until",
    "worker",
    "run_at",
    "error",
    "started_at",
    "ended_at",
    "failed_at",
)
_GUESSES: dict[str, tuple[str, ...]] = {
    "status": ("status", "state"),
    "attempt": ("attempts", "attempt", "attempt_count", "retry_count", "tries"),
    "max_attempts": ("max_attempts",),
    "max_retries": ("max_retries", "maxRetries"),
    "error": ("error", "error_message", "last_error", "errorMessage"),
    "started_at": ("started_at", "processing_started_at", "startedAt"),
    "ended_at": ("completed_at", "finished_at", "processed_at", "ended_at", "completedAt"),
    "failed_at": ("failed_at", "failedAt"),
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
_ROW = "row(%s::smallint, %s, %s, %s, '[]', false, now(), null, null, null)::holdfast.adopted"

_LABELS: LiteralString = """
select e.enumlabel from pg_attribute a join pg_enum e on e.enumtypid = a.atttypid
where a.attrelid = %s::regclass and a.attname = %s order by e.enumsortorder
"""
_UNIQUE: LiteralString = """
select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
where i.indrelid = %s::regclass and i.indisunique and i.indnkeyatts = 1 and a.attname = %s
"""
_FREE_PART: LiteralString = """
select min(p)::integer from generate_series(64, 4095) p
where not exists (select from holdfast.adopted a where a.part = p)
"""
