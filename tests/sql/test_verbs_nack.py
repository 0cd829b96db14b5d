"""nack: an attempt fails; the job waits for its next or is dead."""

from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from tests.protocol import Hold, Later, Protocol

AT_ONCE = timedelta(0)


@pytest.mark.proves("S4.14", "S3.21")
def test_a_failed_attempt_is_tried_again(db: Protocol) -> None:
    id = db.put()
    db.take(worker="w1")

    [answer] = db.nack(*db.held(*_tokens(db)), error_kind="Timeout", message="slow", delay=AT_ONCE)

    job = db.job(id)
    assert answer.outcome == "queued"
    assert (job.state, job.error, job.worker, job.lease_until) == (
        "queued",
        "Timeout: slow",
        None,
        None,
    )
    assert db.take().attempt == 2


@pytest.mark.proves("S0.16", "S3.3", "S3.21", "S4.3", "S4.6", "S4.14")
def test_out_of_attempts_a_job_is_dead_and_waits_for_a_person(db: Protocol) -> None:
    id = db.put()
    outcomes = [
        db.nack(db.take(), error_kind="E", message=f"try {n}", delay=AT_ONCE)[0].outcome
        for n in range(3)
    ]

    job = db.job(id)
    assert outcomes == ["queued", "queued", "dead"]
    assert (job.state, job.attempt, job.max_attempts) == ("dead", 3, 3)
    assert (job.error, job.payload) == ("E: try 2", {})
    assert job.ended_at is not None
    assert db.claim() == []
    assert db.depth() == {"dead": 1}


def test_every_failed_attempt_is_on_record(db: Protocol, later: Later) -> None:
    id = db.put()
    db.nack(db.take(worker="w1"), error_kind="E", message="one", traceback="tb", delay=AT_ONCE)
    db.take(worker="w2")
    later(seconds=31)
    db.nack(db.take(worker="w3"), error_kind="F", message="three")

    one, two, three = db.attempts(id)

    assert (one.attempt, one.outcome, one.worker) == (1, "failed", "w1")
    assert (one.error_kind, one.message, one.traceback) == ("E", "one", "tb")
    assert (two.attempt, two.outcome, two.worker) == (2, "expired", "w2")
    assert (three.attempt, three.outcome, three.error_kind) == (3, "failed", "F")
    assert one.started_at <= one.ended_at <= two.started_at
    assert two.ended_at - two.started_at > timedelta(seconds=30)


def test_errors_that_differ_in_numbers_and_names_are_one_group(db: Protocol) -> None:
    messages = [
        "no row 17 in 'orders'",
        "no row 4711 in 'items'",
        "connection to 10.0.0.7 refused",
    ]
    for message in messages:
        db.put(max_attempts=1)
        db.nack(db.take(), error_kind="E", message=message)

    groups = db.connection.execute(
        "select fingerprint, jobs, error from holdfast.dead_groups order by jobs desc"
    ).fetchall()

    assert [jobs for _, jobs, _ in groups] == [2, 1]
    assert groups[0][2] == f"E: {messages[1]}"
    assert len(db.list(f"group:{groups[0][0]}")) == 2
    assert {job.fingerprint for job in db.list("state:dead")} == {groups[0][0], groups[1][0]}


@pytest.mark.proves("S3.22", "S3.26")
def test_the_newest_failures_are_read_first(db: Protocol, later: Later) -> None:
    ids = []
    for _ in range(3):
        ids.append(db.put(max_attempts=1))
        db.nack(db.take(), message="boom")
        later(seconds=1)

    db.put()

    assert [job.id for job in db.list("state:dead")] == list(reversed(ids))
    assert [job.id for job in db.list("state:dead", max_jobs=2)] == [ids[2], ids[1]]


def test_a_delay_is_kept(db: Protocol, later: Later) -> None:
    id = db.put()
    db.nack(db.take(), delay=timedelta(minutes=5))

    later(seconds=299)
    early = db.claim()
    later(seconds=2)

    assert early == []
    assert [job.id for job in db.claim()] == [id]


@pytest.mark.proves("S3.36")
def test_backoff_doubles_up_to_its_cap(db: Protocol, later: Later) -> None:
    db.queue_set("default", backoff=10, backoff_cap=35)
    db.enqueue(*[{"kind": "k", "max_attempts": 9}] * 40)
    longest = []
    for _ in range(4):
        jobs = db.claim(max_jobs=40)
        db.nack(*jobs)
        [wait] = db.connection.execute(
            "select max(run_at - holdfast.now()) from holdfast.job"
        ).fetchone() or [None]
        longest.append(wait.total_seconds())
        later(seconds=40)
        db.promote()

    assert 5 < longest[0] <= 10 < longest[1] <= 20 < longest[2] <= 35
    assert longest[3] <= 35


def test_backoff_spreads_the_retries(db: Protocol) -> None:
    db.queue_set("default", backoff=100)
    db.enqueue(*[{"kind": "k"}] * 20)

    db.nack(*db.claim(max_jobs=20))

    row = db.connection.execute("select count(distinct run_at) from holdfast.job").fetchone()
    assert row == (20,)


@pytest.mark.parametrize("backoff", [1, 60, 86_400])
def test_backoff_never_overflows(db: Protocol, later: Later, backoff: int) -> None:
    db.queue_set("default", backoff=backoff, backoff_cap=60)
    db.put(max_attempts=100)
    for _ in range(50):
        db.nack(db.take(), delay=AT_ONCE)

    [answer] = db.nack(db.take())

    assert answer.outcome == "queued"


def test_a_retried_job_goes_to_the_end_of_its_priority(db: Protocol) -> None:
    first = db.put()
    second = db.put()

    db.nack(db.take(), delay=AT_ONCE)

    assert [job.id for job in db.claim(max_jobs=2)] == [second, first]


def test_a_nack_repeated_is_already(db: Protocol) -> None:
    db.put()
    job = db.take()
    db.nack(job, delay=AT_ONCE)
    heir = db.take()

    assert db.nack(job)[0].outcome == "already"
    assert db.held(heir.token)


def test_an_id_given_twice_fails_once(db: Protocol) -> None:
    id = db.put(max_attempts=1)
    job = db.take()

    answers = db.nack(job, job, message="boom")

    assert {answer.outcome for answer in answers} <= {"dead", "already"}
    assert [each.id for each in db.list()] == [id]
    assert len(db.attempts(id)) == 1
    assert db.depth() == {"dead": 1}


def test_a_stale_token_beside_the_right_one_is_lost(db: Protocol) -> None:
    id = db.put()
    job = db.take()

    answers = db.nack(Hold(id, uuid4()), job, delay=AT_ONCE)

    assert [answer.outcome for answer in answers] == ["lost", "queued"]
    assert len(db.attempts(id)) == 1


def test_a_long_error_is_cut_and_not_refused(db: Protocol) -> None:
    id = db.put(max_attempts=1)

    db.nack(db.take(), error_kind="E" * 500, message="m" * 50_000, traceback="t" * 500_000)

    job = db.job(id)
    assert job.error is not None
    assert len(job.error) <= 2000
    [attempt] = db.attempts(id)
    assert len(attempt.message or "") == 10_000


def test_a_nack_without_words_is_a_failure_too(db: Protocol) -> None:
    id = db.put(max_attempts=1)

    db.nack(db.take())

    assert db.state(id) == "dead"
    assert "no error was given" in db.explain(id)


def test_many_are_answered_in_the_order_given(db: Protocol) -> None:
    ids = [db.put(queue=f"q{n}", max_attempts=1 + n % 2) for n in range(6)]
    jobs = [db.take(f"q{n}") for n in range(6)]

    answers = db.nack(*jobs, Hold(uuid4(), uuid4()), delay=AT_ONCE)

    assert [answer.id for answer in answers[:6]] == ids
    assert [answer.outcome for answer in answers] == ["dead", "queued"] * 3 + ["unknown"]


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_a_delay_below_zero_is_refused(db: Protocol, verb: str) -> None:
    db.put()
    job = db.take()

    with pytest.raises(psycopg.Error) as refusal:
        getattr(db, verb)(job, delay=timedelta(seconds=-1))

    assert refusal.value.sqlstate == "HF204"


@pytest.mark.parametrize("final", [True, False])
def test_a_final_failure_is_the_end_whatever_attempts_are_left(db: Protocol, final: bool) -> None:
    id = db.put(max_attempts=5)

    [answer] = db.nack(db.take(), error_kind="BadInput", message="never", final=final)

    assert answer.outcome == ("dead" if final else "queued")
    assert db.job(id).error == "BadInput: never"
    assert len(db.attempts(id)) == 1


def _tokens(db: Protocol) -> list:
    return [row[0] for row in db.connection.execute("select token from holdfast.lease")]
