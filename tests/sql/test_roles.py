"""Four roles, each with what it needs and nothing more; for anyone else, nothing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from holdfast import Client, NewJob, embedded, schema
from tests.conftest import SETTINGS, Connect
from tests.protocol import Protocol, shared_database

ANYONE = {
    *("now", "version", "new_id", "queue_part", "part_of"),
    *("oldest", "unset_queue", "usual_attempts"),  # the views call them as whoever looks
    *("members", "homes"),
}
LOOK = {
    *("get", "list", "died", "upcoming", "find", "search", "count_jobs", "attempts", "explain"),
    *("steps", "lines", "last_lines"),
    *(
        "activity",
        "tail",
        "log_state",
        "series",
        "explain_queue",
        "explain_lane",
        "forecast",
        "nodes",
        "doctor",
    ),
    "success",
    *("waited_for", "followers"),
    *("workflow_of", "workflow_find", "workflow_groups", "workflow_jobs"),
    *("workflow_state", "workflow_counts", "workflow_ended_at"),  # the view of workflows calls them
    *("workflow_within", "workflow_of_link"),
    "adopted_rows",  # the view of all jobs calls it as whoever looks
}
PRODUCE = {
    *("enqueue", "enqueue_one", "copied", "send_event", "workflow_start", "workflow_of"),
    *("large_put", "await_end", "not_ending"),
}
HOLD = {
    *(
        "claim",
        "claim_each",
        "touch",
        "ack",
        "nack",
        "release",
        "settle",
        "held",
        "hand_over",
        "guard",
    ),
    *("await_work", "hear", "pass_on", "ping"),
    *("step", "steps", "await_event", "reply_link", "log"),
    *("large_get", "large_list", "large_used", "large_delete"),
}
KEEP_UP = {
    *("reap", "promote", "sweep", "raise_floors", "fold", "turn_pages", "upkeep", "upkeep_steps"),
    *("tend", "lead"),
    *("declare_kinds", "doubtful", "reconcile"),
    *("schedule_declare", "schedule_due", "schedule_fire", "schedule_fault", "beat", "leave"),
    "queue_declare",
    *("operation_step", "detect", "detector_due", "report", "webhook_target"),
}
OPERATE = {
    *("cancel", "retry", "edit", "move", "archive", "delete", "recount"),
    *("workflow_cancel", "workflow_retry"),
    *("queue_set", "sort_some", "place", "lane_set", "pause", "resume", "stop_worker"),
    *("schedule_set", "schedule_run", "schedule_pause", "schedule_resume", "schedule_delete"),
    *("lane_release", "operation_preview", "operation_start", "operation_cancel", "operation_undo"),
    *("strike_add", "strike_lift"),
    *("anomaly_ack", "anomaly_mute", "anomaly_unmute", "detector_set"),
    *("webhook_set", "webhook_delete"),
}
SERVE = {
    *("token_create", "token_find", "token_revoke", "link_spend"),
    *("once", "answered", "tell", "receipt", "watch"),
    *("reply_asked", "reply", "reply_link_revoke"),
}
MAY_CALL = {
    "holdfast_reader": ANYONE | LOOK,
    "holdfast_producer": ANYONE | PRODUCE,
    "holdfast_worker": ANYONE
    | PRODUCE
    | HOLD
    | KEEP_UP
    | {"get", "explain", "waited_for", "followers"},
    "holdfast_operator": ANYONE | LOOK | PRODUCE | HOLD | KEEP_UP | OPERATE | SERVE,
}

COPIED_COLUMNS = (
    "part, id, queue, kind, priority, run_at, created_at, max_attempts, payload, headers, tenant,"
    " subject, by_kind"
)


class Roles:
    """One database as each of the roles sees it."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = url
        self._stack = stack
        self.owner = self._session()

    def __call__(self, role: str) -> Protocol:
        session = self._session()
        session.connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        return session

    def _session(self) -> Protocol:
        connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
        self._stack.callback(connection.close)
        return Protocol(connection)


@pytest.fixture(scope="module")
def roles_database(postgres: Any, template: str) -> Iterator[str]:
    with shared_database(postgres.url, template) as url:
        with psycopg.connect(url) as connection:
            connection.execute(
                "grant usage on schema holdfast_test to public;"
                " grant select on holdfast_test.clock to public"
            )
        yield url


@pytest.fixture
def acting(roles_database: str) -> Iterator[Roles]:
    """Sessions of roles, and of the owner, in one database."""
    with ExitStack() as stack:
        roles = Roles(roles_database, stack)
        roles.owner.wipe()
        yield roles


@pytest.mark.parametrize("role", MAY_CALL)
def test_a_role_may_call_its_verbs_and_no_other_function(acting: Roles, role: str) -> None:
    callable_functions = acting.owner.connection.execute(
        """
        select p.proname
        from pg_proc p
        where p.pronamespace = 'holdfast'::regnamespace
          and has_function_privilege(%s, p.oid, 'execute')
        """,
        [role],
    )

    assert {name for (name,) in callable_functions} == MAY_CALL[role]


@pytest.mark.parametrize("role", MAY_CALL)
def test_a_role_may_read_what_it_needs_and_write_to_no_table(acting: Roles, role: str) -> None:
    rights = dict(
        acting.owner.connection.execute(
            """
            select c.relname, string_agg(p.privilege, ' ')
            from pg_class c
            cross join unnest('{select,insert,update,delete,truncate,references,trigger}'::text[])
              p(privilege)
            where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'v')
              and has_table_privilege(%s, c.oid, p.privilege)
            group by c.relname
            """,
            [role],
        ).fetchall()
    )

    assert set(rights.values()) == {"select"}
    # Secrets that sign, hashes of tokens, answers that may come twice, tokens of leases.
    assert not rights.keys() & {"webhook", "api_token", "request", "job", "lease", "attempt"}
    if role in ("holdfast_producer", "holdfast_worker"):
        assert rights.keys() == {"migration", "queues"}


@pytest.mark.parametrize("role", ["holdfast_reader", "holdfast_operator"])
def test_nobody_reads_what_proves_a_lease_or_a_caller(acting: Roles, role: str) -> None:
    reader = acting(role)
    for table in ("job", "lease", "attempt"):
        with pytest.raises(errors.InsufficientPrivilege):
            reader.connection.execute(f"select token from holdfast.{table}")
        reader.connection.execute(f"select part from holdfast.{table}")
    with pytest.raises(errors.InsufficientPrivilege):
        reader.connection.execute("select from holdfast.api_token")
    shown = reader.connection.execute("select * from holdfast.api_tokens").description or []

    assert not {column.name for column in shown} & {"hash", "secret"}


def test_no_table_shows_a_token_after_an_upgrade_either(acting: Roles) -> None:
    acting.owner.connection.execute("select holdfast.turn_pages()")  # tables of days to come
    grants = resources.files("holdfast") / "sql" / "grants.sql"
    acting.owner.connection.execute(grants.read_text().encode())

    shown = acting.owner.connection.execute(
        """
        select r.rolname, c.relname
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attname = 'token'
        cross join pg_roles r
        where c.relnamespace = 'holdfast'::regnamespace and r.rolname like 'holdfast\\_%'
          and c.relkind in ('r', 'p', 'v')
          and has_column_privilege(r.oid, c.oid, a.attnum, 'select')
        """
    ).fetchall()

    assert shown == []


@pytest.mark.parametrize("role", MAY_CALL)
def test_producers_may_fill_the_columns_of_a_copy_and_no_others(acting: Roles, role: str) -> None:
    columns = acting.owner.connection.execute(
        """
        select a.attname
        from pg_attribute a
        where a.attrelid = 'holdfast.job'::regclass and a.attnum > 0
          and has_column_privilege(%s, a.attrelid, a.attnum, 'insert')
        """,
        [role],
    )

    filled = set() if role == "holdfast_reader" else set(COPIED_COLUMNS.split(", "))
    assert {name for (name,) in columns} == filled


def test_whoever_has_no_role_may_do_nothing(acting: Roles) -> None:
    acting.owner.put()
    statements = [
        "select * from holdfast.enqueue('[]')",
        "select * from holdfast.claim('default', 'eve', gen_random_uuid())",
        "select * from holdfast.list()",
        "select holdfast.now()",
        "select * from holdfast.jobs",
        "select * from holdfast.queues",
        "select * from holdfast.job",
        "select * from holdfast.migration",
        "select nextval('holdfast.pos')",
        "create table holdfast.mine (id int)",
    ]

    with no_role(acting.owner) as nobody:
        session = acting(nobody)
        for statement in statements:
            with pytest.raises(errors.InsufficientPrivilege):
                session.connection.execute(statement)


@contextmanager
def no_role(owner: Protocol) -> Iterator[str]:
    name = f"nobody_{uuid4().hex}"
    owner.connection.execute(f"create role {name}")
    try:
        yield name
    finally:
        owner.connection.execute(f"drop role {name}")


def test_a_producer_enqueues_and_copies(acting: Roles, roles_database: str) -> None:
    producer = acting("holdfast_producer")

    producer.put(key="one")
    producer.enqueue({"kind": "work", "key": "one", "on_conflict": "replace"}, {"kind": "other"})
    Client(roles_database).on(producer.connection).copy(
        [NewJob(kind="copied", payload=1, subject="s", tenant="t", headers={"a": 1})]
    )

    assert acting.owner.depth() == {"queued": 3}
    assert [job.kind for job in acting.owner.claim(max_jobs=9)] == ["work", "other", "copied"]


def test_a_producer_sees_no_job(acting: Roles) -> None:
    producer = acting("holdfast_producer")
    id = producer.put(key="one", payload="secret")

    assert producer.enqueue({"kind": "work", "key": "one"})[0].duplicate_of == id
    for query in (
        "select payload from holdfast.job",
        "select payload from holdfast.jobs",
        "select id from holdfast.job",
        f"select payload from holdfast.get('{id}')",
        "select payload from holdfast.list()",
        "select payload from holdfast.claim('default', 'eve', gen_random_uuid())",
        "insert into holdfast.job (id) values (gen_random_uuid()) returning payload",
        "copy holdfast.job (payload) to stdout",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            producer.connection.execute(query)


@pytest.mark.parametrize("role", MAY_CALL)
def test_no_role_can_forge_a_lease_or_touch_rows(acting: Roles, role: str) -> None:
    acting.owner.put()
    session = acting(role)
    statements = [
        "insert into holdfast.job (id, token) values (gen_random_uuid(), gen_random_uuid())",
        "insert into holdfast.job (id, pos) values (gen_random_uuid(), 1)",
        "insert into holdfast.job (id, attempt) values (gen_random_uuid(), -9)",
        "copy holdfast.job (part, id, queue, kind, token) from stdin",
        "insert into holdfast.lease (token) values (gen_random_uuid())",
        "insert into holdfast.tally (part, queue, kind, dead) values (1, 'q', 'k', 5)",
        "update holdfast.job set priority = 9",
        "delete from holdfast.job",
        "truncate holdfast.job",
        "create trigger spy before insert on holdfast.job execute function holdfast.now()",
        "create index mine on holdfast.job (id)",
        "alter function holdfast.now() immutable",
        "select setval('holdfast.pos', 1)",
        "drop table holdfast.job",
    ]

    for statement in statements:
        with pytest.raises(errors.InsufficientPrivilege):
            session.connection.execute(statement)


def test_a_worker_claims_settles_and_keeps_up(acting: Roles) -> None:
    worker = acting("holdfast_worker")
    worker.enqueue(*[{"kind": "k", "lane": f"l{n}", "key": str(n)} for n in range(4)])

    done, failed, freed, kept = worker.claim(max_jobs=4)

    assert worker.touch(kept)[0].outcome == "leased"
    assert worker.ack(done)[0].outcome == "done"
    assert worker.nack(failed, message="no", delay=timedelta(hours=1))[0].outcome == "queued"
    assert worker.release(freed)[0].outcome == "queued"
    assert [job.id for job in worker.held(kept.token)] == [kept.id]
    assert worker.settle({"id": kept.id, "token": kept.token, "verb": "ack"})[0].outcome == "done"
    assert worker.explain(failed.id).startswith("Attempt 1 of 3 failed")
    worker.value("await_work", queues=["default"], worker="ada")
    worker.value("ping", worker="ada")
    [again] = worker.claim(kinds=["k"])
    assert worker.hand_over(again).outcome == "leased"
    assert worker.declare_kinds({"kind": "k", "done_when": True}) == 1
    assert worker.doubtful("k") == []
    assert worker.reconcile(again, done=[True])[0].outcome == "lost"
    assert worker.upkeep()["folded"] > 0


def test_a_worker_does_not_operate(acting: Roles) -> None:
    worker = acting("holdfast_worker")
    id = worker.put()
    calls: list[Callable[[], Any]] = [
        lambda: worker.cancel(id),
        lambda: worker.retry(id),
        lambda: worker.edit(id, changes={"priority": 1}),
        lambda: worker.move(id, queue="mine"),
        lambda: worker.archive(id),
        lambda: worker.delete(id),
        lambda: worker.queue_set("default", limit=1),
        lambda: worker.lane_set("default", "l", limit=1),
        lambda: worker.pause("default"),
        lambda: worker.resume("default"),
        lambda: worker.list(),
        lambda: worker.attempts(id),
    ]

    for call in calls:
        with pytest.raises(errors.InsufficientPrivilege):
            call()
    assert acting.owner.state(id) == "queued"


def test_a_reader_reads(acting: Roles) -> None:
    reader = acting("holdfast_reader")
    id = acting.owner.put(payload={"a": 1}, max_attempts=1)
    acting.owner.nack(acting.owner.take(), message="no")

    assert reader.job(id).state == "dead"
    assert reader.find("state:dead payload.a:1") == [id]
    assert len(reader.attempts(id)) == 1
    assert reader.explain(id).startswith("Dead since")
    assert reader.depth() == {"dead": 1}
    for view in ("jobs", "queues", "depth", "dead_groups", "dead", "workers", "api_tokens"):
        reader.connection.execute(f"select * from holdfast.{view}")


def test_a_reader_changes_nothing(acting: Roles) -> None:
    reader = acting("holdfast_reader")
    id = acting.owner.put()
    calls: list[Callable[[], Any]] = [
        lambda: reader.put(),
        lambda: reader.claim(),
        lambda: reader.cancel(id),
        lambda: reader.upkeep(),
        lambda: reader.value("copied", queue="default", kinds=["k"], counts=[1]),
        lambda: reader.connection.execute("select nextval('holdfast.pos')"),
        lambda: reader.connection.execute("insert into holdfast.job (id) values (null)"),
    ]

    for call in calls:
        with pytest.raises(errors.InsufficientPrivilege):
            call()
    assert acting.owner.depth() == {"queued": 1}


def test_an_operator_operates(acting: Roles) -> None:
    operator = acting("holdfast_operator")
    operator.queue_set("default", limit=5, keep_done=3600)
    operator.lane_set("default", "l", limit=2)
    id = operator.put(max_attempts=1)
    operator.nack(operator.take(), message="no")

    assert operator.edit(id, changes={"priority": 3})[0].changed
    assert operator.retry(id, reason="again")[0].state == "queued"
    [moved] = operator.move(id, queue="other")
    assert moved.new_id is not None
    assert operator.cancel(moved.new_id)[0].state == "cancelled"
    assert operator.archive(moved.new_id)[0].state == "archived"
    assert operator.delete(moved.new_id)[0].state is None
    operator.pause("default", reason="cleaning")
    operator.resume("default")
    assert operator.recount() == []
    assert operator.list() == []


SHADOWS = {
    "now()": ("timestamptz", "timestamptz '2000-01-01'"),
    "statement_timestamp()": ("timestamptz", "timestamptz '2000-01-01'"),
    "length(text)": ("int", "1000"),
    "md5(text)": ("text", "'ffffffff'"),
    "unnest(anyarray)": ("setof anyelement", "$1[1] where false"),
    "nextval(regclass)": ("bigint", "1::bigint"),
    "jsonb_array_elements(jsonb)": ("setof jsonb", "'{}'::jsonb"),
    "set_config(text, text, boolean)": ("text", "'done'"),
}
OPERATORS = {"=": ("uuid", "boolean", "true"), "||": ("text", "text", "'x'")}


@pytest.mark.parametrize("shadow", [*SHADOWS, *OPERATORS, "job"])
def test_names_in_front_of_the_systems_own_change_nothing(acting: Roles, shadow: str) -> None:
    worker = acting.owner
    token = uuid4()

    with worker.connection.transaction(force_rollback=True):
        worker.connection.execute("create schema evil; grant all on schema evil to public")
        worker.connection.execute("set local role holdfast_worker")
        worker.connection.execute(shadowing(shadow))
        worker.connection.execute("set local search_path = pg_temp, evil, public, pg_catalog")
        id = worker.put(payload={"a": 1})
        claimed = worker.connection.execute(CLAIM, [token]).fetchall()
        stolen = worker.connection.execute(ACK, [[id], [uuid4()]]).fetchall()
        settled = worker.connection.execute(ACK, [[id], [token]]).fetchall()

    assert claimed == [(id, 1)]
    assert stolen == [("lost",)]
    assert settled == [("done",)]


def test_a_function_that_did_not_pin_its_names_would_be_fooled(acting: Roles) -> None:
    owner = acting.owner

    with owner.connection.transaction(force_rollback=True):
        owner.connection.execute("create schema evil")
        owner.connection.execute(shadowing("length(text)"))
        owner.connection.execute("set local search_path = evil, pg_catalog")
        owner.connection.execute("alter function holdfast.enqueue(jsonb, boolean) reset all")
        with pytest.raises(psycopg.Error):
            owner.put()


CLAIM = "select id, attempt from holdfast.claim('default', 'ada', %s)"
ACK = "select outcome from holdfast.ack(%s, %s)"


def shadowing(name: str) -> str:
    """Statements that put something of this name where a careless function would find it."""
    if name in SHADOWS:
        returns, body = SHADOWS[name]
        return f"create function evil.{name} returns {returns} language sql as $$ select {body} $$"
    if name in OPERATORS:
        type, returns, body = OPERATORS[name]
        return f"""
          create function evil.op({type}, {type}) returns {returns} language sql
            as $$ select {body} $$;
          create operator evil.{name} (leftarg = {type}, rightarg = {type}, function = evil.op)
        """
    return f"create temp table {name} (part smallint, id uuid, token uuid, queue text)"


def test_an_operator_in_the_public_schema_changes_nothing(acting: Roles) -> None:
    connection = acting.owner.connection
    parts = (
        "select holdfast.queue_part('mail'), holdfast.part_of(holdfast.new_id('mail')),"
        " (select part from holdfast.queues where queue = 'mail')"
    )
    acting.owner.queue_set("mail")
    before = connection.execute(parts).fetchone()

    with connection.transaction(force_rollback=True):
        for operator, left, right in (("%", "bigint", "int"), ("|", "int", "smallint")):
            connection.execute(
                f"""
                create function public.seven({left}, {right}) returns {left}
                  language sql as 'select 7::{left}';
                create operator public.{operator} (
                  leftarg = {left}, rightarg = {right}, function = public.seven)
                """
            )
        after = connection.execute(parts).fetchone()

    assert after == before


def test_an_owner_that_is_no_superuser_serves_everyone(
    connect: Connect, empty_database: str
) -> None:
    admin = connect(empty_database)
    owner = f"owner_{uuid4().hex}"
    admin.execute(f"create role {owner} login")
    admin.execute(f"alter database {admin.info.dbname} owner to {owner}")
    try:
        schema.migrate(make_conninfo(empty_database, user=owner))
        worker = Protocol(connect(empty_database))
        worker.connection.execute("set role holdfast_worker")

        worker.put(lane="l", key="k")
        assert worker.ack(worker.take())[0].outcome == "done"
        assert worker.upkeep()["pages"] > 0
    finally:
        worker.connection.close()
        admin.execute(f"reassign owned by {owner} to current_user; drop owned by {owner}")
        admin.execute(f"drop role {owner}")


def test_where_roles_are_missing_and_may_not_be_created_the_owner_can_install_and_work(
    binaries: Path,
) -> None:
    with embedded.start(temporary=True, settings=SETTINGS, binaries=binaries) as server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("create role app login")
            admin.execute("create database app owner app")
        url = make_conninfo(server.url, user="app", dbname="app")

        schema.migrate(url)

        with psycopg.connect(url, autocommit=True) as connection:
            app = Protocol(connection)
            app.put()
            assert app.ack(app.take())[0].outcome == "done"
            assert app.upkeep()
            found = connection.execute("select from pg_roles where rolname like 'holdfast%'")
            assert found.rowcount == 0
        schema.check(url)
