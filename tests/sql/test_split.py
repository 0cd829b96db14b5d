"""The hot table split by part: the address of a row is unique in its partition only.

Forty queues have the same jobs, so that the partitions have rows in the same places. Whatever is
done to one queue must leave the rows of all others as they were.
"""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests import partitioned
from tests.protocol import Protocol, shared_database

QUEUES = [f"q{nth}" for nth in range(40)]
OURS = "q1"
OTHERS = f"select to_jsonb(j) from holdfast.job j where j.queue <> '{OURS}' order by j.id"


@pytest.fixture(scope="module")
def split(postgres: Any, split_template: str) -> Iterator[str]:
    with shared_database(postgres.url, split_template) as made:
        yield made


@pytest.fixture
def db(split: str) -> Iterator[Protocol]:
    with psycopg.connect(split, autocommit=True) as connection:
        protocol = Protocol(connection)
        protocol.wipe()
        connection.execute("truncate holdfast.job")
        yield protocol
        assert protocol.recount() == []


def claim(db: Protocol, **options: Any) -> None:
    [lease] = db.claim(OURS, max_jobs=7, **options)
    assert (lease.kind, lease.attempt) == ("send", 1)


def claim_of_a_kind(db: Protocol) -> None:
    claim(db, kinds=["send"])


def copy(db: Protocol) -> None:
    row = (db.value("queue_part", queue=OURS), db.value("new_id", queue=OURS), OURS, "send")
    with db.connection.transaction(), db.connection.cursor() as cursor:
        with cursor.copy("copy holdfast.job (part, id, queue, kind) from stdin") as rows:
            rows.write_row(row)
        cursor.execute(f"select holdfast.copied('{OURS}', array['send'], array[1])")
    query = f"select count(*) from holdfast.job where queue = '{OURS}' and tenant = ''"
    assert db.connection.execute(query).fetchone() == (2,)


def promote(db: Protocol) -> None:
    query = "select holdfast.promote_some(holdfast.queue_part(%s), %s, null, 9, 'infinity')"
    assert db.connection.execute(query, [OURS, OURS]).fetchone() == (1,)


def sort(db: Protocol) -> None:
    db.value("sort_some", queue=OURS)
    query = f"select by_kind from holdfast.job where queue = '{OURS}'"
    assert db.connection.execute(query).fetchall() == [(True,)]


def strike(db: Protocol, mode: str = "hold") -> None:
    db.call("strike_add", columns=["number"], queue=OURS, mode=mode)
    assert db.claim(OURS, max_jobs=7) == []


def skip(db: Protocol) -> None:
    strike(db, "skip")


def lift(db: Protocol) -> None:
    strike(db)
    db.connection.execute("select holdfast.strike_lift(s.number) from holdfast.strike s")
    db.connection.execute("select holdfast.unstrike()")
    claim(db)


@pytest.mark.parametrize(
    ("settings", "item", "act"),
    [
        ({}, {}, claim),
        ({}, {}, claim_of_a_kind),
        ({"by_kind": True}, {}, claim_of_a_kind),
        ({"fair": True}, {"tenant": "ada"}, claim),
        ({"fair": True}, {"tenant": "ada"}, claim_of_a_kind),
        ({"limit": 5}, {}, claim),
        ({}, {"lane": "x"}, claim),
        ({"fair": True}, {}, copy),
        ({}, {"delay": 3600}, promote),
        ({}, {}, sort),
        ({}, {}, strike),
        ({}, {}, skip),
        ({}, {}, lift),
    ],
    ids=lambda part: part.__name__ if callable(part) else str(part),
)
def test_what_is_done_to_a_queue_leaves_the_rows_of_the_others(
    db: Protocol,
    settings: dict[str, Any],
    item: dict[str, Any],
    act: Callable[[Protocol], None],
) -> None:
    if settings:
        db.queue_set(OURS, **settings)
    db.enqueue(*[{"kind": "send", "queue": queue, **item} for queue in QUEUES])
    places = db.connection.execute(
        "select count(distinct tableoid), count(distinct ctid), count(*) from holdfast.job"
    ).fetchone()
    assert places is not None
    assert places[0] == partitioned.SPLIT
    assert places[1] < places[2] / 2, "the same addresses in several partitions"
    before = db.connection.execute(OTHERS).fetchall()

    act(db)

    assert db.connection.execute(OTHERS).fetchall() == before
