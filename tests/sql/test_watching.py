"""Watching: what is noted while somebody does and while nobody does; how the log is followed."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import Client, NewJob
from tests.protocol import Later, Open, Protocol


def watch(db: Protocol, *queues: str, lasts: float = 30) -> list[Any]:
    names = list(queues) or None
    query = "select queue, place from holdfast.watch(queues => %s, lasts => %s) order by 1"
    return db.connection.execute(query, [names, timedelta(seconds=lasts)]).fetchall()


def noted(db: Protocol, queue: str = "default") -> list[str]:
    query = "select event from holdfast.events where queue = %s and jobs > 0 order by seq"
    return [event for (event,) in db.connection.execute(query, [queue])]


def cycle(db: Protocol, queue: str = "default", **item: Any) -> None:
    """Enqueue, claim, touch, release, claim and ack one job."""
    db.put(queue=queue, **item)
    job = db.take(queue)
    db.touch(job)
    db.release(job)
    db.ack(db.take(queue))


CYCLE = ["enqueued", "claimed", "touched", "released", "claimed", "acked"]


def test_while_nobody_watches_nothing_is_written(db: Protocol) -> None:
    cycle(db)
    cycle(db, key="k")

    assert noted(db) == []
    rows = db.connection.execute("select count(*) from holdfast.watched").fetchone()
    assert rows == (0,)


@pytest.mark.parametrize("item", [{}, {"key": "k"}, {"lane": "l"}], ids=["plain", "key", "lane"])
def test_while_somebody_watches_every_queue_every_event_is_noted(
    db: Protocol, item: dict[str, Any]
) -> None:
    db.queue_set("set up")
    watch(db)
    cycle(db, **item)
    cycle(db, "set up", **item)

    assert noted(db) == noted(db, "set up") == CYCLE


def test_a_queue_that_is_watched_by_name_is_noted_and_no_other(db: Protocol) -> None:
    watch(db, "mail")
    cycle(db, "mail")
    cycle(db, "other")

    assert (noted(db, "mail"), noted(db, "other")) == (CYCLE, [])


def test_a_queue_whose_log_is_off_stays_off_though_it_is_watched(db: Protocol) -> None:
    db.queue_set("quiet", activity="off")
    watch(db)
    watch(db, "quiet")
    cycle(db, "quiet")
    cycle(db, "quiet", key="k")

    assert noted(db, "quiet") == []


def test_jobs_that_are_copied_while_somebody_watches_are_noted_one_by_one(
    db: Protocol, sql_database: str
) -> None:
    watch(db)
    with Client(sql_database) as client, psycopg.connect(sql_database) as connection:
        bound = client.on(connection)
        bound.copy([NewJob(kind="a", payload={"n": n}) for n in range(150)])
        bound.copy([NewJob(kind="b", payload={"n": n}) for n in range(20)])

    query = "select count(*), count(distinct job) from holdfast.events"
    assert db.connection.execute(query).fetchone() == (170, 170)


def test_a_watch_that_runs_out_ends_and_one_that_is_renewed_goes_on_unbroken(
    db: Protocol, later: Later
) -> None:
    [(_, began)] = watch(db)
    db.put()
    later(seconds=20)
    [(_, renewed)] = watch(db)
    later(seconds=20)
    db.put()
    later(seconds=11)
    db.put()
    [(_, again)] = watch(db)

    assert noted(db) == ["enqueued", "enqueued"]
    assert (renewed, again) == (began, began + 3)


def test_upkeep_forgets_watches_that_ran_out_long_ago(db: Protocol, later: Later) -> None:
    watch(db)
    later(hours=2)
    db.connection.execute("select holdfast.forget_activity()")

    assert db.connection.execute("select count(*) from holdfast.watched").fetchone() == (0,)


@pytest.mark.parametrize("lasts", ["0", "-1 second", "2 hours", None])
def test_a_watch_lasts_up_to_an_hour(db: Protocol, lasts: str | None) -> None:
    with pytest.raises(psycopg.Error, match=r"lasts .* is out of range"):
        db.connection.execute("select holdfast.watch(lasts => %s::interval)", [lasts])


def test_a_place_that_was_missing_is_found_when_its_transaction_commits(
    db: Protocol, other: Open
) -> None:
    watch(db)
    late = other(autocommit=False)
    start = db.connection.execute("select last from holdfast.log_state()").fetchone()[0]
    late.put("late")
    db.put("soon")

    def tail(after: int, *missing: int) -> list[Any]:
        query = "select seq, kind from holdfast.tail(%s, %s, %s)"
        return db.connection.execute(query, [after, list(missing), list(missing)]).fetchall()

    def writers() -> list[str]:
        return db.connection.execute("select writers from holdfast.log_state()").fetchone()[0]

    assert tail(start) == [(start + 2, "soon")]
    assert tail(start + 2, start + 1) == []
    assert len(writers()) == 1
    late.connection.commit()
    assert writers() == []
    assert tail(start + 2, start + 1) == [(start + 1, "late")]
    db.put("last")
    assert tail(start + 2, start + 1) == [(start + 1, "late"), (start + 3, "last")]
