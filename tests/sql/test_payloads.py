"""Payloads from nothing to far too much: they come back as they went in, or are refused clearly."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Client, HoldfastError, NewJob
from tests.protocol import Open, Protocol

LIMIT = 262_144
# The quotes of a string: a limit counts the text.
OVERHEAD = 2


@pytest.fixture
def client(sql_database: str) -> Iterator[Client]:
    with Client(sql_database) as client:
        yield client


SMALL: list[Any] = [
    None,
    "",
    {},
    [],
    0,
    False,
    True,
    -1.5,
    "text",
    "😀 \u2028 \\ \" ' \t\n \x7f",
    [None, [], {}],
    {"": {"": ""}},
    2**53 + 1,
    5e-324,
]


@pytest.mark.parametrize("payload", SMALL, ids=repr)
def test_a_payload_comes_back_as_it_went_in(db: Protocol, client: Client, payload: Any) -> None:
    by_sql = db.put(payload=payload)
    by_client = client.enqueue("k", payload).id
    client.copy([NewJob(kind="k", payload=payload)])

    leases = client.claim(worker="ada", limit=3)

    # The client's None is "no payload", which is an empty object.
    none = {} if payload is None else payload
    assert [lease.id for lease in leases[:2]] == [by_sql, by_client]
    assert [lease.payload for lease in leases] == [payload, none, none]
    assert [type(lease.payload) for lease in leases[:1]] == [type(payload)]


def test_a_job_without_a_payload_has_an_empty_one(db: Protocol) -> None:
    db.put()

    assert db.take().payload == {}


@pytest.mark.parametrize("bytes", [7_999, 8_000, 8_001, 100_000])
@pytest.mark.proves("S4.27")
def test_the_size_of_a_payload_does_not_matter_to_notifications(
    db: Protocol, other: Open, bytes: int
) -> None:
    listener = other()
    listener.connection.execute("listen holdfast")
    listener.value("await_work", queues=["default"], worker="ada")
    payload = "secret" + "x" * (bytes - len('"secret"'))

    id = db.put(payload=payload)

    [notification] = listener.connection.notifies(timeout=100, stop_after=1)
    assert notification.payload == "default\nada"
    assert len(json.dumps(payload)) == bytes
    assert db.job(id).payload == payload


@pytest.mark.proves("S4.27")
def test_a_payload_inside_a_notification_would_kill_the_transaction(db: Protocol) -> None:
    with pytest.raises(psycopg.Error, match="payload string too long"):
        db.connection.execute("select pg_notify('queue_events', repeat('x', 8000))")


def test_many_enqueues_notify_a_waiting_worker_once(db: Protocol, other: Open) -> None:
    listener = other()
    listener.connection.execute("listen holdfast")
    listener.value("await_work", queues=["default"], worker="ada")

    for _ in range(20):
        db.enqueue(*[{"kind": "k", "payload": "secret"}] * 10)

    [first] = listener.connection.notifies(timeout=100, stop_after=1)
    assert first.payload == "default\nada"
    assert list(listener.connection.notifies(timeout=0.2)) == []


def test_a_payload_at_the_limit_is_stored(db: Protocol, client: Client) -> None:
    payload = "x" * (LIMIT - OVERHEAD)

    db.put(payload=payload)
    client.enqueue("k", payload)
    client.copy([NewJob(kind="k", payload=payload)])

    assert [lease.payload for lease in client.claim(worker="ada", limit=9)] == [payload] * 3


@pytest.mark.parametrize("excess", [1, 40_000, 10_000_000])
def test_a_payload_over_the_limit_is_refused_with_size_limit_and_remedy(
    db: Protocol, client: Client, excess: int
) -> None:
    payload = "x" * (LIMIT - OVERHEAD + excess)

    with pytest.raises(psycopg.Error) as by_sql:
        db.enqueue({"kind": "fine"}, {"kind": "resize", "payload": payload})
    with pytest.raises(HoldfastError) as by_client:
        client.enqueue("resize", payload)
    copied = NewJob(kind="resize", payload=payload)
    with pytest.raises(HoldfastError) as by_copy:
        client.copy([NewJob(kind="fine"), copied])

    assert by_sql.value.sqlstate == by_client.value.code == by_copy.value.code == "HF210"
    message, hint = by_sql.value.diag.message_primary or "", by_sql.value.diag.message_hint or ""
    size, limit = message.split(" is ")[1].split(",")[0], message.split(" is ")[-1]
    assert "item 2 (resize)" in message
    assert "'default'" in message
    assert size != limit
    assert "payload_limit" in hint
    for error in (by_client.value, by_copy.value):
        assert "payload_limit" in str(error)
        assert "resize" in str(error)
    assert db.list() == []


def test_a_queue_with_a_higher_limit_takes_ten_megabytes(db: Protocol, client: Client) -> None:
    db.queue_set("large", payload_limit=11_000_000)
    payload = {"data": "0123456789" * 1_000_000}

    client.enqueue("k", payload, queue="large")

    [lease] = client.claim("large", worker="ada")
    assert lease.payload == payload
    client.release([lease])
    [lease] = client.claim("large", worker="ada")
    assert client.nack([lease], delay=0)[0].outcome == "queued"
    assert db.take("large").payload == payload


def test_a_queue_with_a_lower_limit_takes_less(db: Protocol, client: Client) -> None:
    db.queue_set("small", payload_limit=1000)
    id = client.enqueue("k", "x" * 900, queue="small").id

    for store in (
        lambda: client.enqueue("k", "x" * 1100, queue="small"),
        lambda: client.copy([NewJob(kind="k", payload="x" * 1100, queue="small")]),
        lambda: client.jobs.edit([id], payload="x" * 1100),
    ):
        with pytest.raises(HoldfastError, match="HF210"):
            store()
    assert db.job(id).payload == "x" * 900


def test_headers_count_towards_the_limit(db: Protocol) -> None:
    headers = {"trace": "x" * 10_000_000}

    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue({"kind": "k", "headers": headers})

    assert refusal.value.sqlstate == "HF210"


@pytest.mark.parametrize("depth", [100, 900])
def test_a_nested_payload_comes_back(db: Protocol, client: Client, depth: int) -> None:
    payload = nested(depth)

    client.enqueue("k", json.loads(payload))

    assert client.claim(worker="ada")[0].payload_json.replace(" ", "") == payload


def test_a_payload_too_deep_for_the_client_is_refused_by_it(client: Client) -> None:
    payload: list[Any] = []
    for _ in range(10_000):
        payload = [payload]

    with pytest.raises(HoldfastError, match=r"HF204 .*nested too deeply"):
        client.enqueue("k", payload)

    assert client.enqueue("k", [1]).created


def test_a_payload_too_deep_for_a_handler_spoils_no_batch(db: Protocol, client: Client) -> None:
    db.put("fine", payload=1)
    enqueue_text(db, nested(10_000))
    db.put("fine", payload=2)

    leases = client.claim(worker="ada", limit=10)

    fine = [lease.payload for lease in leases if lease.kind == "fine"]
    [deep] = [lease for lease in leases if lease.kind == "text"]
    assert fine == [1, 2]
    assert len(deep.payload_json) >= 20_000
    with pytest.raises(RecursionError):
        assert deep.payload
    assert {answer.outcome for answer in client.ack(leases)} == {"done"}


@pytest.mark.parametrize(
    ("payload", "sqlstate"),
    [
        (lambda: nested(200_000), "54001"),
        (lambda: '"a\\u0000b"', "22P05"),
        (lambda: '{"\\u0000": 1}', "22P05"),
        (lambda: '"\\ud800"', "22P02"),
        (lambda: "1e200000", "22003"),
        (lambda: "NaN", "22P02"),
        (lambda: "{'a': 1}", "22P02"),
    ],
    ids=[
        "too deep",
        "NUL",
        "NUL in a name",
        "half a character",
        "too many digits",
        "NaN",
        "no JSON",
    ],
)
def test_a_payload_that_postgresql_cannot_store_leaves_the_connection_usable(
    db: Protocol, payload: Any, sqlstate: str
) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        enqueue_text(db, payload())

    assert refusal.value.sqlstate == sqlstate
    assert db.list() == []
    assert db.enqueue({"kind": "k"})[0].created


@pytest.mark.parametrize(
    "payload",
    [{"a": ["b\0c"]}, {"a\0b": 1}, float("nan"), [float("inf")], "\ud800", {1, 2}.__iter__()],
    ids=["NUL", "NUL in a name", "NaN", "infinity", "half a character", "no JSON"],
)
def test_a_payload_that_cannot_be_stored_is_refused_by_the_client(
    db: Protocol, client: Client, payload: Any
) -> None:
    for store in (
        client.enqueue,
        lambda kind, body: client.copy([NewJob(kind=kind, payload=body)]),
    ):
        with pytest.raises(HoldfastError, match="HF204 payload of 'resize'"):
            store("resize", payload)

    assert db.list() == []


def test_a_backslash_before_u0000_is_no_nul(db: Protocol, client: Client) -> None:
    client.enqueue("k", "\\u0000")
    client.copy([NewJob(kind="k", payload="\\u0000")])

    assert [job.payload for job in db.claim(max_jobs=2)] == ["\\u0000", "\\u0000"]


def test_of_names_given_twice_the_last_counts(db: Protocol) -> None:
    enqueue_text(db, '{"a": 1, "b": 2, "a": 3}')

    assert db.take().payload == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    "number",
    ["123456789012345678901234567890", "0.1234567890123456789012345678901", "1" + "0" * 300],
)
def test_a_number_that_a_double_cannot_hold_exactly_keeps_its_digits(
    db: Protocol, client: Client, number: str
) -> None:
    enqueue_text(db, number)

    [lease] = client.claim(worker="ada")

    assert lease.payload_json == number


def test_a_payload_is_not_rewritten_by_the_life_of_its_job(db: Protocol) -> None:
    payload = "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(20_000))
    db.put(payload=payload, max_attempts=9)
    toast = (
        "select pg_relation_size(reltoastrelid) from pg_class where oid = 'holdfast.job'::regclass"
    )
    before = db.connection.execute(toast).fetchone()

    for _ in range(3):
        db.release(db.take())
        db.touch(db.take())
        db.nack(*db.held(*tokens(db)), message="no")
        db.edit(*db.find(), changes={"run_at": "2020-01-01"})

    assert db.take().payload == payload
    assert db.connection.execute(toast).fetchone() == before


def tokens(db: Protocol) -> list[Any]:
    return [row[0] for row in db.connection.execute("select token from holdfast.lease").fetchall()]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def enqueue_text(db: Protocol, payload: str) -> None:
    """Enqueue a payload that is JSON by itself, as written."""
    db.connection.execute(
        "select id from holdfast.enqueue(items => %s::jsonb)",
        [f'[{{"kind": "text", "payload": {payload}}}]'],
    )
