"""log, lines: what handlers log while their jobs run."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import Error
from psycopg.types.json import Jsonb

from tests.protocol import Hold, Later, Leased, Protocol
from tests.sql.conftest import Open


def log(
    db: Protocol, *held: Leased | Hold, lines: Sequence[Any], firsts: list[int] | None = None
) -> list[str]:
    asked = db.connection.execute(
        "select outcome from holdfast.log("
        "ids => %s, tokens => %s, lines => %s, firsts => %s::bigint[])",
        [[one.id for one in held], [one.token for one in held], Jsonb(list(lines)), firsts],
    )
    return [row[0] for row in asked.fetchall()]


def lines(db: Protocol, id: UUID, **asked: int) -> list[str]:
    return [row.text for row in db.call("lines", columns=["text"], id=id, **asked)]


def test_lines_are_numbered_by_job_in_the_order_in_which_they_came(db: Protocol) -> None:
    db.put()
    db.put()
    one, two = db.claim(max_jobs=2)

    assert log(db, one, two, lines=[["a", "b"], ["x"]]) == ["logged", "logged"]
    assert log(db, one, lines=[["c"]]) == ["logged"]

    found = db.call("lines", columns=["nth", "attempt", "text"], id=one.id)
    assert [tuple(row) for row in found] == [(1, 1, "a"), (2, 1, "b"), (3, 1, "c")]
    assert lines(db, one.id, after=2) == ["c"]
    assert lines(db, one.id, newest=2) == ["b", "c"]
    last = db.call("last_lines", columns=["id", "nth"], ids=[one.id, two.id, uuid4()])
    assert {tuple(row) for row in last} == {(one.id, 3), (two.id, 1)}


def test_only_the_holder_of_a_lease_may_log(db: Protocol, later: Later) -> None:
    db.put()
    first = db.take()
    later(seconds=31)
    db.reap()
    later(seconds=60)
    second = db.take()

    assert log(db, first, second, lines=[["late"], ["mine"]]) == ["lost", "logged"]
    assert log(db, Hold(uuid4(), uuid4()), lines=[["nobody's"]]) == ["lost"]
    assert lines(db, second.id) == ["mine"]


def test_a_repeated_call_stores_no_line_twice(db: Protocol) -> None:
    db.put()
    job = db.take()

    log(db, job, lines=[["a", "b"]], firsts=[1])
    assert log(db, job, lines=[["a", "b", "c"]], firsts=[1]) == ["logged"]

    assert lines(db, job.id) == ["a", "b", "c"]


def test_the_next_attempt_counts_its_own_lines_from_1(db: Protocol, later: Later) -> None:
    db.put()
    first = db.take()
    log(db, first, lines=[["a", "b"]], firsts=[1])
    db.nack(first)
    later(seconds=60)

    log(db, db.take(), lines=[["again"]], firsts=[1])

    found = db.call("lines", columns=["nth", "attempt", "text"], id=first.id)
    assert [tuple(row) for row in found] == [(1, 1, "a"), (2, 1, "b"), (3, 2, "again")]


def test_a_job_keeps_its_newest_thousand_lines_and_of_each_a_thousand_characters(
    db: Protocol,
) -> None:
    db.put()
    job = db.take()

    log(db, job, lines=[[f"line {n}" for n in range(900)]])
    log(db, job, lines=[[f"line {n}" for n in range(900, 1700)]])
    log(db, job, lines=[["x" * 1_000_000]])

    kept = lines(db, job.id)
    assert len(kept) == 1000
    assert kept[0] == "line 701"
    assert kept[-1] == "x" * 1000


def test_logging_changes_nothing_about_the_job(db: Protocol) -> None:
    db.put()
    job = db.take()
    before = db.table("select j.ctid, j.* from holdfast.job j")

    log(db, job, lines=[["a"]])

    assert db.table("select j.ctid, j.* from holdfast.job j") == before


def test_a_job_that_another_call_is_at_is_not_waited_for(db: Protocol, other: Open) -> None:
    db.put()
    db.put()
    one, two = db.claim(max_jobs=2)
    busy = other(autocommit=False)
    busy.touch(one)

    assert log(db, one, two, lines=[["a"], ["b"]], firsts=[1, 1]) == ["busy", "logged"]
    busy.connection.commit()

    assert log(db, one, lines=[["a"]], firsts=[1]) == ["logged"]


@pytest.mark.parametrize(
    "said", [[], ["a"], [["a"], ["b"]], [[1]], [[None]], [["a"] * 1001], {}, [{"a": 1}]]
)
def test_what_is_not_one_array_of_texts_per_id_is_refused(db: Protocol, said: Any) -> None:
    db.put()
    job = db.take()

    with pytest.raises(Error, match="lines"):
        db.connection.execute(
            "select holdfast.log(%s::uuid[], %s::uuid[], %s)", [[job.id], [job.token], Jsonb(said)]
        )


def test_lines_stay_with_a_job_that_is_dead_and_go_when_it_is_deleted(db: Protocol) -> None:
    db.put(max_attempts=1)
    job = db.take()
    log(db, job, lines=[["a"]])
    db.nack(job)
    db.upkeep()
    assert lines(db, job.id) == ["a"]

    db.delete(job.id)

    assert db.table("select * from holdfast.line") == []


def test_lines_go_along_when_a_job_is_moved(db: Protocol) -> None:
    db.put()
    job = db.take()
    log(db, job, lines=[["a"]])
    db.release(job)

    [moved] = db.move(job.id, queue="other")

    assert lines(db, job.id) == ["a"]
    assert [row.id for row in db.table("select id from holdfast.line")] == [moved.new_id]


def test_upkeep_deletes_the_lines_of_jobs_that_are_gone_after_ten_minutes(
    db: Protocol, later: Later
) -> None:
    db.put()
    db.put()
    gone, live = db.claim(max_jobs=2, lease=timedelta(hours=1))
    log(db, gone, live, lines=[["a"], ["b"]])
    db.ack(gone)

    db.upkeep()
    assert lines(db, gone.id) == ["a"]
    later(minutes=11)
    db.upkeep()

    assert lines(db, gone.id) == []
    assert lines(db, live.id) == ["b"]


def test_upkeep_goes_on_with_lines_where_it_stopped(db: Protocol, later: Later) -> None:
    for _ in range(5):
        db.put()
    jobs = db.claim(max_jobs=5)
    log(db, *jobs, lines=[["a"]] * 5)
    db.ack(*jobs)
    later(minutes=11)

    gone = [db.value("forget_lines", most=2) for _ in range(3)]

    assert gone == [2, 2, 1]
