"""One job with nothing to decide travels by itself: what is sent for it, and what comes back."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import AsyncClient, Client, NewJob
from holdfast.client import wire
from holdfast.client.sql import ENQUEUE, ENQUEUE_ONE
from holdfast.client.statement import Statement
from holdfast.errors import HoldfastError, PayloadTooLarge
from holdfast.records import new_id

Connect = Callable[..., psycopg.Connection]

WITH_MORE: dict[str, dict[str, Any]] = {
    "key": {"key": "k"},
    "lane": {"lane": "l"},
    "delay": {"delay": 0},
    "attempts": {"max_attempts": 3},
    "headers": {"headers": {}},
    "subject": {"subject": "s"},
    "tenant": {"tenant": "t"},
    "lease": {"lease": 9},
    "expiry": {"expires": 9},
    "policy": {"on_conflict": "replace"},
}
# What only the array can say: it is refused there, or read as another type.
ODD: dict[str, dict[str, Any]] = {
    "a kind that is a number": {"kind": 7},
    "a kind with a NUL": {"kind": "a\0b"},
    "a kind of half a character": {"kind": "\ud800"},
    "a priority that is true": {"priority": True},
    "a priority beyond its type": {"priority": 40_000},
    "a priority that is a text": {"priority": "1"},
}


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database, pool_size=1) as opened:
        yield opened


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, client: Client) -> list[str]:
    """The statements that the client sends from now on."""
    found: list[str] = []
    run = type(client._door).run

    def spy(self: Any, statement: Statement, *others: Any) -> Any:
        found.append(statement.sql)
        return run(self, statement, *others)

    monkeypatch.setattr(type(client._door), "run", spy)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"queue": "mail"}, {"priority": 9}, {"payload": [1, None]}, {"id": new_id()}]
)
def test_a_plain_job_is_sent_by_itself(
    client: Client, sent: list[str], options: dict[str, Any]
) -> None:
    client.enqueue_many([NewJob(kind="greet", **options)])

    assert sent == [ENQUEUE_ONE]


@pytest.mark.parametrize("options", WITH_MORE.values(), ids=WITH_MORE.keys())
def test_a_job_with_more_is_sent_in_an_array(
    client: Client, sent: list[str], options: dict[str, Any]
) -> None:
    assert client.enqueue("greet", **options).created
    assert sent == [ENQUEUE]


def test_every_field_that_a_job_can_have_besides_is_known_here() -> None:
    named = {name for options in WITH_MORE.values() for name in options}

    others = {"run_at", "expires_at", "after", "if_failed", "take", "workflow", "child_of"}
    plain = {"kind", "payload", "queue", "priority", "id"}
    assert named | others | plain == set(wire._NAMES)


@pytest.mark.parametrize("options", ODD.values(), ids=ODD.keys())
def test_what_is_not_a_value_of_its_type_is_judged_as_in_an_array(
    client: Client, options: dict[str, Any]
) -> None:
    alone, among = (NewJob(**{"kind": "greet", **options}) for _ in range(2))
    answers = []

    for jobs in ([alone], [among, NewJob(kind="other")]):
        try:
            answers.append(str(client.enqueue_many(jobs)[0].created))
        except (HoldfastError, UnicodeEncodeError) as error:
            answers.append(f"{type(error)} {error}".partition(" at position")[0])

    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", ["grüßen", "问候", "a b", "☃" * 200])
@pytest.mark.parametrize("encoding", ["utf8", "latin1"])
def test_texts_arrive_whatever_the_connection_speaks(
    database: str, kind: str, encoding: str
) -> None:
    if encoding == "latin1":
        kind = kind.encode("latin1", "ignore").decode("latin1") or "ä"
    with Client(make_conninfo(database, client_encoding=encoding)) as client:
        for _ in range(4):
            client.enqueue(kind, {"ü": "ß"})

        jobs = client.claim(worker="ada", limit=9)

    assert [(job.kind, job.payload) for job in jobs] == [(kind, {"ü": "ß"})] * 4


def test_a_payload_too_large_is_refused_and_the_connection_goes_on(client: Client) -> None:
    client.queues.set("default", payload_limit=10)
    client.enqueue("greet")

    with pytest.raises(PayloadTooLarge):
        client.enqueue("greet", "x" * 20)

    assert client.enqueue("greet").created
    assert len(client.claim(worker="ada", limit=9)) == 2


def test_a_job_behind_another_says_so(client: Client) -> None:
    client.queues.set("default", limit=1)
    first = client.enqueue("greet")
    [lease] = client.claim(worker="ada")

    second = client.enqueue("greet")

    assert (second.behind, second.holder) == (first.id, "ada")
    assert second.held_since is not None
    assert second.held_since.tzinfo is not None
    assert lease.id == first.id


def test_an_id_sent_twice_is_one_job(client: Client) -> None:
    job = NewJob(kind="greet", id=new_id())

    answers = [client.enqueue_many([job])[0] for _ in range(2)]
    answers += client.enqueue_many([job], repeat=True)

    assert [(answer.id, answer.created) for answer in answers] == [(job.id, True)] * 3
    assert len(client.claim(worker="ada", limit=9)) == 1


def test_a_cut_connection_is_repeated_with_the_same_id(
    client: Client, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has stored it, and the answer is lost."""
    client.enqueue("warm")
    door = type(client._door)
    once = door._once
    cut: list[bool] = []

    def lose(self: Any, statement: Statement, *args: Any, **kwargs: Any) -> Any:
        answer = once(self, statement, *args, **kwargs)
        if not cut:
            cut.append(True)
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(door, "_once", lose)

    enqueued = client.enqueue("greet")

    assert enqueued.created
    connection = connect()
    assert connection.execute("select id from holdfast.job where kind = 'greet'").fetchall() == [
        (enqueued.id,)
    ]


def test_a_session_that_ended_is_replaced(client: Client, connect: Connect) -> None:
    client.enqueue("greet")
    connection = connect()
    connection.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
        "where application_name = 'holdfast' and datname = current_database()"
    )

    assert client.enqueue("greet").created
    assert connection.execute("select count(*) from holdfast.job").fetchone() == (2,)


@pytest.mark.parametrize("autocommit", [False, True])
def test_it_joins_the_callers_transaction(
    client: Client, connect: Connect, autocommit: bool
) -> None:
    connection = connect(autocommit=autocommit)
    bound = client.on(connection)
    with connection.transaction(force_rollback=True):
        assert bound.enqueue("greet").created

    with connection.transaction():
        kept = bound.enqueue("greet", {"n": 1}).id

    assert [(job.id, job.payload) for job in client.claim(worker="ada", limit=9)] == [
        (kept, {"n": 1})
    ]


def test_asynchronous_clients_store_it_alike(database: str, client: Client) -> None:
    async def store() -> None:
        async with (
            AsyncClient(database) as own,
            await psycopg.AsyncConnection.connect(database, autocommit=True) as connection,
        ):
            for _ in range(3):
                await own.enqueue("greet", {"n": 1})
            await own.on(connection).enqueue("greet", {"n": 1})
            with pytest.raises(PayloadTooLarge):
                await own.enqueue("greet", "x" * 300_000)
            await own.enqueue("greet", {"n": 1})

    asyncio.run(store())

    assert [job.payload for job in client.claim(worker="ada", limit=9)] == [{"n": 1}] * 5


def test_an_id_for_another_queue_is_stamped(client: Client) -> None:
    given = uuid4()

    stored = client.enqueue("greet", queue="mail", id=given)

    assert stored.created
    assert [job.id for job in client.claim("mail", worker="ada")] == [stored.id]
