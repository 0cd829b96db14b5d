"""The activity log: what each verb writes at each level, how it is read, and what is forgotten."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.protocol import Later, Protocol

pytestmark = pytest.mark.usefixtures("full_minute")


def activity(db: Protocol, **options: Any) -> list[Any]:
    named = ", ".join(f"{name} => %({name})s" for name in options)
    query = f"select (a.entry).*, a.searched_to from holdfast.activity({named}) a"
    cursor = db.connection.cursor(row_factory=namedtuple_row)
    return cursor.execute(query, options).fetchall()


def told(db: Protocol, **options: Any) -> list[str]:
    """The events, the oldest first."""
    return [row.event for row in reversed(activity(db, **options))]


@pytest.mark.proves("S4.10", "S4x.4")
def test_at_all_every_event_of_a_job_is_told_in_order(db: Protocol, later: Later) -> None:
    db.queue_set("default", activity="all", keep_done=3600)
    id = db.put(max_attempts=4)
    job = db.take(worker="ada")
    db.touch(job)
    db.release(job)
    db.nack(db.take(worker="bob"), message="no route", delay=timedelta(0))
    db.take()
    later(seconds=31)
    db.upkeep()
    db.edit(id, changes={"priority": 5}, actor="eve", reason="urgent")
    db.ack(db.take())
    db.retry(id, actor="eve")
    db.cancel(id, actor="eve", reason="enough")
    db.archive(id, actor="eve")
    db.delete(id, actor="eve")

    assert told(db, job=id) == [
        *("enqueued", "claimed", "touched", "released", "claimed", "nacked", "claimed", "reaped"),
        *("edited", "claimed", "acked", "retried", "cancelled", "archived", "deleted"),
    ]
    nacked = activity(db, event="nacked")[0]
    assert (nacked.worker, nacked.attempt, nacked.state) == ("bob", 1, "queued")
    assert nacked.reason == "no route"
    assert activity(db, event="reaped")[0].actor == "upkeep"
    edited = activity(db, event="edited")[0]
    assert (edited.actor, edited.reason) == ("eve", "urgent")
    assert edited.detail == {"was": {"priority": 0}}


@pytest.mark.proves("S4x.4")
def test_at_failures_what_went_wrong_and_what_operators_did_is_told(db: Protocol) -> None:
    id = db.put(max_attempts=1)
    db.nack(db.take(), message="no route")
    db.retry(id, actor="eve", reason="route is back")
    db.ack(db.take())

    assert told(db) == ["nacked", "retried"]
    died, retried = reversed(activity(db, job=id))
    assert died.state == "dead"
    assert (retried.actor, retried.reason, retried.state) == ("eve", "route is back", "queued")


def test_at_off_only_the_sum_of_what_operators_did_is_told(db: Protocol) -> None:
    db.queue_set("default", activity="off")
    ids = [db.put(max_attempts=1), db.put(max_attempts=1)]
    for _ in ids:
        db.nack(db.take(), message="no route")
    db.retry(*ids, actor="eve")

    assert told(db) == ["queue_set", "retried"]
    [retried] = activity(db, event="retried")
    assert (retried.job, retried.jobs, retried.actor) == (None, 2, "eve")


def test_a_moved_job_keeps_its_history(db: Protocol) -> None:
    db.queue_set("default", activity="all")
    id = db.put()
    [moved] = db.move(id, queue="mail", actor="eve")
    [again] = db.move(moved.new_id, queue="slow", actor="eve")

    assert told(db, job=again.new_id) == ["enqueued", "moved", "moved"]
    assert told(db, job=id) == ["enqueued", "moved", "moved"]


@pytest.mark.parametrize(
    ("deed", "event"),
    [
        (lambda db: db.queue_set("mail", limit=4), "queue_set"),
        (lambda db: db.lane_set("mail", "a", limit=4), "lane_set"),
        (lambda db: db.pause("mail", reason="down", actor="eve"), "paused"),
        (lambda db: db.resume("mail"), "resumed"),
        (
            lambda db: db.value("beat", worker="ada") or db.value("leave", worker="ada"),
            "worker_left",
        ),
    ],
)
def test_deeds_that_concern_no_job_are_always_told(
    db: Protocol, deed: Callable[[Protocol], Any], event: str
) -> None:
    db.queue_set("mail", activity="off")
    deed(db)

    [found, _] = activity(db)
    assert found.event == event
    assert found.jobs == 0


def test_the_log_is_read_page_by_page_and_from_a_place_on(db: Protocol) -> None:
    db.queue_set("default", activity="all")
    ids = [row.id for row in db.enqueue(*({"kind": "work"} for _ in range(25)))]
    db.put(queue="mail")

    seen: list[UUID] = []
    before = None
    while page := activity(db, queues=["default"], event="enqueued", max_events=10, before=before):
        seen += [row.job for row in page]
        before = page[-1].seq
    assert seen == ids[::-1]

    middle = activity(db, event="enqueued", max_events=10)[-1].seq
    newer = activity(db, after=middle, max_events=5)
    assert [row.job for row in newer] == ids[16:21]


def test_a_look_that_takes_too_long_says_how_far_it_came(db: Protocol) -> None:
    db.queue_set("default", activity="all")
    for _ in range(3):
        db.enqueue(*({"kind": "work"} for _ in range(1000)))

    [page] = activity(db, kind="rare", patience=timedelta(0))
    assert page.event is None
    rounds = 1
    while page and page.searched_to is not None:
        [page] = activity(db, kind="rare", before=page.searched_to, patience=timedelta(0)) or [None]
        rounds += 1
    assert rounds > 2
    assert activity(db, kind="rare") == []


def test_copied_jobs_are_told_together(db: Protocol) -> None:
    db.queue_set("default", activity="all")
    db.value("copied", queue="default", kinds=["work"], counts=[7])

    assert [row.jobs for row in activity(db, event="enqueued")] == [7]
    db.connection.execute("delete from holdfast.tally")


@pytest.mark.proves("S4x.4")
def test_a_hundred_days_leave_only_those_that_are_kept(db: Protocol, later: Later) -> None:
    db.queue_set("default", keep_activity=timedelta(days=3).total_seconds())
    days = []
    for day in range(100):
        db.put("work", max_attempts=1)
        db.nack(db.take(), message=f"day {day}")
        if day % 3 == 0:
            db.value("turn_pages")
        db.value("forget_activity")
        rows = db.connection.execute(
            "select count(*), holdfast.now() - min(at) from holdfast.event"
        ).fetchone()
        assert rows is not None
        days.append(rows)
        later(days=1)

    # a page that somebody is in, autovacuum say, is left for the next turn
    assert max(count for count, _ in days) <= 8
    assert max(age for _, age in days) < timedelta(days=7)
    tables = [
        name
        for (name,) in db.connection.execute(
            "select inhrelid::regclass::text from pg_inherits"
            " where inhparent in ('holdfast.event'::regclass, 'holdfast.attempt'::regclass,"
            " 'holdfast.history'::regclass)"
        )
    ]
    assert sum("event" in name for name in tables) == 32
    # The last turn was up to three days ago. Other tests may have been in days still to come.
    today = db.value("now").astimezone(UTC).date()
    for book, keep in {"attempt": 30, "history": 7}.items():
        pages = [name.partition(f"{book}_")[2] for name in tables if book in name]
        days_of = [datetime.strptime(page, "%Y%m%d").date() for page in pages if page.isdigit()]
        assert min(days_of) >= today - timedelta(days=keep + 4)
        assert sum(day <= today for day in days_of) <= keep + 5


@pytest.mark.parametrize("settings", [{"activity": "some"}, {"keep_activity": 60}])
def test_a_level_that_is_none_is_refused(db: Protocol, settings: dict[str, Any]) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.queue_set("default", **settings)
    assert refusal.value.sqlstate == "HF221"
