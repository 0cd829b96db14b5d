"""A claim that gives nothing while rows are due leaves a reason behind, and neighbours go on."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast import Client, adopt
from holdfast.adopt import Choices

Connect = Callable[..., psycopg.Connection]

CHOICES = Choices(
    queue="orders",
    states={"queued": ["new"], "leased": ["taken"], "done": ["done"], "dead": ["dead"]},
)


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def table(database: str, connect: Connect) -> psycopg.Connection:
    connection = connect()
    connection.execute("""
        create table orders (id integer primary key, status text not null default 'new', note text,
          attempts integer);
        insert into orders (id) select generate_series(1, 5);
    """)
    adopt.adopt(database, adopt.plan(database, "orders", CHOICES))
    return connection


def claimed(client: Client, limit: int = 1) -> list[int]:
    """The rows that a claim gives."""
    return [lease.payload["id"] for lease in client.claim("orders", worker="w", limit=limit)]


def problem(table: psycopg.Connection) -> str | None:
    """What is said of the table as a whole."""
    [(said,)] = table.execute("select holdfast.adopted_problem(a) from holdfast.adopted a")
    return said  # type: ignore[no-any-return]


def counted(table: psycopg.Connection) -> None:
    """The counters agree with the rows."""
    assert table.execute("select * from holdfast.recount()").fetchall() == []


@pytest.mark.parametrize("limit", [1, 3])
def test_a_row_that_cannot_be_read_is_one_dead_job_and_its_neighbours_go_on(
    table: psycopg.Connection, client: Client, limit: int
) -> None:
    table.execute("alter table orders add extra json")
    table.execute("""insert into orders (id, extra) values (0, '{"name": "a\\u0000b"}')""")

    assert len(client.jobs.list("queue:orders")) == 6
    [unread] = client.jobs.list("queue:orders subject:0")
    assert (unread.state, unread.payload) == ("queued", {})
    assert "Unicode escape" in (unread.error or "")

    assert len(claimed(client, limit)) == limit
    [dead] = client.jobs.list("queue:orders state:dead")
    assert dead.subject == "0"
    assert "(claim, SQLSTATE 22P05)" in client.jobs.explain(dead.id)
    assert table.execute("select count(*) from holdfast.jobs").fetchone() == (6,)
    counted(table)

    table.execute("""update orders set extra = '{}' where id = 0""")
    assert len(claimed(client, 9)) == 6 - limit


def test_a_claim_that_fails_for_no_row_alone_is_told_of_the_table_until_one_works(
    table: psycopg.Connection, client: Client
) -> None:
    """The lock of a row calls nothing of the application's; the order that it is found by does."""
    table.execute('alter function holdfast_adopted."64_claim" rename to gone')
    table.execute("""
        create function holdfast_adopted."64_claim"(text, uuid, integer, interval, text[], integer,
          uuid[], uuid, timestamptz)
        returns setof holdfast_adopted.job_row language plpgsql security definer as
          $$ begin raise exception 'none today' using errcode = '22012'; end $$;
    """)

    assert claimed(client) == []
    assert "No row of table public.orders can be claimed: none today (SQLSTATE 22012)" in (
        problem(table) or ""
    )
    table.execute('drop function holdfast_adopted."64_claim"')
    table.execute('alter function holdfast_adopted.gone rename to "64_claim"')

    assert claimed(client) == [1]
    assert problem(table) is None
