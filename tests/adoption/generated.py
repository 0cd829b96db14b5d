"""Adopt generated tables, one after another, beside an ordinary queue; see that none does harm."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from holdfast import Client, adopt
from holdfast.adopt import Plan
from holdfast.errors import CannotAdopt, HoldfastError
from holdfast.records import Lease
from tests.adoption.generator import OWNER, Table, ident, literal, table

NEIGHBOUR = "neighbour"


class Harm(AssertionError):  # noqa: N818 - it is not an error of the program
    """What a table did, or what was done to it, that must not be."""


@dataclass
class Result:
    """How many tables were refused, and how many worked."""

    tables: int = 0
    refused: int = 0
    worked: int = 0
    hostile: int = 0
    traits: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: "Result") -> "Result":
        for name in ("tables", "refused", "worked", "hostile"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.traits += other.traits
        return self


Meddle = Callable[[psycopg.Connection, Table, Plan], None]
"""Plants harm: called when a table was adopted, and when it has been given back."""


def nothing(connection: psycopg.Connection, one: Table, plan: Plan) -> None:
    """No harm is planted."""


def run(
    url: str, seeds: Iterable[int], *, adopted: Meddle = nothing, given_back: Meddle = nothing
) -> Result:
    """Check the tables of these seeds, each beside the neighbour; Harm has the table's DDL."""
    result = Result()
    with (
        psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection,
        Client(url) as client,
    ):
        connection.execute(f"""
            do $$ begin create role {OWNER};
            exception when duplicate_object or unique_violation then end $$""")
        # It stays quiet about what it is told to forgive.
        connection.execute("set client_min_messages = warning")
        for seed in seeds:
            one = table(seed)
            try:
                Checker(connection, client, url, one, adopted, given_back).check(result)
            except Exception as error:
                raise Harm(f"{type(error).__name__}: {error}\n{one.told}") from error
    return result


class Checker:
    """One table: made, adopted, worked off, given back, dropped."""

    def __init__(
        self,
        connection: psycopg.Connection,
        client: Client,
        url: str,
        one: Table,
        adopted: Meddle = nothing,
        given_back: Meddle = nothing,
    ) -> None:
        self.connection = connection
        self.client = client
        self.url = url
        self.one = one
        self.adopted = adopted
        self.given_back = given_back
        self.queue = one.choices.queue or ""
        self.deletes = one.choices.on_success == "delete"

    def check(self, result: Result) -> None:
        one = self.one
        result.tables += 1
        result.traits.update(
            re.sub(r" (named|column|limit) .*", r" \1", f" {t}") for t in one.traits
        )
        for statement in one.ddl:
            self.connection.execute(statement)
        try:
            before = self.structure()
            rows = self.rows()
            try:
                plan = adopt.plan(self.url, one.relation, one.choices)
            except CannotAdopt as refused:
                require(
                    refused.what and (refused.fix or refused.why),
                    f"refused without a reason: {refused}",
                )
                require(self.structure() == before and self.rows() == rows, "the plan changed it")
                result.refused += 1
                result.traits[f"refused: {re.sub(r'[0-9]+', 'N', refused.what)[-40:]}"] += 1
                return
            require(not one.refused, "it was adopted, though it cannot be a queue")
            unwritten = self.rows(plan)
            adopt.adopt(self.url, plan)
            self.adopted(self.connection, one, plan)
            with self.beside_the_neighbour():
                self.work(plan)
            result.hostile += one.hostile
            result.worked += not one.hostile
            self.give_back(plan, before, unwritten)
        finally:
            self.connection.execute("reset session_replication_role; reset role")
            self.forget()

    # The neighbour.

    @contextmanager
    def beside_the_neighbour(self) -> Iterator[None]:
        """Jobs of an ordinary queue wait, run and die meanwhile, and find nothing changed after."""
        waiting = [self.client.enqueue("plain", {"n": n}, queue=NEIGHBOUR).id for n in range(3)]
        [held] = self.client.claim(NEIGHBOUR, worker="n", limit=1, lease=600)
        known = self.neighbour()
        yield
        require(
            self.neighbour() == known, f"the neighbour was changed: {known} -> {self.neighbour()}"
        )
        self.whole()
        require(self.client.ack([held])[0].outcome == "done", "the neighbour lost its lease")
        leases = self.client.claim(NEIGHBOUR, worker="n", limit=9)
        require([lease.id for lease in leases] == waiting[1:], "the neighbour's jobs do not flow")
        require(
            {s.outcome for s in self.client.ack(leases)} == {"done"}, "acks of the neighbour fail"
        )

    def neighbour(self) -> list[Any]:
        return self.all(
            "select j.id, j.state, j.attempt, j.worker, j.payload::text, j.lease_until "
            f"from holdfast.jobs j where j.queue = '{NEIGHBOUR}' order by j.id"
        )

    def whole(self) -> None:
        """What looks at all queues at once, and what tends them, answers."""
        for query in (
            "select count(*) from holdfast.reap()",
            "select holdfast.rescue()",
            "select count(*) from holdfast.promote()",
            "select count(*) from holdfast.jobs",
            "select count(*) from holdfast.queues",
            "select count(*) from holdfast.depth",
            "select count(*) from holdfast.list('state:queued')",
            "select count(*) from holdfast.dead_groups",
            "select count(*) from holdfast.recount()",
        ):
            try:
                self.connection.execute(query)
            except psycopg.Error as error:
                raise Harm(f"{query} fails for everybody: {error}") from error

    # The table.

    def work(self, plan: Plan) -> None:
        """Every verb, on rows of before and rows that are inserted now."""
        connection, one = self.connection, self.one
        try:
            connection.execute(one.insert)
        except psycopg.errors.RaiseException:
            require(one.hostile, "a row cannot be inserted any more")
        else:
            pass
        if one.hostile:
            self.hostile_work(plan)
            return
        self.counted()
        if one.word is not None and one.word not in plan.spec["states"]["queued"]:
            # Nothing said what its rows would be; then the plan does.
            require(
                any("a row is a job when its status is" in note for note in plan.warnings),
                "no row will ever be a job, and nobody is told",
            )
            return
        lanes = "lane" in plan.spec["columns"]
        leases = self.client.claim(self.queue, worker="w", limit=50)
        require(bool(leases), f"nothing is claimable in {self.states()}")
        if not lanes:
            least = 1 if "default values" in one.insert else 4 if one.choices.where else 6
            require(len(leases) >= least, f"only {len(leases)} of the rows were claimed")
        require(len({lease.id for lease in leases}) == len(leases), "a row was claimed twice")
        touched = self.client.touch(leases, lease=120)
        require({t.outcome for t in touched} == {"leased"}, "a lease cannot be kept")
        spare = list(leases)
        self.settle(spare, "ack", plan)
        self.settle(spare, "nack", plan)
        self.settle(spare, "release", plan)
        self.settle(spare, "cancel", plan)
        self.settle(spare, "expire", plan)
        if spare:
            self.settle(spare, "dies", plan)
        if spare:
            require({s.outcome for s in self.client.release(spare)} == {"queued"}, "release fails")
        self.counted()

    def settle(self, leases: list[Lease], verb: str, plan: Plan) -> None:
        if not leases:
            return
        lease = leases.pop()
        if verb == "ack":
            [said] = self.client.ack([lease])
            expected = "done" if plan.spec.get("on_success") != "delete" else None
            require(said.outcome == "done", f"ack: {said}")
            self.became(lease, expected)
            require(self.client.ack([lease])[0].outcome == "already", "a second ack is news")
        elif verb in ("nack", "dies"):
            [said] = self.client.nack(
                [lease],
                message="an error that is longer than some columns",
                delay=0,
                final=verb == "dies",
            )
            last = verb == "dies" or lease.attempt >= lease.max_attempts
            require(said.outcome == ("dead" if last else "queued"), f"{verb}: {said}")
            self.became(lease, "dead" if last else "queued")
            if last:
                [back] = self.client.jobs.retry([lease.id])
                require(back.changed and back.state == "queued", f"retry: {back}")
        elif verb == "release":
            [said] = self.client.release([lease])
            require(said.outcome == "queued", f"release: {said}")
            self.became(lease, "queued")
        elif verb == "cancel":
            [told] = self.client.jobs.cancel([lease.id])
            require(told.changed, f"cancel: {told}")
            self.became(lease, *(["cancelled"] if plan.spec["states"]["cancelled"] else ["dead"]))
        else:
            until = ident(plan.spec["columns"]["lease_until"])
            self.connection.execute("set session_replication_role = replica")
            self.connection.execute(
                f"update {self.one.relation} set {until} = {until} - interval '1 day' "
                f"where {ident(plan.spec['columns']['token'])} = '{lease.token}'"
                f" and {self.row_of(plan, lease)}"
            )
            self.connection.execute("reset session_replication_role")
            self.connection.execute(
                "update holdfast.lease set until = until - interval '1 day' where token = %s",
                [lease.token],
            )
            self.connection.execute("select from holdfast.reap()")
            self.became(lease, "dead" if lease.attempt >= lease.max_attempts else "queued")

    def row_of(self, plan: Plan, lease: Lease) -> str:
        """The condition by which a row is found: its key as text."""
        names = plan.spec["key"]
        if len(names) == 1:
            return f"{ident(names[0])}::text = {literal(lease.subject or '')}"
        text = " || ',' || ".join(
            f"length({ident(n)}::text)::text || ':' || {ident(n)}::text" for n in names
        )
        return f"{text} = {literal(lease.subject or '')}"

    def became(self, lease: Lease, state: str | None) -> None:
        found = self.client.jobs.get(lease.id)
        now = found.state if found else None
        require(
            now == state, f"a row became {now}, not {state}: {self.client.jobs.explain(lease.id)}"
        )

    def hostile_work(self, plan: Plan) -> None:
        """Whatever its own verbs do: they may fail, and the table may keep its rows."""
        for _ in range(2):
            leases: list[Lease] = []
            with suppress(HoldfastError, psycopg.Error):
                leases = self.client.claim(self.queue, worker="w", limit=4)
            for number, lease in enumerate(leases):
                verbs: list[Callable[[], object]] = [
                    lambda lease=lease: self.client.ack([lease]),
                    lambda lease=lease: self.client.nack([lease], message="no", delay=0),
                    lambda lease=lease: self.client.jobs.cancel([lease.id]),
                    lambda lease=lease: self.client.release([lease]),
                ]
                with suppress(HoldfastError, psycopg.Error):
                    verbs[number % 4]()
        self.nothing_starves(plan)
        self.connection.execute("set session_replication_role = replica")
        until = ident(plan.spec["columns"]["lease_until"])
        self.connection.execute(
            f"update {self.one.relation} set {until} = {until} - interval '1 day'"
        )
        self.connection.execute("reset session_replication_role")
        self.connection.execute(
            "update holdfast.lease set until = until - interval '1 day' where queue = %s",
            [self.queue],
        )

    def nothing_starves(self, plan: Plan) -> None:
        """A claim that gives nothing while rows are due leaves a reason behind."""
        if "lane" in plan.spec["columns"] or "infinite times" in self.one.traits:
            return
        with suppress(HoldfastError, psycopg.Error):
            while self.client.claim(self.queue, worker="w", limit=9):
                pass
            due = self.all(
                "select id, subject from holdfast.jobs where queue = %s and state = 'queued' "
                "and run_at <= clock_timestamp() and lease_until is null",
                [self.queue],
            )
            [(said,)] = self.all(
                "select holdfast.adopted_problem(a) from holdfast.adopted a where a.queue = %s",
                [self.queue],
            )
            require(not due or said, f"due, never claimed, and not reported: {due}")

    def counted(self) -> None:
        wrong = self.all("select r.* from holdfast.recount() r")
        require(not wrong, f"the counters are wrong by {wrong}")

    def states(self) -> list[Any]:
        return self.all(
            "select state, count(*) from holdfast.jobs where queue = %s group by 1", [self.queue]
        )

    # Giving it back.

    def give_back(self, plan: Plan, before: list[str], unwritten: dict[str, str]) -> None:
        connection, one = self.connection, self.one
        connection.execute("set session_replication_role = replica")
        if not one.hostile:
            now_unwritten = self.rows(plan)
            wrong = {
                key: (was, now_unwritten[key])
                for key, was in unwritten.items()
                if key in now_unwritten and now_unwritten[key] != was
            }
            require(not wrong, f"columns that the queue does not write were changed: {wrong}")
            gone = unwritten.keys() - now_unwritten.keys()
            require(not gone or self.deletes, f"rows are gone: {gone}")
        self.make_room(plan)
        connection.execute("reset session_replication_role")
        now = self.rows_as_they_are(plan)
        adopt.unadopt(self.url, one.relation, force=True)
        self.given_back(connection, one, plan)
        after = self.structure()
        require(
            after == before,
            "given back it is not as it was:\n"
            + "\n".join(f"- {line}" for line in before if line not in after)
            + "\n"
            + "\n".join(f"+ {line}" for line in after if line not in before),
        )
        require(self.rows_as_they_are(plan) == now, "giving it back changed rows")
        left = self.all(_LEFT, {"part": plan.part, "queue": self.queue})
        require(not left, f"left behind: {left}")
        self.whole()

    def make_room(self, plan: Plan) -> None:
        """Take away rows that the constraints of before do not allow, as their owner would."""
        status = ident(plan.spec["status"])
        for values in plan.spec["widened"].values():
            words = ", ".join(map(literal, values))
            self.connection.execute(
                f"delete from {self.one.relation} where {status}::text in ({words})"
            )
        for columns in plan.spec.get("relaxed", {}).values():
            named = ", ".join(map(ident, columns))
            self.connection.execute(
                f"delete from {self.one.relation} where ({named}) in (select {named} "
                f"from {self.one.relation} group by {named} having count(*) > 1)"
            )

    def rows(self, plan: Plan | None = None) -> dict[str, str]:
        """The rows by their keys, as text; with a plan, without what the queue writes."""
        try:
            key = [name for (name,) in self.all(_KEY, [self.one.relation])]
        except psycopg.Error:
            key = []
        if not key:
            return {}
        hidden = set(plan.spec["hidden"]) if plan else set()
        names = [n for (n,) in self.all(_NAMES, [self.one.relation]) if n not in hidden]
        shown = ", ".join(map(ident, names))
        keys = ", ".join(map(ident, key))
        return dict(
            self.all(f"select row({keys})::text, row({shown})::text from {self.one.relation}")
        )

    def rows_as_they_are(self, plan: Plan) -> list[Any]:
        """Every row in the columns that the application knows."""
        added = {n for n in plan.spec["columns"].values() if n.startswith("holdfast_")}
        if not self.one.choices.status and "existing rows are" in " ".join(
            s.name for s in plan.steps
        ):
            added |= {plan.spec["status"], *plan.spec["columns"].values()}
        names = [n for (n,) in self.all(_NAMES, [self.one.relation]) if n not in added]
        shown = ", ".join(map(ident, names))
        return self.all(f"select row({shown})::text from {self.one.relation} order by 1")

    def structure(self) -> list[str]:
        """Everything that the catalog says of the table's schema, and of the table."""
        lines = [
            line
            for (line,) in self.all(
                _STRUCTURE, {"schema": self.one.schema, "table": self.one.relation}
            )
        ]
        # PostgreSQL reads back what it wrote with its casts in other places, as after a dump.
        return [
            re.sub(r"::(character varying|text|bpchar)(\[\])?|[()]", "", line) for line in lines
        ]

    def forget(self) -> None:
        """Drop it, whatever state it is in."""
        left = [part for (part,) in self.all("select part from holdfast.adopted")]
        self.connection.execute("delete from holdfast.adopted")
        if left:
            self.connection.execute("select holdfast.readopt()")
        self.connection.execute("set session_replication_role = replica")
        for (statement,) in self.all(_FORGET, {"schema": self.one.schema, "seed": self.one.seed}):
            self.connection.execute(statement)
        self.connection.execute("reset session_replication_role")
        for part in left:
            self.connection.execute("select holdfast.forget_adopted(%s::smallint)", [part])
            self.connection.execute("delete from holdfast.queue where adopted = %s", [part])
            for name in ("tally", "total", "lease"):
                self.connection.execute(f"delete from holdfast.{name} where part = %s", [part])
        if left:
            self.connection.execute("delete from holdfast.job")
            self.connection.execute("select from holdfast.recount()")

    def all(self, query: str, values: Any = None) -> list[Any]:
        return self.connection.execute(query, values).fetchall()


def require(held: object, otherwise: str) -> None:
    if not held:
        raise Harm(otherwise)


_KEY = """
select a.attname from pg_index i cross join unnest(i.indkey::smallint[]) with ordinality k(n, nth)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.n
where i.indrelid = %s::regclass and i.indisprimary order by k.nth
"""
_NAMES = """
select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped
order by attnum
"""
# Enumerations are left out: a value that was added to one stays, and the plan says so.
_STRUCTURE = """
with relations as (
  select c.* from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = %(schema)s
)
select concat_ws(' ', 'relation', c.relname, c.relkind, c.relpersistence, 'owner',
  c.relowner::regrole, 'acl', c.relacl, 'options', c.reloptions, 'security', c.relrowsecurity,
  c.relforcerowsecurity, 'identity', c.relreplident, obj_description(c.oid, 'pg_class')) as line
from relations c
union all
select concat_ws(' ', 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
  'not null', a.attnotnull, 'default', pg_get_expr(d.adbin, d.adrelid), 'generated',
  a.attgenerated, 'identity', a.attidentity, 'storage', a.attstorage, 'acl', a.attacl,
  'comment', col_description(c.oid, a.attnum))
from relations c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relkind in ('r', 'p')
union all
select concat_ws(' ', 'constraint', c.relname, k.conname, pg_get_constraintdef(k.oid), 'valid',
  k.convalidated, 'comment', obj_description(k.oid, 'pg_constraint'))
from relations c join pg_constraint k on k.conrelid = c.oid
union all
select format('index %%s valid %%s', pg_get_indexdef(x.indexrelid), x.indisvalid)
from relations c join pg_index x on x.indrelid = c.oid
union all
select format('trigger %%s %%s', pg_get_triggerdef(t.oid), t.tgenabled)
from relations c join pg_trigger t on t.tgrelid = c.oid where not t.tgisinternal
union all
select format('rule %%s', pg_get_ruledef(r.oid))
from relations c join pg_rewrite r on r.ev_class = c.oid
union all
select format('policy %%s %%s %%s', p.polname, p.polcmd, pg_get_expr(p.polqual, p.polrelid))
from relations c join pg_policy p on p.polrelid = c.oid
union all
select format('function %%s', p.oid::regprocedure)
from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = %(schema)s
union all
select format('schema %%s %%s', n.nspname, n.nspacl)
from pg_namespace n where n.nspname = %(schema)s
order by 1
"""
_LEFT = """
select 'function ' || p.oid::regprocedure from pg_proc p
where p.pronamespace = 'holdfast_adopted'::regnamespace and p.proname like %(part)s || '\\_%%'
union all select 'view ' || c.relname from pg_class c
where c.relnamespace = 'holdfast_adopted'::regnamespace and c.relname = %(part)s::text
union all select 'adopted' from holdfast.adopted where part = %(part)s
union all select 'queue' from holdfast.queue where name = %(queue)s
union all select 'counters' from holdfast.tally where part = %(part)s
union all select 'counters' from holdfast.total where part = %(part)s
union all select 'leases' from holdfast.lease where part = %(part)s
"""
_FORGET = """
select format('drop schema if exists %%I cascade', nspname)
from pg_namespace where nspname = %(schema)s
union all
select format('drop type if exists public.%%I cascade', typname) from pg_type
where typname = 'phase ' || %(seed)s
"""
