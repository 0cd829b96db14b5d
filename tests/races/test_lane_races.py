"""Lanes under concurrency: exact, never stuck, never waiting, never deadlocked."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.protocol import Later, Open, Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


def lane(db: Protocol, jobs: int, name: str = "l") -> list[UUID]:
    return [each.id for each in db.enqueue(*[{"kind": "k", "lane": name}] * jobs)]


def one_by_one(db: Protocol, jobs: int, name: str = "l") -> list[UUID]:
    return [db.put("k", lane=name) for _ in range(jobs)]


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("enqueue", [lane, one_by_one])
def test_a_lanes_limit_is_exact_under_eight_workers(
    db: Protocol, at_once: AtOnce, limit: int, enqueue: Any
) -> None:
    db.lane_set("default", "l", limit=limit)
    enqueue(db, 60)

    def work(session: Protocol, nth: int) -> int:
        most = 0
        for _ in range(25):
            jobs = session.claim(worker=f"w{nth}", max_jobs=2)
            row = session.connection.execute(
                "select count(*) from holdfast.job where token is not null"
            ).fetchone()
            assert row is not None
            most = max(most, row[0])
            session.ack(*jobs)
        return most

    most = at_once(8, work)

    assert not [each for each in most if isinstance(each, Exception)]
    assert max(most) <= limit


def test_a_burst_of_claims_starts_one_job_of_each_lane(db: Protocol, at_once: AtOnce) -> None:
    for name in "abc":
        lane(db, 10, name)

    claims = at_once(8, lambda session, nth: session.claim(worker=f"w{nth}", max_jobs=5))

    lanes = [job.lane for claim in claims for job in claim]
    rest = [job.lane for job in db.claim(max_jobs=9)]
    assert sorted(lanes + rest) == ["a", "b", "c"]


def test_a_lane_runs_in_order_under_eight_workers(db: Protocol, at_once: AtOnce) -> None:
    ids = lane(db, 40)
    ran: list[UUID] = []

    def work(session: Protocol, nth: int) -> None:
        for _ in range(200):
            if len(ran) == len(ids):
                return
            for job in session.claim(worker=f"w{nth}"):
                ran.append(job.id)
                session.ack(job)

    failures = [each for each in at_once(8, work) if each is not None]

    assert failures == []
    assert ran == ids


@pytest.mark.parametrize("jobs", [2, 4])
def test_two_settles_of_one_lane_leave_none_stuck(
    db: Protocol, held_open: Protocol, start: Start, jobs: int
) -> None:
    db.lane_set("default", "l", limit=2)
    ids = lane(db, 2 + jobs)
    first, second = db.claim(max_jobs=9)
    held_open.ack(first)
    other = start(lambda session: session.ack(second)[0].outcome)
    assert not other.waits()
    held_open.connection.commit()
    assert other.answer() == "done"

    ran = []
    while claimed := db.claim(max_jobs=9):
        assert len(claimed) <= 2
        ran += [job.id for job in claimed]
        db.ack(*claimed)

    assert ran == ids[2:]


def test_an_ack_and_an_enqueue_of_one_lane_leave_none_stuck(
    db: Protocol, held_open: Protocol
) -> None:
    lane(db, 1)
    running = db.take()
    late = one_by_one(held_open, 2)
    db.ack(running)

    held_open.connection.commit()

    ran = []
    while claimed := db.claim(max_jobs=9):
        ran += [job.id for job in claimed]
        db.ack(*claimed)
    assert ran == late


def test_an_ack_beside_an_edit_of_the_next_leaves_none_stuck(
    db: Protocol, held_open: Protocol
) -> None:
    ids = lane(db, 2)
    running = db.take()
    held_open.edit(ids[1], changes={"payload": "new"})
    db.ack(running)
    held_open.connection.commit()
    db.sweep()

    assert [job.id for job in db.claim(max_jobs=9)] == ids[1:]


@pytest.mark.parametrize("verb", ["ack", "nack", "release"])
def test_a_holder_that_settles_while_it_is_being_cancelled_lets_the_lane_go(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    ids = lane(db, 2)
    running = db.take()
    held_open.cancel(running.id)
    settling = start(lambda session: getattr(session, verb)(running))
    assert settling.waits()

    held_open.connection.commit()

    [answer] = settling.answer()
    assert answer.outcome == "lost"
    assert [job.id for job in db.claim(max_jobs=9)] == ids[1:]


def test_a_claim_beside_a_cancel_under_way_finds_the_lane_taken_before_and_after(
    db: Protocol, held_open: Protocol
) -> None:
    lane(db, 2)
    running = db.take()
    held_open.cancel(running.id)

    during = db.claim(max_jobs=9)
    held_open.connection.commit()

    assert (during, db.claim(max_jobs=9)) == ([], [])
    db.release(running)


def test_letting_go_while_the_lease_of_a_cancelled_job_is_taken_back_frees_one_slot(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    db.lane_set("default", "l", limit=2)
    ids = lane(db, 4)
    first, second = db.claim(max_jobs=9, lease=timedelta(hours=1))
    db.cancel(first.id)
    later(hours=2)
    db.touch(second)
    held_open.reap()
    # It leaves the slot to the reap and does not wait for it.
    settled = start(lambda session: session.ack(first)).answer()

    held_open.connection.commit()

    assert settled[0].outcome == "lost"
    assert [job.id for job in db.claim(max_jobs=9)] == ids[2:3]


def test_a_claim_does_not_wait_for_the_first_claim_of_a_lane(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    one_by_one(db, 2)
    free = db.put("k")
    held_open.take()

    claim = start(lambda session: session.claim(max_jobs=9))

    assert not claim.waits()
    assert [job.id for job in claim.answer()] == [free]


def test_a_claim_does_not_wait_for_a_claim_that_was_first_and_is_undone(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    ids = one_by_one(db, 2)
    held_open.take()
    during = start(lambda session: session.claim(max_jobs=9)).answer()

    held_open.connection.rollback()

    assert during == []
    assert [job.id for job in db.claim(max_jobs=9)] == ids[:1]


@pytest.mark.parametrize("verb", ["edit", "cancel", "move", "delete"])
@pytest.mark.parametrize("claimed_before", [False, True])
def test_a_claim_does_not_wait_for_an_operator_at_the_head_of_a_lane(
    db: Protocol, held_open: Protocol, start: Start, verb: str, claimed_before: bool
) -> None:
    ids = one_by_one(db, 3)
    if claimed_before:
        db.release(db.take())
    free = db.put("k")
    if verb == "edit":
        held_open.edit(ids[0], changes={"priority": 1})
    elif verb == "move":
        held_open.move(ids[0], queue="other")
    else:
        getattr(held_open, verb)(ids[0])

    claim = start(lambda session: session.claim(max_jobs=9))

    assert not claim.waits()
    # The order of the lane is kept: nobody overtakes a head that may yet stay.
    assert [job.id for job in claim.answer()] == [free]


@pytest.mark.parametrize("verb", ["cancel", "edit", "move", "delete"])
def test_ack_and_change_of_the_next_in_a_lane_do_not_deadlock(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    ids = lane(db, 3)
    running = db.take()
    held_open.edit(ids[1], changes={"payload": 1})

    def change(session: Protocol) -> Any:
        if verb == "edit":
            return session.edit(ids[1], changes={"priority": 5})
        if verb == "move":
            return session.move(ids[1], queue="other")
        return getattr(session, verb)(ids[1])

    changing = start(change)
    changing.waits()
    ack = start(lambda session: session.ack(running)[0].outcome)
    ack.waits()
    held_open.connection.commit()

    assert ack.answer() == "done"
    assert changing.answer()[0].changed
    db.sweep()
    assert [job.id for job in db.claim(max_jobs=9)] == [ids[1] if verb == "edit" else ids[2]]


def test_a_halting_death_and_a_claim_agree(db: Protocol, held_open: Protocol, start: Start) -> None:
    db.lane_set("default", "l", on_failure="halt")
    db.enqueue(*[{"kind": "k", "lane": "l", "max_attempts": 1}] * 2)
    running = db.take()
    held_open.nack(running, message="boom")
    claim = start(lambda session: session.claim(max_jobs=9))

    assert not claim.waits()
    held_open.connection.commit()

    assert claim.answer() == []
    assert db.claim(max_jobs=9) == []


@pytest.mark.parametrize("on_failure", ["skip", "retry"])
def test_lanes_under_every_verb_at_once_stay_exact_and_drain(
    db: Protocol, at_once: AtOnce, on_failure: str
) -> None:
    db.queue_set("default", lane_on_failure=on_failure)
    names = ["a", "b", "c"]

    def work(session: Protocol, nth: int) -> list[str]:
        pick = random.Random(f"{on_failure}/{nth}")
        wrong = []
        for _ in range(60):
            doing = pick.random()
            if doing < 0.3:
                item = {"kind": "k", "lane": pick.choice(names), "max_attempts": 50}
                session.enqueue(*[item] * pick.randint(1, 3))
            elif doing < 0.8:
                jobs = session.claim(worker=f"w{nth}", max_jobs=pick.randint(1, 3))
                for job in jobs:
                    row = session.connection.execute(
                        "select count(*) from holdfast.job where lane = %s and token is not null",
                        [job.lane],
                    ).fetchone()
                    # None, if an operator has cancelled it in the meantime.
                    if row not in ((0,), (1,)):
                        wrong.append(f"{row} of lane {job.lane} at once")
                    verb = pick.choice(["ack", "ack", "nack", "release"])
                    more = {"delay": timedelta(0)} if verb == "nack" else {}
                    getattr(session, verb)(job, **more)
            elif doing < 0.95:
                ids = session.find("state:queued")[:2]
                if pick.random() < 0.5:
                    session.cancel(*ids)
                else:
                    session.edit(*ids, changes={"priority": pick.randint(0, 9)})
            else:
                session.upkeep()
        return wrong

    answers = at_once(6, work)

    assert [each for each in answers if each] == []
    for _ in range(3):
        db.sweep()
        while jobs := db.claim(max_jobs=99):
            db.ack(*jobs)
    assert db.find("state:queued,leased") == []


def test_lanes_swept_while_they_are_used_lose_nothing(
    db: Protocol, other: Open, at_once: AtOnce
) -> None:
    def work(session: Protocol, nth: int) -> int:
        done = 0
        for n in range(40):
            if nth == 0:
                session.sweep()
            elif nth == 1:
                session.put("k", lane=f"l{n % 3}")
            else:
                jobs = session.claim(worker=f"w{nth}", max_jobs=3)
                done += len(jobs)
                session.ack(*jobs)
        return done

    done = at_once(4, work)

    assert not [each for each in done if isinstance(each, Exception)]
    db.sweep()
    while jobs := db.claim(max_jobs=9):
        db.ack(*jobs)
    assert db.depth() == {"done": 40}


@pytest.mark.parametrize("enqueue", [lane, one_by_one])
def test_an_open_claim_of_one_job_leaves_every_other_lane_to_the_others(
    db: Protocol, held_open: Protocol, enqueue: Any
) -> None:
    for n in range(40):
        enqueue(db, 2, f"l{n:02}")
    taken = held_open.take()

    others = db.claim(max_jobs=99)

    assert taken.lane == "l00"
    assert [job.lane for job in others] == [f"l{n:02}" for n in range(1, 40)]


@pytest.mark.parametrize("kinds", [None, ["k"]])
@pytest.mark.parametrize("by_kind", [False, True])
def test_an_open_claim_that_fills_up_from_lanes_locks_no_job_that_it_does_not_take(
    db: Protocol, held_open: Protocol, kinds: list[str] | None, by_kind: bool
) -> None:
    db.queue_set("default", by_kind=by_kind)
    first = db.put("k")
    lanes = [lane(db, 1, f"l{n:02}")[0] for n in range(30)]
    last = db.put("k")
    taken = [job.id for job in held_open.claim(max_jobs=5, kinds=kinds)]

    others = [job.id for job in db.claim(max_jobs=99, kinds=kinds)]

    assert taken == [first, *lanes[:4]]
    assert others == [*lanes[4:], last]


def test_an_open_claim_from_a_wide_lane_leaves_the_lanes_behind_it(
    db: Protocol, held_open: Protocol
) -> None:
    db.lane_set("default", "wide", limit=5)
    wide = lane(db, 5, "wide")
    narrow = [lane(db, 1, f"l{n}")[0] for n in range(4)]
    taken = held_open.claim(max_jobs=5)

    others = db.claim(max_jobs=9)

    assert [job.id for job in taken] == wide
    assert [job.id for job in others] == narrow


def test_lanes_whose_heads_another_session_has_locked_do_not_hide_the_others(
    db: Protocol, held_open: Protocol
) -> None:
    heads = [lane(db, 2, f"l{n:03}")[0] for n in range(120)]
    free = lane(db, 1, "z")
    held_open.edit(*heads, changes={"payload": "new"})

    assert [job.id for job in db.claim()] == free
