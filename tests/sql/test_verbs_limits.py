"""Queue limits, rates, pauses and fair shares."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.protocol import Later, Open, Protocol


def test_a_queue_runs_no_more_than_its_limit(db: Protocol) -> None:
    db.queue_set("default", limit=3)
    db.enqueue(*[{"kind": "k"}] * 9)

    first = db.claim(max_jobs=9)
    none = db.claim(max_jobs=9)
    db.ack(first[0])
    db.nack(first[1])
    second = db.claim(max_jobs=9)

    assert (len(first), len(none), len(second)) == (3, 0, 2)


def test_a_crashed_worker_gives_its_slots_back(db: Protocol, later: Later) -> None:
    db.queue_set("default", limit=2)
    db.enqueue(*[{"kind": "k"}] * 4)
    db.claim(max_jobs=9)
    later(seconds=31)

    assert len(db.claim(max_jobs=9)) == 2


@pytest.mark.parametrize("how", ["release", "give up", "nack"])
def test_every_way_out_frees_a_slot(db: Protocol, how: str) -> None:
    db.queue_set("default", limit=1)
    db.enqueue(*[{"kind": "k"}] * 2)
    job = db.take()

    if how == "give up":
        db.settle({"verb": "cancel", "id": job.id, "token": job.token})
    else:
        getattr(db, how)(job)

    assert len(db.claim(max_jobs=9)) == 1


def test_a_limit_counts_what_ran_before_it_was_set(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 5)
    db.claim(max_jobs=2)

    db.queue_set("default", limit=3)

    assert len(db.claim(max_jobs=9)) == 1


def test_a_limit_of_zero_stops_and_null_lifts(db: Protocol) -> None:
    db.queue_set("default", limit=0)
    db.put()

    stopped = db.claim()
    db.queue_set("default", limit=None)

    assert stopped == []
    assert len(db.claim()) == 1


def test_a_limited_queue_still_gives_lanes_their_order(db: Protocol) -> None:
    db.queue_set("default", limit=2)
    ids = [db.put("k", lane=name) for name in "aabbc"]

    assert [job.id for job in db.claim(max_jobs=9)] == [ids[0], ids[2]]


def test_a_rated_queue_starts_so_many_in_any_period(db: Protocol, later: Later) -> None:
    db.queue_set("default", rate_limit=3, rate_period=60)
    db.enqueue(*[{"kind": "k"}] * 20)

    starts = []
    for seconds in (0, 30, 31, 30, 30):
        later(seconds=seconds)
        starts.append(len(db.claim(max_jobs=2 if not starts else 9)))

    # 2 at 0 s, 1 at 30 s; the 2 of 0 s are out of the window at 61 s, the 1 of 30 s at 91 s
    assert starts == [2, 1, 2, 1, 2]


def test_finishing_early_does_not_raise_a_rate(db: Protocol) -> None:
    db.queue_set("default", rate_limit=2, rate_period=60)
    db.enqueue(*[{"kind": "k"}] * 5)

    db.ack(*db.claim(max_jobs=9))

    assert db.claim(max_jobs=9) == []


def test_used_rates_do_not_pile_up(db: Protocol, later: Later) -> None:
    db.queue_set("default", rate_limit=100, rate_period=1)
    db.lane_set("default", "l", rate_limit=100, rate_period=1)
    for _ in range(10):
        db.put("k", lane="l")
        db.ack(db.take())
        later(minutes=1)
        db.upkeep()

    row = db.connection.execute("select count(*) from holdfast.rate_use").fetchone()
    assert row is not None
    assert row[0] <= 2


def test_a_paused_queue_hands_out_nothing_and_lets_run_what_runs(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 2)
    running = db.take()

    db.pause("default", reason="deploy", actor="ada")
    paused = db.claim()
    outcomes = [db.touch(running)[0].outcome, db.ack(running)[0].outcome]
    db.put()
    db.resume("default")

    assert paused == []
    assert outcomes == ["leased", "done"]
    assert len(db.claim(max_jobs=9)) == 2


def test_a_pause_ends_by_itself(db: Protocol, later: Later) -> None:
    db.put()
    db.pause("default", until=datetime.now(UTC) + timedelta(minutes=5))

    later(minutes=4)
    paused = db.claim()
    later(minutes=2)

    assert paused == []
    assert len(db.claim()) == 1


def test_a_pause_is_seen_with_its_author_and_reason(db: Protocol) -> None:
    db.pause("default", reason="deploy", actor="ada")

    row = db.connection.execute(
        "select paused_by, paused_reason, paused_until from holdfast.queues where queue = 'default'"
    ).fetchone()

    assert row == ("ada", "deploy", None)


def test_a_pause_until_the_past_is_refused(db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.pause("default", until=datetime(2020, 1, 1, tzinfo=UTC))

    assert refusal.value.sqlstate == "HF204"


def test_tenants_are_served_in_turn(db: Protocol) -> None:
    db.queue_set("default", fair=True)
    for tenant, jobs in (("a", 6), ("b", 2), ("c", 1)):
        db.enqueue(*[{"kind": "k", "tenant": tenant}] * jobs)

    first = [job.tenant for job in db.claim(max_jobs=4)]
    second = [db.take().tenant for _ in range(5)]

    assert sorted(first[:3]) == ["a", "b", "c"]
    assert sorted(first + second) == ["a"] * 6 + ["b"] * 2 + ["c"]
    assert "b" in second[:2]


def test_a_tenant_does_not_wait_for_the_backlog_of_another(db: Protocol) -> None:
    db.queue_set("default", fair=True)
    db.enqueue(*[{"kind": "k", "tenant": "big"}] * 50)
    db.claim(max_jobs=10)
    small = db.put("k", tenant="small")

    assert small in [job.id for job in db.claim(max_jobs=2)]


def test_fair_share_respects_priorities_kinds_and_lanes(db: Protocol) -> None:
    db.queue_set("default", fair=True)
    low = db.put("k", tenant="a")
    high = db.put("k", tenant="b", priority=5)
    db.put("x", tenant="c", priority=9)
    lane = [db.put("k", tenant=tenant, lane="l") for tenant in "de"]

    claimed = [job.id for job in db.claim(max_jobs=9, kinds=["k"])]

    assert claimed[0] == high
    assert set(claimed) == {low, high, lane[0]}


@pytest.mark.parametrize("lane", ["x", None])
def test_fair_share_and_lanes_together_keep_the_priorities(db: Protocol, lane: str | None) -> None:
    db.queue_set("default", fair=True)
    db.put("k", priority=2)
    db.put("k", tenant="t", priority=1)
    db.put("k", tenant="t", priority=2, lane=lane)

    assert [db.take().priority for _ in range(3)] == [2, 2, 1]


def test_jobs_without_a_tenant_share_one_turn(db: Protocol) -> None:
    before = db.put("k")
    db.queue_set("default", fair=True)
    after = db.put("k")
    named = db.put("k", tenant="t")

    claimed = [job.id for job in db.claim(max_jobs=9)]

    assert sorted(claimed) == sorted([before, after, named])
    assert named in claimed[:2]


def test_switching_fair_share_off_loses_no_job(db: Protocol) -> None:
    db.queue_set("default", fair=True)
    ids = [db.put("k"), db.put("k", tenant="t")]
    db.queue_set("default", fair=False)

    assert [job.id for job in db.claim(max_jobs=9)] == ids


def test_a_job_copied_into_a_fair_queue_is_claimed(db: Protocol) -> None:
    db.queue_set("mail", fair=True)
    part, id = db.value("queue_part", queue="mail"), db.value("new_id", queue="mail")
    with db.connection.transaction(), db.connection.cursor() as cursor:
        with cursor.copy("copy holdfast.job (part, id, queue, kind) from stdin") as copy:
            copy.write_row((part, id, "mail", "send"))
        cursor.execute("select holdfast.copied('mail', array['send'], array[1])")

    assert [job.id for job in db.claim("mail")] == [id]


def copy_in(db: Protocol, queue: str, **fields: Any) -> UUID:
    """Copy one job into the queue, in the transaction that is open, and say so."""
    row = {
        "part": db.value("queue_part", queue=queue),
        "id": db.value("new_id", queue=queue),
        "queue": queue,
        "kind": "send",
        **fields,
    }
    with db.connection.cursor() as cursor:
        with cursor.copy(f"copy holdfast.job ({', '.join(row)}) from stdin") as copy:
            copy.write_row(tuple(row.values()))
        cursor.execute("select holdfast.copied(%s, array['send'], array[1])", [queue])
    return UUID(str(row["id"]))


@pytest.mark.parametrize("setting", ["by_kind", "fair"])
def test_a_copy_reads_the_jobs_that_it_copied_however_many_wait(db: Protocol, setting: str) -> None:
    db.queue_set("mail", **{setting: True})
    db.enqueue(*[{"kind": "send", "queue": "mail"}] * 3000)

    with db.connection.transaction():
        before = db.rows_read()
        copy_in(db, "mail")
        read = db.rows_read() - before

    assert read < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"tenant": "t"},
        {"priority": 5},
        {"pos": None, "run_at": datetime.now(UTC) + timedelta(seconds=5)},
    ],
)
def test_a_job_copied_into_a_queue_by_kind_is_claimed_by_its_kind(
    db: Protocol, later: Later, fields: dict[str, Any]
) -> None:
    db.queue_set("mail", by_kind=True, fair=True)
    with db.connection.transaction():
        id = copy_in(db, "mail", **fields)
    db.queue_set("mail", fair=False)

    later(seconds=6)
    db.promote()

    assert [job.id for job in db.claim("mail", kinds=["send"])] == [id]


def test_a_job_copied_behind_a_savepoint_while_others_enqueue_is_claimed_by_its_kind(
    db: Protocol, other: Open
) -> None:
    db.queue_set("mail", by_kind=True)
    importing = other(autocommit=False)
    with importing.connection.transaction():
        early = copy_in(importing, "mail")
    db.enqueue(*[{"kind": "other", "queue": "mail"}] * 500)
    with importing.connection.transaction():
        late = copy_in(importing, "mail")
    importing.connection.commit()

    claimed = db.claim("mail", max_jobs=9, kinds=["send"])

    assert [job.id for job in claimed] == [early, late]


def test_a_fair_claim_looks_at_as_many_tenants_as_it_takes_jobs(db: Protocol) -> None:
    db.queue_set("default", fair=True)
    db.enqueue(*[{"kind": "k", "tenant": f"t{n:04}"} for n in range(1000)])
    db.take()

    with db.connection.transaction():
        before = db.rows_read()
        claimed = [job.tenant for job in db.claim(max_jobs=5)]
        read = db.rows_read() - before

    assert claimed == [f"t{n:04}" for n in range(1, 6)]
    assert read < 100


def test_the_turn_goes_round_from_the_last_tenant_to_the_first(db: Protocol) -> None:
    db.queue_set("default", fair=True)
    db.enqueue(*[{"kind": "k", "tenant": tenant} for tenant in "abcde" * 2])
    db.claim(max_jobs=3)

    assert [job.tenant for job in db.claim(max_jobs=4)] == ["d", "e", "a", "b"]
    assert [job.tenant for job in db.claim(max_jobs=9)] == ["c", "d", "e"]


@pytest.mark.parametrize("setting", ["fair", "by_kind"])
def test_a_copy_of_nothing_ends(db: Protocol, setting: str) -> None:
    db.queue_set("mail", **{setting: True})
    db.put(queue="mail")
    db.connection.execute("set statement_timeout = '10s'")

    db.value("copied", queue="mail", kinds=[], counts=[])
    db.connection.execute("select holdfast.copied('mail', null, null)")

    assert db.depth("mail") == {"queued": 1}
