"""A job is part of the caller's transaction, whichever library the connection comes from."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from holdfast import App
from holdfast.app import Task
from holdfast.codec import told
from holdfast.crypto import Encryption, new_key
from holdfast.errors import HoldfastError, InvalidArguments, NotMigrated
from tests.client.callers import LIBRARIES, Caller, calling
from tests.pgbouncer import Pooled

Receipt = Task[..., None, None]


class CardRefusedError(Exception):
    """What makes the caller roll back."""


@pytest.fixture(scope="module")
def database(postgres: Any, template: str, through_pooler: Pooled) -> Iterator[str]:
    """One database for all tests here: each uses a queue and a table of its own."""
    name = sql.Identifier(f"holdfast_test_{uuid4().hex}")
    create = sql.SQL("create database {} template {}").format(name, sql.Identifier(template))
    postgres.connection.execute(create)
    yield through_pooler(make_conninfo(postgres.url, dbname=name._obj[0]))
    postgres.connection.execute(sql.SQL("drop database {} with (force)").format(name))


@pytest.fixture(scope="module")
def app(database: str) -> Iterator[App]:
    with App(database) as app:
        yield app


@pytest.fixture(params=LIBRARIES)
def caller(request: pytest.FixtureRequest, database: str) -> Iterator[Caller]:
    with calling(LIBRARIES[request.param], database) as caller:
        yield caller


@pytest.fixture
def receipt(app: App) -> Receipt:
    name = f"receipt_{next(NUMBERS)}"

    @app.task(kind=name, queue=name)
    def receipt(order: int) -> None: ...

    return receipt


NUMBERS = count()


class Orders:
    """The caller's own table."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.name = f"orders_{next(NUMBERS)}"
        self._conn = conn
        conn.execute(sql.SQL("create table {} (id int)").format(sql.Identifier(self.name)))

    def insert(self, id: int) -> str:
        return f"insert into {self.name} values ({id})"

    def stored(self) -> list[int]:
        found = self._conn.execute(sql.SQL("select id from {}").format(sql.Identifier(self.name)))
        return sorted(id for (id,) in found)


@pytest.fixture
def orders(connect: Any) -> Orders:
    return Orders(connect())


def jobs(receipt: Receipt) -> list[int]:
    found = receipt.app.client.jobs.list(f"queue:{receipt.queue}")
    return sorted(job.payload["order"] for job in found)


def test_a_row_and_its_job_commit_together_or_not_at_all(
    receipt: Receipt, orders: Orders, caller: Caller
) -> None:
    with caller.transaction():
        caller.execute(orders.insert(1))
        handle = caller.enqueue(receipt, 1)
        assert (orders.stored(), handle.state()) == ([], None)
    assert (orders.stored(), handle.state()) == ([1], "queued")

    with suppress(CardRefusedError), caller.transaction():
        caller.execute(orders.insert(2))
        caller.enqueue(receipt, 2)
        raise CardRefusedError
    assert (orders.stored(), jobs(receipt)) == ([1], [1])


def test_a_savepoint_that_is_rolled_back_leaves_the_jobs_outside_of_it(
    receipt: Receipt, orders: Orders, caller: Caller
) -> None:
    with caller.transaction():
        caller.enqueue(receipt, 1)
        with suppress(CardRefusedError), caller.savepoint():
            caller.execute(orders.insert(2))
            caller.enqueue(receipt, 2)
            raise CardRefusedError
        with caller.savepoint():
            caller.execute(orders.insert(3))
            caller.enqueue(receipt, 3)
        caller.enqueue(receipt, 4)

    assert (orders.stored(), jobs(receipt)) == ([3], [1, 3, 4])


def test_ten_thousand_jobs_are_stored_in_their_order(
    receipt: Receipt, connect: Any, caller: Caller
) -> None:
    with caller.transaction():
        handles = caller.enqueue_many(receipt, [receipt.call(n) for n in range(10_000)])

    found = connect().execute(
        "select id, (payload ->> 'order')::int from holdfast.job where queue = %s", [receipt.queue]
    )
    stored: dict[UUID, int] = dict(found.fetchall())
    assert len(stored) == 10_000
    assert [stored[handle.id] for handle in handles] == list(range(10_000))


def test_what_is_encrypted_is_stored_so_on_any_connection(app: App, caller: Caller) -> None:
    @app.task(encryption=Encryption({"2026-11": new_key()}))
    def pay(card: str) -> None: ...

    with caller.transaction():
        one = caller.enqueue(pay, "4111")
        many = caller.enqueue_many(pay, [pay.call("4111"), pay.call("4111")])

    for handle in (one, *many):
        job = app.client.jobs.get(handle.id)
        assert job is not None
        assert told(job.payload_json)


def test_of_very_many_jobs_all_are_stored_or_none(app: App, caller: Caller) -> None:
    name = f"letter_{next(NUMBERS)}"

    @app.task(kind=name, queue=name)
    def letter(text: str) -> None: ...

    # Of these the database refuses the last. Some connections commit each statement here.
    calls = [letter.call("")] * 5001 + [letter.call("x" * 300_000)]

    with pytest.raises(HoldfastError, match="HF210"):
        caller.enqueue_many(letter, calls)

    assert jobs(letter) == []


def test_wrong_arguments_are_refused_before_anything_is_sent(
    receipt: Receipt, orders: Orders, caller: Caller
) -> None:
    with caller.transaction():
        caller.execute(orders.insert(1))
        for wrong in (["one"], [], [1, 2], [None]):
            with pytest.raises(InvalidArguments):
                caller.enqueue(receipt, *wrong)
        # A transaction that the server refused something would be lost.
        caller.execute(orders.insert(2))

    assert (orders.stored(), jobs(receipt)) == ([1, 2], [])


def test_answers_are_those_of_the_clients_own_connections(receipt: Receipt, caller: Caller) -> None:
    queue, client = receipt.queue, receipt.app.client
    first = client.enqueue("receipt", queue=queue, key="1", lane="till")
    client.claim(queue, worker="ada")
    rivals: list[dict[str, Any]] = [{"key": "1"}, {"lane": "till"}, {"key": "2"}, {"key": "2"}]

    with caller.transaction():
        answers = [caller.ask("enqueue", "receipt", None, queue=queue, **one) for one in rivals]
    same, behind, new, again = answers

    assert same == client.enqueue("receipt", queue=queue, key="1")
    assert (same.id, same.created, same.duplicate_of) == (first.id, False, first.id)
    expected = client.enqueue("receipt", queue=queue, lane="till")
    assert (behind.created, behind.behind, behind.holder) == (True, first.id, "ada")
    assert behind.held_since is not None
    assert behind.held_since == expected.held_since
    assert (new.created, new.duplicate_of, new.behind) == (True, None, None)
    assert (again.id, again.created, again.duplicate_of) == (new.id, False, new.id)
    assert {type(one.id) for one in answers} == {UUID}


REFUSED: list[dict[str, Any]] = [
    {"priority": 11},
    {"payload": {"text": "x" * 1_100_000}},
    {"payload": {"text": "\0"}},
    {"kind": ""},
    {"kind": "\0"},
    {"key": "\0"},
    {"colour": "red"},
    {"delay": -1},
    {"on_conflict": "dance", "key": "x"},
    {"max_attempts": 0},
    {"queue": "holdfast.inner"},
]


def test_refusals_are_those_of_the_clients_own_connections(
    receipt: Receipt, caller: Caller
) -> None:
    for options in REFUSED:
        job = {"kind": "receipt", "queue": receipt.queue, **options}
        with pytest.raises(HoldfastError) as expected:
            receipt.app.client.enqueue(**job)
        with pytest.raises(HoldfastError) as caught, caller.transaction():
            caller.ask("enqueue", **job)
        assert (type(caught.value), vars(caught.value)) == (
            type(expected.value),
            vars(expected.value),
        )
    assert jobs(receipt) == []


def test_a_database_without_the_schema_is_told(postgres: Any) -> None:
    task = App(postgres.url).task(kind="receipt")(lambda order: None)

    for library in LIBRARIES.values():
        with (
            calling(library, postgres.url) as caller,
            pytest.raises(NotMigrated, match=r"database.* has no holdfast schema"),
            caller.transaction(),
        ):
            caller.enqueue(task, 1)
