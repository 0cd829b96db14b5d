"""Whatever is done to an adopted table, Holdfast stays whole and says what to type."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast import Client, adopt, schema
from holdfast.adopt import Choices

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def table(database: str, connect: Connect) -> psycopg.Connection:
    connection = connect()
    connection.execute("""
        create table task (id integer primary key, status text default 'queued', note text,
          started_at timestamptz);
        create table made (task integer);
        insert into task (id) select generate_series(1, 3);
    """)
    adopt.adopt(database, adopt.plan(database, "task", Choices(queue="tasks", output="made.task")))
    return connection


def whole(client: Client, table: psycopg.Connection) -> None:
    """Other queues work, and everything can be looked at."""
    client.enqueue("work", queue="plain")
    [lease] = client.claim("plain", worker="w")
    assert [one.outcome for one in client.ack([lease])] == ["done"]
    client.claim("tasks", worker="w")
    client.jobs.list("")
    client.jobs.search("")
    client.queues.list()
    client.upkeep.reap()
    assert client.upkeep.run().get("failed") is None
    table.execute("select * from holdfast.jobs").fetchall()
    table.execute("select * from holdfast.recount()").fetchall()


def told(client: Client, table: psycopg.Connection) -> str:
    """What a person is told, the same wherever they look."""
    [(id,)] = table.execute("select holdfast.stamp(gen_random_uuid(), 64::smallint)")
    said = client.jobs.explain(id)
    table.execute("select holdfast.detect(array['table_broken'])")
    [found] = table.execute(
        "select detail || ' ' || suggestion from holdfast.anomalies where code = 'table_broken'"
    ).fetchall()
    assert found == (said,)
    [(level, fix)] = table.execute("select level, fix from holdfast.doctor() where name = 'tables'")
    assert level == "fail"
    assert fix in said
    return said


def test_a_table_that_is_dropped_takes_nothing_of_holdfast_with_it(
    database: str, table: psycopg.Connection, client: Client
) -> None:
    [lease] = client.claim("tasks", worker="w")
    table.execute("drop table task cascade")

    whole(client, table)
    assert told(client, table) == (
        "Table public.task is gone. Remove its queue: holdfast unadopt public.task"
    )
    assert [one.outcome for one in client.ack([lease])] == ["lost"]
    adopt.unadopt(database, "public.task")
    assert adopt.adopted(database) == []
    assert client.queues.get("tasks") is None
    assert table.execute(
        "select count(*) from pg_proc where pronamespace = 'holdfast_adopted'::regnamespace"
    ).fetchone() == (0,)


def test_a_column_that_is_added_changes_nothing(table: psycopg.Connection, client: Client) -> None:
    table.execute("alter table task add colour text")
    table.execute("insert into task (id, colour) values (4, 'red')")

    leases = client.claim("tasks", worker="w", limit=9)

    assert len(leases) == 4
    assert {tuple(sorted(lease.payload)) for lease in leases} == {("id", "note")}
    whole(client, table)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("alter table task rename status to phase", "has renamed column status to phase"),
        ("alter table task rename id to number", "has renamed column id to number"),
        ("alter table task rename to chore", "was renamed to public.chore"),
        (
            (
                "drop index holdfast_64_ready; drop index holdfast_64_leased;"
                "create type phase as enum ('queued', 'started', 'completed', 'failed');"
                "alter table task alter status drop default,"
                "alter status type phase using status::phase, alter status set default 'queued'"
            ),
            "has changed column status to public.phase",
        ),
        ("drop trigger holdfast_updated on task", "Triggers of Holdfast"),
        ('drop function holdfast_adopted."64_claim"', "Generated functions"),
        (
            "create role changed_owner; alter table task owner to changed_owner",
            "do not belong to its owner",
        ),
    ],
)
def test_a_table_that_was_changed_is_refreshed(
    database: str, table: psycopg.Connection, client: Client, change: str, said: str
) -> None:
    table.execute(change)
    try:
        whole(client, table)
        sentence = told(client, table)
        assert said in sentence
        name = "chore" if "rename to" in change else "task"
        assert sentence.endswith(f"holdfast adopt public.{name} --refresh")
        # the application is not kept from writing
        key = "number" if "number" in change else "id"
        table.execute(f"insert into {name} ({key}) values (4)")

        adopt.refresh(database, name)

        leases = client.claim("tasks", worker="w", limit=9)
        assert leases
        assert {one.outcome for one in client.ack(leases)} == {"done"}
        assert table.execute("select * from holdfast.recount()").fetchall() == []
        assert table.execute(
            "select holdfast.adopted_problem(a) from holdfast.adopted a"
        ).fetchone() == (None,)
    finally:
        if "create role" in change:
            table.execute(
                "reassign owned by changed_owner to postgres; drop owned by changed_owner;"
                "drop role changed_owner"
            )


def test_a_column_that_is_gone_is_told(
    database: str, table: psycopg.Connection, client: Client
) -> None:
    table.execute("alter table task drop started_at")
    whole(client, table)

    assert "no longer has column started_at" in told(client, table)
    with pytest.raises(adopt.CannotAdopt, match="no longer has column started_at"):
        adopt.refresh(database, "task")
    table.execute("insert into task (id) values (4)")


def test_a_column_of_the_payload_may_go(table: psycopg.Connection, client: Client) -> None:
    table.execute("alter table task drop note")

    assert [set(lease.payload) for lease in client.claim("tasks", worker="w")] == [{"id"}]


def test_the_table_of_the_output_may_go_and_the_job_says_so(
    table: psycopg.Connection, client: Client
) -> None:
    [lease] = client.claim("tasks", worker="w")
    table.execute("drop table made")
    table.execute("update task set holdfast_lease_until = now() - interval '1 day'")
    table.execute("update holdfast.lease set until = now() - interval '1 day', claimed_at = now()")

    whole(client, table)

    assert 'relation "public.made" does not exist' in client.jobs.explain(lease.id)


def test_a_table_that_is_truncated_has_no_jobs_and_no_faults(
    table: psycopg.Connection, client: Client
) -> None:
    table.execute("alter table task add check (id <> 2 or status <> 'started')")
    client.claim("tasks", worker="w", limit=9)
    queue = client.queues.get("tasks")
    assert queue is not None
    assert (queue.leased, queue.dead) == (2, 1)

    table.execute("truncate task")

    queue = client.queues.get("tasks")
    assert queue is not None
    assert (queue.queued, queue.leased, queue.dead) == (0, 0, 0)
    assert table.execute("select count(*) from holdfast.adopted_fault").fetchone() == (0,)
    whole(client, table)


def test_a_partition_that_was_detached_is_a_table_like_any_other(
    database: str, connect: Connect, client: Client
) -> None:
    connection = connect()
    connection.execute("""
        create table log (id integer primary key, status text default 'queued')
          partition by range (id);
        create table task partition of log for values from (1) to (100);
        insert into log (id) values (1), (2);
        alter table log detach partition task;
    """)
    adopt.adopt(database, adopt.plan(database, "task", Choices(queue="tasks")))
    assert len(client.claim("tasks", worker="w")) == 1

    assert connection.execute("select * from holdfast.recount()").fetchall() == []
    whole(client, connection)


@pytest.mark.parametrize(
    "change",
    [
        'drop function holdfast_adopted."64_claim"',
        'drop function holdfast_adopted."64_inserted" cascade',
        'drop function holdfast_told."64_wrote"',
        "drop trigger holdfast_updated on task",
        "alter table task rename to chore",
        "create schema elsewhere; alter table task set schema elsewhere",
        "drop schema holdfast_told cascade; create schema holdfast_told",
    ],
)
def test_migrating_brings_back_what_was_generated(
    database: str, table: psycopg.Connection, client: Client, change: str
) -> None:
    """Whoever installs again has all of it, though nothing of the schema itself differs."""
    table.execute(change)

    [mended] = schema.migrate(database)

    assert mended.startswith("what is generated for ")
    assert schema.migrate(database) == []
    assert len(client.claim("tasks", worker="w", limit=9)) == 3
    assert table.execute("select * from holdfast.recount()").fetchall() == []
    assert table.execute(
        "select holdfast.adopted_problem(a) from holdfast.adopted a"
    ).fetchone() == (None,)


def test_a_table_that_has_the_number_of_another_is_not_taken_for_it(
    database: str, table: psycopg.Connection, client: Client
) -> None:
    """Numbers are given anew when a database is restored, and may be those of others then."""
    table.execute("create table other (id integer primary key, status text)")
    table.execute("update holdfast.adopted set relid = 'other'::regclass")

    assert table.execute(
        "select holdfast.adopted_problem(a), holdfast.table_of(a)::regclass::text "
        "from holdfast.adopted a"
    ).fetchone() == (None, "task")
    assert len(client.claim("tasks", worker="w", limit=9)) == 3
    assert adopt.plan(database, "other", Choices(queue="others")).part == 65


def test_a_table_that_is_truncated_while_it_is_leased_says_so_to_its_holder(
    table: psycopg.Connection, client: Client
) -> None:
    leases = client.claim("tasks", worker="w", limit=9)
    table.execute("truncate task")

    assert {one.outcome for one in client.touch(leases)} == {"lost"}
    assert {one.outcome for one in client.nack(leases, message="no")} == {"lost"}
    whole(client, table)


def test_a_key_that_is_dropped_is_told(table: psycopg.Connection, client: Client) -> None:
    [lease] = client.claim("tasks", worker="w")
    table.execute("alter table task drop id cascade")

    whole(client, table)

    assert "no longer has column id" in told(client, table)
    [answer] = client.ack([lease])
    assert answer.outcome == "lost"
    assert "no longer has column id" in (answer.detail or "")
    table.execute("insert into task (note) values ('the application goes on')")


def test_a_database_that_was_dumped_and_restored_goes_on(
    database: str,
    empty_database: str,
    table: psycopg.Connection,
    connect: Connect,
    binaries: Path,
) -> None:
    if not (binaries / "pg_dump").exists():
        pytest.skip("the programs of this PostgreSQL are without pg_dump")
    with Client(database) as client:
        [lease] = client.claim("tasks", worker="w")
    table.execute("create table shifted (a integer)")
    with tempfile.NamedTemporaryFile() as dump:
        for program, *arguments in (
            ("pg_dump", "-Fc", "-f", dump.name, database),
            ("pg_restore", "--exit-on-error", "-d", empty_database, dump.name),
        ):
            subprocess.run([binaries / program, *arguments], check=True)

    assert schema.migrate(empty_database) == []
    with Client(empty_database) as client:
        assert [one.outcome for one in client.ack([lease])] == ["done"]
        assert len(client.claim("tasks", worker="w", limit=9)) == 2
        restored = connect(empty_database)
        whole(client, restored)
        restored.execute("alter table task rename to chore")
        assert "was renamed to public.chore" in told(client, restored)
    [mended] = schema.migrate(empty_database)
    assert mended == "what is generated for public.chore"


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (
            "alter table task rename holdfast_token to tok",
            "alter table public.task rename tok to holdfast_token",
        ),
        ("alter table task rename to chore", "alter table public.chore rename to task"),
        (
            "create schema elsewhere; alter table task set schema elsewhere",
            "alter table elsewhere.task set schema public",
        ),
    ],
)
def test_a_table_is_given_back_by_the_names_with_which_it_was_adopted(
    database: str, table: psycopg.Connection, change: str, back: str
) -> None:
    table.execute(change)

    with pytest.raises(adopt.CannotAdopt) as refused:
        adopt.unadopt(database, "public.task")
    assert refused.value.fix == f"Give it its old name first:  {back}"
    table.execute(back)
    adopt.unadopt(database, "public.task")

    assert table.execute(
        "select string_agg(attname, ' ' order by attnum) from pg_attribute "
        "where attrelid = 'task'::regclass and attnum > 0 and not attisdropped"
    ).fetchone() == ("id status note started_at",)
