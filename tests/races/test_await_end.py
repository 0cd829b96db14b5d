"""Who waits for the end of a job is notified, whatever comes first: the wait or the end."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.protocol import Protocol

ENDS: dict[str, Callable[[Protocol, Any], object]] = {
    "done": lambda db, job: db.ack(job),
    "dead": lambda db, job: db.nack(job, final=True),
    "cancelled": lambda db, job: db.cancel(job.id),
}


def wait(db: Protocol, id: UUID) -> None:
    db.value("await_end", ids=[id], waiter="me")


def not_ending(db: Protocol, id: UUID) -> list[UUID]:
    return list(db.value("not_ending", ids=[id]))


def waits(db: Protocol, id: UUID) -> int:
    return len(db.table(f"select from holdfast.awaited where id = '{id}'"))


def heard(listener: psycopg.Connection, patience: float = 0.0) -> list[str]:
    found = listener.notifies(timeout=patience, stop_after=1 if patience else None)
    return [one.payload for one in found]


@pytest.fixture
def listener(other: Callable[..., Protocol]) -> Iterator[psycopg.Connection]:
    connection = other().connection
    connection.execute("listen holdfast_ended")
    yield connection
    # the session is used again, and what came to it is not for the next test
    connection.execute("unlisten *")
    heard(connection)


@pytest.mark.parametrize("end", ENDS)
def test_who_was_on_the_list_first_is_notified_of_the_end(
    db: Protocol, listener: psycopg.Connection, end: str
) -> None:
    db.put()
    job = db.take()
    wait(db, job.id)
    echo = heard(listener, 30)
    sure = not_ending(db, job.id)

    ENDS[end](db, job)

    assert echo == [f"{job.id}\nme"]
    assert sure == [job.id]
    assert heard(listener, 30) == [f"{job.id}\nme"]
    assert waits(db, job.id) == 0


def test_the_newest_transactions_are_open_as_well(db: Protocol, held_open: Protocol) -> None:
    job = db.put()
    held_open.connection.execute("select pg_current_xact_id()")
    with held_open.connection.transaction():  # a savepoint: its number is after the next one
        held_open.connection.execute("delete from holdfast.job")

    assert not_ending(db, job) == []


def test_who_had_locked_a_job_and_is_done_leaves_nobody_unsure(
    db: Protocol, held_open: Protocol, other: Callable[..., Protocol]
) -> None:
    another = other(autocommit=False)
    one, both = db.put(), db.put()
    query = "select from holdfast.job where id = any(%s) for share"
    held_open.connection.execute(query, [[one, both]])
    another.connection.execute(query, [[both]])
    held_open.connection.rollback()
    while_open = [not_ending(db, one), not_ending(db, both)]

    another.connection.commit()

    assert while_open == [[one], []]
    assert [not_ending(db, one), not_ending(db, both)] == [[one], [both]]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", ["plain", "in a savepoint", "locked in a savepoint"])
def test_who_comes_while_the_end_is_being_written_is_not_sure_and_looks_again(
    db: Protocol, held_open: Protocol, listener: psycopg.Connection, end: str, way: str
) -> None:
    db.put()
    job = db.take()
    held_open.connection.execute("select 1")
    with held_open.connection.transaction() if way != "plain" else nullcontext():
        if way == "locked in a savepoint":
            query = "select from holdfast.job where id = %s for update"
            held_open.connection.execute(query, [job.id])
        else:
            ENDS[end](held_open, job)
    if way == "locked in a savepoint":
        ENDS[end](held_open, job)
    # it has looked for who waits, and has not committed
    wait(db, job.id)

    unsure = not_ending(db, job.id)
    held_open.connection.commit()

    assert unsure == []
    assert db.state(job.id) == (None if end == "done" else end)
    assert heard(listener, 30) == [f"{job.id}\nme"], "only what was sent by await_end itself"
    assert heard(listener) == []


def test_an_end_that_is_undone_is_notified_when_it_comes(
    db: Protocol, held_open: Protocol, listener: psycopg.Connection
) -> None:
    db.put()
    job = db.take()
    wait(db, job.id)
    heard(listener, 30)
    held_open.ack(job)
    held_open.connection.rollback()
    undone = heard(listener)

    db.ack(job)

    assert undone == []
    assert heard(listener, 30) == [f"{job.id}\nme"]


def test_a_failed_attempt_is_not_an_end(db: Protocol, listener: psycopg.Connection) -> None:
    db.put()
    job = db.take()
    wait(db, job.id)
    heard(listener, 30)

    db.nack(job)

    assert heard(listener) == []
    assert not_ending(db, job.id) == [job.id]


def test_who_waits_no_longer_is_forgotten(db: Protocol) -> None:
    id = db.put()
    wait(db, id)
    db.connection.execute("update holdfast.awaited set until = now() - interval '1 second'")

    db.upkeep()

    assert waits(db, id) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"waiter": ""}, "waiter"),
        ({"patience": None}, "patience is missing"),
        ({"ids": [UUID(int=n) for n in range(1001)]}, "at most 1000"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(
    db: Protocol, arguments: dict[str, Any], says: str
) -> None:
    given = {"ids": [], "waiter": "me", "patience": "1 minute", **arguments}

    with pytest.raises(psycopg.Error, match=says):
        db.connection.execute(
            "select holdfast.await_end(%(ids)s::uuid[], %(waiter)s, %(patience)s::interval)", given
        )


def test_who_waits_is_notified_if_the_job_gets_another_id(
    db: Protocol, listener: psycopg.Connection
) -> None:
    db.queue_set("elsewhere", fanout=4)
    id = db.put()
    wait(db, id)
    echo = heard(listener, 30)

    db.move(id, queue="elsewhere")

    assert heard(listener, 30) == echo


def test_who_waits_is_notified_of_a_retry_that_is_undone(
    db: Protocol, listener: psycopg.Connection
) -> None:
    id = db.put()
    db.nack(db.take(), final=True)
    [preview] = db.call("operation_preview", columns=("token",), verb="retry", filter="state:dead")
    [started] = db.call("operation_start", columns=("id",), token=preview.token)
    db.value("operation_step", max_jobs=100)
    wait(db, id)
    echo = heard(listener, 30)

    db.call("operation_undo", columns=("id",), id=started.id)
    db.value("operation_step", max_jobs=100)

    assert heard(listener, 30) == echo


def listening(db: Protocol) -> bool:
    return bool(db.value("somebody_waits"))


def test_when_nobody_waits_any_more_acks_stop_asking(db: Protocol) -> None:
    db.put()
    job = db.take()
    wait(db, job.id)
    db.value("stop_listening")
    while_waiting = listening(db)
    db.ack(job)

    db.value("stop_listening")

    assert (while_waiting, listening(db)) == (True, False)


def test_who_is_about_to_wait_is_not_overlooked_by_who_stops_listening(
    db: Protocol, held_open: Protocol, listener: psycopg.Connection
) -> None:
    db.put()
    job = db.take()
    wait(db, db.put())
    db.table("delete from holdfast.awaited returning id")
    heard(listener, 30)
    wait(held_open, job.id)
    db.value("stop_listening")
    held_open.connection.commit()
    heard(listener, 30)

    db.ack(job)

    assert heard(listener, 30) == [f"{job.id}\nme"]


def test_who_waits_while_somebody_stops_listening_is_heard_after_that(
    db: Protocol, held_open: Protocol, listener: psycopg.Connection, start: Callable[..., Any]
) -> None:
    db.put()
    job = db.take()
    wait(db, db.put())
    db.table("delete from holdfast.awaited returning id")
    heard(listener, 30)
    held_open.value("stop_listening")
    waiting = start(lambda session: wait(session, job.id))
    waited = waiting.waits()
    held_open.connection.commit()
    waiting.answer()
    heard(listener, 30)

    db.ack(job)

    assert waited
    assert heard(listener, 30) == [f"{job.id}\nme"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("end", ENDS)
def test_an_end_by_a_snapshot_older_than_who_waits_is_notified(
    db: Protocol, held_open: Protocol, listener: psycopg.Connection, end: str, level: str
) -> None:
    db.put()
    job = db.take()
    held_open.connection.execute(f"set transaction isolation level {level}")
    held_open.table("select from holdfast.queue")
    wait(db, job.id)
    echo = heard(listener, 30)
    sure = not_ending(db, job.id)
    ENDS[end](held_open, job)
    held_open.connection.commit()

    db.upkeep()

    assert sure == [job.id]
    assert heard(listener, 30) == echo
    assert waits(db, job.id) == 0


@pytest.mark.parametrize("after", ["commit", "rollback"])
def test_an_ack_does_not_wait_for_who_asks_again_to_be_told(
    db: Protocol,
    held_open: Protocol,
    listener: psycopg.Connection,
    start: Callable[..., Any],
    after: str,
) -> None:
    db.put()
    job = db.take()
    wait(db, job.id)
    echo = heard(listener, 30)
    wait(held_open, job.id)
    acking = start(lambda session: session.ack(job)[0].outcome)
    waited = acking.waits()
    db.upkeep()
    getattr(held_open.connection, after)()
    if after == "commit":
        heard(listener, 30)  # what it was sent for having asked

    db.upkeep()

    assert (waited, acking.answer()) == (False, "done")
    assert heard(listener, 30) == echo
    assert waits(db, job.id) == 0


def test_an_ack_reads_no_more_the_more_have_waited_since_a_transaction_began(
    db: Protocol, held_open: Protocol
) -> None:
    def pages() -> int:
        db.put()
        job = db.take()
        [[[plan]]] = db.connection.execute(
            "explain (analyze, buffers, format json)"
            " select from holdfast.ack(ids => %s, tokens => %s)",
            [[job.id], [job.token]],
        ).fetchall()
        return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])

    held_open.connection.execute("set transaction isolation level repeatable read")
    held_open.table("select from holdfast.job")
    before = min(pages() for _ in range(3))
    db.connection.execute(
        "insert into holdfast.awaited select 0, gen_random_uuid(), 'me', now()"
        " from generate_series(1, 20000)"
    )
    db.connection.execute("delete from holdfast.awaited")
    after = min(pages() for _ in range(3))
    held_open.connection.rollback()

    assert after < before + 50
