"""Tables as they are found: each works once adopted, or is refused with a reason and a way out."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast import App, Client, adopt
from holdfast.adopt import Choices
from holdfast.errors import CannotAdopt
from holdfast.worker import Worker
from tests.conftest import Clock

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection:
    return connect()


def adopted(url: str, table: str, **choices: Any) -> adopt.Plan:
    plan = adopt.plan(url, table, Choices(**choices))
    adopt.adopt(url, plan)
    return plan


def refusal(url: str, table: str, **choices: Any) -> str:
    with pytest.raises(CannotAdopt) as refused:
        adopt.plan(url, table, Choices(**choices))
    return "\n".join(filter(None, [refused.value.what, refused.value.why, refused.value.fix]))


def test_a_column_that_the_application_adds_later_does_not_kill_the_jobs(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute("""
        create table parcel (
            id integer primary key, status text not null default 'pending', city text not null);
        insert into parcel values (1, 'pending', 'Paris');
    """)
    adopted(database, "parcel")
    connection.execute("alter table parcel add column weight integer default 3")
    ran = []
    with App(database) as app:

        @app.task(queue="parcel", kind="parcel")
        def ship(id: int, city: str) -> None:
            ran.append((id, city))

        Worker(app, until_idle=True).run()

    assert ran == [(1, "Paris")]


def test_an_enum_beside_the_table_in_public_is_the_status(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("""
        create type phase as enum ('pending', 'running', 'finished', 'failed');
        create table task (id integer primary key, status phase not null default 'pending');
        insert into task values (1), (2);
    """)
    adopted(database, "task")

    [one, two] = client.claim("task", worker="w", limit=9)
    client.ack([one])
    client.nack([two], message="no", final=True)

    assert connection.execute("select status::text from task order by id").fetchall() == [
        ("finished",),
        ("failed",),
    ]


def test_a_status_too_short_for_its_words_is_refused_and_taken_with_words_that_fit(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("""
        create table task (id integer primary key, status varchar(5) not null default 'new');
        insert into task values (1);
    """)

    told = refusal(database, "task")
    adopted(database, "task", states={"leased": ["run"], "done": ["ok"], "dead": ["bad"]})
    [lease] = client.claim("task", worker="w")
    client.ack([lease])

    assert "column status is character varying(5) and cannot hold 'started'" in told
    assert "--map leased=" in told
    assert connection.execute("select status from task").fetchall() == [("ok",)]


def test_a_status_of_a_domain_takes_only_the_words_of_the_domain(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("""
        create domain phase as text check (value in ('new', 'busy', 'ok', 'bad'));
        create domain number as integer;
        create table task (id number primary key, status phase not null default 'new');
        insert into task values (1);
    """)

    told = refusal(database, "task")
    adopted(database, "task", states={"leased": ["busy"], "done": ["ok"], "dead": ["bad"]})
    [lease] = client.claim("task", worker="w")

    assert "cannot hold 'started'" in told
    assert [one.outcome for one in client.ack([lease])] == ["done"]


def test_a_status_of_numbers_says_which_numbers(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("""
        create table task (id integer primary key, state integer not null default 0);
        insert into task values (1), (2);
    """)

    told = refusal(database, "task")
    adopted(
        database,
        "task",
        states={"queued": ["0"], "leased": ["1"], "done": ["2"], "dead": ["9"]},
    )
    client.ack([client.claim("task", worker="w")[0]])

    assert "column state is integer and cannot hold 'queued'" in told
    assert connection.execute("select state from task order by id").fetchall() == [(2,), (0,)]


@pytest.mark.parametrize(
    "name",
    ["{id}", "{key}{status}", "$body$", "$template$ 'x", "100%", "%s", 'a"b', "job", "d"],
)
def test_a_column_may_be_called_anything(
    database: str, connection: psycopg.Connection, client: Client, name: str
) -> None:
    connection.execute(
        sql.SQL("""
            create table task (
              {name} text primary key, status text not null default 'queued',
              {error} text, {other} integer default 3);
            insert into task ({name}) values ('a'), ('b');
        """).format(
            name=sql.Identifier(name),
            error=sql.Identifier(f"e{name}"),
            other=sql.Identifier(f"o{name}"),
        )
    )
    adopted(database, "task", columns={"error": f"e{name}", "lane": name})

    [one, two] = client.claim("task", worker="w", limit=9)
    client.ack([one])
    client.nack([two], message="no", final=True)

    assert one.payload == {name: "a", f"o{name}": 3}
    assert connection.execute(
        sql.SQL("select status, {} from task order by {}").format(
            sql.Identifier(f"e{name}"), sql.Identifier(name)
        )
    ).fetchall() == [("completed", None), ("failed", "no")]
    adopt.unadopt(database, "task")


def test_a_status_may_be_called_anything(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("""
        create table task (
          id integer primary key, "100% {key} $body$" text default '{id} $body$'
            check ("100% {key} $body$" in ('{id} $body$', 'it''s done')));
        insert into task values (1);
    """)
    adopted(
        database,
        "task",
        status="100% {key} $body$",
        states={"queued": ["{id} $body$"], "leased": ["{token}"], "done": ["it's done"]},
    )
    [lease] = client.claim("task", worker="w")
    client.ack([lease])

    assert connection.execute('select "100% {key} $body$" from task').fetchall() == [("it's done",)]
    adopt.unadopt(database, "task")


@pytest.mark.parametrize("event", ["update", "delete"])
def test_a_rule_that_rewrites_what_is_written_is_refused(
    database: str, connection: psycopg.Connection, client: Client, event: str
) -> None:
    connection.execute(f"""
        create table task (id integer primary key, status text default 'queued');
        create table log (id integer);
        create rule "note it" as on {event} to task do also insert into log values (old.id);
    """)

    told = refusal(database, "task", on_success="delete")

    assert f'table public.task has a rule "note it" on {event}' in told
    assert "trigger" in told


def test_row_level_security_that_binds_the_owner_is_refused(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute("""
        create role "the owner";
        create table task (id integer primary key, status text default 'queued');
        alter table task owner to "the owner";
        alter table task enable row level security, force row level security;
    """)
    try:
        told = refusal(database, "task")
        connection.execute("alter table task no force row level security")
        adopted(database, "task")
        adopt.unadopt(database, "task")
    finally:
        connection.execute('drop table task; drop role "the owner"')

    assert "row level security is forced" in told
    assert "no force row level security" in told


@pytest.mark.parametrize(
    ("default", "choices"),
    [("'new'", {}), ("'fresh'", {}), ("'fresh'::text", {"columns": {}})],
)
def test_rows_that_an_empty_table_will_have_are_jobs(
    database: str,
    connection: psycopg.Connection,
    client: Client,
    default: str,
    choices: dict[str, Any],
) -> None:
    connection.execute(
        f"create table task (id integer primary key, status text not null default {default})"
    )
    plan = adopted(database, "task", **choices)
    connection.execute("insert into task values (1)")

    assert len(client.claim("task", worker="w")) == 1
    assert any("is taken to mean queued" in note for note in plan.warnings) == ("fresh" in default)


def test_a_table_in_which_nothing_says_queued_is_told_how_its_rows_become_jobs(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute("create table task (id integer primary key, status text)")

    plan = adopt.plan(database, "task", Choices())

    assert any("a row is a job when its status is 'queued'" in note for note in plan.warnings)


@pytest.mark.parametrize("table", ["parent", "child", "whole", "piece", "typed", "passing"])
def test_tables_whose_rows_live_elsewhere_are_refused(
    database: str, connection: psycopg.Connection, table: str
) -> None:
    connection.execute("""
        create table parent (id integer primary key, status text default 'queued');
        create table child (primary key (id)) inherits (parent);
        create table whole (id integer primary key, status text) partition by range (id);
        create table piece partition of whole for values from (0) to (100);
        create type shape as (id integer, status text);
        create table typed of shape (primary key (id));
        create temporary table passing (id integer primary key, status text);
    """)

    told = refusal(database, f"pg_temp.{table}" if table == "passing" else table)

    assert {
        "parent": "has child tables",
        "child": "inherits from public.parent",
        "whole": "is partitioned",
        "piece": "is a partition of public.whole",
        "typed": "is a table of type public.shape",
        "passing": "",
    }[table] in told


@pytest.mark.proves("S2.10")
def test_three_retries_are_four_attempts(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("""
        create table task (
          id integer primary key, status text default 'queued', retry_count integer default 0,
          max_retries integer not null default 3);
        insert into task values (1);
    """)
    adopted(database, "task")

    outcomes = []
    for _ in range(4):
        [lease] = client.claim("task", worker="w")
        outcomes += [one.outcome for one in client.nack([lease], message="no", delay=0)]

    assert lease.max_attempts == 4
    assert outcomes == ["queued", "queued", "queued", "dead"]


def test_a_column_of_retries_can_be_named(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("""
        create table task (id integer primary key, status text default 'queued', again integer);
        insert into task values (1, 'queued', 1);
    """)
    adopted(database, "task", columns={"max_retries": "again"})

    assert client.claim("task", worker="w")[0].max_attempts == 2


@pytest.mark.proves("S1.16")
def test_a_table_without_a_status_gets_the_times_that_belong_to_it(
    database: str, connection: psycopg.Connection, client: Client, clock: Clock
) -> None:
    connection.execute("""
        create table page (id integer primary key, address text);
        insert into page values (1, 'a');
    """)
    adopted(database, "page", existing="queued", stuck_after=timedelta(minutes=5))
    connection.execute("insert into page values (2, 'b')")
    connection.execute("update page set status = 'started', started_at = now() where id = 2")

    [lease] = client.claim("page", worker="w")
    client.ack([lease])
    clock.advance(minutes=6)
    connection.execute("select holdfast.rescue()")

    assert lease.payload == {"id": 1, "address": "a"}
    assert connection.execute(
        "select status, started_at is not null, completed_at is not null from page order by id"
    ).fetchall() == [("completed", True, True), ("queued", False, False)]
    adopt.unadopt(database, "page")
    assert [name for (name,) in connection.execute(COLUMNS, ["page"])] == ["id", "address"]


@pytest.mark.proves("S1.2")
def test_of_one_table_for_development_and_production_only_the_chosen_rows_are_jobs(
    database: str, connection: psycopg.Connection, client: Client, clock: Clock
) -> None:
    connection.execute("""
        create table task (
          id integer primary key, environment text, status text default 'queued',
          started_at timestamptz);
        insert into task values (1, 'development', 'queued', null),
          (2, 'production', 'queued', null), (3, null, 'queued', null),
          (4, 'production', 'started', now()), (5, 'development', 'started', now()),
          (6, 'development', 'failed', null), (7, 'production', 'failed', null);
    """)
    plan = adopted(
        database,
        "task",
        where={"environment": "production"},
        stuck_after=timedelta(minutes=5),
        queue="jobs",
    )
    others = (
        "select task::text from task where environment is distinct from 'production' order by 1"
    )
    before = connection.execute(others).fetchall()

    [lease] = client.claim("jobs", worker="w", limit=9)
    client.ack([lease])
    clock.advance(minutes=6)
    connection.execute("select holdfast.rescue()")
    connection.execute("insert into task values (8, 'development'), (9, 'production')")
    connection.execute("update task set environment = 'production' where id = 3")
    found = client.queues.get("jobs")
    assert found is not None

    assert plan.existing == {"queued": 1, "leased": 1, "dead": 1}
    assert lease.payload["id"] == 2
    assert (found.queued, found.leased, found.done, found.dead) == (3, 0, 1, 1)
    assert len(client.jobs.list("queue:jobs", limit=99)) == 5
    assert connection.execute("select count(*) from holdfast.recount()").fetchone() == (0,)
    connection.execute("update task set environment = null where id = 3")
    connection.execute("delete from task where id = 8")
    assert connection.execute(others).fetchall() == before
    connection.execute("update task set environment = 'development' where id = 9")
    assert client.queues.get("jobs").queued == 1  # type: ignore[union-attr]
    adopt.unadopt(database, "task")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"colour": "red"}, "has no column colour"),
        ({"status": "queued"}, "column status is written by the queue"),
        ({"size": "large"}, "column size is integer and cannot hold 'large'"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(
    database: str, connection: psycopg.Connection, where: dict[str, str], said: str
) -> None:
    connection.execute("create table task (id integer primary key, status text, size integer)")

    assert said in refusal(database, "task", where=where)


@pytest.mark.parametrize(
    "column",
    [
        "error text not null default ''",
        "started_at timestamptz not null default now()",
        "attempts integer generated always as (1) stored",
        "error_message short",
    ],
)
def test_a_column_that_would_refuse_what_is_written_is_left_alone(
    database: str, connection: psycopg.Connection, client: Client, column: str
) -> None:
    name = column.split()[0]
    connection.execute(f"""
        create domain short as text check (length(value) < 4);
        create table task (id integer primary key, status text default 'queued', {column});
        insert into task (id) values (1);
    """)
    before = connection.execute(f"select {name} from task").fetchone()
    plan = adopted(database, "task")
    meaning = {"error_message": "error", "attempts": "attempt"}.get(name, name)

    [lease] = client.claim("task", worker="w")
    client.nack([lease], message="too long", delay=0)
    [lease] = client.claim("task", worker="w")
    client.ack([lease])

    assert any(f"column {name} is not used" in note for note in plan.warnings)
    assert connection.execute(f"select {name} from task").fetchone() == before
    assert f"column {name} " in refusal_of_a_copy(database, connection, {meaning: name})


def refusal_of_a_copy(
    database: str, connection: psycopg.Connection, columns: dict[str, str]
) -> str:
    adopt.unadopt(database, "task")
    return refusal(database, "task", columns=columns)


def test_a_check_over_several_columns_is_tried_on_the_rows_before_they_are_written(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute("""
        create table task (
          id integer primary key, status text default 'queued', started_at timestamptz,
          completed_at timestamptz, result text,
          constraint done_has_result check (status <> 'completed' or result is not null),
          constraint times check (completed_at is null or completed_at >= started_at),
          constraint only_ids check (id > 0));
        insert into task values (1), (2);
    """)

    plan = adopt.plan(database, "task", Choices())

    [said] = [note for note in plan.warnings if "constraint" in note]
    assert "constraint done_has_result refuses rows that are done" in said
    assert "CHECK" in said


def test_a_status_that_references_a_table_of_words_uses_those_words(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("""
        create table word (name text primary key);
        insert into word values ('open'), ('working'), ('closed');
        create table task (id integer primary key, status text references word default 'open');
        insert into task values (1);
    """)

    told = refusal(database, "task")
    connection.execute("insert into word values ('failed')")
    adopted(database, "task", states={"done": ["closed"]})
    client.ack(client.claim("task", worker="w"))

    assert "column status references public.word, which has no 'completed'" in told
    assert connection.execute("select status from task").fetchall() == [("closed",)]


@pytest.mark.parametrize("type", ["timestamptz", "timestamp"])
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC"])
def test_a_time_that_no_client_can_read_does_not_stop_the_claim(
    database: str, connection: psycopg.Connection, client: Client, type: str, moment: str
) -> None:
    connection.execute(f"""
        create table task (id integer primary key, status text default 'queued', created_at {type});
        insert into task values (1, 'queued', '{moment}'), (2, 'queued', now());
    """)
    adopted(database, "task")

    leases = client.claim("task", worker="w", limit=2)

    assert len(leases) == 2
    assert {one.outcome for one in client.ack(leases)} == {"done"}
    assert len(client.jobs.list("queue:task")) == 2


def test_a_status_inside_the_key_is_refused(database: str, connection: psycopg.Connection) -> None:
    connection.execute("create table task (id integer, status text, primary key (id, status))")

    assert "column status is part of the primary key" in refusal(database, "task")


def test_names_that_the_adoption_would_use_are_left_to_their_owner(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute("""
        create table task (id integer primary key, status text, holdfast_token text);
        create table other (id integer primary key, status text);
        create index holdfast_64_ready on other (status);
    """)

    assert "has a column holdfast_token already" in refusal(database, "task")
    assert 'public."holdfast_64_ready"' in refusal(database, "other")


COLUMNS = """
select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped
order by attnum
"""


@pytest.mark.parametrize("named", [None, "status"])
def test_a_status_that_is_generated_is_refused(
    database: str, connect: Connect, named: str | None
) -> None:
    connect().execute("""
        create table task (id integer primary key, gone boolean default false, status text
          generated always as (case when gone then 'done' else 'queued' end) stored);
    """)

    with pytest.raises(CannotAdopt, match=r"column status of public\.task is generated"):
        adopt.plan(database, "task", Choices(status=named))
    choices = Choices(status="phase", existing="queued")
    adopt.adopt(database, adopt.plan(database, "task", choices))
