"""SQL keeps its own truth about fields; the records in Python declare them. They must agree."""

from typing import Any

import psycopg
import pytest
from msgspec.structs import fields
from psycopg.types.json import Jsonb

from holdfast.client.rows import COLUMNS as COPIED
from holdfast.records import Job, Lease, NewJob, Queue, QueueSettings
from holdfast.records.fields import declared
from holdfast.records.limits import refusal
from tests.conftest import Connect

LIMITS = {field.name: field.limits for field in declared(NewJob) if field.limits}
TEXTS = [name for name, limits in LIMITS.items() if limits.max_length]
NUMBERS = ["priority", "max_attempts", "delay", "expires", "lease"]


def enqueue(connection: psycopg.Connection, **item: Any) -> None:
    items = Jsonb([{"kind": "greet", **item}])
    connection.execute("select * from holdfast.enqueue(items => %s)", [items])


def named(error: psycopg.Error, what: str) -> set[str]:
    """The names that a hint lists, as in `Fields are: a, b.`"""
    return set((error.diag.message_hint or "").removeprefix(what).rstrip(".").split(", "))


def test_an_item_has_the_fields_of_a_new_job(connect: Connect) -> None:
    with pytest.raises(psycopg.Error) as refused:
        enqueue(connect(), colour="red")

    assert named(refused.value, "Fields are: ") == {field.name for field in fields(NewJob)}


@pytest.mark.parametrize("field", TEXTS)
def test_a_text_may_be_as_long_as_declared(connect: Connect, field: str) -> None:
    longest = LIMITS[field].max_length
    assert longest is not None
    connection = connect()

    enqueue(connection, **{field: "x" * longest})
    for wrong in ("x" * (longest + 1), ""):
        with pytest.raises(psycopg.Error):
            enqueue(connection, **{field: wrong})


@pytest.mark.parametrize("field", [name for name in TEXTS if LIMITS[name].pattern])
def test_a_name_is_printable(connect: Connect, field: str) -> None:
    with pytest.raises(psycopg.Error):
        enqueue(connect(), **{field: "a\nb"})


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_may_be_as_large_and_as_small_as_declared(connect: Connect, field: str) -> None:
    limits = LIMITS[field]
    connection = connect()
    assert limits.le is not None

    enqueue(connection, **{field: limits.le})
    wrong = [limits.le + 1, -1 if limits.ge in (0, None) else 0]
    if limits.ge is not None:
        enqueue(connection, **{field: limits.ge})
    else:
        wrong.append(0)
    for value in wrong:
        with pytest.raises(psycopg.Error):
            enqueue(connection, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, value) for name in NUMBERS for value in (-1, 10**10, 1.5e10)],
        ("max_attempts", 0),
        ("lease", 0),
        ("expires", 0),
        *[(name, "x" * 600) for name in TEXTS],
        *[(name, "") for name in TEXTS],
        *[(name, "a\u200bb") for name in TEXTS if LIMITS[name].pattern],
        ("queue", "holdfast.mine"),
        ("lane", 5),
        ("on_conflict", "wait"),
        ("if_failed", "stop"),
    ],
)
def test_python_refuses_a_value_with_the_code_and_the_words_of_sql(
    connect: Connect, field: str, value: Any
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        enqueue(connect(), **{field: value})
    said = (refused.value.diag.message_primary or "").replace(" of item 1", "")

    [declaration] = [one for one in declared(NewJob) if one.name == field]
    error = refusal(declaration, value)

    assert error is not None
    assert error.code == refused.value.sqlstate
    if "invisible" in said:  # SQL shows the text at the end of the sentence
        assert "contains an invisible character" in error.what
    else:
        assert error.what == said.replace("15000000000 ", "15000000000.0 ")


def test_a_queue_has_the_declared_settings_and_defaults(connect: Connect) -> None:
    connection = connect()
    with pytest.raises(psycopg.Error) as refused:
        connection.execute("""select holdfast.queue_set('mail', '{"colour": 1}')""")
    declared = {field.name: field.default for field in fields(QueueSettings)}
    enqueue(connection, queue="mail")

    [row] = connection.execute("select to_jsonb(q) from holdfast.queues q").fetchall()
    cursor = connection.execute("select * from holdfast.queues")
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    [values] = cursor.fetchall()
    found = dict(zip(names, values, strict=True))

    assert named(refused.value, "Settings are: ") == set(declared)
    assert {name: found[name] for name in declared} == declared
    assert {field.name for field in fields(Queue)} == set(row[0])


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        (field.name, field.limits.ge, field.limits.le)
        for field in declared(QueueSettings)
        if field.limits is not None
        and field.limits.le is not None
        and field.name not in ("rate_period", "archive_done")
    ],
)
def test_a_setting_may_be_as_large_as_declared(
    connect: Connect, setting: str, least: float | None, most: float
) -> None:
    connection = connect()

    def put(value: float) -> None:
        connection.execute("select holdfast.queue_set('mail', %s)", [Jsonb({setting: value})])

    put(most)
    with pytest.raises(psycopg.Error):
        put(most + 1)
    with pytest.raises(psycopg.Error):
        put(0 if least is None else least - 1)


def test_the_view_of_jobs_and_a_claim_have_the_fields_of_their_records(connect: Connect) -> None:
    connection = connect()

    jobs = connection.execute("select * from holdfast.jobs").description
    claimed = connection.execute(
        "select * from holdfast.claim('default', 'w', gen_random_uuid())"
    ).description

    assert jobs is not None
    assert claimed is not None
    of_job = {field.name.removesuffix("_json") for field in fields(Job)}
    of_lease = {field.name.removesuffix("_json") for field in fields(Lease)}
    assert of_job <= {column.name for column in jobs}
    known = {"token", "queue", "worker", "lease"}
    assert of_lease - known == {column.name for column in claimed} - {"lease_for"}


def test_what_is_copied_are_columns_that_a_producer_may_write(connect: Connect) -> None:
    granted = connect().execute(
        "select string_agg(column_name, ', ') from information_schema.column_privileges"
        " where table_schema = 'holdfast' and table_name = 'job'"
        " and grantee = 'holdfast_producer' and privilege_type = 'INSERT'"
    )

    [(columns,)] = granted.fetchall()

    assert set(COPIED.split(", ")) == set((columns or "").split(", "))
