"""A sequence that fell behind, as after a logical cut-over, is brought up again by upkeep."""

from datetime import timedelta
from typing import Any

import pytest

from tests.protocol import Protocol

BEHIND = "select setval('holdfast.pos', 1, false)"


@pytest.fixture
def cut_over(db: Protocol) -> Any:
    """A queue whose floor is far up, and a sequence that starts again from one.

    Afterwards it is as high as it was: the database is shared.
    """
    [before] = db.table("select last_value as pos from holdfast.pos")
    db.connection.execute("select setval('holdfast.pos', %s)", [before.pos + 5000])
    db.queue_set("default", lease=30)
    db.connection.execute(
        "insert into holdfast.floor (part, queue, floors)"
        " values (holdfast.queue_part('default'), 'default',"
        " array_fill(%s::bigint, array[10]))",
        [before.pos + 4000],
    )
    db.connection.execute("update holdfast.pulse set probe_pos = %s", [before.pos + 4500])
    db.connection.execute(BEHIND)
    yield before.pos + 4000
    db.connection.execute(
        "select setval('holdfast.pos', greatest(%s, (select last_value from holdfast.pos)))",
        [before.pos + 5000],
    )


def level(db: Protocol) -> str:
    [row] = db.table("select level from holdfast.doctor() where name = 'positions'")
    return str(row.level)


def test_jobs_are_claimable_again_after_one_turn_of_upkeep(db: Protocol, cut_over: int) -> None:
    early = db.put()
    assert db.claim() == []

    db.upkeep()
    late = db.put()

    assert [job.id for job in db.claim(max_jobs=9)] == [early, late]


def test_the_sequence_is_put_beyond_every_place_in_use(db: Protocol, cut_over: int) -> None:
    db.connection.execute("update holdfast.pulse set probe_pos = 0")  # a table that was left out

    db.raise_floors()
    db.raise_floors()

    [now] = db.table("select last_value as pos from holdfast.pos")
    assert now.pos >= cut_over


def test_lanes_keep_their_order_over_a_cut_over(db: Protocol, cut_over: int) -> None:
    db.connection.execute("select setval('holdfast.pos', %s)", [cut_over + 900])
    first = db.put("k", lane="l", priority=3)
    db.connection.execute(BEHIND)
    db.upkeep()
    second = db.put("k", lane="l", priority=3)

    ran = []
    for _ in range(2):
        job = db.take()
        ran.append(job.id)
        db.ack(job)

    assert ran == [first, second]


def test_a_job_written_meanwhile_is_found_once_its_writer_is_gone(
    db: Protocol, cut_over: int, other: Any
) -> None:
    writer = other(autocommit=False)
    stray = writer.put()
    db.upkeep()
    writer.connection.commit()
    db.raise_floors(patience=timedelta(0))

    assert [job.id for job in db.claim(max_jobs=9)] == [stray]


def test_floors_go_on_rising_when_their_own_numbers_start_again(
    db: Protocol, cut_over: int
) -> None:
    db.connection.execute("alter table holdfast.floor alter column gen restart with 1")
    db.upkeep()

    db.connection.execute("select setval('holdfast.pos', %s)", [cut_over + 9000])
    db.put()
    db.ack(db.take())
    db.raise_floors()
    db.raise_floors()

    [newest] = db.table(
        "select floors[1] as floor from holdfast.floor where queue = 'default'"
        " order by gen desc limit 1"
    )
    assert newest.floor > cut_over


def test_every_other_number_goes_on_from_where_it_was(db: Protocol, cut_over: int) -> None:
    db.call("strike_add", kind="k", reason="r", columns=("number",))
    [first] = db.table("select number from holdfast.strike")
    db.connection.execute(
        "alter table holdfast.strike alter column number restart with 1;"
        "select setval('holdfast.event_seq', 1, false)"
    )
    db.upkeep()

    [second] = db.call("strike_add", kind="l", reason="r", columns=("number",))

    assert second.number > first.number
    [events] = db.table("select count(*) = count(distinct seq) as fine from holdfast.event")
    assert events.fine


def test_the_doctor_says_that_new_jobs_are_not_claimable(db: Protocol, cut_over: int) -> None:
    assert level(db) == "fail"

    db.upkeep()

    assert level(db) == "ok"


def test_a_job_below_the_floor_is_explained(db: Protocol, cut_over: int) -> None:
    job = db.put()

    assert "Claims start after its position" in db.explain(job)
