"""The process queue of an item sync, whose own table is adopted as it is."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast import Client, adopt
from holdfast.adopt import Choices
from holdfast.errors import CannotAdopt

Connect = Callable[..., psycopg.Connection]

# As Doctrine makes it, with `uniq_item_type_pending` over the status.
TABLE = """
create table item (id serial primary key, name varchar(255) not null);
create table process_queue (
  id serial primary key, process_type varchar(50) not null,
  item_id integer not null references item on delete cascade,
  status varchar(20) not null default 'pending', created_at timestamp not null default now(),
  failed_at timestamp default null, error_message text default null,
  attempts integer not null default 0);
create index idx_status_created on process_queue (status, created_at);
create index idx_process_type on process_queue (process_type);
alter table process_queue add constraint uniq_item_type_pending
  unique (item_id, process_type, status);
insert into item (name) select 'item ' || g from generate_series(1, 5) g;
insert into process_queue (process_type, item_id, created_at)
select 'PRICE_UPDATED', g, now() - (10 - g) * interval '1 minute' from generate_series(1, 4) g;
insert into process_queue (process_type, item_id, status, failed_at, error_message, attempts)
values ('PRICE_UPDATED', 1, 'failed', now(), 'an earlier failure', 1);
"""
CHOICES = Choices(on_success="delete", unique_live=True, columns={"kind": "process_type"})


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection:
    opened = connect()
    opened.execute(TABLE)
    return opened


@pytest.mark.proves("S3.7")
def test_what_is_unique_with_the_status_is_told_with_the_ways_out(
    database: str, connection: psycopg.Connection
) -> None:
    plan = adopt.plan(database, "process_queue", Choices())

    [said] = [note for note in plan.warnings if "uniq_item_type_pending" in note]
    assert "is unique over item_id, process_type and status, and the queue writes status" in said
    assert "--unique-live" in said
    assert "--on-success delete" in said


@pytest.mark.proves("S3.1", "S3.2", "S3.3", "S3.7", "S3.9")
def test_the_table_of_the_process_queue_is_adopted_as_it_is_and_works(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    before = structure(connection)
    plan = adopt.plan(database, "process_queue", CHOICES)
    adopt.adopt(database, plan)

    first = client.claim("process_queue", worker="w", kinds=["PRICE_UPDATED"], limit=2)
    [failing, well] = first
    # The same item failed before: the constraint as it was would refuse the second failure.
    client.nack([failing], error_kind="Boom", message="no", final=True)
    client.ack([well])
    connection.execute("delete from item where id = 4")
    connection.execute("insert into process_queue (process_type, item_id) values ('NEW_ITEM', 5)")
    [running] = client.claim("process_queue", worker="w", kinds=["NEW_ITEM"])
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(
            "insert into process_queue (process_type, item_id) values ('NEW_ITEM', 5)"
        )
    client.nack([running], message="try again", delay=0)
    rows = connection.execute(
        "select item_id, process_type, status, error_message, failed_at is not null, attempts "
        "from process_queue order by id"
    ).fetchall()
    found = client.queues.get("process_queue")
    assert found is not None

    assert plan.spec["states"]["done"] == []
    assert [lease.payload["item_id"] for lease in first] == [1, 2]
    assert [lease.kind for lease in first] == ["PRICE_UPDATED"] * 2
    assert rows == [
        (1, "PRICE_UPDATED", "failed", "Boom: no", True, 1),
        (3, "PRICE_UPDATED", "pending", None, False, 0),
        (1, "PRICE_UPDATED", "failed", "an earlier failure", True, 1),
        (5, "NEW_ITEM", "pending", "try again", False, 1),
    ]
    assert (found.queued, found.leased, found.dead, found.done) == (2, 0, 2, 1)
    assert [one.outcome for one in client.ack([well])] == ["already"]
    assert client.jobs.get(well.id) is None
    assert "Rows are deleted when they are done" in client.jobs.explain(well.id)
    assert connection.execute("select count(*) from holdfast.recount()").fetchone() == (0,)

    with pytest.raises(CannotAdopt, match="two rows with item_id, process_type, status"):
        adopt.unadopt(database, "process_queue")
    connection.execute("delete from process_queue where error_message = 'an earlier failure'")
    adopt.unadopt(database, "process_queue")
    assert structure(connection) == before


@pytest.mark.proves("S3.20", "S3.32")
def test_success_deletes_the_row_also_when_a_worker_vanished_after_its_work(
    database: str, connection: psycopg.Connection, client: Client
) -> None:
    connection.execute("create table trend (item_id integer primary key)")
    adopt.adopt(
        database,
        adopt.plan(
            database,
            "process_queue",
            Choices(
                on_success="delete",
                unique_live=True,
                done_when="exists (select from public.trend t where t.item_id = job.item_id)",
            ),
        ),
    )
    [one, two] = client.claim("process_queue", worker="w", limit=2)
    connection.execute("insert into trend values (%s)", [one.payload["item_id"]])
    connection.execute("update process_queue set holdfast_lease_until = now() - interval '1 hour'")
    connection.execute("update holdfast.lease set until = now() - interval '1 hour'")

    reaped = connection.execute("select id, outcome from holdfast.reap()").fetchall()
    found = client.queues.get("process_queue")
    assert found is not None

    assert sorted(reaped) == sorted([(one.id, "done"), (two.id, "queued")])
    assert (found.queued, found.leased, found.done) == (3, 0, 1)
    assert connection.execute("select count(*) from process_queue").fetchone() == (4,)


def test_rows_alike_that_wait_and_run_are_told_before_the_index_fails(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute(
        "insert into process_queue (process_type, item_id, status) "
        "values ('PRICE_UPDATED', 3, 'processing')"
    )

    with pytest.raises(CannotAdopt, match=r"two live rows of item_id and process_type \(3,PRICE"):
        adopt.plan(database, "process_queue", CHOICES)


def test_a_row_that_others_reference_is_told_before_success_deletes_it(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute("""
        create table result (id serial primary key, job integer references process_queue);
        create table log (id serial primary key, job integer references process_queue
          on delete cascade);
    """)

    plan = adopt.plan(database, "process_queue", CHOICES)

    assert "a job that rows of public.result reference cannot be deleted when it is done" in (
        plan.warnings
    )
    assert "rows of public.log are deleted with a job that is done: they reference it" in (
        plan.warnings
    )


def structure(connection: psycopg.Connection) -> list[tuple[str]]:
    return connection.execute("""
        select format('%s %s %s', attname, atttypid::regtype, attnotnull) from pg_attribute
        where attrelid = 'process_queue'::regclass and attnum > 0 and not attisdropped
        union all select pg_get_indexdef(indexrelid) from pg_index
        where indrelid = 'process_queue'::regclass
        union all select conname || pg_get_constraintdef(oid) from pg_constraint
        where conrelid = 'process_queue'::regclass
        union all select tgname from pg_trigger
        where tgrelid = 'process_queue'::regclass and not tgisinternal
        order by 1
    """).fetchall()
