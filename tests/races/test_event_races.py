"""An event against the wait, its timeout, another event, and whoever changes the job meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Later, Leased, Open, Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


def send(session: Protocol, *names: str, payload: Any = None) -> None:
    for name in names or ("go",):
        session.connection.execute(
            "select holdfast.send_event(name => %s, payload => %s)", [name, Jsonb(payload)]
        )


def suspend(session: Protocol, job: Leased, event: str = "go", **how: Any) -> str:
    item = {"id": job.id, "token": job.token, "verb": "suspend", "name": "wait", "event": event}
    return session.settle({**item, **how})[0].outcome


def awaited(session: Protocol, job: Leased) -> str:
    row = session.connection.execute(
        "select outcome from holdfast.await_event(id => %s, token => %s, step => 'wait',"
        " event => 'go')",
        [job.id, job.token],
    ).fetchone()
    assert row is not None
    return str(row[0])


def sent(db: Protocol) -> int:
    row = db.connection.execute("select count(*) from holdfast.sent").fetchone()
    assert row is not None
    return int(row[0])


def test_an_event_that_is_sent_before_the_wait_and_committed_after_it_arrives(
    db: Protocol, held_open: Protocol
) -> None:
    id = db.put()
    job = db.take()
    send(held_open)  # it sees nobody who waits

    assert suspend(db, job) == "queued"  # and this sees no event
    assert db.claim() == []
    held_open.connection.commit()

    assert [again.id for again in db.claim()] == [id]
    assert sent(db) == 0


def test_a_sender_whose_constraints_are_checked_holds_up_nobody_and_its_event_arrives(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put()
    job = db.take()
    assert suspend(db, job) == "queued"
    send(held_open, "other", "go")
    held_open.connection.execute("set constraints all immediate")

    again = start(lambda session: send(session, "other"))
    waited = again.waits()
    held_open.connection.commit()
    again.answer()
    db.upkeep()

    assert not waited
    assert [woken.id for woken in db.claim()] == [id]


def test_the_end_of_a_sender_waits_for_a_wait_that_is_about_to_begin(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put()
    job = db.take()
    suspend(held_open, job)

    sending = start(lambda session: send(session))
    waited = sending.waits()
    held_open.connection.commit()
    sending.answer()

    assert waited
    assert [again.id for again in db.claim()] == [id]


def test_a_wait_that_comes_to_nothing_leaves_the_event(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.put()
    job = db.take()
    suspend(held_open, job)
    sending = start(lambda session: send(session))
    assert sending.waits()
    held_open.connection.rollback()
    sending.answer()

    assert awaited(db, job) == "received"


def test_a_sender_that_takes_its_time_keeps_nobody_waiting(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    db.put()
    db.put()
    first, second = db.claim(max_jobs=2)
    send(held_open)

    waiting = start(lambda session: (suspend(session, first), awaited(session, second)))

    assert not waiting.waits()
    assert waiting.answer() == ("queued", "waiting")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_event_against_the_timeout_has_one_outcome(
    db: Protocol, held_open: Protocol, start: Start, later: Later, end: str
) -> None:
    db.put()
    suspend(db, db.take(), delay=60)
    later(seconds=61)
    job = db.take()
    assert awaited(held_open, job) == "timed_out"

    sending = start(lambda session: send(session))
    assert sending.waits()
    getattr(held_open.connection, end)()
    sending.answer()

    assert awaited(db, job) == ("timed_out" if end == "commit" else "received")
    assert sent(db) == (1 if end == "commit" else 0)


def test_two_events_at_once_wake_two_jobs(db: Protocol, at_once: AtOnce) -> None:
    ids = {db.put() for _ in range(4)}
    for job in db.claim(max_jobs=4):
        suspend(db, job)

    at_once(4, lambda session, nth: send(session, payload=nth))

    assert {job.id for job in db.claim(max_jobs=9)} == ids
    assert sent(db) == 0


def test_senders_of_the_same_events_in_another_order_do_not_deadlock(
    db: Protocol, other: Open, start: Start
) -> None:
    for _ in range(2):
        db.put()
    for job, event in zip(db.claim(max_jobs=2), ("a", "b"), strict=True):
        suspend(db, job, event)
    one = other(autocommit=False)
    send(one, "a", "b")

    def both(session: Protocol) -> None:
        with session.connection.transaction():
            send(session, "b", "a")

    sending = start(both)
    one.connection.commit()
    sending.answer()

    assert len(db.claim(max_jobs=9)) == 2
    assert sent(db) == 2


def test_an_event_for_a_job_that_somebody_changes_is_handed_out_by_upkeep(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    id = db.put()
    suspend(db, db.take())
    held_open.edit(id, changes={"priority": 3})

    sending = start(lambda session: send(session))
    waited = sending.waits()
    sending.answer()
    held_open.connection.commit()

    assert not waited
    assert db.claim() == []
    db.upkeep()
    assert [job.id for job in db.claim()] == [id]


def test_an_event_for_a_job_that_is_cancelled_meanwhile_goes_to_the_next(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    first, second = db.put(), db.put()
    for job in db.claim(max_jobs=2):
        suspend(db, job)
    held_open.cancel(first)

    sending = start(lambda session: send(session))
    waited = sending.waits()
    sending.answer()
    held_open.connection.commit()

    assert not waited
    assert [job.id for job in db.claim()] == [second]


def test_a_step_waits_for_the_reap_and_then_stores_nothing(
    db: Protocol, held_open: Protocol, start: Start, later: Later
) -> None:
    db.put()
    job = db.take()
    later(seconds=31)
    held_open.reap()
    item = Jsonb([{"id": str(job.id), "token": str(job.token), "name": "late"}])

    def step(session: Protocol) -> Any:
        return session.connection.execute(
            "select outcome from holdfast.step(items => %s)", [item]
        ).fetchall()

    storing = start(step)
    waited = storing.waits()
    held_open.connection.commit()

    assert waited
    assert storing.answer() == [("lost",)]


def test_a_reap_leaves_alone_a_job_whose_step_is_being_stored(
    db: Protocol, held_open: Protocol, later: Later
) -> None:
    db.put()
    job = db.take()
    later(seconds=31)
    item = Jsonb([{"id": str(job.id), "token": str(job.token), "name": "in time"}])
    held_open.connection.execute("select outcome from holdfast.step(items => %s)", [item])

    reaped = db.reap()
    held_open.connection.commit()

    assert reaped == []
    names = db.connection.execute("select name from holdfast.step").fetchall()
    assert names == [("in time",)]
