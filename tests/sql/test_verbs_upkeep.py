"""promote, sweep, floors, fold, recount, pages: idempotent steps that anyone may run."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.protocol import Later, Open, Protocol

pytestmark = pytest.mark.usefixtures("full_minute")

Connect = Callable[..., psycopg.Connection]


def test_every_step_of_upkeep_reports_what_it_did(db: Protocol, later: Later) -> None:
    db.put(delay=5)
    db.put(max_attempts=1)
    db.take()
    later(seconds=31)

    report = db.upkeep()

    steps = {"reaped", "promoted", "unstruck", "unblocked", "folded", "sampled", "floors", "pages"}
    assert set(report) == steps | {"archived", "expired"}
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
    db.delete(dead[2])
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
        " 'holdfast.history_' || to_char(ended_at at time zone 'UTC', 'YYYYMMDD') || '_kept'"
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


def names(db: Protocol, count: int, *, ago: str = "0") -> None:
    """As if each of so many queues had once had a job that was done."""
    db.connection.execute(
        "insert into holdfast.tally (part, queue, kind, done, enqueued)"
        " select holdfast.queue_part('n' || n), 'n' || n, 'k', 1, 1"
        " from generate_series(1, %s) n",
        [count],
    )
    turns(db)
    db.connection.execute(
        "update holdfast.total set at = holdfast.now() - %s::interval where queue like 'n%%'", [ago]
    )


def turns(db: Protocol) -> None:
    """Turns of upkeep until nothing that changed is left to be looked at."""
    for _ in range(200):
        if not db.upkeep().get("more") and not asked(
            db, "select count(*) from holdfast.stir s where not s.raised"
        ):
            return
    raise AssertionError("there is always more to do")


def asked(db: Protocol, query: str) -> Any:
    row = db.connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def pages_read(db: Protocol, call: str) -> int:
    """How many pages of memory a call touches, its nested statements included."""
    row = db.connection.execute(f"explain (analyze, buffers, format json) select {call}").fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def quiet_turn(db: Protocol, count: int) -> int:
    names(db, count)
    db.upkeep()  # plans are made, catalogues read
    return min(pages_read(db, "holdfast.upkeep()") for _ in range(3))


def test_a_turn_when_nothing_changed_reads_as_much_of_two_thousand_names_as_of_twenty(
    db: Protocol,
) -> None:
    few = quiet_turn(db, 20)
    db.wipe()

    many = quiet_turn(db, 2000)

    assert many < 2 * few + 200, (few, many)


def test_what_looks_on_reads_the_counters_that_changed_and_not_those_of_all_names(
    db: Protocol,
) -> None:
    names(db, 2000)
    db.connection.execute("select count(*) from holdfast.detect()")
    db.later(seconds=11)
    before = asked(db, "select count(*) from holdfast.reading")
    db.put(queue="n7")
    db.fold()

    db.connection.execute("select count(*) from holdfast.detect()")

    assert before == 2000
    assert asked(db, "select count(*) from holdfast.reading") == 2001


def test_a_turn_is_bounded_and_says_that_there_is_more(db: Protocol) -> None:
    db.connection.execute(
        "insert into holdfast.tally (part, queue, kind, done)"
        " select holdfast.queue_part('n' || n % 50), 'n' || n % 50, 'k', 1"
        " from generate_series(1, 45000) n"
    )

    reports = [db.upkeep() for _ in range(4)]

    assert [report["folded"] for report in reports] == [20000, 20000, 5000, 0]
    assert [report.get("more", False) for report in reports[:3]] == [True, True, False]


def test_promote_goes_round_more_queues_than_it_looks_at_in_one_call(
    db: Protocol, later: Later
) -> None:
    db.enqueue(*[{"kind": "k", "queue": f"q{n}", "delay": 5} for n in range(1500)])
    later(seconds=6)

    moved = [db.promote() for _ in range(3)]

    assert moved == [1000, 500, 0]


def test_a_queue_that_nobody_uses_is_forgotten(db: Protocol) -> None:
    names(db, 300, ago="31 days")
    db.connection.execute("select count(*) from holdfast.detect()")
    db.queue_set("kept", max_attempts=9)
    db.queue_set("n1", keep_activity=86400)
    db.put(queue="n2")
    db.enqueue({"kind": "k", "queue": "n3", "delay": 99})
    db.pause("n4")
    db.fold()
    db.connection.execute("update holdfast.total set at = holdfast.now() - interval '31 days'")

    for _ in range(3):
        db.later(minutes=2)
        db.upkeep()

    for table in ("total", "floor", "reading", "stir", "sampled"):
        left = db.table(f"select distinct queue from holdfast.{table} where queue like 'n%'")
        assert {row.queue for row in left} <= {"n1", "n2", "n3", "n4"}, table
    counted = db.table("select distinct queue from holdfast.total where queue like 'n%'")
    assert {row.queue for row in counted} == {"n1", "n2", "n3", "n4"}
    left = db.table("select name from holdfast.queue order by name")
    assert [row.name for row in left] == ["kept", "n1", "n2", "n3", "n4"]


def test_a_queue_that_was_used_within_thirty_days_is_remembered(db: Protocol) -> None:
    names(db, 3, ago="29 days")

    for _ in range(3):
        db.later(minutes=2)
        db.upkeep()

    assert asked(db, "select count(*) from holdfast.queues") == 3
    assert db.depth("n1") == {"done": 1}


def test_a_forgotten_queue_comes_back_with_its_next_job(db: Protocol) -> None:
    names(db, 1, ago="31 days")
    for _ in range(2):
        db.later(minutes=2)
        db.upkeep()
    gone = asked(db, "select count(*) from holdfast.queues")

    id = db.put(queue="n1")
    db.upkeep()

    assert gone == 0
    assert db.take("n1").id == id
    assert db.depth("n1") == {"leased": 1}


def refuse_rows_of(db: Protocol, kind: str) -> None:
    """Has the hot table refuse to write ready jobs of a kind, as a new constraint might."""
    db.connection.execute(
        "alter table holdfast.job add constraint refused"
        f" check (kind <> '{kind}' or pos is null) not valid"
    )


@pytest.fixture
def refusing(db: Protocol) -> Iterator[Callable[[str], None]]:
    yield lambda kind: refuse_rows_of(db, kind)
    db.connection.execute("alter table holdfast.job drop constraint if exists refused")


def test_a_row_that_cannot_be_promoted_stops_no_other_row_and_no_other_queue(
    db: Protocol, later: Later, refusing: Callable[[str], None]
) -> None:
    db.enqueue(*[{"kind": kind, "queue": "a", "delay": 1} for kind in ("bad", "good")])
    db.enqueue({"kind": "good", "queue": "b", "delay": 1})
    refusing("bad")
    later(seconds=2)

    report = db.upkeep()

    assert "failed" not in report
    assert [job.kind for queue in "ab" for job in db.claim(queue, max_jobs=9)] == ["good", "good"]
    [noted] = db.table("select step, queue, problem from holdfast.failing")
    assert (noted.step, noted.queue) == ("promoted", "a")
    assert "refused" in noted.problem


def test_a_step_that_fails_again_and_again_is_an_anomaly_until_it_works(
    db: Protocol, later: Later
) -> None:
    whole = asked(db, "select pg_get_functiondef('holdfast.unstrike(integer,text)'::regprocedure)")
    db.connection.execute(
        "create or replace function holdfast.unstrike(max_jobs integer default 1000,"
        " only_queue text default null) returns integer language sql as 'select 1 / 0'"
    )
    try:
        db.put()
        job = db.take()
        later(seconds=31)
        reports = [db.upkeep() for _ in range(3)]
        told = db.table("select change from holdfast.detect('{upkeep_failing}')")
        found = db.table("select subject, detail from holdfast.anomalies")
    finally:
        db.connection.execute(whole)
    db.upkeep()
    over = db.table("select change from holdfast.detect('{upkeep_failing}')")

    assert [set(report["failed"]) for report in reports] == [{"unstruck"}] * 3
    assert reports[0]["reaped"] == 1, job
    assert [(each.subject, "division by zero" in each.detail) for each in found] == [
        ("unstruck", True)
    ]
    assert [each.change for each in (*told, *over)] == ["raised", "resolved"]


def test_steps_can_be_named_and_no_others_are_done(db: Protocol, later: Later) -> None:
    db.put(delay=5)
    db.put()
    db.take()
    later(seconds=31)

    report = db.value("upkeep", steps=["promoted"])

    assert report == {"promoted": 1}
    with pytest.raises(psycopg.Error, match="no step of upkeep is called 'sleep'") as refused:
        db.value("upkeep", steps=["sleep"])
    assert refused.value.sqlstate == "HF221"


def test_the_first_days_history_is_deleted_in_slices_that_hold_up_no_writer(
    db: Protocol, other: Open
) -> None:
    db.queue_set("default", keep_done=60)
    db.value("turn_pages")
    db.connection.execute(
        "insert into holdfast.history (part, id, state, queue, kind, priority, attempt,"
        " max_attempts, run_at, created_at, ended_at, payload)"
        " select 0, gen_random_uuid(), 'done', 'default', 'k', 0, 1, 3, now(), now(),"
        " now() - interval '30 days', '{}' from generate_series(1, 7000)"
    )
    keeper = other(autocommit=False)

    deleted = keeper.value("turn_pages")
    locks = keeper.table(
        "select c.relname, l.mode from pg_locks l join pg_class c on c.oid = l.relation"
        " where l.pid = pg_backend_pid() and l.mode = 'AccessExclusiveLock'"
    )
    db.put()
    answer = db.ack(db.take())[0].outcome
    keeper.connection.commit()

    assert (deleted, locks, answer) == (5000, [], "done")
    assert [db.value("turn_pages") for _ in range(2)] == [2000, 0]


@pytest.mark.parametrize("joins", ["hashjoin", "mergejoin", "nestloop"])
def test_pages_turn_in_whatever_order_their_names_are_read(
    connect: Connect, clock: Any, joins: str
) -> None:
    db = Protocol(connect())
    for other in {"hashjoin", "mergejoin", "nestloop"} - {joins}:
        db.connection.execute(f"set enable_{other} = off")
    db.connection.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    db.value("turn_pages")

    clock.advance(days=40)

    assert db.value("turn_pages") > 0


@pytest.mark.parametrize("setting", ["keep_done", "lease", "backoff", "backoff_cap", "rate_period"])
@pytest.mark.parametrize("seconds", [1e12, 1e300, "NaN", "Infinity"])
def test_a_duration_that_nobody_can_mean_is_refused(
    db: Protocol, setting: str, seconds: Any
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        db.queue_set("default", **{setting: seconds, "rate_limit": 1})

    assert refused.value.sqlstate == "HF221"
    db.upkeep()
    assert db.value("turn_pages") == 0


def test_a_rate_period_of_a_lane_that_nobody_can_mean_is_refused(db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refused:
        db.lane_set("default", "l", rate_limit=1, rate_period=1e12)

    assert refused.value.sqlstate == "HF221"
    assert "failed" not in db.upkeep()


def close_leases(db: Protocol, count: int) -> None:
    """Leave so many claims behind whose jobs were settled long ago, and take them back."""
    db.connection.execute(
        """
        insert into holdfast.lease (token, part, queue, worker, claimed_at, length, until, ids)
        select gen_random_uuid(), 0, 'default', 'w', holdfast.now() - interval '1 minute',
               '30 seconds', holdfast.now() - make_interval(secs => 10 + 20 * random()),
               array[gen_random_uuid()]
        from generate_series(1, %s)
        """,
        [count],
    )
    db.reap()


IDLE = "id from holdfast.claim(queue => 'default', worker => 'w', token => gen_random_uuid())"


def test_closed_leases_that_cannot_be_vacuumed_do_not_make_idle_claims_dearer(
    db: Protocol, other: Open, later: Later
) -> None:
    pin = other(autocommit=False)
    pin.connection.execute("set transaction isolation level repeatable read")
    pin.connection.execute("select from holdfast.job")
    few = [pages_read(db, IDLE) for _ in range(3)][-1]
    close_leases(db, 4000)
    later(seconds=6)
    db.reap()  # the place of the first lease is noted

    many = [pages_read(db, IDLE) for _ in range(3)][-1]

    assert many < 2 * few + 100, (few, many)


def test_a_lease_that_was_written_long_before_it_is_seen_is_taken_back(
    db: Protocol, other: Open, later: Later
) -> None:
    id = db.put()
    late = other(autocommit=False)
    late.claim()
    later(seconds=40)
    db.reap()  # everything that can be seen ends later than this
    later(seconds=6)
    db.reap()
    late.connection.commit()

    assert [job.id for job in db.reap()] == [id]


def test_a_lease_from_before_the_last_reap_is_taken_back_by_a_claim_if_nobody_else_does(
    db: Protocol, other: Open, later: Later
) -> None:
    id = db.put()
    late = other(autocommit=False)
    late.claim()
    later(seconds=40)
    db.reap()
    late.connection.commit()
    later(seconds=61)

    assert [job.id for job in db.claim()] == [id]
