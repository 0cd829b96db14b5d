"""What a queue has that nobody has set up: declared once, and everything follows it."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tests.protocol import Protocol

SQL = Path(__file__).parents[2] / "src" / "holdfast" / "sql"
SHAPES = SQL / "functions" / "01_shapes.sql"
CHANGED = {
    "q.max_attempts := 3;": "q.max_attempts := 5;",
    "q.lease := '30 seconds';": "q.lease := '77 seconds';",
    "q.payload_limit := 262144;": "q.payload_limit := 1000;",
    "q.lane_limit := 1;": "q.lane_limit := 2;",
    "q.lane_on_failure := 'skip';": "q.lane_on_failure := 'halt';",
}


@pytest.fixture
def changed(db: Protocol) -> Iterator[Protocol]:
    """The protocol with other defaults: one file is changed, in one place for each."""
    text = SHAPES.read_text()
    for old, new in CHANGED.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    with db.connection.transaction(force_rollback=True):
        db.connection.execute(text)
        yield db


def test_a_job_is_tried_as_often_as_the_default_says(changed: Protocol) -> None:
    plain, detailed = changed.put(), changed.put(subject="user/7")

    assert [changed.job(id).max_attempts for id in (plain, detailed)] == [5, 5]


def test_a_payload_may_be_as_large_as_the_default_says(changed: Protocol) -> None:
    changed.put(payload="x" * 900)

    with pytest.raises(psycopg.Error) as refusal, changed.connection.transaction():
        changed.put(payload="x" * 1100)

    assert refusal.value.sqlstate == "HF210"
    assert "is 1000 bytes" in str(refusal.value)


def test_a_lease_is_as_long_as_the_default_says(changed: Protocol) -> None:
    changed.put()

    changed.take()

    [(length,)] = changed.connection.execute("select length from holdfast.lease")
    assert length == timedelta(seconds=77)


def test_a_touch_without_a_receipt_renews_by_the_default(changed: Protocol) -> None:
    changed.put()
    held = changed.take(lease=timedelta(seconds=10))
    changed.connection.execute("delete from holdfast.lease")

    [touched] = changed.touch(held)

    assert touched.lease_until is not None
    assert touched.lease_until - held.lease_until > timedelta(seconds=60)


def test_a_job_that_dies_halts_its_lane_if_the_default_says_so(changed: Protocol) -> None:
    first, second = (changed.put(lane="l", max_attempts=1) for _ in range(2))
    held = changed.take()
    assert held.id == first

    changed.nack(held, final=True)

    assert f"halted because job {first} died" in changed.explain(second)


def test_explain_counts_the_slots_of_a_lane_by_the_default(changed: Protocol) -> None:
    ids = [changed.put(lane="l") for _ in range(3)]
    changed.claim(max_jobs=3)

    assert "(2 of 2 at a time)" in changed.explain(ids[2])


def test_a_row_copied_without_attempts_has_those_of_the_default(changed: Protocol) -> None:
    changed.connection.execute(
        "insert into holdfast.job (part, id, queue, kind) "
        "select holdfast.part_of(i), i, 'default', 'k' from holdfast.new_id('default') i"
    )

    assert changed.table("select max_attempts from holdfast.job")[0].max_attempts == 5


def test_the_views_and_new_rows_say_the_default(changed: Protocol) -> None:
    changed.put()
    changed.resume("resumed")
    changed.pause("paused")
    changed.queue_set("set", limit=4)

    seen = "select queue, max_attempts, lease, payload_limit, lane_limit from holdfast.queues"
    default = (5, timedelta(seconds=77), 1000, 2)
    queues = ("default", "resumed", "paused", "set")
    assert {tuple(row) for row in changed.table(seen)} == {(name, *default) for name in queues}

    changed.upkeep()  # makes a row for every queue in use
    assert {tuple(row) for row in changed.table(seen)} == {(name, *default) for name in queues}


def test_the_table_has_no_defaults_of_its_own(db: Protocol) -> None:
    own = db.table(
        "select attrelid::regclass::text, attname from pg_attribute "
        "where attrelid in ('holdfast.queue'::regclass, 'holdfast.job'::regclass) and atthasdef"
    )
    settings = {
        name for (name,) in db.table("select jsonb_object_keys(to_jsonb(holdfast.unset_queue('')))")
    }

    assert {name for table, name in own if table == "holdfast.queue"} == set()
    assert {name for table, name in own if table == "holdfast.job"}.isdisjoint(
        settings - {"by_kind", "max_attempts"}
    )


def test_the_limit_of_payloads_stands_in_one_place() -> None:
    files = [*SQL.glob("*.sql"), *(SQL / "functions").glob("*.sql")]

    assert [file.name for file in files if "262144" in file.read_text()] == [SHAPES.name]
