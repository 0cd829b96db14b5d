"""Random tables, as applications might have them and as nobody should, from a seed.

`table(seed)` is always the same table: statements that make it, rows, and what adopting it is told.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql

from holdfast.adopt import Choices

# Each role is one of the cluster's: made once, and left.
OWNER = "holdfast_generated_owner"

ODD = (
    "plain", "Order", "select", "a b", 'quo"te', "it's", "{id}", "{key}{table}", "$body$", "100%",
    "%s", "job", "d", "u", "x", "dotted.name", "ünïcode", "x" * 63, "new_rows", "place",
)  # fmt: skip
WORDS = (
    ("queued", "started", "completed", "failed"),
    ("pending", "processing", "done", "error"),
    ("new", "running", "finished", "dead", "cancelled"),
    ("todo", "active", "success", "failure", "on hold"),
    ("NEW", "In Progress", "Complete", "Failed"),
)
STATES = ("queued", "leased", "done", "dead", "cancelled")


@dataclass(frozen=True)
class Table:
    """A table, what adopting it is told, and what must come of it."""

    seed: int
    schema: str
    name: str
    ddl: Sequence[str]
    insert: str
    choices: Choices
    traits: Sequence[str]
    refused: bool = False
    """It cannot be adopted, and the refusal says why."""
    hostile: bool = False
    """It refuses or changes what is written to it: it may not work, but must harm nobody."""
    word: str | None = None
    """The status of rows that are inserted later."""

    @property
    def relation(self) -> str:
        return f"{ident(self.schema)}.{ident(self.name)}"

    @property
    def told(self) -> str:
        """The table as a report of a failure shows it."""
        return (
            f"seed {self.seed}: {', '.join(self.traits) or 'nothing odd'}\n"
            + ";\n".join(self.ddl)
            + f";\n-- inserted later:\n{self.insert};\n-- {self.choices}\n"
            f"-- again:  python -m tests.adoption --seed {self.seed}"
        )


def ident(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def literal(value: str) -> str:
    return sql.Literal(value).as_string(None)


def table(seed: int) -> Table:
    return _Maker(seed).make()


class _Maker:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.schema = f"g{seed}" + (f" {self.pick(ODD)}"[:20] if self.chance(0.2) else "")
        self.name = self.pick(ODD) if self.chance(0.4) else "task"
        self.relation = f"{ident(self.schema)}.{ident(self.name)}"
        self.before: list[str] = [f"create schema {ident(self.schema)}"]
        self.after: list[str] = []
        self.columns: list[str] = []
        self.limits: list[str] = []
        self.values: dict[str, str] = {}
        self.traits: list[str] = []
        self.told: dict[str, object] = {}
        self.not_allowed: list[str] = []
        self.means: dict[str, str] = {}
        self.refused = False
        self.hostile = False

    def chance(self, of: float) -> bool:
        return self.random.random() < of

    def pick(self, among: Sequence[str]) -> str:
        return self.random.choice(among)

    def trait(self, name: str) -> str:
        self.traits.append(name)
        return name

    def make(self) -> Table:
        if self.name != "task":
            self.trait(f"named {self.name}")
        self._key()
        self._status()
        self._times()
        self._counts()
        self._cargo()
        self._limits()
        self._kin()
        self._rows()
        self._triggers()
        self._access()
        self._choices()
        insert = self._insert(1000)
        return Table(
            seed=self.seed,
            schema=self.schema,
            name=self.name,
            ddl=[*self.before, self.created, *self.after],
            insert=insert,
            choices=Choices(**self.told),  # type: ignore[arg-type]
            traits=self.traits,
            refused=self.refused,
            hostile=self.hostile,
            word=self.words[0] if self.status else None,
        )

    # What a value is made from: the number of the row, {n}.
    def _column(self, name: str, type: str, value: str | None = None) -> str:
        self.columns.append(f"{ident(name)} {type}")
        if value is not None:
            self.values[name] = value
        return name

    def _odd(self, usual: str) -> str:
        """A name for a column: mostly the usual one."""
        taken = {c.split('"')[1] for c in self.columns}
        if self.chance(0.15):
            odd = self.pick([f"{o} {usual}"[:63] for o in ODD])
            if odd not in taken:
                self.trait(f"column {odd}")
                return odd
        return usual

    def _key(self) -> None:
        kind = self.random.choices(
            ["integer", "serial", "identity", "uuid", "text", "varchar", "two", "domain", "three",
             "none", "date", "enum", "char"],
            [5, 3, 3, 3, 3, 2, 4, 2, 1, 0.5, 0.5, 0.5, 1],
        )[0]  # fmt: skip
        name = self._odd("id")
        self.trait(f"key {kind}")
        number = "{n}"
        self.key = [name]
        if kind == "integer":
            self._column(name, self.pick(["integer", "bigint", "smallint"]), number)
        elif kind == "serial":
            self._column(name, "bigserial")
        elif kind == "identity":
            self._column(
                name, f"bigint generated {self.pick(['always', 'by default'])} as identity"
            )
        elif kind == "uuid":
            self._column(name, "uuid default gen_random_uuid()")
        elif kind in ("text", "varchar"):
            type = "text" if kind == "text" else "varchar(60)"
            self._column(
                name, type, self.pick(["'row ' || {n}", "'a,b:' || {n}", "repeat('k', 40) || {n}"])
            )
        elif kind == "char":
            self._column(name, "char(12)", "'r' || {n}")
        elif kind == "domain":
            self.before.append(f"create domain {ident(self.schema)}.number as integer")
            self._column(name, f"{ident(self.schema)}.number", number)
        elif kind in ("two", "three"):
            self._column(name, "text", "'part ' || {n} % 3")
            self._column("number", "integer", number)
            self.key.append("number")
            if kind == "three":
                self._column("third", "uuid default gen_random_uuid()")
                self.key.append("third")
        elif kind == "date":
            self._column(name, "date", "date '2020-01-01' + {n}")
            self.refused = True
        elif kind == "enum":
            self.before.append(f"create type {ident(self.schema)}.colour as enum ('red', 'blue')")
            self._column(name, f"{ident(self.schema)}.colour")
            self._column("number", "integer", number)
            self.key.append("number")
            self.values[name] = "'red'"
            self.refused = True
        else:
            self._column(name, "integer", number)
            self.key = []
            self.refused = True
        if self.key:
            deferred = " deferrable" if self.chance(0.05) else ""
            self.limits.append(f"primary key ({', '.join(map(ident, self.key))}){deferred}")

    def _status(self) -> None:
        kind = self.random.choices(
            ["text", "varchar", "short", "enum", "domain", "number", "char", "lookup", "none"],
            [6, 6, 1, 4, 2, 2, 1, 1.5, 2],
        )[0]
        self.trait(f"status {kind}")
        words = self.words = list(self.random.choice(WORDS))
        self.status_kind = kind
        self.status = ""
        if kind == "none":
            self.told["existing"] = self.pick(["done", "queued", "dead"])
            return
        name = self.status = self._odd(self.pick(["status", "state"]))
        if name not in ("status", "state"):
            self.told["status"] = name
        type = "text"
        if kind == "varchar":
            type = f"varchar({self.random.choice([12, 20, 255])})"
        elif kind == "short":
            type = f"varchar({self.random.choice([4, 6, 8])})"
            words = self.words = [word[:4] for word in words]
        elif kind == "char":
            type = "char(14)"
        elif kind == "enum":
            place = self.pick([self.schema, "public"])
            typed = f"{ident(place)}.{ident(f'phase {self.seed}')}"
            self.before.append(f"create type {typed} as enum ({', '.join(map(literal, words))})")
            type = typed
        elif kind == "domain":
            typed = f"{ident(self.schema)}.{ident('the phase')}"
            self.before.append(
                f"create domain {typed} as text check (value in ({', '.join(map(literal, words))}))"
            )
            type = typed
        elif kind == "number":
            type = self.pick(["integer", "smallint"])
            words = self.words = ["0", "1", "2", "9", "-1"][: len(words)]
        elif kind == "lookup":
            self.before += [
                f"create table {ident(self.schema)}.words (word text primary key)",
                f"insert into {ident(self.schema)}.words values "
                + ", ".join(f"({literal(word)})" for word in words),
            ]
            type = f"text references {ident(self.schema)}.words"
        default = ""
        if self.chance(0.7):
            default = f" default {literal(words[0])}"
        if self.chance(0.6):
            default += " not null"
        self._column(name, type + default)
        if kind in ("domain", "number", "short", "lookup") or self.chance(0.3):
            # such words cannot be guessed, or need not be
            self.told["states"] = {
                state: [word]
                for state, word in zip(STATES, words, strict=False)
                if word != "on hold"
            }
        if kind in ("text", "varchar") and self.chance(0.4):
            self._status_check(name, words)

    def _status_check(self, name: str, words: Sequence[str]) -> None:
        self.trait("check on the status")
        allowed = list(words)
        if self.chance(0.4):
            # the word for dead is not allowed yet
            self.not_allowed.append(allowed.pop(3))
        listed = ", ".join(map(literal, allowed))
        form = self.pick(
            [
                f"{ident(name)} in ({listed})",
                f"{ident(name)} = any (array[{listed}])",
                f"length({ident(name)}) < 200",
                f"{ident(name)} <> 'nonsense'",
                f"lower({ident(name)}) in ({listed.lower()})",
            ]
        )
        tail = self.pick(["", "", " no inherit"])
        self.limits.append(
            f"constraint {ident(self.pick(['allowed', 'a b', '{id}']))} check ({form}){tail}"
        )

    def _times(self) -> None:
        zone = self.pick(["timestamptz", "timestamp", "timestamp(0)"])
        if self.chance(0.8):
            value = self.pick(
                ["now() - {n} * interval '1 second'", "now()", "null", "'infinity'", "'-infinity'"]
            )
            self._column("created_at", zone, value)
            if "infinity" in value:
                self.trait("infinite times")
        for name in ("started_at", "completed_at", "failed_at"):
            if self.chance(0.5):
                hard = self.chance(0.1)
                self._column(name, zone + (" not null default now()" if hard else ""))
                if hard:
                    self.trait(f"{name} not null")

    def _counts(self) -> None:
        if self.chance(0.5):
            form = self.pick(
                [
                    "integer default 0",
                    "smallint not null default 0",
                    "bigint",
                    "integer generated always as (1) stored",
                ]
            )
            self._column(self.pick(["attempts", "retry_count"]), form)
            if "generated" in form:
                self.trait("attempts generated")
        if self.chance(0.4):
            limit = self.pick(["3", "0", "1", "null", "100000"])
            self._column(self.pick(["max_attempts", "max_retries"]), "integer", limit)
            self.trait(f"limit {limit}")
            self.limited = limit in ("0", "1")
        if self.chance(0.5):
            form = self.pick(
                [
                    "text",
                    "varchar(10)",
                    "text not null default ''",
                    "varchar(200)",
                    "text default 'none'",
                ]
            )
            self._column(self.pick(["error", "error_message", "last_error"]), form)
        if self.chance(0.4):
            self._column(
                "priority",
                self.pick(["integer", "smallint", "bigint"]),
                self.pick(["{n} % 10", "-5", "null", "30000"]),
            )

    limited = False

    def _cargo(self) -> None:
        for meaning, type, value in (
            ("kind", "text", "case when {n} % 3 = 0 then null else 'kind ' || {n} % 2 end"),
            ("lane", "text", "'lane ' || {n} % 2"),
            ("tenant", "integer", "{n} % 4"),
        ):
            if self.chance(0.2):
                name = self._column(self._odd(f"{meaning}_of"), type, value)
                self.means[meaning] = name
                self.trait(meaning)
        if self.chance(0.25):
            self._column("environment", "text", "case when {n} % 4 = 0 then 'test' else 'live' end")
            if self.chance(0.7):
                self.told["where"] = {"environment": "live"}
                self.trait("filter")
        for type, value in self.random.sample([
            ("jsonb", "jsonb_build_object('n', {n})"), ("json", "'[1, 2]'"), ("bytea", "'\\x00ff'"),
            ("numeric", "'NaN'"), ("text[]", "array['a', null]"), ("int4range", "'[1,5)'"),
            ("double precision", "'-Infinity'"), ("interval", "'1 day'"), ("inet", "'10.0.0.1'"),
            ("text", f"repeat('large ', {self.random.choice([1, 500, 5000])})"),
            ("point", "'(1,2)'"),
            ("bit(3)", "'101'"), ("xid", "'7'"), ("tsvector", "'a b'"), ("date", "'infinity'"),
        ], self.random.randint(0, 4)):  # fmt: skip
            self._column(self._odd(f"c{len(self.columns)}"), type, value)
        if self.chance(0.15):
            self._column("made", "text generated always as ('x') stored")
            self.trait("generated column")
        if self.status and self.status_kind in ("text", "varchar") and self.chance(0.15):
            self._column(
                "is_open", f"boolean generated always as ({ident(self.status)} <> 'x') stored"
            )
            self.trait("generated from the status")
        if self.chance(0.05):
            for number in range(60):
                self._column(f"wide{number}", "integer default 1")
            self.trait("wide")

    def _limits(self) -> None:
        kind = self.random.choices(
            ["none", "unique", "unique index", "partial", "several columns", "foreign",
             "referenced",
             "function"],
            [10, 3, 1, 1.5, 2, 1, 1, 1],
        )[0]  # fmt: skip
        if kind == "none":
            return
        if kind in ("unique", "unique index", "partial", "several columns") and not self.status:
            return
        self.trait(f"constraint: {kind}")
        status = ident(self.status)
        if kind in ("unique", "unique index", "partial"):
            self._column("item", "integer", "{n}")
            if kind == "unique":
                self.limits.append(f"constraint {ident('one each')} unique (item, {status})")
            elif kind == "unique index":
                self.after.append(f"create unique index on {self.relation} (item, {status})")
            else:
                self.after.append(
                    f"create unique index on {self.relation} (item) "
                    f"where {status} = {literal(self.words[1])}"
                )
            if kind != "partial" and self.chance(0.5):
                self.told["unique_live"] = True
            if self.chance(0.3):
                self.values["item"] = "case when {n} < 900 then {n} % 10 else {n} end"
                self.hostile = True
                self.trait("items repeat")
        elif kind == "several columns":
            self._column("result", "text", "case when {n} < 900 then 'made' end")
            state = literal(self.words[self.random.choice([1, 2, 3])])
            self.limits.append(
                f"constraint needs check ({status} <> {state} or result is not null)"
            )
            self.hostile = True
        elif kind == "foreign":
            self.before += [
                f"create table {ident(self.schema)}.owner (id integer primary key)",
                f"insert into {ident(self.schema)}.owner select generate_series(0, 3)",
            ]
            self._column(
                "owner_id",
                f"integer references {ident(self.schema)}.owner on delete cascade",
                "{n} % 4",
            )
        elif kind == "referenced" and len(self.key) == 1:
            self.after.append(
                f"create table {ident(self.schema)}.child (id integer, "
                f"foreign key (id) references {self.relation})"
                if "key integer" in self.traits
                else f"comment on table {self.relation} is 'nobody refers to it'"
            )
        elif kind == "function":
            self.before.append(
                f"create function {ident(self.schema)}.fine(integer) returns boolean "
                "language sql immutable as 'select $1 > 0'"
            )
            self._column("size", "integer", "{n}")
            self.limits.append(f"check ({ident(self.schema)}.fine(size))")

    def _kin(self) -> None:
        tail = ""
        kind = self.random.choices(
            ["none", "unlogged", "partitioned", "partition", "parent", "child"],
            [40, 1, 1, 1, 1, 1],
        )[0]
        body = ",\n  ".join([*self.columns, *self.limits])
        make = "create table"
        if kind == "unlogged":
            make = "create unlogged table"
        if self.chance(0.1):
            tail = " with (fillfactor = 70)"
        plain = all("deferrable" not in one and "references" not in one for one in self.limits)
        if kind in ("partitioned", "partition") and self.key and plain:
            whole = self.relation if kind == "partitioned" else f"{ident(self.schema)}.whole"
            piece = self.relation if kind == "partition" else f"{ident(self.schema)}.piece"
            if any(
                "unique" in one or "no inherit" in one for one in [*self.limits, *self.after]
            ) or any("identity" in one for one in self.columns):
                kind = "none"
            else:
                self.created = (
                    f"create table {whole} (\n  {body}\n) partition by hash ({ident(self.key[0])})"
                )
                self.after.insert(
                    0,
                    f"create table {piece} partition of {whole} "
                    "for values with (modulus 1, remainder 0)",
                )
                self.refused = True
                self.trait(kind)
                return
        self.created = f"{make} {self.relation} (\n  {body}\n){tail}"
        if kind == "parent":
            self.after.append(
                f"create table {ident(self.schema)}.heir () inherits ({self.relation})"
            )
            self.refused = True
        elif kind == "child":
            self.before.append(f"create table {ident(self.schema)}.ancestor ()")
            self.created += f" inherits ({ident(self.schema)}.ancestor)" if not tail else ""
            if tail:
                self.created = (
                    self.created.replace(tail, "") + f" inherits ({ident(self.schema)}.ancestor)"
                )
            self.refused = True
        if kind != "none":
            self.trait(kind)

    def _insert(self, first: int, rows: int = 6, word: str | None = None) -> str:
        """Rows of a word, by default one that waits; values are made from the number of the row."""
        values = dict(self.values)
        if self.status:
            values[self.status] = literal(word or self.words[0])
        if not values:
            return f"insert into {self.relation} default values"
        made = ", ".join(value.replace("{n}", "g") for value in values.values())
        return (
            f"insert into {self.relation} ({', '.join(map(ident, values))})\n"
            f"select {made} from generate_series({first}, {first + rows - 1}) g"
        )

    def _rows(self) -> None:
        """Rows of before: one or more for each word of the status."""
        rows = self.random.choice([0, 0, 1, 4])
        if not rows or self.refused:
            return
        self.trait("rows")
        for number, word in enumerate(self.words if self.status else [""]):
            if word in self.not_allowed or ("lane" in self.means and number == 1):
                continue  # a row that other code has taken keeps its lane
            self.after.append(self._insert(1 + number * 10, rows, word))

    def _triggers(self) -> None:
        kind = self.random.choices(
            ["none", "stamps", "notes", "raises", "raises for some", "skips some", "rewrites",
             "raises late", "statement", "raises on delete"],
            [14, 2, 1, 1, 2, 1, 1, 1, 1, 1],
        )[0]  # fmt: skip
        if kind == "none" or self.refused:
            return
        self.trait(f"trigger: {kind}")
        odd = " = 1" if self.chance(0.5) else " = 0"
        some = f"hashtext(new::text) % 2{odd}"
        body, when = {
            "stamps": ("return new;", "before insert or update"),
            "notes": ("perform pg_notify('noted', 'x'); return null;", "after insert or update"),
            "raises": ("raise exception 'not today';", "before update"),
            "raises for some": (
                f"if {some} then raise exception 'not this one'; end if; return new;",
                "before update",
            ),
            "skips some": (f"if {some} then return null; end if; return new;", "before update"),
            "rewrites": (
                f"new.{ident(self.status)} := old.{ident(self.status)}; return new;"
                if self.status
                else "return old;",
                "before update",
            ),
            "raises late": ("raise exception 'too late'; return null;", "after update"),
            "statement": ("return null;", "after insert or update or delete"),
            "raises on delete": ("raise exception 'never delete';", "before delete"),
        }[kind]
        if kind in ("raises", "raises for some", "skips some", "rewrites", "raises late",
                    "raises on delete"):  # fmt: skip
            self.hostile = True
        each = "statement" if kind == "statement" else "row"
        name = ident(self.pick(["guard it", "a", "zz", "{id}"]))
        function = f"{ident(self.schema)}.on_write()"
        where = f"{when} on {self.relation} for each {each}"
        self.after += [
            f"create function {function} returns trigger language plpgsql as $$begin {body} end$$",
            f"create trigger {name} {where} execute function {function}",
        ]

    def _access(self) -> None:
        if self.chance(0.05) and not self.refused:
            event = self.pick(["update", "insert"])
            self.before += [
                f"create table {ident(self.schema)}.log (at timestamptz)",
                f"grant insert on {ident(self.schema)}.log to public",
            ]
            self.after.append(
                f"create rule {ident('do also')} as on {event} to {self.relation} "
                f"do also insert into {ident(self.schema)}.log values (now())"
            )
            self.trait(f"rule on {event}")
            self.refused = event == "update"
        if self.chance(0.2):
            self.trait("another owner")
            self.after += [
                f"grant usage, create on schema {ident(self.schema)} to {OWNER}",
                f"alter table {self.relation} owner to {OWNER}",
                f"grant select on {self.relation} to public",
            ]
            if "trigger" in " ".join(self.traits) or "function" in " ".join(self.traits):
                self.after.append(
                    f"grant execute on all functions in schema {ident(self.schema)} to {OWNER}"
                )
            if self.chance(0.3):
                self.trait("forced row security")
                self.after.append(
                    f"alter table {self.relation} enable row level security, "
                    "force row level security"
                )
                self.refused = True
            elif self.chance(0.3):
                self.trait("row security")
                self.after += [
                    f"alter table {self.relation} enable row level security",
                    f"create policy mine on {self.relation} using (false)",
                ]
        if self.chance(0.2):
            self.after.append(f"comment on table {self.relation} is 'with ''quotes'''")
            for name in self.values:
                self.after.append(f"comment on column {self.relation}.{ident(name)} is 'x'")
                break

    def _choices(self) -> None:
        self.told["queue"] = f"generated {self.seed}"
        if self.means:
            self.told["columns"] = self.means
        if self.chance(0.25):
            self.told["on_success"] = "delete"
            self.trait("delete on success")
        if self.chance(0.2) and ('"started_at"' in " ".join(self.columns) or not self.status):
            self.told["stuck_after"] = timedelta(minutes=10)
            if "started_at not null" in self.traits:
                self.told.pop("stuck_after")
        if self.chance(0.1):
            self.told["order"] = (
                ", ".join(self.key[:1]) if self.key and "," not in self.key[0] else None
            )
