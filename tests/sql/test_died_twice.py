"""One id may have ended more than once: its caller used it again after the first job was gone."""

from uuid import UUID

import pytest

from tests.protocol import Later, Protocol


@pytest.fixture
def twice(db: Protocol, later: Later) -> UUID:
    """An id under which two jobs died, with payloads 1 and 2."""
    id = UUID(str(db.value("new_id")))
    for n in (1, 2):
        db.put("k", id=str(id), payload=n, max_attempts=1)
        db.nack(db.take(), message=f"error {n}")
        later(seconds=1)
    return id


def dead(db: Protocol) -> list[int]:
    return [row.payload for row in db.table("select payload from holdfast.dead order by ended_at")]


def test_a_retry_takes_the_last_and_keeps_the_other(db: Protocol, twice: UUID) -> None:
    [answer] = db.retry(twice)

    assert (answer.changed, answer.state) == (True, "queued")
    assert db.take().payload == 2
    assert dead(db) == [1]
    assert db.recount() == []


def test_both_can_be_retried_one_after_the_other(db: Protocol, twice: UUID) -> None:
    ran = []
    for _ in range(2):
        db.retry(twice)
        job = db.take()
        ran.append(job.payload)
        db.ack(job)

    assert ran == [2, 1]
    assert db.get(twice) is None
    assert db.recount() == []


def test_a_retry_of_an_id_named_twice_brings_back_one_job(db: Protocol, twice: UUID) -> None:
    answers = db.retry(twice, twice)

    assert [answer.state for answer in answers] == ["queued", "queued"]
    assert dead(db) == [1]
    assert db.recount() == []


def test_a_dead_job_comes_before_one_that_is_done(db: Protocol, later: Later) -> None:
    id = UUID(str(db.value("new_id")))
    db.put("k", id=str(id), payload=1, max_attempts=1)
    db.nack(db.take())
    later(seconds=1)
    db.put("k", id=str(id), payload=2)
    db.ack(db.take(), keep=True)

    assert db.job(id).state == "dead"
    db.retry(id)

    assert db.take().payload == 1


def test_a_look_shows_the_one_that_a_retry_would_take(db: Protocol, twice: UUID) -> None:
    assert (db.job(twice).payload, db.explain(twice)[-7:]) == (2, "error 2")


def test_an_edit_changes_the_last_alone(db: Protocol, twice: UUID) -> None:
    [answer] = db.edit(twice, changes={"payload": 3})

    assert answer.changed
    assert dead(db) == [1, 3]


def test_a_move_takes_the_last_and_keeps_the_other(db: Protocol, twice: UUID) -> None:
    [moved] = db.move(twice, queue="other")

    assert moved.changed
    assert db.depth("other") == {"dead": 1}
    assert db.depth() == {"dead": 1}
    assert db.recount() == []


def test_an_archive_and_a_delete_take_both(db: Protocol, twice: UUID) -> None:
    db.archive(twice)
    assert db.depth() == {"archived": 2}
    assert db.recount() == []

    db.delete(twice)
    assert db.depth() == {}


def test_an_undone_retry_gives_others_their_own_state_back(db: Protocol, twice: UUID) -> None:
    others = [db.put("k") for _ in range(3)]
    db.cancel(*others)
    [operation] = db.call(
        "operation_preview", verb="retry", filter="state:dead,cancelled", columns=("token",)
    )
    db.call("operation_start", token=operation.token, columns=("id",))
    db.value("operation_step", max_jobs=10)
    [started] = db.table("select id from holdfast.operation")
    db.call("operation_undo", id=started.id, columns=("id",))
    db.value("operation_step", max_jobs=10)

    assert {db.state(id) for id in others} == {"cancelled"}
    assert sorted(dead(db)) == [1, 2]


def test_an_undone_retry_leaves_both_dead(db: Protocol, twice: UUID) -> None:
    [operation] = db.call(
        "operation_preview", verb="retry", filter="state:dead", columns=("token",)
    )
    db.call("operation_start", token=operation.token, columns=("id",))
    db.value("operation_step", max_jobs=10)
    [started] = db.table("select id, changed from holdfast.operation")
    db.call("operation_undo", id=started.id, columns=("id",))
    db.value("operation_step", max_jobs=10)

    assert sorted(dead(db)) == [1, 2]
    assert db.recount() == []
