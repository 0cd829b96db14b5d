"""Verbs that meet others at rows of an adopted table: none is given up or loses time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from holdfast import Client, adopt
from holdfast.adopt import Choices
from tests.conftest import Clock
from tests.races.conftest import Running

Connect = Callable[..., psycopg.Connection]
Start = Callable[[str, list[Any]], Running[list[Any]]]


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def table(database: str, connect: Connect) -> psycopg.Connection:
    connection = connect()
    connection.execute("""
        create table orders (id integer primary key, status text not null default 'new',
          attempts integer, customer text);
        insert into orders (id) select generate_series(1, 5);
    """)
    states = {"queued": ["new"], "leased": ["taken"], "done": ["done"], "dead": ["dead"]}
    choices = Choices(queue="orders", states=states)
    adopt.adopt(database, adopt.plan(database, "orders", choices))
    return connection


@pytest.fixture
def start(connect: Connect) -> Iterator[Start]:
    """Begins a statement on a session of its own, in a thread."""
    watcher = connect()
    with ThreadPoolExecutor() as threads:

        def begin(query: str, values: list[Any]) -> Running[list[Any]]:
            session = connect()

            def run() -> list[Any]:
                return session.execute(query, values).fetchall()  # type: ignore[arg-type]

            return Running(threads.submit(run), session.info.backend_pid, watcher)

        yield begin


def leased(client: Client) -> tuple[list[UUID], UUID, dict[UUID, int]]:
    """All rows, taken: their ids in the order in which they are locked, and the numbers of rows."""
    leases = client.claim("orders", worker="w", limit=9)
    numbers = {lease.id: lease.payload["id"] for lease in leases}
    return sorted(numbers), leases[0].token, numbers


@pytest.mark.parametrize("verb", ["nack", "touch"])
def test_a_settle_of_several_verbs_locks_rows_in_the_order_that_all_others_keep(
    table: psycopg.Connection, client: Client, connect: Connect, start: Start, verb: str
) -> None:
    [low, middle, high, *_], token, numbers = leased(client)
    application = connect(autocommit=False)
    application.execute("select from orders where id = %s for update", [numbers[high]])
    ends = [(middle, "ack"), (high, "ack"), (low, "nack")]
    items = [{"id": str(i), "token": str(token), "verb": verb, "message": "no"} for i, verb in ends]
    settling = start("select outcome from holdfast.settle(%s)", [Jsonb(items)])
    assert settling.waits()
    query = (
        "select outcome from holdfast.nack(%s, %s, 'E', 'no')"
        if verb == "nack"
        else "select outcome from holdfast.touch(%s, %s)"
    )
    meeting = start(query, [[low, middle], [token, token]])
    assert meeting.waits()
    application.rollback()

    assert settling.answer() == [("done",), ("done",), ("queued",)]
    assert {outcome for (outcome,) in meeting.answer()} <= {"lost", "already"}


def test_a_lease_is_counted_from_when_a_claim_need_not_wait_for_the_table_any_more(
    table: psycopg.Connection, connect: Connect, clock: Clock, start: Start
) -> None:
    application = connect(autocommit=False)
    application.execute("lock table orders in access exclusive mode")
    claim = start(
        "select c.lease_until - holdfast.clock() > '1.5 seconds' "
        "from holdfast.claim('orders', 'w', %s, 1, '2 seconds') c",
        [uuid4()],
    )
    assert claim.waits()
    clock.advance(seconds=3)
    application.rollback()

    assert claim.answer() == [(True,)]
    assert table.execute(
        "select holdfast_lease_until > holdfast.now() from orders where id = 1"
    ).fetchone() == (True,)


@pytest.mark.parametrize(
    "query",
    [
        "touch(array[%s]::uuid[], array[%s]::uuid[], '2 seconds')",
        "hand_over(%s, %s, gen_random_uuid(), '2 seconds')",
    ],
    ids=["touch", "hand_over"],
)
def test_a_lease_is_counted_from_when_its_row_need_not_be_waited_for_any_more(
    table: psycopg.Connection,
    client: Client,
    connect: Connect,
    clock: Clock,
    start: Start,
    query: str,
) -> None:
    [lease] = client.claim("orders", worker="w", lease=2)
    application = connect(autocommit=False)
    application.execute("select from orders where id = 1 for update")
    asked = "select outcome, lease_until > holdfast.clock() + '1.5 seconds' from holdfast."
    call = start(asked + query, [lease.id, lease.token])
    assert call.waits()
    clock.advance(seconds=3)
    application.rollback()

    assert call.answer() == [("leased", True)]
    assert table.execute(
        "select holdfast_lease_until > holdfast.now() from orders where id = 1"
    ).fetchone() == (True,)


@pytest.mark.parametrize("bound", ["lane", "limit"])
def test_a_row_that_is_cancelled_while_it_runs_keeps_its_slot_until_its_holder_lets_go(
    database: str, connect: Connect, clock: Clock, bound: str
) -> None:
    connection = connect()
    connection.execute("""
        create table step (id integer primary key, status text default 'queued', customer text);
        insert into step select g, 'queued', 'ann' from generate_series(1, 3) g;
    """)
    columns = {"lane": "customer"} if bound == "lane" else {}
    adopt.adopt(database, adopt.plan(database, "step", Choices(queue="steps", columns=columns)))
    with Client(database) as client:
        if bound == "limit":
            client.queues.set("steps", limit=1)
        [lease] = client.claim("steps", worker="w")
        assert [one.changed for one in client.jobs.cancel([lease.id])] == [True]
        assert client.claim("steps", worker="w") == []
        if bound == "lane":
            [waits, *_] = client.jobs.list("queue:steps state:queued")
            assert "was cancelled, and w has until" in client.jobs.explain(waits.id)

        assert [one.outcome for one in client.ack([lease])] == ["lost"]
        [second] = client.claim("steps", worker="w")
        assert [one.changed for one in client.jobs.cancel([second.id])] == [True]
        assert client.claim("steps", worker="w") == []
        clock.advance(seconds=31)
        client.upkeep.reap()

        assert [lease.payload["id"] for lease in client.claim("steps", worker="w")] == [3]
    assert connection.execute("select from holdfast.leaving").fetchall() == []


def test_a_recount_beside_a_truncate_corrects_nothing_twice(
    table: psycopg.Connection, client: Client, connect: Connect, start: Start
) -> None:
    application = connect(autocommit=False)
    application.execute("truncate orders")
    recount = start("select queue, queued from holdfast.recount()", [])
    assert recount.waits()
    application.commit()

    assert recount.answer() == []
    queue = client.queues.get("orders")
    assert queue is not None
    assert queue.queued == 0


def test_a_recount_and_a_truncate_that_has_just_begun_wait_for_each_other(
    table: psycopg.Connection, connect: Connect, start: Start
) -> None:
    table.execute("""
        create function pause() returns trigger language plpgsql as
          $$ begin perform pg_advisory_xact_lock(99); return null; end $$;
        create trigger pause before truncate on orders execute function pause();
        create function empty_orders() returns void language sql as 'truncate orders';
    """)
    gate = connect(autocommit=False)
    gate.execute("select pg_advisory_xact_lock(99)")
    truncate = start("select empty_orders()", [])
    assert truncate.waits()
    recount = start("select queue, queued from holdfast.recount()", [])
    assert recount.waits()
    gate.rollback()

    truncate.answer()
    assert recount.answer() == []


def test_two_recounts_of_one_table_by_different_ways_correct_nothing_twice(
    table: psycopg.Connection, client: Client, connect: Connect, start: Start
) -> None:
    table.execute("alter table orders disable trigger holdfast_deleted")
    table.execute("delete from orders where id > 3")
    table.execute("alter table orders enable trigger holdfast_deleted")
    first = connect(autocommit=False)
    assert first.execute("select queued from holdfast.recount()").fetchall() == [(-2,)]
    second = start("select queued from holdfast.recount_adopted(64::smallint)", [])
    assert second.waits()
    first.commit()

    assert second.answer() == []
    queue = client.queues.get("orders")
    assert queue is not None
    assert queue.queued == 3
