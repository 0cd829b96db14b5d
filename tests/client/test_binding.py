"""A bound client works inside the caller's transaction and leaves the connection as it was."""

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from holdfast import AsyncClient, Client
from holdfast.errors import InvalidJob
from holdfast.records import NewJob


@pytest.fixture
def client(database: str) -> Any:
    with Client(database) as client:
        yield client


def test_a_job_commits_with_the_callers_transaction(client: Client, connect: Any) -> None:
    connection = connect(autocommit=False)

    enqueued = client.on(connection).enqueue("greet")
    unseen = client.jobs.get(enqueued.id)
    connection.commit()

    assert unseen is None
    assert client.jobs.get(enqueued.id) is not None


def test_a_job_rolls_back_with_the_callers_transaction(client: Client, connect: Any) -> None:
    connection = connect(autocommit=False)

    client.on(connection).enqueue("greet")
    client.on(connection).copy([NewJob(kind="greet")])
    connection.rollback()

    assert client.jobs.list() == []


def test_an_ack_rolls_back_with_what_the_handler_wrote(client: Client, connect: Any) -> None:
    connection = connect()
    connection.execute("create table effect (job uuid primary key)")
    client.enqueue("greet")
    [lease] = client.claim(worker="ada")

    with connection.transaction(force_rollback=True):
        connection.execute("insert into effect values (%s)", [lease.id])
        [settled] = client.on(connection).ack([lease])

    assert settled.outcome == "done"
    assert client.held([lease.token]) == [lease]
    assert connection.execute("select count(*) from effect").fetchone() == (0,)


def test_every_call_on_an_autocommit_connection_is_its_own_transaction(
    client: Client, connect: Any
) -> None:
    bound = client.on(connect())

    bound.enqueue("greet")
    bound.copy([NewJob(kind="greet")])

    assert len(client.jobs.list()) == 2


def test_a_bound_claim_is_durable(client: Client, connect: Any) -> None:
    connection = connect(autocommit=False)
    client.enqueue("greet")

    client.on(connection).claim(worker="ada")

    assert connection.execute("show synchronous_commit").fetchone() == ("on",)


def test_a_refusal_leaves_the_rollback_to_the_caller(client: Client, connect: Any) -> None:
    connection = connect(autocommit=False)

    with pytest.raises(InvalidJob, match="HF203"):
        client.on(connection).enqueue("greet", priority=11)

    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR


def test_the_callers_connection_keeps_its_own_habits(client: Client, connect: Any) -> None:
    connection = connect()
    connection.row_factory = dict_row
    connection.prepare_threshold = 0
    set_json_loads(lambda text: "mine", connection)
    bound = client.on(connection)
    bound.enqueue("greet", {"name": "Ada"})

    [lease] = bound.claim(worker="ada")

    row = connection.execute("select '{}'::jsonb as document", prepare=False).fetchone()
    prepared = connection.execute("select name from pg_prepared_statements", prepare=False)
    assert lease.payload == {"name": "Ada"}
    assert row == {"document": "mine"}
    assert prepared.fetchall() == []


def test_closing_a_bound_client_leaves_the_connection_open(client: Client, connect: Any) -> None:
    connection = connect()

    with client.on(connection) as bound:
        bound.enqueue("greet")

    assert not connection.closed


def test_a_lost_connection_is_the_callers_to_repair(client: Client, connect: Any) -> None:
    connection = connect()
    connect().execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])

    with pytest.raises(psycopg.OperationalError):
        client.on(connection).enqueue("greet")

    assert client.jobs.list() == []


def test_the_async_client_binds_an_async_connection(database: str) -> None:
    async def scenario() -> tuple[Any, Any]:
        async with (
            AsyncClient(database) as client,
            await psycopg.AsyncConnection.connect(database) as connection,
        ):
            bound = client.on(connection)
            kept = await bound.enqueue("greet")
            await connection.commit()
            dropped = await bound.enqueue("greet")
            await bound.copy([NewJob(kind="greet")])
            await connection.rollback()
            assert await bound.held([uuid4()]) == []
            return await client.jobs.get(kept.id), await client.jobs.get(dropped.id)

    kept, dropped = asyncio.run(scenario())

    assert kept is not None
    assert dropped is None
