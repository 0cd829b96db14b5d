"""`holdfast adopt` and its kin, as people type them."""

from collections.abc import Callable

import psycopg
import pytest

from holdfast.client import Client
from tests.cli.conftest import Run

Connect = Callable[..., psycopg.Connection]

TABLE = """
create table orders (
  id integer primary key, phase text not null check (phase in ('new', 'on hold', 'shipped')));
insert into orders values (1, 'new'), (2, 'on hold'), (3, 'shipped');
"""
FLAGS = ("--column", "status=phase", "--map", "done=shipped", "--map", "leased=packing")


@pytest.fixture
def orders(connect: Connect) -> psycopg.Connection:
    connection = connect()
    connection.execute(TABLE)
    return connection


def test_the_plan_says_everything_and_does_nothing(
    holdfast: Run, orders: psycopg.Connection
) -> None:
    shown = holdfast("adopt", "orders", *FLAGS, "--plan", "--json").json

    assert shown["existing"] == {"queued": 1, "left alone": 1, "done": 1}
    assert shown["warnings"] == [
        (
            "status 'on hold' (1 rows) is not a state: these rows are ignored; "
            "to use them, add  --map STATE=on hold"
        )
    ]
    assert any("not valid" in step["do"] for step in shown["steps"])
    assert holdfast("adopted", "--json").json == []


def test_a_table_is_adopted_seen_and_given_back(
    holdfast: Run, orders: psycopg.Connection, client: Client
) -> None:
    refused = holdfast("adopt", "orders", *FLAGS)
    adopted = holdfast("adopt", "orders", *FLAGS, "--yes")
    again = holdfast("adopt", "orders")
    [lease] = client.claim("orders", worker="w", limit=9)
    client.ack([lease])
    listed = holdfast("adopted", "--json").json
    shown = holdfast("job", "show", str(lease.id))
    held = holdfast("queue", "list")
    back = holdfast("unadopt", "orders", "--yes")

    assert (refused.code, adopted.code, again.code, back.code) == (5, 0, 0, 0)
    assert "public.orders is queue orders" in adopted.out
    assert [(row["table"], row["done"]) for row in listed] == [("public.orders", 2)]
    assert "done" in shown.out
    assert "orders" in held.out
    assert orders.execute("select id, phase from orders order by id").fetchall() == [
        (1, "shipped"),
        (2, "on hold"),
        (3, "shipped"),
    ]


def test_rows_can_be_filtered_and_go_when_they_are_done(
    holdfast: Run, connect: Connect, client: Client
) -> None:
    connection = connect()
    connection.execute("""
        create table task (
          id integer primary key, item integer, environment text, status text default 'pending',
          unique (item, status));
        insert into task values (1, 1, 'production'), (2, 2, 'production'), (3, 3, 'development');
    """)
    flags = ("--on-success", "delete", "--unique-live", "--where-column", "environment=production")

    told = holdfast("adopt", "task", *flags, "--yes")
    again = holdfast("adopt", "task", "--plan", "--json").json
    leases = client.claim("task", worker="w", limit=9)
    client.ack(leases)
    shown = holdfast("adopted", "--json").json

    said = " ".join(told.err.split())
    assert told.code == 0
    assert "on success rows are deleted" in said
    assert "only rows environment = production" in said
    assert again["spec"]["on_success"] == "delete"
    assert [(row["queued"], row["done"]) for row in shown] == [(0, 2)]
    assert connection.execute("select id from task").fetchall() == [(3,)]


def test_whoever_sits_at_a_terminal_is_asked(
    database: str, connect: Connect, terminal: Callable[..., tuple[int, str]]
) -> None:
    connect().execute("create table mail (id integer primary key); insert into mail values (1)")

    code, screen = terminal("adopt", "mail", typed="done\ny\n", HOLDFAST_URL=database)

    assert code == 0
    assert "state of existing rows" in screen
    assert connect().execute("select status from mail").fetchall() == [("completed",)]


def test_a_value_nobody_knows_is_asked_for(
    database: str, orders: psycopg.Connection, terminal: Callable[..., tuple[int, str]]
) -> None:
    code, screen = terminal("adopt", "orders", *FLAGS, typed="queued\ny\n", HOLDFAST_URL=database)

    assert code == 0
    assert "status 'on hold' (1 rows) is" in screen
    assert orders.execute(
        "select count(*) from holdfast.jobs where state = 'queued'"
    ).fetchone() == (2,)


def test_a_link_is_made_and_removed(holdfast: Run, orders: psycopg.Connection) -> None:
    made = holdfast("link", "orders", "--prefix", "order/")
    removed = holdfast("link", "orders", "--remove")

    assert made.out == "jobs with the subject order/{id} are deleted with their row\n"
    assert removed.out == "orders is not linked\n"


def test_nonsense_is_answered_with_what_was_meant(
    holdfast: Run, orders: psycopg.Connection
) -> None:
    told = holdfast("adopt", "orders", "--map", "queued")

    assert told.code == 2
    assert "--map 'queued' is not NAME=VALUE" in told.err
