"""Schedulers that meet each other, a person who edits, and a worker that settles the last job."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Later, Protocol

MINUTE = timedelta(minutes=1)

Seen = tuple[str, datetime | None, int]


def put(db: Protocol, **settings: Any) -> None:
    db.call("schedule_set", name="tick", settings=Jsonb(settings), columns=("name",))


def see(db: Protocol) -> Seen:
    """What a scheduler reads before it decides."""
    [row] = db.call("schedule_due", columns=("name", "next_at", "revision"))
    return row.name, row.next_at, row.revision


def fire(db: Protocol, seen: Seen, slot: datetime) -> list[str]:
    """What it writes then: the outcomes of the slots it fired."""
    name, expected, revision = seen
    rows = db.connection.execute(
        "select outcome from holdfast.schedule_fire(name => %s, expected_next => %s,"
        " slots => array[%s::timestamptz], next_at => %s, revision => %s)",
        [name, expected, slot, slot + MINUTE, revision],
    ).fetchall()
    return [outcome for (outcome,) in rows]


@pytest.fixture
def slot(db: Protocol, later: Later) -> datetime:
    """The slot of a schedule that has come."""
    return come(db, later)


def come(db: Protocol, later: Later, **settings: Any) -> datetime:
    put(db, kind="tick", every=60, **settings)
    [row] = db.call("schedule_due", columns=("name", "since", "revision"))
    slot: datetime = row.since.replace(microsecond=0) + MINUTE
    db.connection.execute(
        "select from holdfast.schedule_fire('tick', null, '{}', %s, %s)", [slot, row.revision]
    )
    later(minutes=1)
    return slot


def test_a_scheduler_that_slept_between_reading_and_writing_fires_nothing(
    db: Protocol, slot: datetime, later: Later
) -> None:
    stopped = see(db)
    assert fire(db, see(db), slot) == ["fired"]
    later(hours=1)

    assert fire(db, stopped, slot) == []
    assert len(db.list()) == 1


def test_a_slot_that_was_passed_over_is_not_fired_late_by_one_that_slept(
    db: Protocol, slot: datetime, later: Later
) -> None:
    stopped = see(db)
    later(minutes=5)
    newest = slot + 5 * MINUTE
    assert fire(db, see(db), newest) == ["fired"]
    later(minutes=2)  # the slot behind has come as well: the schedule is due, but not at that slot

    assert fire(db, stopped, slot + MINUTE) == []
    assert len(db.list()) == 1
    [row] = db.table("select next_at from holdfast.schedules")
    assert row.next_at == newest + MINUTE


def test_a_scheduler_does_not_wait_for_one_that_is_firing(
    db: Protocol, held_open: Protocol, slot: datetime
) -> None:
    seen = see(db)
    assert fire(held_open, seen, slot) == ["fired"]

    assert fire(db, seen, slot) == []
    held_open.connection.commit()

    assert len(db.list()) == 1


def test_a_slot_whose_scheduler_died_is_fired_by_the_next(
    db: Protocol, held_open: Protocol, slot: datetime
) -> None:
    seen = see(db)
    fire(held_open, seen, slot)
    held_open.connection.rollback()

    assert fire(db, seen, slot) == ["fired"]
    assert len(db.list()) == 1


def test_ten_schedulers_at_once_make_one_job_for_each_slot(
    db: Protocol, slot: datetime, later: Later, at_once: Callable[..., list[Any]]
) -> None:
    for minute in range(20):
        due = slot + minute * MINUTE
        seen = see(db)

        answers = at_once(10, lambda session, _, seen=seen, due=due: fire(session, seen, due))

        assert sorted(answers) == [[]] * 9 + [["fired"]]
        later(minutes=1)

    slots = [job.headers["slot"] for job in db.list()]
    assert len(slots) == len(set(slots)) == 20


def test_an_edit_that_is_under_way_is_not_overwritten(
    db: Protocol, held_open: Protocol, slot: datetime
) -> None:
    seen = see(db)
    put(held_open, every=90)

    assert fire(db, seen, slot) == []
    held_open.connection.commit()

    _, next_at, revision = see(db)
    assert next_at is None
    assert revision == seen[2] + 1


def test_an_edit_waits_for_a_slot_that_is_being_fired(
    db: Protocol, held_open: Protocol, slot: datetime, start: Any
) -> None:
    fire(held_open, see(db), slot)

    editing = start(lambda session: put(session, every=90))
    assert editing.waits()
    held_open.connection.commit()
    editing.answer()

    [row] = db.table("select every, next_at, fired from holdfast.schedules")
    assert (row.every, row.next_at, row.fired) == (timedelta(seconds=90), None, 1)


def test_a_pause_waits_for_a_slot_that_is_being_fired_and_stops_the_next(
    db: Protocol, held_open: Protocol, slot: datetime, start: Any, later: Later
) -> None:
    fire(held_open, see(db), slot)
    pausing = start(lambda session: session.call("schedule_pause", name="tick", columns=("name",)))
    assert pausing.waits()
    held_open.connection.commit()
    pausing.answer()
    later(minutes=1)

    assert db.call("schedule_due", columns=("name",)) == []
    assert fire(db, ("tick", slot + MINUTE, 1), slot + MINUTE) == []


def test_a_pause_under_way_keeps_a_scheduler_from_firing(
    db: Protocol, held_open: Protocol, slot: datetime
) -> None:
    seen = see(db)
    held_open.call("schedule_pause", name="tick", columns=("name",))

    assert fire(db, seen, slot) == []
    held_open.connection.commit()
    assert db.list() == []


def test_a_delete_under_way_keeps_a_scheduler_from_firing(
    db: Protocol, held_open: Protocol, slot: datetime
) -> None:
    seen = see(db)
    held_open.value("schedule_delete", name="tick")

    assert fire(db, seen, slot) == []
    held_open.connection.commit()
    assert fire(db, seen, slot) == []


def test_overlap_cancel_gives_up_soon_if_the_last_job_is_being_acked(
    db: Protocol, held_open: Protocol, later: Later
) -> None:
    slot = come(db, later, overlap="cancel")
    fire(db, see(db), slot)
    held_open.ack(db.take(lease=timedelta(hours=1)))
    later(minutes=1)
    seen = see(db)

    with pytest.raises(Exception, match="lock timeout"):
        fire(db, seen, slot + MINUTE)
    held_open.connection.commit()

    assert fire(db, seen, slot + MINUTE) == ["fired"]
    assert db.list("state:cancelled") == []


def test_programs_that_declare_the_same_schedules_at_once_do_not_deadlock(
    db: Protocol, at_once: Callable[..., list[Any]]
) -> None:
    names = [f"s{n}" for n in range(12)]

    def declare(session: Protocol, nth: int) -> list[str]:
        ordered = names if nth % 2 else names[::-1]
        items = [{"name": name, "kind": "k", "every": 60 + nth % 2} for name in ordered]
        rows = session.call("schedule_declare", items=Jsonb(items), columns=("outcome",))
        return [row.outcome for row in rows]

    for _ in range(5):
        answers = at_once(8, declare)
        assert all(isinstance(answer, list) for answer in answers), answers

    assert len(db.table("select from holdfast.schedules")) == 12


def test_a_declaration_that_meets_a_delete_stores_its_schedule(
    db: Protocol, held_open: Protocol, slot: datetime, start: Any
) -> None:
    held_open.value("schedule_delete", name="tick")
    items = [{"name": "tick", "kind": "again", "every": 60}]

    declaring = start(
        lambda session: session.call("schedule_declare", items=Jsonb(items), columns=("outcome",))
    )
    assert declaring.waits()
    held_open.connection.commit()

    assert [row.outcome for row in declaring.answer()] == ["created"]
    assert [row.kind for row in db.table("select kind from holdfast.schedules")] == ["again"]


def test_two_that_ask_at_once_do_not_both_lead(
    db: Protocol, at_once: Callable[..., list[Any]], later: Later
) -> None:
    for _ in range(20):
        answers = at_once(4, lambda session, nth: session.value("lead", holder=f"w{nth}"))
        # Asked in the very moment in which the row is written, a second may lead once: no harm.
        [leader] = db.table("select leader from holdfast.pulse")
        assert any(answers)
        assert [db.value("lead", holder=f"w{n}") for n in range(4)].count(True) == 1
        assert leader.leader.startswith("w")
        later(seconds=6)


def test_nobody_waits_to_lead_while_upkeep_is_under_way(db: Protocol, held_open: Protocol) -> None:
    db.value("lead", holder="ada")
    held_open.upkeep()

    assert db.value("lead", holder="bob") is False
    assert db.value("lead", holder="ada") is True
    held_open.connection.commit()


def declare(db: Protocol, *names: str) -> list[str]:
    items = [{"name": name, "kind": "tick", "every": 60} for name in names]
    rows = db.call("schedule_declare", items=Jsonb(items), owner="shop", columns=("outcome",))
    return [row.outcome for row in rows]


def test_programs_of_two_releases_that_start_together_do_not_deadlock(
    db: Protocol, held_open: Protocol, start: Callable[..., Any]
) -> None:
    declare(db, "a", "b")
    held_open.connection.execute("select from holdfast.schedule where name = 'b' for update")

    new = start(lambda session: declare(session, "b"))
    assert new.waits()
    old = start(lambda session: declare(session, "a", "b"))
    assert old.waits()
    held_open.connection.rollback()

    assert new.answer() == ["same"]
    assert old.answer() == ["same", "same"]
