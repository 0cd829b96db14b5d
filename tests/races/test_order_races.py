"""Order between jobs under concurrency: a follower is released once, whoever meets whom."""

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import UUID

import pytest

from tests.protocol import Later, Leased, Open, Protocol

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


@pytest.mark.parametrize("turn", [1, -1])
def test_a_reap_of_jobs_that_are_dead_now_does_not_deadlock_with_an_ack(
    db: Protocol, held_open: Protocol, start: Start, later: Later, turn: int
) -> None:
    queues = ["default", "mail"][::turn]  # one of them is reaped first, as their parts come
    followers = sorted(db.value("new_id", queue="default") for _ in queues)
    acked = []
    for follower, queue in zip(followers, queues, strict=True):
        db.enqueue({"kind": "p", "queue": queue, "max_attempts": 1}, {"kind": "p", "queue": "a"})
        [dying] = db.claim(queue, lease=timedelta(seconds=5))
        acked += db.claim("a", lease=timedelta(minutes=1))
        after = [str(dying.id), str(acked[-1].id)]
        db.enqueue({"kind": "f", "id": str(follower), "after": after, "if_failed": "run"})
    later(seconds=6)
    held_open.connection.execute(
        "select from holdfast.job where id = %s for update", [followers[0]]
    )

    ack = start(lambda session: [row.outcome for row in session.ack(*acked)])
    assert ack.waits()  # for the first follower; it will want the second
    reap = start(lambda session: [row.outcome for row in session.reap()])
    assert reap.waits()
    held_open.connection.rollback()

    assert ack.answer() == ["done", "done"]
    assert reap.answer() == ["dead", "dead"]
    assert ran(db) == ["f", "f"]


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


def followers_in_order(db: Protocol, *afters: list[UUID], if_failed: str = "run") -> list[UUID]:
    """Followers of these jobs, the lower ids first: in that order everybody counts them down."""
    ids = sorted(db.value("new_id", queue="default") for _ in afters)
    for id, after in zip(ids, afters, strict=True):
        db.enqueue(
            {
                "kind": "f",
                "id": str(id),
                "after": [str(job) for job in after],
                "if_failed": if_failed,
            }
        )
    return ids


def locked(session: Protocol, table: str, **where: UUID) -> None:
    named = " and ".join(f"{column} = %({column})s" for column in where)
    session.connection.execute(f"select from holdfast.{table} where {named} for update", where)


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_two_calls_end_the_same_jobs_while_one_of_them_stops_waiting(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    db.put("a")
    parent = db.take(lease=timedelta(days=1))
    follower, low, high = sorted(db.value("new_id", queue="default") for _ in range(3))
    db.put("b", id=str(high))
    db.put("w", id=str(low), after=[str(parent.id)])
    db.put("f", id=str(follower), after=[str(high)], if_failed="run")

    def end(session: Protocol) -> Any:
        return sorted(each.id for each in getattr(session, verb)(low, high) if each.changed)

    locked(held_open, "job", id=follower)
    first = start(end)
    assert first.waits()  # for the follower; it has locked the high one, and will want the low one
    db.ack(parent)
    second = start(end)
    assert second.waits()  # for the high one; it has locked the low one, which waits no more
    held_open.connection.rollback()

    assert first.answer() + second.answer() == [low, high]
    assert ran(db) == ["f"]


@pytest.fixture
def patient_expiry(db: Protocol) -> Iterator[None]:
    """Expiry waits for locks like everybody else; by itself it gives up in a few milliseconds.

    It would look at the jobs again a minute later: whether it meets the other at all was luck.
    """
    [(was,)] = db.connection.execute(
        "select split_part(c, '=', 2) from pg_proc, unnest(proconfig) c"
        " where oid = 'holdfast.end_linked_expired'::regproc and c like 'lock_timeout=%'"
    )
    change = "alter function holdfast.end_linked_expired set lock_timeout = "
    db.connection.execute(f"{change}'20s'")
    yield
    db.connection.execute(f"{change}'{was}'")


@pytest.mark.parametrize("verb", ["cancel", "delete", "undo", "expiry"])
@pytest.mark.usefixtures("patient_expiry")
def test_jobs_and_one_that_waits_end_together_while_an_ack_counts(
    db: Protocol, held_open: Protocol, start: Start, later: Later, verb: str
) -> None:
    db.put("a")
    acked = db.take(lease=timedelta(days=1))
    expires = {"expires": 5} if verb == "expiry" else {}
    ended = db.put("p", queue="mail", **expires)
    first, last = sorted(db.value("new_id", queue="default") for _ in range(2))
    db.put("f", id=str(first), after=[str(ended), str(acked.id)], if_failed="run")
    db.put("f", id=str(last), after=[str(acked.id)], **expires)

    def end(session: Protocol) -> Any:
        if verb == "expiry":
            return session.upkeep() and None
        if verb == "undo":
            both = ["cancelled", "cancelled"]
            query = "select holdfast.put_back(%s, %s, null, null, null)"
            return session.connection.execute(query, [[ended, last], both]).fetchone() and None
        return getattr(session, verb)(ended, last) and None

    later(seconds=6)
    locked(held_open, "job", id=first)
    ack = start(lambda session: session.ack(acked)[0].outcome)
    assert ack.waits()  # for the first follower; it will want the second
    other = start(end)
    assert other.waits()
    held_open.connection.rollback()

    assert ack.answer() == "done"
    assert other.answer() is None
    assert ran(db) == ["f"]


def test_what_a_failure_cancels_counts_down_in_the_order_of_all(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.enqueue({"kind": "p"}, {"kind": "a"})
    failing, acked = db.claim(max_jobs=2)
    stopped = db.put("s", after=[str(failing.id)], if_failed="cancel")
    first, _ = followers_in_order(db, [stopped, acked.id], [failing.id, acked.id])
    locked(held_open, "job", id=first)

    ack = start(lambda session: session.ack(acked)[0].outcome)
    assert ack.waits()  # for the first follower; it will want the last
    nack = start(lambda session: session.nack(failing, final=True)[0].outcome)
    assert nack.waits()
    held_open.connection.rollback()

    assert ack.answer() == "done"
    assert nack.answer() == "dead"
    assert db.state(stopped) == "cancelled"
    assert ran(db) == ["f", "f"]


def test_a_job_and_one_that_was_cancelled_because_of_it_are_retried_at_once(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    parent = db.put("p", max_attempts=1)
    follower = db.put("f", after=[str(parent)], if_failed="cancel")
    db.nack(db.take())
    locked(held_open, "link", parent=parent)

    both = start(lambda session: session.retry(parent)[0].changed)
    assert both.waits()
    one = start(lambda session: session.retry(follower)[0].changed)
    assert one.waits()
    held_open.connection.rollback()

    assert both.answer()
    one.answer()
    assert ran(db) == ["p", "f"]


def test_a_check_of_expired_leases_counts_down_in_the_order_of_an_ack(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    queues = ["default", "mail"]
    leases = []
    for queue in (*queues, "a", "a"):
        db.put("p", queue=queue, max_attempts=1)
        leases.append(db.take(queue, lease=timedelta(seconds=5 if queue != "a" else 600)))
    *expired, one, two = leases
    if db.value("part_of", id=expired[0].id) > db.value("part_of", id=expired[1].id):
        expired.reverse()
    # the part that is judged first has the follower that is counted last
    first, _ = followers_in_order(db, [expired[1].id, one.id], [expired[0].id, two.id])
    later(seconds=6)
    locked(held_open, "job", id=first)

    ack = start(lambda session: [row.outcome for row in session.ack(one, two)])
    assert ack.waits()
    judge = start(
        lambda session: [row.outcome for row in session.reconcile(*expired, done=[True, False])]
    )
    assert judge.waits()
    held_open.connection.rollback()

    assert ack.answer() == ["done", "done"]
    assert judge.answer() == ["done", "dead"]
    assert ran(db) == ["f", "f"]


def test_a_lost_lease_does_not_wait_for_whoever_frees_its_slot(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.queue_set("default", limit=1)
    db.put("p")
    job = db.take()
    db.cancel(job.id)
    held_open.connection.execute("delete from holdfast.leaving")

    ack = start(lambda session: session.ack(job)[0].outcome)

    assert not ack.waits()
    assert ack.answer() == "lost"
    held_open.connection.rollback()


def test_a_retry_meets_an_end_that_cancels_a_job_with_a_smaller_id(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    first, second = sorted(db.value("new_id", queue="default") for _ in range(2))
    db.enqueue({"kind": "p", "id": str(second), "max_attempts": 1})
    db.enqueue({"kind": "f", "id": str(first), "after": [str(second)], "if_failed": "cancel"})
    both = db.put("r", after=[str(first), str(second)])
    db.cancel(both)
    held = db.take()
    query = "select from holdfast.link where parent = %s and follower = %s for update"
    held_open.connection.execute(query, [second, both])
    failing = start(lambda session: session.nack(held, final=True)[0].outcome)
    assert failing.waits()
    coming_back = start(lambda session: session.retry(both)[0].changed)
    assert coming_back.waits()
    held_open.connection.commit()

    assert (failing.answer(), coming_back.answer()) == ("dead", True)
    assert db.state(first) == "cancelled"
    assert db.job(both).state == "queued"
    assert ran(db) == []


def test_a_delete_an_ack_and_a_retry_lock_links_before_counters(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    jobs = [db.put() for _ in range(8)]
    deleted, acked = jobs[0], jobs[3]  # one counter counts both
    counting = db.put("f", after=[str(job) for job in jobs])
    both = db.put("r", after=[str(deleted), str(acked)])
    db.cancel(both)
    held = {job.id: job for job in db.claim(max_jobs=8)}
    db.release(held[deleted])
    query = "select from holdfast.job where id = %s for update"
    held_open.connection.execute(query, [counting])
    deleting = start(lambda session: session.delete(deleted)[0].changed)
    assert deleting.waits()
    acking = start(lambda session: session.ack(held[acked])[0].outcome)
    assert acking.waits()
    coming_back = start(lambda session: session.retry(both)[0].changed)
    assert coming_back.waits()
    held_open.connection.commit()

    assert (deleting.answer(), acking.answer(), coming_back.answer()) == (True, "done", True)


def moved_by_an_operation(session: Protocol, *_: UUID) -> None:
    query = (
        "select token from holdfast.operation_preview(verb => 'move', filter => 'state:queued', "
        'arguments => \'{"queue": "mail"}\')'
    )
    [(token,)] = session.connection.execute(query).fetchall()
    session.connection.execute("select from holdfast.operation_start(token => %s)", [token])
    session.connection.execute("select from holdfast.operation_step(max_jobs => 20)")


CHANGES: dict[str, Callable[..., Any]] = {
    "cancel": lambda session, *ids: session.cancel(*ids),
    "delete": lambda session, *ids: session.delete(*ids),
    "edit": lambda session, *ids: session.edit(*ids, changes={"priority": 1}),
    "move": lambda session, *ids: session.move(*ids, queue="mail"),
    "operation": moved_by_an_operation,
    "enqueue": lambda session, *ids: session.put("f", after=[str(id) for id in ids]),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_whoever_waits_for_a_job_that_waits_holds_no_other(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    # Let in by the end of what it waits for, it may be somebody else's next, who wants the other.
    follower = db.put("f", after=[str(db.put("p"))])
    parent = db.take()
    other = db.put("w")
    held_open.ack(parent)
    change = start(lambda session: CHANGES[verb](session, other, follower))
    assert change.waits(on=held_open)

    def is_free() -> bool:
        query = "select from holdfast.job where id = %s for update skip locked"
        return db.connection.execute(query, [other]).fetchone() is not None

    deadline = monotonic() + 10
    while not is_free() and monotonic() < deadline:
        assert change.waits(on=held_open)
    assert is_free()
    held_open.connection.commit()

    change.answer()
    changed = [db.job(id) if db.state(id) else None for id in (other, follower)]
    told = {
        "cancel": ["cancelled"] * 2,
        "delete": [None] * 2,
        "edit": [1, 1],
        "move": ["mail"] * 2,
        "operation": ["mail"] * 2,
        "enqueue": ["queued"] * 2,
    }
    of = {"edit": "priority", "move": "queue", "operation": "queue"}.get(verb, "state")
    assert [job and getattr(job, of) for job in changed] == told[verb]


def is_free(db: Protocol, table: str, **where: UUID) -> bool:
    named = " and ".join(f"{column} = %({column})s" for column in where)
    query = f"select from holdfast.{table} where {named} for update skip locked"
    return db.connection.execute(query, where).fetchone() is not None


def test_a_job_that_is_no_longer_reached_is_not_waited_for(
    db: Protocol, held_open: Protocol, other: Open, start: Start
) -> None:
    low, high = sorted(db.value("new_id", queue="default") for _ in range(2))
    db.put("p")
    parent = db.take()
    db.put("w", id=str(low), run_at="2100-01-01")
    db.put("f", after=[str(low)])
    db.put("z", id=str(high), after=[str(parent.id)])
    db.put("q", queue="mail")
    last = db.take("mail")
    reached = db.put("r", after=[str(high), str(last.id)], if_failed="cancel")
    locked(held_open, "link", parent=low)
    cancelled = start(lambda session: session.cancel(low, high))
    assert cancelled.waits(on=held_open)
    db.ack(parent)
    db.ack(db.take())
    second = other(autocommit=False)
    second.ack(last)

    held_open.connection.rollback()

    assert [one.changed for one in cancelled.answer()] == [True, False]
    second.connection.rollback()
    assert db.job(reached).state == "queued"


def test_who_adds_what_is_cancelled_at_once_leaves_the_links_of_others_alone(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    failed = db.put("p", max_attempts=1)
    db.nack(db.take())
    other = db.put("g", after=[str(failed)])
    waiting = db.put("z", after=[str(db.put("q"))])
    locked(held_open, "link", follower=other)

    added = start(
        lambda session: session.put("f", after=[str(failed), str(waiting)], if_failed="cancel")
    )

    assert db.state(added.answer()) == "cancelled"


@pytest.mark.parametrize("verb", ["ack", "delete"])
def test_a_link_that_was_waited_for_until_it_was_counted_holds_up_nobody_who_forgets_it(
    db: Protocol, held_open: Protocol, start: Start, verb: str
) -> None:
    parent = db.put("p")
    follower = db.put("f", after=[str(parent)])
    db.ack(db.take())
    held = db.take() if verb == "ack" else None
    locked(held_open, "link", parent=parent)

    ended = start(lambda session: session.ack(held) if held else session.delete(follower))

    ended.answer()
    held_open.connection.rollback()
    db.upkeep()
    assert db.table("select from holdfast.link") == []


def test_reaps_at_once_do_not_meet_at_the_receipts_of_one_claim(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    db.queue_set("fanned", fanout=4)
    db.enqueue(*[{"kind": "a", "queue": "fanned"}] * 20)
    jobs = db.claim("fanned", max_jobs=20, lease=timedelta(seconds=5))
    db.touch(*jobs, lease=timedelta(hours=1))
    later(seconds=6)
    [(part,), *others] = db.table("select part from holdfast.lease order by part")
    assert others
    held_open.connection.execute("select from holdfast.lease where part = %s for update", [part])

    assert start(lambda session: session.reap()).answer() == []

    held_open.connection.rollback()
    assert len(db.held(jobs[0].token)) == 20


def test_followers_that_were_moved_are_locked_last_by_all(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    low = high = db.value("new_id", queue="default")
    while str(high)[:13] == str(low)[:13]:  # of the same millisecond, the part decides
        high = db.value("new_id", queue="default")
    parent = db.put("p")
    for id in (low, high):
        db.put("f", id=str(id), after=[str(parent), str(parent)], if_failed="run")
    [moved] = db.move(low, queue="mail")
    assert moved.new_id < high
    locked(held_open, "job", id=high)

    cancelled = start(lambda session: session.cancel(parent)[0].changed)
    assert cancelled.waits(on=held_open)

    assert is_free(db, "job", id=moved.new_id)
    held_open.connection.rollback()
    assert cancelled.answer()
    assert len(db.claim()) == len(db.claim("mail")) == 1
