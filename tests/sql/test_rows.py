"""Rows that a producer inserts itself pass what enqueue would have checked."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from holdfast import Client, NewJob
from tests.protocol import Protocol

ROW = {
    "queue": "default",
    "kind": "send",
    "run_at": "2026-01-01 00:00Z",
    "created_at": "2026-01-01 00:00Z",
    "max_attempts": 3,
    "payload": '{"a": 1}',
    "headers": None,
    "tenant": None,
    "subject": None,
}


@pytest.fixture
def producer(db: Protocol, sql_database: str) -> Iterator[psycopg.Connection]:
    db.connection.execute("grant usage on schema holdfast_test to public")
    db.connection.execute("grant select on holdfast_test.clock to public")
    with ExitStack() as stack:
        connection = psycopg.connect(sql_database, autocommit=True)
        stack.callback(connection.close)
        connection.execute("set role holdfast_producer")
        yield connection


def insert(producer: psycopg.Connection, **fields: Any) -> None:
    row = ROW | fields
    producer.execute(
        f"""
        insert into holdfast.job (part, id, {", ".join(row)})
        values (holdfast.queue_part(%(queue)s), holdfast.new_id(%(queue)s),
                {", ".join(f"%({name})s" for name in row)})
        """,
        row,
    )


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("run_at", "infinity", "HF204"),
        ("run_at", "-infinity", "HF204"),
        ("run_at", "294000-01-01", "HF204"),
        ("created_at", "infinity", "HF204"),
        ("created_at", "4713-01-01 BC", "HF204"),
        ("max_attempts", 0, "HF204"),
        ("payload", "[1e131071]", "HF204"),
        ("payload", '"' + "x" * 300_000 + '"', "HF210"),
        ("headers", '{"n": 1e131071}', "HF204"),
        ("headers", "[]", "HF201"),
        ("kind", "", "HF202"),
        ("kind", "a\nb", "HF202"),
        ("kind", "a\u202eb", "HF202"),
        ("queue", "x" * 121, "HF202"),
        ("queue", "holdfast.alerts", "HF211"),
        ("tenant", "a\ufeffb", "HF202"),
        ("subject", "x" * 501, "HF202"),
    ],
)
def test_a_row_that_enqueue_would_refuse_is_refused(
    db: Protocol, producer: psycopg.Connection, field: str, value: Any, code: str
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        insert(producer, **{field: value})

    assert refused.value.sqlstate == code
    assert db.list() == []


def test_a_row_that_enqueue_would_store_is_stored(
    db: Protocol, producer: psycopg.Connection, sql_database: str
) -> None:
    db.queue_set("default", payload_limit=500_000)
    with Client(sql_database) as client:
        client.on(producer).copy(
            [
                NewJob(kind="plain"),
                NewJob(kind="größe", tenant="ada", subject="s", headers={"a": 1}),
                NewJob(kind="large", payload="x" * 400_000),
            ]
        )

    assert [job.kind for job in db.claim(max_jobs=9)] == ["plain", "größe", "large"]


@pytest.mark.parametrize("text", ["a\u202eb", "a\ufeff", "\u200bx", "a\u2066b", "\xadx"])
@pytest.mark.parametrize("field", ["kind", "queue", "lane", "tenant"])
def test_a_name_that_looks_like_another_is_refused(db: Protocol, field: str, text: str) -> None:
    with pytest.raises(psycopg.Error, match="invisible character") as refused:
        db.enqueue({"kind": "k", field: text})

    assert refused.value.sqlstate == "HF202"
    assert text not in str(refused.value)


def test_names_of_every_script_are_fine(db: Protocol) -> None:
    names = ["größe", "שלום", "न\u200dम", "ن\u200cم", "👩\u200d👧", "日本語"]

    assert all(one.created for one in db.enqueue(*({"kind": name} for name in names)))


def test_rows_of_a_new_owner_are_its_own_after_the_next_upkeep(db: Protocol) -> None:
    """As after a restore by another role, whose dump names the owner that was."""
    db.connection.execute(
        'create or replace trigger "rows of producers are checked" after insert on holdfast.job'
        " for each row when (current_user <> 'whoever it was')"
        " execute function holdfast.check_row()"
    )
    own = (
        "insert into holdfast.job (part, id, queue, kind)"
        " select holdfast.part_of(i), i, 'holdfast.alerts', 'k'"
        " from holdfast.new_id('holdfast.alerts') i"
    )
    with pytest.raises(psycopg.Error, match="belongs to Holdfast"):
        db.connection.execute(own)

    db.upkeep()

    with db.connection.transaction(force_rollback=True):
        db.connection.execute(own)
