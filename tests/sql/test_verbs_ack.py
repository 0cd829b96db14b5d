"""ack: the end of a lease with success, once, by its holder."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.protocol import Hold, Later, Protocol


@pytest.mark.proves("S3.2", "S3.20", "S3.32", "S3.38", "S4.14")
def test_an_ack_deletes_the_job(db: Protocol) -> None:
    db.put()
    job = db.take()

    [answer] = db.ack(job)

    assert (answer.outcome, answer.detail) == ("done", None)
    assert db.get(job.id) is None
    assert db.depth() == {"done": 1}
    assert db.connection.execute("select count(*) from holdfast.jobs").fetchone() == (0,)


@pytest.mark.proves("S0.19", "S0.29", "S4.6", "S4.14")
def test_a_queue_that_keeps_done_jobs_keeps_who_when_and_the_result(db: Protocol) -> None:
    db.queue_set("default", keep_done=3600)
    db.enqueue({"kind": "a"}, {"kind": "b"})
    first, second = db.claim(worker="w1", max_jobs=2)

    db.ack(first, second, results=[{"rows": 3}, None])

    kept = db.job(first.id)
    assert (kept.state, kept.worker, kept.attempt, kept.result) == ("done", "w1", 1, {"rows": 3})
    assert kept.ended_at is not None
    assert kept.ended_at >= kept.created_at
    assert db.job(second.id).result is None
    assert {job.id for job in db.list("state:done")} == {first.id, second.id}


def test_each_queue_decides_what_it_keeps(db: Protocol) -> None:
    db.queue_set("kept", keep_done=3600)
    kept, gone = db.put(queue="kept"), db.put(queue="gone")

    db.ack(db.take("kept"), db.take("gone"))

    assert (db.state(kept), db.state(gone)) == ("done", None)


@pytest.mark.proves("S0.32", "S4.20", "S4.21", "S4.22")
def test_a_wrong_token_changes_nothing(db: Protocol) -> None:
    id = db.put()
    db.take(worker="holder")

    [answer] = db.ack(Hold(id, uuid4()))

    assert answer.outcome == "lost"
    assert answer.detail is not None
    assert "holder" in answer.detail
    assert db.state(id) == "leased"


@pytest.mark.proves("S0.32", "S4.24")
def test_the_slow_worker_cannot_finish_what_another_was_given(db: Protocol, later: Later) -> None:
    id = db.put()
    slow = db.take(worker="A")
    later(seconds=31)
    quick = db.take(worker="B")

    late = [
        db.touch(slow)[0].outcome,
        db.ack(slow)[0].outcome,
        db.nack(slow)[0].outcome,
        db.release(slow)[0].outcome,
    ]

    assert late == ["lost"] * 4
    assert (db.job(id).worker, db.job(id).attempt) == ("B", 2)
    assert db.ack(quick)[0].outcome == "done"
    assert db.ack(slow)[0].outcome == "lost"
    assert db.depth() == {"done": 1}


@pytest.mark.proves("S4.24")
def test_the_quick_worker_stays_done_when_the_slow_one_wakes(db: Protocol, later: Later) -> None:
    db.queue_set("default", keep_done=3600)
    id = db.put()
    slow = db.take(worker="A")
    later(seconds=31)
    db.ack(db.take(worker="B"))

    answers = [db.ack(slow)[0], db.nack(slow)[0], db.release(slow)[0]]

    assert [answer.outcome for answer in answers] == ["lost"] * 3
    assert "expired" in (answers[0].detail or "")
    assert (db.job(id).state, db.job(id).worker) == ("done", "B")


def test_an_expired_lease_that_nobody_took_can_still_be_acked(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take()
    later(minutes=10)

    assert db.ack(job)[0].outcome == "done"


@pytest.mark.parametrize("keep_done", [0, 3600])
def test_an_own_ack_repeated_is_already(db: Protocol, keep_done: int) -> None:
    db.queue_set("default", keep_done=keep_done)
    db.enqueue(*[{"kind": "k"}] * 2)
    jobs = db.claim(max_jobs=2)
    db.ack(jobs[0])

    answers = db.ack(*jobs)

    assert [answer.outcome for answer in answers] == ["already", "done"]
    assert [answer.outcome for answer in db.ack(*jobs)] == ["already", "already"]
    assert db.depth() == {"done": 2}


def test_an_own_ack_is_still_already_minutes_later(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take()
    db.ack(job)
    for _ in range(4):
        later(minutes=1)
        db.upkeep()

    assert db.ack(job)[0].outcome == "already"


def test_an_own_ack_is_already_however_long_the_job_ran(db: Protocol, later: Later) -> None:
    db.put()
    job = db.take()
    for _ in range(20):
        later(seconds=25)
        db.touch(job)
        db.reap()
    later(seconds=25)
    db.ack(job)
    later(seconds=10)
    db.reap()

    assert db.ack(job)[0].outcome == "already"


def test_receipts_of_acks_do_not_pile_up(db: Protocol, later: Later) -> None:
    for _ in range(10):
        db.put()
        db.ack(db.take())
    for _ in range(5):
        later(minutes=6)
        db.upkeep()

    assert db.connection.execute("select count(*) from holdfast.lease").fetchone() == (0,)


@pytest.mark.parametrize("first", ["ack", "nack", "release"])
@pytest.mark.parametrize("second", ["ack", "nack", "release"])
def test_only_the_same_verb_repeated_is_already(db: Protocol, first: str, second: str) -> None:
    db.put()
    job = db.take()
    verbs: dict[str, Any] = {"ack": db.ack, "nack": db.nack, "release": db.release}
    verbs[first](job)

    [answer] = verbs[second](job)

    assert answer.outcome == ("already" if first == second else "lost")


def test_an_ack_of_nobody_is_unknown(db: Protocol) -> None:
    [answer] = db.ack(Hold(uuid4(), uuid4()))

    assert answer.outcome == "unknown"
    assert answer.detail is not None


def test_many_are_answered_in_the_order_given(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k", "queue": f"q{n % 5}"} for n in range(10)])
    jobs = [job for n in range(5) for job in db.claim(f"q{n}", max_jobs=2)]
    stranger = Hold(jobs[3].id, uuid4())
    given = [*jobs[:3], stranger, Hold(uuid4(), uuid4()), *jobs[4:]]

    answers = db.ack(*given)

    assert [answer.id for answer in answers] == [each.id for each in given]
    assert [answer.outcome for answer in answers] == ["done"] * 3 + ["lost", "unknown"] + [
        "done"
    ] * 6


def test_an_id_given_twice_is_done_once(db: Protocol) -> None:
    db.put()
    job = db.take()

    answers = db.ack(job, job)

    assert {answer.outcome for answer in answers} <= {"done", "already"}
    assert db.depth() == {"done": 1}


def test_a_stale_token_beside_the_right_one_is_lost(db: Protocol, later: Later) -> None:
    db.queue_set("default", keep_done=60)
    db.put()
    stale = db.take()
    later(seconds=31)
    fresh = db.take()

    answers = db.ack(stale, fresh, results=["of the stale", "of the fresh"])

    assert [answer.outcome for answer in answers] == ["lost", "done"]
    assert db.job(fresh.id).result == "of the fresh"


def test_one_token_serves_all_jobs_of_its_claim(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 3)
    jobs = db.claim(max_jobs=3)

    rows = db.call(
        "ack", ids=[job.id for job in jobs], tokens=[jobs[0].token], columns=("outcome",)
    )

    assert [row.outcome for row in rows] == ["done"] * 3


def test_nothing_is_acked_by_nothing(db: Protocol) -> None:
    assert db.ack() == []
    assert db.touch() == []
    assert db.nack() == []
    assert db.release() == []
    assert db.settle() == []


@pytest.mark.proves("S4.20")
@pytest.mark.parametrize("verb", ["touch", "ack", "nack", "release"])
@pytest.mark.parametrize(
    ("ids", "tokens", "code"),
    [
        (1, None, "HF207"),
        (1, [], "HF207"),
        (1, [None], "HF207"),
        (2, [1, None], "HF207"),
        (None, [1], "HF208"),
        ([None], [1], "HF208"),
        (3, [1, 2], "HF208"),
        (1, [1, 2], "HF208"),
    ],
)
def test_the_token_is_always_required(
    db: Protocol, verb: str, ids: Any, tokens: Any, code: str
) -> None:
    id = db.put()
    db.take()
    given_ids = [id, *(uuid4() for _ in range(ids - 1))] if isinstance(ids, int) else ids
    given_tokens = tokens and [token and uuid4() for token in tokens]

    with pytest.raises(psycopg.Error) as refusal:
        db.connection.execute(
            f"select id from holdfast.{verb}(ids => %s::uuid[], tokens => %s::uuid[])",
            [given_ids, given_tokens],
        )

    assert refusal.value.sqlstate == code
    assert db.state(id) == "leased"


@pytest.mark.parametrize("results", [[], [1, 2], {"a": 1}, 7])
def test_results_must_match_the_ids(db: Protocol, results: Any) -> None:
    db.put()
    job = db.take()

    with pytest.raises(psycopg.Error) as refusal:
        db.ack(job, results=results)

    assert refusal.value.sqlstate == "HF208"
    assert db.state(job.id) == "leased"


@pytest.mark.proves("S4.9", "S4.32")
def test_an_ack_reads_only_its_own_jobs(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 5000)
    jobs = db.claim(max_jobs=5)
    db.claim(max_jobs=1000)

    with db.connection.transaction():
        before = db.rows_read()
        db.ack(*jobs)
        read = db.rows_read() - before

    assert read <= 20


def test_an_ack_can_join_the_work_of_the_job(db: Protocol, later: Later) -> None:
    db.put()
    stale = db.take()
    later(seconds=31)
    db.take(worker="heir")

    with db.connection.transaction() as work:
        db.connection.execute("create table work_done (n int)")
        if db.ack(stale)[0].outcome != "done":
            raise psycopg.Rollback(work)

    assert db.connection.execute("select to_regclass('work_done')").fetchone() == (None,)


def test_an_ack_can_keep_a_job_that_its_queue_would_not(db: Protocol) -> None:
    db.enqueue({"kind": "a"}, {"kind": "b"})
    kept, gone = db.claim(max_jobs=2)

    db.ack(kept, results=[{"rows": 3}], keep=True)
    db.ack(gone, results=[{"rows": 4}])

    assert (db.job(kept.id).state, db.job(kept.id).result) == ("done", {"rows": 3})
    assert db.get(gone.id) is None
    assert db.depth() == {"done": 2}


def test_a_job_kept_twice_over_is_kept_once(db: Protocol) -> None:
    db.queue_set("default", keep_done=3600)
    db.put()
    job = db.take()

    db.ack(job, job, keep=True)

    assert db.connection.execute("select count(*) from holdfast.history").fetchone() == (1,)


def test_an_ack_that_is_lost_keeps_nothing(db: Protocol) -> None:
    id = db.put()
    db.take()

    db.ack(Hold(id, uuid4()), keep=True)

    assert db.state(id) == "leased"
    assert db.connection.execute("select count(*) from holdfast.history").fetchone() == (0,)
