"""Upkeep by many at once: idempotent, and in nobody's way."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Protocol

Connect = Callable[..., psycopg.Connection]
Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


@pytest.mark.proves("S4.31")
def test_ten_upkeeps_at_once_do_each_thing_once(db: Protocol, at_once: AtOnce) -> None:
    db.enqueue(*[{"kind": "k", "queue": f"q{n % 7}", "lane": f"l{n % 5}"} for n in range(70)])
    db.enqueue(*[{"kind": "k", "queue": f"q{n % 7}", "delay": 5} for n in range(70)])
    claimed = [job for n in range(7) for job in db.claim(f"q{n}", max_jobs=50)]
    db.later(seconds=31)

    reports = at_once(10, lambda session, nth: [session.upkeep() for _ in range(5)])

    assert not [each for each in reports if isinstance(each, Exception)]
    total = {
        step: sum(report[step] for each in reports for report in each)
        for step in ("reaped", "promoted")
    }
    assert total == {"reaped": len(claimed), "promoted": 70}
    assert db.connection.execute("select count(*) from holdfast.tally").fetchone() == (0,)


def test_two_folds_count_nothing_twice(db: Protocol, held_open: Protocol, start: Start) -> None:
    db.enqueue(*[{"kind": "k"}] * 5)
    folded = held_open.fold()
    second = start(lambda session: session.fold())
    waited = second.waits()
    during = db.depth()

    held_open.connection.commit()

    assert not waited
    assert (folded, second.answer()) == (1, 0)
    assert during == db.depth() == {"queued": 5}


def test_a_fold_that_is_undone_loses_no_count(db: Protocol, held_open: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 5)
    held_open.fold()
    db.enqueue(*[{"kind": "k"}] * 2)

    held_open.connection.rollback()

    assert db.depth() == {"queued": 7}


@pytest.mark.proves("S4.33")
def test_counts_stay_right_under_folds_and_work(db: Protocol, at_once: AtOnce) -> None:
    def work(session: Protocol, nth: int) -> bool:
        for n in range(30):
            if nth == 0:
                session.fold()
            elif nth == 1:
                session.enqueue(*[{"kind": f"k{n % 3}", "max_attempts": 2}] * 4)
            else:
                jobs = session.claim(worker=f"w{nth}", max_jobs=3)
                session.ack(*jobs[:1])
                session.nack(*jobs[1:2], delay=timedelta(0))
                session.release(*jobs[2:])
            row = session.connection.execute("select min(jobs) from holdfast.depth").fetchone()
            assert row is not None
            if row[0] is not None and row[0] < 0:
                return False
        return True

    never_negative = at_once(4, work)

    assert never_negative == [True] * 4
    assert db.recount() == []


def test_two_reaps_share_the_expired(db: Protocol, held_open: Protocol, start: Start) -> None:
    for _ in range(4):
        db.put()
        db.take()
    db.later(seconds=31)
    first = held_open.reap(max_jobs=2)
    second = start(lambda session: session.reap(max_jobs=9))
    waited = second.waits()

    held_open.connection.commit()

    assert not waited
    ids = [each.id for each in first] + [each.id for each in second.answer()]
    ids += [each.id for each in db.reap()]
    assert len(ids) == len(set(ids)) == 4


def test_workers_do_not_wait_for_upkeep(db: Protocol, held_open: Protocol, start: Start) -> None:
    db.queue_set("default", keep_done=60)
    db.enqueue(*[{"kind": "k", "delay": 5}] * 3)
    db.enqueue(*[{"kind": "k"}] * 3)
    running = db.claim(max_jobs=3)
    db.upkeep()
    db.later(seconds=6)
    held_open.upkeep()

    def life(session: Protocol) -> list[str]:
        session.put()
        job = session.take()
        outcomes = [session.touch(job)[0].outcome, session.ack(job)[0].outcome]
        return outcomes + [each.outcome for each in session.ack(*running)]

    work = start(life)

    assert not work.waits()
    assert work.answer() == ["leased"] + ["done"] * 4


@pytest.mark.parametrize("verb", ["nack", "ack", "cancel"])
def test_a_settle_that_meets_a_new_page_is_written(
    database: str, connect: Connect, start: Start, verb: str
) -> None:
    fresh = Protocol(connect(database))
    fresh.queue_set("default", keep_done=60)
    id = fresh.put(max_attempts=1)
    job = fresh.take()
    keeper = Protocol(connect(database, autocommit=False))
    keeper.upkeep()

    settle = start(
        lambda session: session.cancel(id) if verb == "cancel" else getattr(session, verb)(job),
        Protocol(connect(database)),
    )
    settle.waits()
    keeper.connection.commit()

    settle.answer()
    assert fresh.state(id) == {"nack": "dead", "ack": "done", "cancel": "cancelled"}[verb]


def test_upkeep_does_not_wait_for_workers(db: Protocol, held_open: Protocol, start: Start) -> None:
    db.enqueue(*[{"kind": "k", "lane": f"l{n % 2}", "delay": n % 2} for n in range(8)])
    db.later(seconds=2)
    held_open.claim(max_jobs=9)
    held_open.enqueue({"kind": "k", "lane": "l0"})
    db.later(seconds=60)

    upkeep = start(lambda session: session.upkeep())

    assert not upkeep.waits()
    assert upkeep.answer()["reaped"] == 0


def expired_ends(db: Protocol) -> None:
    """Two wait for both of two jobs; the lease of the second has run out for the last time."""
    fan = [{"kind": "p", "max_attempts": 1}] * 2 + [{"kind": "f", "after": [1, 2]}] * 2
    db.enqueue(*[{**item, "queue": "fan"} for item in fan])


def test_a_lease_that_ran_out_waits_for_nobody_who_counts_what_it_counts(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    expired_ends(db)
    first, _ = db.claim("fan", max_jobs=2)
    lost = [db.enqueue({"kind": "k", "queue": "other"})[0].id, db.take("other").id][1]
    held_open.ack(first)  # its followers are locked until this commits
    db.later(seconds=31)

    reaped = start(lambda session: session.reap()).answer()
    held_open.connection.commit()
    later = db.reap()

    assert [job.id for job in reaped] == [lost]
    assert [job.outcome for job in later] == ["dead"]


def test_a_claim_that_finds_nothing_waits_for_nobody_who_counts(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    expired_ends(db)
    first, _ = db.claim("fan", max_jobs=2)
    held_open.ack(first)
    db.later(seconds=31)

    claimed = start(lambda session: session.claim("fan")).answer()
    held_open.connection.rollback()

    assert claimed == []


def test_jobs_that_expire_wait_for_nobody_who_is_at_what_follows_them(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    stuck, _ = db.enqueue(
        {"kind": "p", "queue": "a", "expires": 10}, {"kind": "f", "queue": "a", "after": [1]}
    )
    free, _ = db.enqueue(
        {"kind": "p", "queue": "b", "expires": 10}, {"kind": "f", "queue": "b", "after": [1]}
    )
    held_open.enqueue({"kind": "late", "after": [str(stuck.id)]})
    db.later(seconds=20)

    start(lambda session: session.upkeep()).answer()
    states = {id: db.state(id) for id in (stuck.id, free.id)}
    held_open.connection.commit()
    db.later(seconds=70)
    db.upkeep()

    assert states == {stuck.id: "queued", free.id: "cancelled"}
    assert db.state(stuck.id) == "cancelled"


def test_upkeep_does_not_wait_for_who_is_at_the_child_of_a_dead_job(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    parents = []
    for queue in ("a", "b"):
        db.call(
            "workflow_start",
            columns=("job",),
            name="w",
            items=Jsonb([{"kind": "p", "queue": queue, "max_attempts": 1}]),
        )
        parents.append(db.take(queue))
    stuck, free = (
        db.enqueue({"kind": "c", "queue": "c", "child_of": str(parent.id), "if_failed": "cancel"})[
            0
        ].id
        for parent in parents
    )
    lost = [db.put(queue="other"), db.take("other").id][1]
    held_open.enqueue({"kind": "late", "after": [str(stuck)]})
    db.nack(*parents)
    db.later(seconds=31)

    report = start(lambda session: session.upkeep()).answer()
    states = [db.state(id) for id in (stuck, free, lost)]
    held_open.connection.commit()
    db.later(seconds=2)
    db.upkeep()

    assert report["reaped"] == 1
    assert states == ["queued", "cancelled", "queued"]
    assert db.state(stuck) == "cancelled"


def test_a_claim_that_meets_an_expired_job_waits_for_nobody_who_is_at_what_follows_it(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.enqueue(
        {"kind": "p", "queue": "fan"},
        {"kind": "p", "queue": "fan", "expires": 10},
        *[{"kind": "f", "queue": "fan", "after": [1, 2], "if_failed": "run"}] * 2,
        {"kind": "p", "queue": "fan", "expires": 10},
        {"kind": "last", "queue": "fan"},
    )
    held_open.ack(db.take("fan"))
    db.later(seconds=20)

    claimed = start(lambda session: session.claim("fan", max_jobs=9)).answer()
    held_open.connection.commit()
    db.ack(*claimed)
    db.later(seconds=70)
    db.upkeep()

    assert [job.kind for job in claimed] == ["last"]
    assert [job.kind for job in db.claim("fan", max_jobs=9)] == ["f", "f"]
