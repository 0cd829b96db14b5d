"""release: giving a lease back unused."""

from datetime import timedelta
from uuid import uuid4

from tests.protocol import Hold, Later, Protocol


def test_a_released_job_is_next_and_its_attempt_does_not_count(db: Protocol) -> None:
    first = db.put()
    db.put()
    job = db.take()

    [answer] = db.release(job)

    assert (answer.outcome, answer.detail) == ("queued", None)
    assert (db.job(first).state, db.job(first).attempt) == ("queued", 0)
    again = db.take()
    assert (again.id, again.attempt) == (first, 1)


def test_releasing_for_ever_never_uses_up_a_job(db: Protocol) -> None:
    db.put(max_attempts=1)

    for _ in range(10):
        job = db.take()
        assert (job.attempt, db.release(job)[0].outcome) == (1, "queued")

    assert db.ack(db.take())[0].outcome == "done"


def test_released_jobs_keep_their_order(db: Protocol) -> None:
    ids = [db.put() for _ in range(30)]

    db.release(*db.claim(max_jobs=20))

    assert [job.id for job in db.claim(max_jobs=30)] == ids


def test_a_released_job_does_not_pass_a_higher_priority(db: Protocol) -> None:
    low = db.put(priority=1)
    job = db.take()
    high = db.put(priority=2)

    db.release(job)

    assert [each.id for each in db.claim(max_jobs=2)] == [high, low]


def test_a_released_job_may_wait(db: Protocol, later: Later) -> None:
    id = db.put()
    db.release(db.take(), delay=timedelta(seconds=60))

    later(seconds=59)
    early = db.claim()
    later(seconds=2)

    assert early == []
    assert [(job.id, job.attempt) for job in db.claim()] == [(id, 1)]


def test_a_release_repeated_is_already(db: Protocol) -> None:
    id = db.put()
    job = db.take()
    db.release(job)
    heir = db.take()

    assert db.release(job)[0].outcome == "already"
    assert (db.job(id).attempt, db.held(heir.token)[0].id) == (1, id)


def test_an_id_given_twice_is_released_once(db: Protocol) -> None:
    id = db.put()
    job = db.take()

    db.release(job, job)

    assert db.job(id).attempt == 0


def test_a_stale_token_beside_the_right_one_is_lost(db: Protocol) -> None:
    id = db.put()
    job = db.take()

    answers = db.release(Hold(id, uuid4()), job)

    assert [answer.outcome for answer in answers] == ["lost", "queued"]


def test_a_released_job_lies_above_the_floor(db: Protocol) -> None:
    db.queue_set("default")
    db.enqueue(*[{"kind": "k"}] * 1500)
    held = db.take()
    db.ack(*db.claim(max_jobs=1500))
    raised = [db.raise_floors(), db.raise_floors()]

    db.release(held)

    assert sum(raised) == 1
    assert [job.id for job in db.claim()] == [held.id]
