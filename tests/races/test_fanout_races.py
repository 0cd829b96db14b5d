"""A queue is fanned out while others write into it: keys stay unique and lanes one at a time."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.protocol import Open, Protocol

Start = Callable[..., Any]


def fan_out(session: Protocol) -> str:
    try:
        session.queue_set("default", fanout=8)
    except psycopg.Error as error:
        return str(error.sqlstate)
    return "done"


NAMES = [f"n{n}" for n in range(8)]


def jobs(field: str) -> list[dict[str, str]]:
    return [{"kind": "k", field: name} for name in NAMES]


@pytest.mark.parametrize("field", ["key", "lane"])
def test_fan_out_waits_for_an_enqueue_under_way_and_is_refused_for_its_jobs(
    db: Protocol, held_open: Protocol, start: Start, field: str
) -> None:
    held_open.enqueue(*jobs(field))

    change = start(fan_out)
    assert change.waits()
    held_open.connection.commit()

    assert change.answer() in ("HF221", "HF409")  # or it waited for longer than it may
    assert db.table("select fanout from holdfast.queue where name = 'default'") in ([], [(1,)])


def test_fan_out_gives_up_on_an_enqueue_that_stays_open(db: Protocol, held_open: Protocol) -> None:
    held_open.put("k", key="1")

    assert fan_out(db) == "HF409"


@pytest.mark.parametrize("field", ["key", "lane"])
def test_an_enqueue_that_meets_a_fan_out_uses_the_new_parts(
    db: Protocol, held_open: Protocol, start: Start, field: str
) -> None:
    held_open.queue_set("default", fanout=8)

    producer = start(lambda session: session.enqueue(*jobs(field)))
    assert producer.waits()
    held_open.connection.commit()
    producer.answer()

    if field == "key":
        assert {answer.created for answer in db.enqueue(*jobs(field))} == {False}
    else:
        db.enqueue(*jobs(field))
        assert sorted(str(job.lane) for job in db.claim(max_jobs=99)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_one_job_with_a_key_that_meets_a_fan_out_uses_its_new_part(
    db: Protocol, held_open: Protocol, start: Start, name: str
) -> None:
    held_open.queue_set("default", fanout=8)

    producer = start(lambda session: session.put("k", key=name))
    assert producer.waits()
    held_open.connection.commit()

    stored = producer.answer()
    [again] = db.enqueue({"kind": "k", "key": name})
    assert (again.created, again.duplicate_of) == (False, stored)


def test_an_enqueue_on_an_old_snapshot_is_not_placed_by_it(db: Protocol, other: Open) -> None:
    db.queue_set("default", lease=30)
    old = other(autocommit=False)
    old.connection.isolation_level = IsolationLevel.REPEATABLE_READ
    old.table("select 1 from holdfast.queue")
    db.queue_set("default", fanout=8)

    with pytest.raises(psycopg.errors.SerializationFailure):
        old.enqueue(*jobs("key"))


@pytest.mark.parametrize("field", ["key", "lane"])
def test_a_retry_that_meets_a_fan_out_uses_the_new_parts(
    db: Protocol, held_open: Protocol, start: Start, field: str
) -> None:
    ids = [answer.id for answer in db.enqueue(*[{**job, "max_attempts": 1} for job in jobs(field)])]
    db.nack(*db.claim(max_jobs=99))
    held_open.queue_set("default", fanout=8)

    retry = start(lambda session: session.retry(*ids))
    assert retry.waits()
    held_open.connection.commit()
    retry.answer()

    if field == "key":
        assert {answer.created for answer in db.enqueue(*jobs(field))} == {False}
    else:
        db.enqueue(*jobs(field))
        assert sorted(str(job.lane) for job in db.claim(max_jobs=99)) == NAMES


def test_a_move_that_meets_a_fan_out_uses_the_new_parts(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    ids: list[UUID] = [db.put("k", queue="before", key=name) for name in NAMES]
    held_open.queue_set("default", fanout=8)

    move = start(lambda session: session.move(*ids, queue="default"))
    assert move.waits()
    held_open.connection.commit()
    move.answer()

    assert {answer.created for answer in db.enqueue(*jobs("key"))} == {False}


def test_lane_settings_that_meet_a_fan_out_are_kept(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    held_open.queue_set("default", fanout=8)

    settings = start(lambda session: [session.lane_set("default", n, limit=2) for n in NAMES])
    assert settings.waits()
    held_open.connection.commit()
    settings.answer()

    db.enqueue(*jobs("lane"), *jobs("lane"))
    assert sorted(str(job.lane) for job in db.claim(max_jobs=99)) == sorted(NAMES * 2)
