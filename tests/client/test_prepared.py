"""Statements that a connection repeats are prepared, where the server itself answers."""

from typing import Any

import psycopg
import pytest

from holdfast import Client, InvalidJob, NewJob
from holdfast.client.statement import Statement
from holdfast.client.sync.pool import Pool

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


@pytest.mark.direct_only("nothing is prepared there")
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


@pytest.mark.direct_only("nothing is prepared there")
def test_what_is_prepared_is_prepared_again_after_a_rollback(single: Client) -> None:
    """The driver has a session forget all statements then, also those that it did not prepare."""
    for _ in range(5):
        single.enqueue("greet")
        single.read_only()

    with pytest.raises(InvalidJob):
        single.copy([NewJob(kind="")])

    single.read_only()
    assert single.enqueue("greet").created
    assert prepared(single) == 1


def test_what_a_session_was_told_to_forget_is_sent_on_another(single: Client) -> None:
    for _ in range(5):
        single.read_only()
        single.enqueue("greet")
    [connection] = single._door._slots.clear()
    connection.pgconn.exec_(b"discard all")
    single._door._slots.take(0)
    single._door._slots.put(connection)

    assert single.enqueue("greet").created
    assert single.read_only() is False


@pytest.mark.direct_only("nothing is prepared there")
def test_a_call_succeeds_however_many_connections_a_migration_has_outdated(
    database: str, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    connection.execute("create table public.shown (id int)")
    call = Statement("shown", "select * from public.shown")
    with Client(database, pool_size=3) as client:
        pool = client._door
        assert isinstance(pool, Pool)
        slots = [pool._slots.take(0) for _ in range(3)]
        for _ in slots:
            pool._slots.put(None)  # one place only: each of three connections gets its turn
            for _ in range(5):
                pool.run(call)
            [outdated] = pool._slots.clear()
            slots[slots.index(None)] = outdated
            pool._slots.take(0)
        for outdated in slots:
            pool._slots.put(outdated)
        connection.execute("alter table public.shown add another text")
        tries = []

        def jitter(turn: int) -> float:
            tries.append(turn)
            if turn < 3:  # somebody else takes the place that this try has cleared
                pool._slots.take(0)
            return 0.0

        monkeypatch.setattr("holdfast.client.sync.pool._jitter", jitter)

        assert pool.run(call) == []
        assert tries == [1, 2, 3]


@pytest.mark.direct_only("nothing is prepared there")
def test_nothing_that_a_handler_sends_is_prepared(single: Client) -> None:
    single.enqueue("greet")
    [lease] = single.claim(worker="w")
    with single.transaction(lease) as connection:
        for _ in range(10):
            connection.execute("select 1 as mine")
        found = connection.execute(
            "select count(*) from pg_prepared_statements where statement like '%mine%'"
        ).fetchone()

    assert found == (0,)
    for _ in range(5):
        single.enqueue("greet")
    assert prepared(single) == 1
