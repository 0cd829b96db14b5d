"""Numbers that are short to write and long to read: refused where they enter, counted as text."""

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast import Client, HoldfastError, NewJob
from holdfast.records import NewSchedule
from tests.protocol import Protocol

BOMB = '{"n": [1e131071, 2]}'
# Below the range, so that only their length is against them: each takes 16 kB when written out.
FINE = "[" + ", ".join(["1e-16380"] * 20) + "]"


@pytest.fixture
def client(sql_database: str) -> Iterator[Client]:
    with Client(sql_database) as client:
        yield client


def enqueue(db: Protocol, item: str) -> None:
    db.connection.execute("select * from holdfast.enqueue(%s::jsonb)", [item])


@pytest.mark.parametrize(
    "item",
    [
        f'{{"kind": "k", "payload": {BOMB}}}',
        f'{{"kind": "k", "headers": {BOMB}}}',
        '{"kind": "k", "payload": -1e309}',
        f'{{"kind": "k", "payload": {{"text": "{"x" * 9000}", "n": 1e400}}}}',
        f'[{{"kind": "k"}}, {{"kind": "k", "lane": "a", "payload": {BOMB}}}]',
        f'{{"kind": "k", "payload": {"9" * 5000}}}',
    ],
    ids=["payload", "headers", "below", "large", "second", "digits"],
)
def test_a_number_beyond_a_double_is_refused_by_name(db: Protocol, item: str) -> None:
    with pytest.raises(psycopg.Error, match="1e308") as refused:
        enqueue(db, item)

    assert refused.value.sqlstate == "HF204"
    assert len(str(refused.value)) < 2000
    assert db.list() == []


@pytest.mark.parametrize("number", ["1.7976931348623157e308", "-1e308", "5e-324", "0", "1e300"])
def test_whatever_a_double_can_say_is_stored(db: Protocol, number: str) -> None:
    enqueue(db, f'{{"kind": "k", "payload": {{"text": "{"x" * 400}", "n": {number}}}}}')

    assert float(db.take().payload["n"]) == float(number)


@pytest.mark.parametrize("field", ["payload", "headers"])
def test_a_limit_counts_the_text_that_will_be_sent(db: Protocol, field: str) -> None:
    value = FINE if field == "payload" else f'{{"n": {FINE}}}'

    with pytest.raises(psycopg.Error, match=r"is 327\d{3} bytes") as refused:
        enqueue(db, f'{{"kind": "k", "{field}": {value}}}')

    assert refused.value.sqlstate == "HF210"


def test_a_large_payload_is_measured_piece_by_piece(db: Protocol) -> None:
    pieces = {"a": ["x" * 100] * 100, "b": {"c": list(range(3000)), "d": "é\n" * 3000}, "e": 1.5}
    text, told = db.connection.execute(
        "select octet_length(%(v)s::jsonb::text), holdfast.text_size(%(v)s::jsonb)",
        {"v": msgspec.json.encode(pieces).decode()},
    ).fetchone() or (0, 0)

    assert text > 20_000
    assert text == told


def test_a_result_is_measured_too(db: Protocol) -> None:
    db.queue_set("default", keep_done=3600)
    db.put()
    lease = db.take()
    ack = "select * from holdfast.ack(%s, %s, %s::jsonb)"

    for result, code in ((f"[{BOMB}]", "HF204"), (f"[{FINE}]", "HF210")):
        with pytest.raises(psycopg.Error) as refused:
            db.connection.execute(ack, [[lease.id], [lease.token], result])
        assert refused.value.sqlstate == code

    assert db.state(lease.id) == "leased"


def test_progress_is_measured_too(db: Protocol) -> None:
    db.put()
    lease = db.take()

    with pytest.raises(psycopg.Error) as refused:
        db.connection.execute(
            "select * from holdfast.touch(%s, %s, null, %s::jsonb)",
            [[lease.id], [lease.token], '[{"done": 1e131071}]'],
        )

    assert refused.value.sqlstate == "HF204"


def test_an_edit_is_measured_too(db: Protocol) -> None:
    job = db.put()

    with pytest.raises(psycopg.Error) as refused:
        db.connection.execute(
            "select * from holdfast.edit(%s, %s::jsonb)", [[job], f'{{"payload": {BOMB}}}']
        )

    assert refused.value.sqlstate == "HF204"


@pytest.mark.parametrize("where", ["payload", "options"])
def test_a_schedule_is_measured_too(db: Protocol, where: str) -> None:
    value = BOMB if where == "payload" else f'{{"headers": {BOMB}}}'
    said = f'{{"kind": "k", "every": 60, "{where}": {value}}}'

    with pytest.raises(psycopg.Error) as refused:
        db.connection.execute("select * from holdfast.schedule_set('s', %s::jsonb)", [said])

    assert (refused.value.sqlstate or "")[:2] == "HF"
    assert db.table("select from holdfast.schedule") == []


def test_a_strike_is_measured_too(db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refused:
        db.connection.execute("select * from holdfast.strike_add(payload => %s::jsonb)", [BOMB])

    assert (refused.value.sqlstate or "")[:2] == "HF"


def test_python_refuses_a_number_beyond_a_double_before_it_is_sent(
    db: Protocol, client: Client
) -> None:
    bomb: Any = msgspec.Raw(BOMB.encode())

    with pytest.raises(HoldfastError, match="1e308"):
        client.enqueue("k", bomb)
    with pytest.raises(HoldfastError, match="1e308"):
        client.copy([NewJob(kind="k", payload=bomb)])
    with pytest.raises(HoldfastError, match="1e308"):
        client.schedules.declare([NewSchedule(name="s", kind="k", every=60, payload=bomb)])

    assert db.list() == []
