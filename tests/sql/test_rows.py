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


STRAY = (
    "insert into holdfast.job (part, id, queue, kind)"
    " select holdfast.part_of(i), i, 'mail', 'k' from holdfast.new_id('orders') i"
)
OWN = STRAY.replace("'orders'", "'mail'")
COPIED = "select holdfast.copied('mail', '{k}', '{1}')"


@pytest.mark.parametrize("before", [None, OWN])
def test_a_row_with_the_id_of_another_queue_is_refused(
    db: Protocol, producer: psycopg.Connection, before: str | None
) -> None:
    producer.autocommit = False
    if before:
        producer.execute(before)

    with pytest.raises(psycopg.Error, match="does not belong to queue") as refused:
        producer.execute(STRAY)

    producer.rollback()
    assert refused.value.sqlstate == "HF206"
    assert db.list() == []


def test_a_row_beside_an_adopted_table_is_refused(
    db: Protocol, producer: psycopg.Connection
) -> None:
    db.queue_set("mail")
    db.connection.execute("update holdfast.queue set adopted = 64 where name = 'mail'")

    with pytest.raises(psycopg.Error) as refused:
        producer.execute(OWN)

    assert refused.value.sqlstate == "HF226"
    assert db.list() == []


def test_rows_of_a_fanned_out_queue_are_stored_in_all_of_its_parts_and_no_other(
    db: Protocol, producer: psycopg.Connection
) -> None:
    db.queue_set("mail", fanout=2)
    rows = db.table(
        "select p.part, holdfast.id_in(p.part) as id from holdfast.queue_part('mail') q(base),"
        " unnest('{0,1,1,0,2}'::int[]) with ordinality u(step, nth),"
        " lateral (select ((q.base + u.step) % 64)::smallint as part) p order by u.nth"
    )
    insert = "insert into holdfast.job (part, id, queue, kind) values (%s, %s, 'mail', 'k')"

    with producer.transaction():
        for row in rows[:4]:
            producer.execute(insert, [row.part, row.id])
        producer.execute("select holdfast.copied('mail', '{k}', '{4}')")

    with pytest.raises(psycopg.Error, match="does not belong to queue"):
        producer.execute(insert, [rows[4].part, rows[4].id])
    assert len(db.claim("mail", max_jobs=9)) == 4
    db.recount()


def test_a_row_in_a_part_of_no_claim_refuses_the_copies_of_its_own_transaction_only(
    db: Protocol, producer: psycopg.Connection
) -> None:
    db.connection.execute(STRAY)  # as the owner, whose rows are not checked one by one
    with (
        pytest.raises(psycopg.Error, match="does not belong to queue"),
        db.connection.transaction(),
    ):
        db.connection.execute(STRAY + "; " + COPIED)

    with producer.transaction():
        producer.execute(OWN)
        producer.execute(COPIED)

    assert len(db.claim("mail", max_jobs=9)) == 1
    db.recount()


def test_a_row_that_no_claim_finds_is_explained(db: Protocol) -> None:
    def explained(row: str, **settings: Any) -> str:
        if settings:
            db.queue_set("mail", **settings)
        [stored] = db.table(f"{row} returning id")
        told = db.explain(stored.id)
        assert db.claim("mail", kinds=["k"]) == []
        db.connection.execute("delete from holdfast.job")
        db.recount()
        return told

    assert "the id of another queue" in explained(STRAY)
    assert "Turn fair of the queue off and on again" in explained(OWN, fair=True)
    assert "Turn by_kind of the queue off and on again" in explained(OWN, fair=False, by_kind=True)


@pytest.mark.parametrize("setting", ["fair", "by_kind"])
def test_a_row_that_was_not_told_of_is_found_when_its_setting_is_turned_off_and_on(
    db: Protocol, setting: str
) -> None:
    db.queue_set("mail", **{setting: True})
    db.connection.execute(OWN)

    db.queue_set("mail", **{setting: False})
    db.queue_set("mail", **{setting: True})

    assert len(db.claim("mail", kinds=["k"])) == 1
    db.recount()


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
