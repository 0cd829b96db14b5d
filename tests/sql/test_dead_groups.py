"""What failed alike is counted as it dies, is retried, moved, put away or deleted."""

from uuid import UUID

import pytest

from tests.protocol import Protocol

KEPT = "select fingerprint, kind, queue, jobs, error, first_at, last_at from holdfast.dead_groups"
COUNTED = """
select fingerprint, kind, queue, count(*), (array_agg(error order by ended_at desc))[1],
       min(ended_at), max(ended_at)
from holdfast.dead group by 1, 2, 3
"""


def die(db: Protocol, count: int, message: str, queue: str = "default") -> list[UUID]:
    db.enqueue(*[{"kind": "work", "queue": queue, "max_attempts": 1}] * count)
    leased = db.claim(queue, max_jobs=count)
    db.nack(*leased, error_kind="Timeout", message=message)
    return [job.id for job in leased]


def check(db: Protocol, groups: int) -> None:
    kept = db.connection.execute(KEPT).fetchall()
    assert sorted(kept) == sorted(db.connection.execute(COUNTED).fetchall())
    assert len(kept) == groups


def test_groups_are_counted_whatever_becomes_of_their_jobs(db: Protocol) -> None:
    slow = die(db, 6, "too slow")
    die(db, 3, "no route")
    die(db, 2, "no route", queue="mail")
    check(db, 3)

    db.retry(*slow[:2])
    check(db, 3)
    db.archive(slow[2])
    db.delete(slow[3])
    check(db, 3)
    db.move(slow[4], queue="mail")
    check(db, 4)
    db.connection.execute("delete from holdfast.dead where queue = 'mail'")
    db.recount()  # nobody told the counters of the queue
    check(db, 2)
    db.retry(*slow[5:])
    check(db, 1)


def test_changes_are_summed_up_when_they_are_many(db: Protocol) -> None:
    die(db, 1, "once")
    db.connection.execute(
        "insert into holdfast.dead_tally select part, fingerprint, kind, queue, n "
        "from holdfast.dead, unnest(array[1, -1]) n, generate_series(1, 600)"
    )

    db.upkeep()

    check(db, 1)
    assert db.connection.execute("select count(*) from holdfast.dead_tally").fetchone() == (1,)


@pytest.mark.parametrize("wrong", [5, -1])
def test_a_recount_mends_wrong_counts(db: Protocol, wrong: int) -> None:
    die(db, 3, "once")
    db.connection.execute(
        "insert into holdfast.dead_tally select distinct part, fingerprint, kind, queue, "
        "%s::bigint from holdfast.dead",
        [wrong],
    )

    db.connection.execute("select holdfast.recount()")

    check(db, 1)
