"""Statements that a connection repeats are prepared, where the server itself answers."""

from typing import Any

import psycopg
import pytest

from holdfast import Client, InvalidJob, NewJob
from holdfast.client.statement import Statement

PREPARED = "select count(*) from pg_prepared_statements where statement like '%%holdfast.enqueue%%'"


def prepared(client: Client) -> int:
    """How many statements the session of a client with one connection has prepared."""
    [(number,)] = client._door.run(Statement("prepared", PREPARED))
    return int(number)


@pytest.fixture
def single(database: str) -> Any:
    """A client whose calls all go through one connection."""
    with Client(database, pool_size=1) as client:
        yield client


def test_a_repeated_statement_is_prepared(single: Client) -> None:
    for _ in range(5):
        single.enqueue("greet")

    assert prepared(single) == 1


def test_nothing_is_prepared_behind_a_pooler(
    single: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler answers with a key of its own, not with that of the session behind it."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda _: 1))

    for _ in range(5):
        single.enqueue("greet")

    assert prepared(single) == 0


def test_nothing_is_prepared_on_the_callers_connection(database: str, connect: Any) -> None:
    connection = connect()
    with Client(database) as client:
        for _ in range(10):
            client.on(connection).enqueue("greet")

    assert connection.execute(PREPARED, []).fetchone() == (0,)


def test_a_call_prepared_before_a_migration_changed_its_answer_succeeds(
    single: Client, connect: Any
) -> None:
    connection = connect()
    connection.execute("create table public.shown (id int)")
    connection.execute("insert into public.shown values (7)")
    call = Statement("shown", "select * from public.shown")
    for _ in range(5):
        assert single._door.run(call) == [(7,)]

    connection.execute("alter table public.shown add another text")

    assert single._door.run(call) == [(7, None)]


def test_what_is_prepared_is_prepared_again_after_a_rollback(single: Client) -> None:
    """The driver has a session forget all statements then, also those that it did not prepare."""
    for _ in range(5):
        single.enqueue("greet")

    with pytest.raises(InvalidJob):
        single.copy([NewJob(kind="")])

    assert single.enqueue("greet").created
    assert prepared(single) == 1
