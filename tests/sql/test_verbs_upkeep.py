"""promote, sweep, floors, fold, recount, pages: idempotent steps that anyone may run."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.protocol import Later, Open, Protocol

Connect = Callable[..., psycopg.Connection]


def test_every_step_of_upkeep_reports_what_it_did(db: Protocol, later: Later) -> None:
    db.put(delay=5)
    db.put(max_attempts=1)
    db.take()
    later(seconds=31)

    report = db.upkeep()

    steps = {"reaped", "promoted", "unstruck", "unblocked", "folded", "sampled", "floors", "pages"}
    assert set(report) == steps
    assert (report["reaped"], report["promoted"]) == (1, 1)
    assert report["folded"] > 0


def test_a_second_turn_finds_nothing_to_do(db: Protocol, later: Later) -> None:
    db.enqueue(*[{"kind": "k", "lane": f"l{n % 3}", "delay": n} for n in range(9)])
    later(seconds=31)
    db.upkeep()
    db.upkeep()

    report = db.upkeep()

    assert {name: n for name, n in report.items() if n} == {}


def test_upkeep_leaves_the_callers_settings_alone(db: Protocol) -> None:
    with db.connection.transaction():
        db.upkeep()
        row = db.connection.execute(
            "select current_setting('lock_timeout'), current_setting('synchronous_commit')"
        ).fetchone()

    assert row == ("0", "on")


def test_promote_moves_no_more_than_it_was_told(db: Protocol, later: Later) -> None:
    db.enqueue(*[{"kind": "k", "delay": 1}] * 25)
    later(seconds=2)

    assert [db.promote(max_jobs=10) for _ in range(4)] == [10, 10, 5, 0]


def test_floors_rise_behind_what_is_finished_and_lose_nothing(db: Protocol) -> None:
    db.queue_set("default")
    left = []
    for _ in range(5):
        db.enqueue(*[{"kind": "k", "priority": n % 3, "max_attempts": 9} for n in range(300)])
        jobs = db.claim(max_jobs=290)
        db.ack(*jobs[10:])
        db.nack(*jobs[:5], delay=timedelta(0))
        db.release(*jobs[5:10])
        db.raise_floors()
        db.raise_floors()
        left += [job.id for job in jobs[:10]]

    row = db.connection.execute("select max(floors[10]) from holdfast.floor").fetchone()
    assert row is not None
    assert row[0] > 0
    remaining = [job.id for job in db.claim(max_jobs=1000)]
    assert len(remaining) == len(set(remaining)) == 5 * 300 - 5 * 280
    assert {id for id in left if db.state(id) == "leased"} <= set(remaining)


def test_floors_do_not_grow_a_table(db: Protocol) -> None:
    db.queue_set("default")
    for _ in range(10):
        db.enqueue(*[{"kind": "k"}] * 300)
        db.ack(*db.claim(max_jobs=300))
        db.raise_floors()
        db.raise_floors()

    row = db.connection.execute("select count(*) from holdfast.floor").fetchone()
    assert row == (1,)


def test_a_stray_below_the_floor_is_lifted(db: Protocol) -> None:
    db.queue_set("default")
    id = db.put()
    db.connection.execute(
        "insert into holdfast.floor (part, queue, floors)"
        " select holdfast.queue_part('default'), 'default', array_fill(pos + 1, array[10])"
        " from holdfast.job"
    )
    hidden = db.claim()

    lifted = db.lift_strays()

    assert (hidden, lifted) == ([], 1)
    assert [job.id for job in db.claim()] == [id]


@pytest.mark.proves("S4.33")
def test_folding_changes_no_count(db: Protocol) -> None:
    query = "select queue, kind, state, jobs from holdfast.depth where jobs <> 0 order by 1, 2, 3"

    # More than once: what is there already is added to.
    for _ in range(3):
        db.enqueue(*[{"kind": "k", "queue": f"q{n % 3}", "max_attempts": 1} for n in range(24)])
        for queue in ("q0", "q1"):
            jobs = db.claim(queue, max_jobs=6)
            db.ack(jobs[0])
            db.nack(*jobs[1:4])
            db.cancel(jobs[4].id)
            db.archive(jobs[3].id)
        before = db.connection.execute(query).fetchall()

        folded = db.fold()

        assert folded > 0
        assert db.connection.execute(query).fetchall() == before
        assert db.connection.execute("select count(*) from holdfast.tally").fetchone() == (0,)
    states = {"queued", "leased", "done", "dead", "cancelled", "archived"}
    assert {state for _, _, state, _ in before} == states


@pytest.mark.proves("S4.33")
def test_recount_finds_and_corrects_a_wrong_counter(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 3)
    db.connection.execute("delete from holdfast.tally")

    [found] = db.recount()

    assert (found.queue, found.kind, found.queued) == ("default", "k", 3)
    assert db.depth() == {"queued": 3}
    assert db.recount() == []


def test_the_counters_are_right_in_every_queue_kind_and_state(db: Protocol) -> None:
    db.queue_set("a", keep_done=60)
    items = [
        {"kind": f"k{n % 3}", "queue": "ab"[n % 2], "max_attempts": 1 + n % 2} for n in range(60)
    ]
    db.enqueue(*items)
    for queue in "ab":
        jobs = db.claim(queue, max_jobs=20)
        db.ack(*jobs[:4])
        db.nack(*jobs[4:8], delay=timedelta(0))
        db.release(*jobs[8:10])
        db.cancel(*[job.id for job in jobs[10:13]])
        db.settle(
            {"verb": "ack", "id": jobs[13].id, "token": jobs[13].token},
            {"verb": "nack", "id": jobs[14].id, "token": jobs[14].token},
        )
    dead = db.find("state:dead")
    db.retry(dead[0])
    db.archive(dead[1])
    db.purge(dead[2])
    db.move(dead[3], queue="c")

    truth = db.connection.execute(
        "select queue, kind, state, count(*) from holdfast.jobs where state <> 'done'"
        " group by 1, 2, 3 order by 1, 2, 3"
    ).fetchall()
    counted = db.connection.execute(
        "select queue, kind, state, jobs from holdfast.depth"
        " where state <> 'done' and jobs <> 0 order by 1, 2, 3"
    ).fetchall()

    assert counted == truth
    assert db.depth("a")["done"] == 5


def test_history_is_written_into_the_page_of_its_day_and_dropped_with_it(
    connect: Connect, clock: Any
) -> None:
    db = Protocol(connect())
    db.queue_set("default", keep_done=3600)
    db.upkeep()
    db.put()
    db.ack(db.take())
    kept = db.depth(), db.connection.execute("select count(*) from holdfast.history").fetchone()
    clock.advance(days=9)

    db.upkeep()

    assert kept == ({"done": 1}, (1,))
    assert db.connection.execute("select count(*) from holdfast.history").fetchone() == (0,)
    pages = db.connection.execute(
        "select count(*) from pg_inherits where inhparent = 'holdfast.history'::regclass"
    ).fetchone()
    assert pages is not None
    assert pages[0] <= 6


@pytest.mark.proves("S4.36")
def test_a_page_of_history_is_kept_for_as_long_as_its_jobs_are_and_then_dropped(
    connect: Connect, clock: Any
) -> None:
    db = Protocol(connect())
    db.queue_set("default", keep_done=10 * 86400)
    db.upkeep()
    clock.advance(days=1)
    db.put()
    db.ack(db.take())
    where = (
        "select tableoid::regclass::text,"
        " 'holdfast.history_' || to_char(ended_at at time zone 'UTC', 'YYYYMMDD')"
        " from holdfast.history"
    )
    [(page, its_day)] = db.connection.execute(where).fetchall()

    clock.advance(days=10)
    db.upkeep()
    kept = db.connection.execute(where).fetchall()
    clock.advance(days=1)
    db.upkeep()

    assert page == its_day
    assert kept == [(page, its_day)]
    assert db.connection.execute("select to_regclass(%s)", [page]).fetchone() == (None,)


def test_the_steps_may_run_in_one_transaction_that_is_undone(db: Protocol, other: Open) -> None:
    id = db.put(delay=1)
    db.later(seconds=2)
    keeper = other(autocommit=False)
    keeper.upkeep()

    keeper.connection.rollback()

    assert db.take().id == id
