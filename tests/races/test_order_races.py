"""Order between jobs under concurrency: a follower is released once, whoever meets whom."""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.protocol import Leased, Open, Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


def fan_in(db: Protocol, jobs: int, **options: Any) -> tuple[list[Leased], UUID]:
    """Jobs that run, and the one that waits for all of them."""
    rows = db.enqueue(
        *[{"kind": "p"}] * jobs, {"kind": "f", "after": list(range(1, jobs + 1)), **options}
    )
    return db.claim(max_jobs=jobs), rows[-1].id


def ran(db: Protocol) -> list[str]:
    kinds = []
    while jobs := db.claim():
        kinds += [job.kind for job in jobs]
        db.ack(*jobs)
    return kinds


@pytest.mark.parametrize("jobs", [2, 40])
def test_when_the_last_two_end_at_once_the_second_releases(
    db: Protocol, held_open: Protocol, start: Start, jobs: int
) -> None:
    held, _ = fan_in(db, jobs)
    # the last two that one counter counts
    last = [held[0], held[7]] if jobs == 40 else held
    db.ack(*[job for job in held if job not in last]) if jobs > 2 else None
    held_open.ack(last[0])
    other = start(lambda session: session.ack(last[1])[0].outcome)
    assert other.waits()
    assert db.claim() == []
    held_open.connection.commit()

    assert other.answer() == "done"
    assert ran(db) == ["f"]


@pytest.mark.parametrize("jobs", [2, 40])
def test_when_the_first_of_the_last_two_is_undone_nothing_is_released(
    db: Protocol, held_open: Protocol, start: Start, jobs: int
) -> None:
    held, _ = fan_in(db, jobs)
    last = [held[0], held[7]] if jobs == 40 else held
    db.ack(*[job for job in held if job not in last]) if jobs > 2 else None
    held_open.ack(last[0])
    other = start(lambda session: session.ack(last[1])[0].outcome)
    assert other.waits()
    held_open.connection.rollback()
    assert other.answer() == "done"
    assert ran(db) == []

    db.ack(last[0])

    assert ran(db) == ["f"]


def test_ends_that_different_counters_count_do_not_wait_for_one_another(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    held, _ = fan_in(db, 40)
    held_open.ack(held[0])
    other = start(lambda session: session.ack(held[1])[0].outcome)

    assert not other.waits()
    held_open.connection.rollback()


def test_followers_of_many_are_released_once_by_eight_who_end_them_in_any_order(
    db: Protocol, at_once: AtOnce
) -> None:
    items: list[dict[str, Any]] = [{"kind": "p"}] * 160
    for nth in range(8):
        chosen = random.Random(nth).sample(range(1, 161), [2, 6, 30, 150][nth % 4])
        items.append({"kind": "f", "after": chosen})
    db.enqueue(*items)
    held = db.claim(max_jobs=160)
    random.Random(7).shuffle(held)

    def work(session: Protocol, nth: int) -> None:
        mine = held[nth::8]
        while mine:
            some, mine = mine[:3], mine[3:]
            session.ack(*some)

    assert at_once(8, work) == [None] * 8

    assert ran(db) == ["f"] * 8
    assert db.table("select * from holdfast.link") == []


def test_mixed_ends_of_shared_followers_do_not_deadlock(db: Protocol, at_once: AtOnce) -> None:
    for turn in range(6):
        db.enqueue(
            *[{"kind": "p"}] * 16,
            *({"kind": "f", "after": list(range(1, 17)), "if_failed": "run"} for _ in range(4)),
        )
        held = db.claim(max_jobs=16)
        random.Random(turn).shuffle(held)

        def work(session: Protocol, nth: int, held: list[Leased] = held) -> None:
            verbs = ["ack", "nack", "cancel", "ack"]
            session.settle(
                *(
                    {"id": job.id, "token": job.token, "verb": verb, "reason": "x"}
                    | ({"final": True} if verb == "nack" else {})
                    for verb, job in zip(verbs, held[nth::4], strict=True)
                )
            )

        assert at_once(4, work) == [None] * 4
        assert ran(db) == ["f"] * 4


@pytest.mark.parametrize("dies", [False, True])
def test_the_end_of_a_job_waits_for_whoever_adds_a_follower(
    db: Protocol, held_open: Protocol, start: Start, dies: bool
) -> None:
    parent = db.put("p")
    job = db.take()
    held_open.put("f", after=[str(parent)], if_failed="run")
    end = start(
        lambda session: (session.nack(job, final=True) if dies else session.ack(job))[0].outcome
    )
    assert end.waits()
    held_open.connection.commit()

    assert end.answer() == ("dead" if dies else "done")
    assert ran(db) == ["f"]


def test_a_follower_that_was_not_stored_after_all_is_not_waited_for(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    parent = db.put("p")
    job = db.take()
    held_open.put("f", after=[str(parent)])
    end = start(lambda session: session.ack(job)[0].outcome)
    assert end.waits()
    held_open.connection.rollback()

    assert end.answer() == "done"
    assert ran(db) == []


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("followed", [False, True])
def test_who_adds_a_follower_waits_for_the_end_of_the_job(
    db: Protocol, held_open: Protocol, start: Start, dies: bool, undone: bool, followed: bool
) -> None:
    parent = db.put("p")
    if followed:
        db.cancel(db.put("g", after=[str(parent)]))
    job = db.take()
    held_open.nack(job, final=True) if dies else held_open.ack(job)
    add = start(lambda session: session.put("f", after=[str(parent)], if_failed="run"))
    assert add.waits()
    held_open.connection.rollback() if undone else held_open.connection.commit()
    add.answer()

    assert ran(db) == ([] if undone else ["f"])
    if undone:
        db.ack(job)
        assert ran(db) == ["f"]


@pytest.mark.parametrize("adds_first", [False, True])
@pytest.mark.parametrize("followed", [False, True])
def test_a_dead_job_is_retried_while_a_follower_is_added(
    db: Protocol, held_open: Protocol, start: Start, adds_first: bool, followed: bool
) -> None:
    parent = db.put("p")
    if followed:
        db.cancel(db.put("g", after=[str(parent)]))
    db.nack(db.take(), final=True)

    def add(session: Protocol) -> Any:
        return session.put("f", after=[str(parent)])

    def retry(session: Protocol) -> Any:
        return session.retry(parent)[0].changed

    one, two = (add, retry) if adds_first else (retry, add)
    one(held_open)
    other = start(two)
    assert other.waits()
    held_open.connection.commit()
    assert other.answer()

    assert ran(db) == ["p", "f"]


@pytest.mark.parametrize("cancels_first", [False, True])
def test_a_follower_is_cancelled_while_it_is_released(
    db: Protocol, held_open: Protocol, start: Start, cancels_first: bool
) -> None:
    held, follower = fan_in(db, 2)
    db.ack(held[0])

    def cancel(session: Protocol) -> Any:
        return session.cancel(follower)[0].changed

    def ack(session: Protocol) -> Any:
        return session.ack(held[1])[0].outcome

    one, two = (cancel, ack) if cancels_first else (ack, cancel)
    one(held_open)
    other = start(two)
    assert other.waits()
    held_open.connection.commit()
    assert other.answer()
    assert ran(db) == []
    assert db.state(follower) == "cancelled"

    db.retry(follower)

    assert ran(db) == ["f"]


def test_a_cancel_that_is_undone_leaves_the_follower_to_be_released(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    held, follower = fan_in(db, 1)
    held_open.cancel(follower)
    end = start(lambda session: session.ack(*held)[0].outcome)
    assert end.waits()
    held_open.connection.rollback()

    assert end.answer() == "done"
    assert ran(db) == ["f"]


@pytest.mark.parametrize("retries_first", [False, True])
@pytest.mark.parametrize("jobs", [1, 40])
def test_a_cancelled_follower_is_retried_while_the_last_one_ends(
    db: Protocol, held_open: Protocol, start: Start, retries_first: bool, jobs: int
) -> None:
    held, follower = fan_in(db, jobs)
    db.ack(*held[1:])
    db.cancel(follower)

    def retry(session: Protocol) -> Any:
        return session.retry(follower)[0].changed

    def ack(session: Protocol) -> Any:
        return session.ack(held[0])[0].outcome

    one, two = (retry, ack) if retries_first else (ack, retry)
    one(held_open)
    other = start(two)
    assert other.waits()
    held_open.connection.commit()
    assert other.answer()

    assert ran(db) == ["f"]


@pytest.mark.parametrize("moves_first", [False, True])
def test_a_follower_is_moved_while_it_is_released(
    db: Protocol, held_open: Protocol, start: Start, moves_first: bool
) -> None:
    held, follower = fan_in(db, 1)

    def move(session: Protocol) -> Any:
        return session.move(follower, queue="other")[0].changed

    def ack(session: Protocol) -> Any:
        return session.ack(*held)[0].outcome

    one, two = (move, ack) if moves_first else (ack, move)
    one(held_open)
    other = start(two)
    assert other.waits()
    held_open.connection.commit()
    assert other.answer()

    assert [job.kind for job in db.claim("other")] == ["f"]


@pytest.mark.parametrize("deletes_first", [False, True])
def test_a_follower_is_deleted_while_it_is_released(
    db: Protocol, held_open: Protocol, start: Start, deletes_first: bool
) -> None:
    held, follower = fan_in(db, 1)

    def delete(session: Protocol) -> Any:
        return session.delete(follower)[0].changed

    def ack(session: Protocol) -> Any:
        return session.ack(*held)[0].outcome

    one, two = (delete, ack) if deletes_first else (ack, delete)
    one(held_open)
    other = start(two)
    assert other.waits()
    held_open.connection.commit()
    assert other.answer()

    assert ran(db) == []
    db.value("forget_links")
    assert db.table("select * from holdfast.link") == []


def test_jobs_and_their_followers_are_cancelled_while_they_end(
    db: Protocol, at_once: AtOnce
) -> None:
    for _ in range(10):
        held, follower = fan_in(db, 8)

        def work(
            session: Protocol,
            nth: int,
            held: list[Leased] = held,
            follower: UUID = follower,
        ) -> Any:
            if nth:
                return [row.outcome for row in session.ack(*held)]
            return [row.id for row in session.cancel(follower, *(job.id for job in held))]

        answers = at_once(2, work)

        assert not [each for each in answers if isinstance(each, Exception)]
        assert db.state(follower) == "cancelled"
    assert ran(db) == []


def test_a_key_that_stands_for_another_job_is_waited_for_behind_its_end(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.put("p", key="k")
    job = db.take()
    held_open.ack(job)
    add = start(
        lambda session: session.enqueue({"kind": "p", "key": "k"}, {"kind": "f", "after": [1]})
    )
    assert add.waits()
    held_open.connection.commit()

    assert [row.created for row in add.answer()] == [True, True]
    assert ran(db) == ["p", "f"]


def test_a_follower_is_added_to_many_by_several_at_once(db: Protocol, at_once: AtOnce) -> None:
    ids = [row.id for row in db.enqueue(*[{"kind": "p"}] * 20)]
    held = db.claim(max_jobs=20)

    def work(session: Protocol, nth: int) -> Any:
        if nth < 4:
            chosen = random.Random(nth).sample(ids, 12)
            return [session.put("f", after=[str(id) for id in chosen]) and 1 for _ in range(3)]
        return [session.ack(job) and 1 for job in held[nth - 4 :: 4]]

    answers = at_once(8, work)

    assert not [each for each in answers if isinstance(each, Exception)]
    assert ran(db) == ["f"] * 12


def test_sessions_of_other_isolation_do_not_lose_a_release(
    db: Protocol, other: Open, start: Start
) -> None:
    held, _ = fan_in(db, 2)
    strict = other(autocommit=False)
    strict.connection.execute("set transaction isolation level repeatable read")
    strict.table("select 1 from holdfast.job")
    db.ack(held[0])
    with pytest.raises(Exception, match="could not serialize"):
        strict.ack(held[1])
    strict.connection.rollback()
    db.ack(held[1])

    assert ran(db) == ["f"]
