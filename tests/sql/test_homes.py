"""One live job per key and one at a time in a lane, however the queue came to be fanned out."""

from uuid import UUID

import psycopg
import pytest

from tests.protocol import Protocol


def die(db: Protocol, queue: str = "default", **item: object) -> UUID:
    """The id of a job that died."""
    id = db.put("k", queue=queue, max_attempts=1, **item)
    db.nack(db.take(queue), message="no")
    return id


def names(count: int = 8) -> list[str]:
    return [f"n{n}" for n in range(count)]


def test_a_dead_job_moved_into_a_fanned_out_queue_keeps_its_key_unique(db: Protocol) -> None:
    db.queue_set("wide", fanout=8)
    ids = [die(db, key=name) for name in names()]
    db.move(*ids, queue="wide")
    rivals = [db.put("k", queue="wide", key=name) for name in names()]

    answers = db.retry(*ids)

    assert {answer.changed for answer in answers} == {False}
    assert len(db.claim("wide", max_jobs=99)) == len(rivals)


def test_a_dead_job_that_was_retried_first_is_the_one_with_the_key(db: Protocol) -> None:
    db.queue_set("wide", fanout=8)
    ids = [die(db, key=name) for name in names()]
    db.move(*ids, queue="wide")
    db.retry(*ids)

    again = db.enqueue(*[{"kind": "k", "queue": "wide", "key": name} for name in names()])

    assert {answer.created for answer in again} == {False}
    assert [answer.duplicate_of for answer in again] == [db.job(id).id for id in ids]


def test_a_dead_job_moved_into_a_fanned_out_queue_waits_for_its_lane(db: Protocol) -> None:
    db.queue_set("wide", fanout=8)
    ids = [die(db, lane=name) for name in names()]
    db.move(*ids, queue="wide")
    for name in names():
        db.put("k", queue="wide", lane=name)
    db.retry(*ids)

    lanes = [job.lane for job in db.claim("wide", max_jobs=99)]

    assert sorted(lanes) == names()


def test_a_job_that_died_before_the_fan_out_keeps_its_key_unique(db: Protocol) -> None:
    ids = [die(db, key=name) for name in names()]
    db.queue_set("default", fanout=8)
    db.retry(*ids)

    again = db.enqueue(*[{"kind": "k", "key": name} for name in names()])

    assert {answer.created for answer in again} == {False}
    assert len(db.claim(max_jobs=99)) == len(ids)


def test_a_job_that_died_before_the_fan_out_waits_for_its_lane(db: Protocol) -> None:
    ids = [die(db, lane=name) for name in names()]
    db.queue_set("default", fanout=8)
    for name in names():
        db.put("k", lane=name)
    db.retry(*ids)

    assert sorted(str(job.lane) for job in db.claim(max_jobs=99)) == names()


def test_a_retried_job_is_found_by_the_id_it_had(db: Protocol) -> None:
    ids = [die(db, key=name) for name in names()]
    db.queue_set("default", fanout=8)

    answers = db.retry(*ids)

    assert [(answer.changed, answer.state) for answer in answers] == [(True, "queued")] * 8
    assert {db.state(id) for id in ids} == {"queued"}
    assert {len(db.attempts(id)) for id in ids} == {1}


def test_a_retry_can_be_undone_although_the_part_has_changed(db: Protocol) -> None:
    ids = [die(db, key=name) for name in names()]
    db.queue_set("default", fanout=8)
    [operation] = db.call(
        "operation_preview", verb="retry", filter="state:dead", columns=("token",)
    )
    db.call("operation_start", token=operation.token, columns=("id",))
    db.value("operation_step", max_jobs=99)
    [started] = db.table("select id from holdfast.operation")
    db.call("operation_undo", id=started.id, columns=("id",))
    db.value("operation_step", max_jobs=99)

    assert {db.state(id) for id in ids} == {"dead"}


def test_a_job_with_a_key_and_a_lane_stays_dead_in_a_fanned_out_queue(db: Protocol) -> None:
    id = die(db, key="1", lane="l")
    db.queue_set("default", fanout=8)

    [answer] = db.retry(id)

    assert (answer.changed, answer.state) == (False, "dead")
    assert (
        answer.detail
        == "queue 'default' has fanout: a job there can have a key or a lane, not both"
    )


def test_a_job_with_a_key_and_a_lane_is_not_moved_into_a_fanned_out_queue(db: Protocol) -> None:
    db.queue_set("wide", fanout=8)
    dead, waiting = die(db, key="1", lane="l"), db.put("k", key="2", lane="l")

    answers = db.move(dead, waiting, queue="wide")

    assert [answer.changed for answer in answers] == [False, False]
    assert all("has fanout" in str(answer.detail) for answer in answers)


def test_settings_of_lanes_stay_when_a_queue_is_fanned_out(db: Protocol) -> None:
    for name in names():
        db.lane_set("default", name, limit=2)
    db.queue_set("default", fanout=8)
    for name in names():
        for _ in range(3):
            db.put("k", lane=name)

    claimed = [job.lane for job in db.claim(max_jobs=99)]

    assert sorted(map(str, claimed)) == sorted(names() * 2)
    assert len(db.table("select from holdfast.lane")) == 8


def test_a_lanes_rate_goes_on_counting_when_a_queue_is_fanned_out(db: Protocol) -> None:
    for name in names():
        db.lane_set("default", name, rate_limit=1, rate_period=3600)
        db.put("k", lane=name)
    db.ack(*db.claim(max_jobs=99))
    db.queue_set("default", fanout=8)
    for name in names():
        db.put("k", lane=name)

    assert db.claim(max_jobs=99) == []


def test_a_halted_lane_stays_halted_and_goes_on_with_its_job(db: Protocol) -> None:
    for name in names():
        db.lane_set("default", name, on_failure="halt")
    ids = [die(db, lane=name) for name in names()]
    db.queue_set("default", fanout=8)
    for name in names():
        db.put("k", lane=name)
    assert db.claim(max_jobs=99) == []

    db.retry(*ids)
    first = db.claim(max_jobs=99)

    assert {job.id for job in first} == {db.job(id).id for id in ids}
    db.ack(*first)
    assert len(db.claim(max_jobs=99)) == 8


def test_a_halted_lane_goes_on_when_its_job_is_archived_after_the_fan_out(db: Protocol) -> None:
    for name in names():
        db.lane_set("default", name, on_failure="halt")
    ids = [die(db, lane=name) for name in names()]
    db.queue_set("default", fanout=8)
    for name in names():
        db.put("k", lane=name)

    db.archive(*ids)

    assert len(db.claim(max_jobs=99)) == 8


@pytest.mark.parametrize("job", [{}, {"key": "1"}, {"delay": 60}, {"lane": "l"}])
def test_fanout_does_not_change_while_any_job_lives(db: Protocol, job: dict[str, object]) -> None:
    db.put("k", **job)
    db.put("k", **job) if "lane" in job else None

    with pytest.raises(psycopg.Error) as refusal:
        db.queue_set("default", fanout=2)

    assert refusal.value.sqlstate == "HF221"


def test_fanout_does_not_change_while_a_job_is_held_back(db: Protocol) -> None:
    db.put("k")
    db.call("strike_add", kind="k", reason="r", columns=("number",))
    assert db.claim() == []

    with pytest.raises(psycopg.Error) as refusal:
        db.queue_set("default", fanout=2)

    assert refusal.value.sqlstate == "HF221"
