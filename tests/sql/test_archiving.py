"""Dead and done jobs are put away by the policy of their queue, in bounded slices."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from tests.protocol import Later, Open, Protocol

MONTH = timedelta(days=30).total_seconds()


def die(db: Protocol, count: int = 1, queue: str = "default", **item: object) -> list[UUID]:
    db.enqueue(*[{"kind": "k", "queue": queue, **item}] * count)
    held = db.claim(queue, max_jobs=count)
    db.nack(*held, final=True)
    return [job.id for job in held]


def do(db: Protocol, count: int = 1, queue: str = "default") -> list[UUID]:
    db.enqueue(*[{"kind": "k", "queue": queue}] * count)
    held = db.claim(queue, max_jobs=count)
    db.ack(*held)
    return [job.id for job in held]


def states(db: Protocol, *ids: UUID) -> list[str | None]:
    return [db.state(id) for id in ids]


@pytest.mark.proves("S4.15", "S4.36")
def test_dead_jobs_are_archived_when_they_have_been_dead_for_as_long_as_their_queue_says(
    db: Protocol, later: Later
) -> None:
    db.queue_set("default", archive_dead=MONTH)
    [old] = die(db)
    [other] = die(db, queue="other")
    later(days=29)
    [young] = die(db)

    early = db.upkeep()["archived"]
    later(days=1, seconds=1)
    due = db.upkeep()["archived"]

    assert (early, due) == (0, 1)
    assert states(db, old, young, other) == ["archived", "dead", "dead"]
    job = db.job(old)
    assert job.reason == "dead for 30 days (archive_dead of its queue)"
    assert job.payload == {}
    [row] = db.table("select actor from holdfast.events where event = 'archived'")
    assert row[0] == "upkeep"
    assert db.retry(old)[0].changed


@pytest.mark.proves("S4.15", "S4.36")
def test_done_jobs_that_are_kept_are_archived_by_policy_too(db: Protocol, later: Later) -> None:
    db.queue_set("default", keep_done=MONTH, archive_done=7 * 86400)
    db.queue_set("other", keep_done=MONTH)
    old, kept = do(db, 3), do(db, 2, queue="other")
    later(days=6)
    young = do(db)
    first = db.upkeep()["archived"]
    later(days=1, seconds=1)
    second = db.upkeep()["archived"]

    assert (first, second) == (0, 3)
    assert set(states(db, *old)) == {"archived"}
    assert set(states(db, *young, *kept)) == {"done"}
    assert db.job(old[0]).reason == "done for 7 days (archive_done of its queue)"


def test_without_a_policy_nothing_is_archived(db: Protocol, later: Later) -> None:
    ids = die(db, 3)
    db.queue_set("default", archive_dead=60)
    db.queue_set("default", archive_dead=None)
    later(days=300)

    assert db.upkeep()["archived"] == 0
    assert set(states(db, *ids)) == {"dead"}


def test_a_dead_job_that_halts_its_lane_waits_for_a_person(db: Protocol, later: Later) -> None:
    db.queue_set("default", archive_dead=60, lane_on_failure="halt")
    [halting] = die(db, lane="bank")
    [other] = die(db)
    waiting = db.put(lane="bank")
    later(seconds=61)

    assert db.upkeep()["archived"] == 1

    assert states(db, halting, other) == ["dead", "archived"]
    assert "is halted because" in db.explain(waiting)
    assert "archives it" not in db.explain(halting)


def test_a_turn_archives_a_bounded_amount_and_says_that_there_is_more(
    db: Protocol, later: Later
) -> None:
    db.queue_set("default", archive_dead=60)
    die(db, 700)
    later(seconds=61)

    first, second, third = db.upkeep(), db.upkeep(), db.upkeep()

    assert [turn["archived"] for turn in (first, second, third)] == [500, 200, 0]
    assert first["more"] is True
    assert db.depth()["archived"] == 700


def test_done_jobs_are_read_in_windows_until_all_are_found(db: Protocol, later: Later) -> None:
    db.queue_set("default", keep_done=MONTH, archive_done=60)
    do(db, 50)
    later(seconds=61)

    turns = [
        db.value("archive_old", most=1000, max_rows=20),
        db.value("archive_old", most=1000, max_rows=20),
        db.value("archive_old", most=1000, max_rows=20),
        db.value("archive_old", most=1000, max_rows=20),
    ]
    do(db, 1)
    later(seconds=61)

    assert turns == [20, 20, 10, 0]
    assert db.value("archive_old", most=1000, max_rows=20) == 1


def test_upkeep_waits_for_nobody_who_is_at_a_job(db: Protocol, other: Open, later: Later) -> None:
    db.queue_set("default", keep_done=MONTH, archive_dead=60, archive_done=60)
    (dead, free), (done, kept) = die(db, 2), do(db, 2)
    later(seconds=61)
    operator = other(autocommit=False)
    operator.retry(dead)
    operator.archive(done, reason="by hand")
    db.connection.execute("set lock_timeout = '1s'")

    first = db.upkeep()
    operator.connection.commit()

    assert first["archived"] == 2
    assert states(db, dead, free, done, kept) == ["queued", "archived", "archived", "archived"]
    assert db.job(done).reason == "by hand"
    db.connection.execute("reset lock_timeout")


def test_a_queue_with_a_long_line_does_not_keep_others_from_their_turn(
    db: Protocol, later: Later
) -> None:
    for queue in ("a", "b"):
        db.queue_set(queue, archive_dead=60)
    die(db, 30, queue="a")
    [other] = die(db, queue="b")
    later(seconds=61)

    turns = [db.value("archive_old", most=10) for _ in range(2)]
    second = db.state(other)
    turns += [db.value("archive_old", most=10) for _ in range(3)]

    assert second == "archived"
    assert turns == [10, 10, 10, 1, 0]


def test_a_fanned_out_queue_is_archived_in_all_its_parts(db: Protocol, later: Later) -> None:
    db.queue_set("wide", fanout=4, keep_done=MONTH, archive_done=60, archive_dead=60)
    done = [id for _ in range(10) for id in do(db, 1, queue="wide")]
    dead = [id for _ in range(10) for id in die(db, 1, queue="wide")]
    later(seconds=61)

    for _ in range(4):
        db.upkeep()

    assert set(states(db, *done, *dead)) == {"archived"}


def test_of_an_id_that_ended_twice_only_what_is_old_enough_is_archived(
    db: Protocol, later: Later
) -> None:
    db.queue_set("default", archive_dead=60)
    die(db)
    later(seconds=61)
    # One that was cancelled as long ago, and one that is dead since now.
    db.connection.execute(
        "insert into holdfast.ended (part, id, state, queue, kind, priority, attempt, max_attempts,"
        " run_at, created_at, ended_at, fingerprint, payload)"
        " select d.part, d.id, x.state, d.queue, d.kind, d.priority, d.attempt, d.max_attempts,"
        " d.run_at, d.created_at, x.at, d.fingerprint, d.payload from holdfast.dead d"
        " cross join lateral (values ('cancelled', d.ended_at), ('dead', holdfast.now()))"
        " x(state, at)"
    )
    db.connection.execute(
        "insert into holdfast.tally (part, queue, kind, dead, cancelled)"
        " select distinct part, queue, kind, 1, 1 from holdfast.dead"
    )
    db.connection.execute(
        "insert into holdfast.dead_tally (part, fingerprint, kind, queue, jobs)"
        " select distinct part, fingerprint, kind, queue, 1 from holdfast.dead"
    )

    assert db.upkeep()["archived"] == 1

    rows = db.table("select state from holdfast.ended order by state")
    assert [state for (state,) in rows] == ["archived", "cancelled", "dead"]


def test_history_is_not_dropped_before_what_is_to_be_archived_had_its_day(db: Protocol) -> None:
    db.queue_set("default", keep_done=60, archive_done=40 * 86400)

    [row] = db.table("select keep from holdfast.books() where name = 'history'")

    assert row[0] == 41


def test_done_jobs_that_are_deleted_cannot_be_archived(db: Protocol) -> None:
    with pytest.raises(psycopg.Error, match="are not valid for a queue") as refused:
        db.queue_set("default", archive_done=60)

    assert refused.value.sqlstate == "HF221"
    assert "archive_done needs keep_done" in (refused.value.diag.message_detail or "")


def test_explain_says_when_a_dead_job_will_be_archived(db: Protocol) -> None:
    [id] = die(db)
    before = db.explain(id)
    db.queue_set("default", archive_dead=MONTH)
    at = db.job(id).ended_at
    assert at is not None

    assert "archives it" not in before
    due = f"{at + timedelta(days=30):%Y-%m-%d %H:%M:%S}"
    assert db.explain(id).endswith(f" (its queue archives it at {due} UTC)")
