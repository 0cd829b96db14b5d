"""Jobs whose worker vanished: where the kind can tell, somebody looks whether the work is done."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.protocol import Hold, Later, Leased, Protocol

CHECKED = {"kind": "checked", "done_when": True}


@pytest.fixture
def checks(db: Protocol, later: Later) -> Later:
    """A living worker that knows the kind `checked`; time moves, and it goes on living."""
    db.declare_kinds(CHECKED)

    def pass_time(**by: float) -> None:
        later(**by)
        db.beat("judge", kinds=["checked"])

    pass_time()
    return pass_time


def vanished(db: Protocol, pass_time: Later, kind: str = "checked", **item: Any) -> Leased:
    """A job whose worker let its lease expire."""
    db.put(kind, **item)
    job = db.take()
    pass_time(seconds=31)
    return job


def test_reap_leaves_a_job_to_a_living_worker_that_can_tell(db: Protocol, checks: Later) -> None:
    job = vanished(db, checks)

    assert db.reap() == []
    assert db.claim() == []
    assert db.state(job.id) == "leased"


def test_other_kinds_are_reaped_as_ever(db: Protocol, checks: Later) -> None:
    db.enqueue({"kind": "checked"}, {"kind": "plain"})
    checked, plain = db.claim(max_jobs=2)
    checks(seconds=31)

    reaped = db.reap()

    assert [(job.id, job.outcome) for job in reaped] == [(plain.id, "queued")]
    assert [job.id for job in db.doubtful()] == [checked.id]


@pytest.mark.parametrize("why", ["nobody knows the kind", "it died", "nothing to ask"])
def test_without_anyone_to_ask_the_job_is_reaped(db: Protocol, later: Later, why: str) -> None:
    db.declare_kinds({**CHECKED, "done_when": why != "nothing to ask"})
    db.beat("judge", kinds=["other"] if why == "nobody knows the kind" else ["checked"])
    db.put("checked")
    db.take(lease=timedelta(seconds=70 if why == "it died" else 10))

    later(seconds=71 if why == "it died" else 11)

    assert [job.outcome for job in db.reap()] == ["queued"]


def test_a_job_left_to_a_worker_that_dies_is_reaped_later(db: Protocol, checks: Later) -> None:
    job = vanished(db, checks)
    assert db.reap() == []

    db.later(seconds=61)

    assert [reaped.id for reaped in db.reap()] == [job.id]


def test_a_job_that_nobody_says_anything_about_is_reaped_in_the_end(
    db: Protocol, checks: Later
) -> None:
    job = vanished(db, checks)
    assert db.reap() == []
    checks(minutes=9)
    assert db.reap() == []

    checks(minutes=2)

    assert [reaped.id for reaped in db.reap()] == [job.id]


def test_many_jobs_that_wait_for_a_word_do_not_hide_expired_ones(
    db: Protocol, checks: Later
) -> None:
    db.enqueue(*[{"kind": "checked"}] * 250)
    for _ in range(250):
        db.take()
    db.put("plain")
    plain = db.take()
    checks(seconds=31)

    assert [job.id for job in db.reap()] == [plain.id]
    assert len(db.doubtful(max_jobs=1000)) == 250


def test_doubtful_tells_what_a_check_needs(db: Protocol, checks: Later) -> None:
    db.put(
        "checked", payload={"order": 7}, headers={"a": 1}, subject="s", key="k", queue="q", lease=5
    )
    job = db.take("q", worker="gone")
    checks(seconds=6)

    [doubtful] = db.doubtful("checked", "other")

    assert doubtful == (
        job.id,
        job.token,
        "q",
        "checked",
        {"order": 7},
        {"a": 1},
        "s",
        "k",
        1,
        "gone",
    )


def test_only_expired_leases_of_the_kinds_asked_for_are_doubtful(
    db: Protocol, checks: Later
) -> None:
    db.declare_kinds(CHECKED, {"kind": "other", "done_when": True}, {"kind": "mute"})
    db.enqueue({"kind": "checked"}, {"kind": "other"}, {"kind": "mute"})
    jobs = {job.kind: job for job in db.claim(max_jobs=3)}
    db.put("checked")
    db.take(lease=timedelta(minutes=5))
    checks(seconds=31)

    assert [job.id for job in db.doubtful("checked")] == [jobs["checked"].id]
    assert {job.kind for job in db.doubtful()} == {"checked", "other"}
    assert db.doubtful("mute", "unknown") == []
    db.reap()
    assert [job.id for job in db.doubtful("checked")] == [jobs["checked"].id]


def test_doubtful_gives_no_more_than_asked_for(db: Protocol, checks: Later) -> None:
    db.enqueue(*[{"kind": "checked"}] * 5)
    db.claim(max_jobs=5)
    checks(seconds=31)

    assert len(db.doubtful(max_jobs=3)) == 3
    with pytest.raises(psycopg.Error) as refusal:
        db.doubtful(max_jobs=0)
    assert refusal.value.sqlstate == "HF204"


@pytest.mark.proves("S1.10")
def test_work_that_is_done_ends_the_job_as_an_ack_would(db: Protocol, checks: Later) -> None:
    db.queue_set("default", keep_done=3600)
    job = vanished(db, checks, max_attempts=3)

    [answer] = db.reconcile(*db.doubtful(), done=[True])

    assert (answer.id, answer.outcome, answer.detail) == (job.id, "done", None)
    kept = db.job(job.id)
    assert (kept.state, kept.worker, kept.error, kept.attempt) == ("done", "ada", None, 1)
    [attempt] = db.attempts(job.id)
    assert (attempt.outcome, attempt.worker, attempt.error_kind) == ("reconciled", "ada", None)
    assert db.depth() == {"done": 1}
    assert _reconciled(db) == 1
    db.fold()
    assert _reconciled(db) == 1


def test_a_queue_that_keeps_nothing_keeps_nothing_that_was_found_done(
    db: Protocol, checks: Later
) -> None:
    job = vanished(db, checks)

    db.reconcile(job, done=[True])

    assert db.get(job.id) is None


@pytest.mark.proves("S1.11", "S1.12")
@pytest.mark.parametrize(("attempts", "outcome"), [(2, "queued"), (1, "dead")])
def test_work_that_is_not_done_is_an_expired_attempt(
    db: Protocol, checks: Later, attempts: int, outcome: str
) -> None:
    job = vanished(db, checks, max_attempts=attempts)

    [answer] = db.reconcile(job, done=[False])

    assert answer.outcome == outcome
    assert db.state(job.id) == outcome
    [attempt] = db.attempts(job.id)
    assert (attempt.outcome, attempt.error_kind) == ("expired", "LeaseExpired")
    assert _reconciled(db) == 0


def test_an_unanswered_hand_over_that_is_not_done_says_that_no_answer_came(
    db: Protocol, checks: Later
) -> None:
    db.put("checked")
    job = db.take()
    ticket = Hold(job.id, uuid4())
    db.hand_over(job, ticket.token)
    checks(minutes=4)
    assert db.reap() == []

    db.reconcile(*db.doubtful(), done=[False])

    assert [attempt.error_kind for attempt in db.attempts(job.id)] == ["NoAnswer"]


def test_the_worker_that_comes_back_finds_its_lease_lost(db: Protocol, checks: Later) -> None:
    job = vanished(db, checks)
    db.reconcile(job, done=[True])

    [answer] = db.ack(job)

    assert answer.outcome == "lost"
    assert answer.detail == f"job {job.id} is gone; its lease ended as reconciled"


@pytest.mark.proves("S1.12")
def test_what_was_said_to_be_done_before_is_so_already(db: Protocol, checks: Later) -> None:
    job = vanished(db, checks)
    db.reconcile(job, done=[True])

    [answer] = db.reconcile(job, done=[True])

    assert answer.outcome == "already"
    assert _reconciled(db) == 1


@pytest.mark.parametrize("came_back", ["touched", "acked", "nacked", "leased anew"])
def test_what_its_worker_did_meanwhile_stands(db: Protocol, checks: Later, came_back: str) -> None:
    job = vanished(db, checks)
    [seen] = db.doubtful()
    if came_back == "touched":
        db.touch(job)
    elif came_back == "acked":
        db.ack(job)
    else:
        db.nack(job, delay=timedelta(0))
    if came_back == "leased anew":
        db.take(worker="eve")
    state = db.state(job.id)

    [answer] = db.reconcile(seen, done=[True])

    assert answer.outcome == "lost"
    assert answer.detail
    assert db.state(job.id) == state
    assert _reconciled(db) == 0


def test_many_are_answered_in_the_order_given(db: Protocol, checks: Later) -> None:
    jobs = []
    for n in range(6):
        db.put("checked", queue=f"q{n}", max_attempts=1 + n % 2)
        jobs.append(db.take(f"q{n}"))
    checks(seconds=31)

    answers = db.reconcile(
        *jobs, Hold(uuid4(), uuid4()), done=[True, True, False, False, True, False, True]
    )

    assert [answer.id for answer in answers[:6]] == [job.id for job in jobs]
    assert [answer.outcome for answer in answers] == [
        "done",
        "done",
        "dead",
        "queued",
        "done",
        "queued",
        "unknown",
    ]


def test_lanes_and_follow_ups_go_on(db: Protocol, checks: Later) -> None:
    db.enqueue({"kind": "checked", "lane": "l", "key": "k"}, {"kind": "plain", "lane": "l"})
    job = db.take()
    db.put("checked", key="k", on_conflict="after", queue="default")
    checks(seconds=31)

    db.reconcile(job, done=[True])

    assert {leased.kind for leased in db.claim(max_jobs=5)} == {"plain", "checked"}


@pytest.mark.parametrize("done", [[], [True, True], [None]])
def test_reconcile_wants_one_word_per_job(db: Protocol, checks: Later, done: list[Any]) -> None:
    job = vanished(db, checks)

    with pytest.raises(psycopg.Error) as refusal:
        db.reconcile(job, done=done)

    assert refusal.value.sqlstate == "HF208"
    assert db.state(job.id) == "leased"


def test_an_expired_job_that_can_be_asked_about_says_so(db: Protocol, checks: Later) -> None:
    job = vanished(db, checks)

    sentence = db.explain(job.id)

    assert sentence.startswith("The lease of ada expired 00:00:01 ago; a worker for kind checked")


def test_kinds_are_declared_once_and_changed_when_they_change(db: Protocol) -> None:
    first = db.declare_kinds(CHECKED, {"kind": "plain", "queue": "mail", "lease": 5})
    again = db.declare_kinds(CHECKED, {"kind": "plain", "queue": "mail", "lease": 5})
    changed = db.declare_kinds({"kind": "plain", "queue": "post"})

    assert (first, again, changed) == (2, 0, 1)
    kinds = db.table("select name, done_when, about from holdfast.kind order by name")
    assert [tuple(kind) for kind in kinds] == [
        ("checked", True, {}),
        ("plain", False, {"queue": "post"}),
    ]


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ("{}", "HF201"),
        ("[7]", "HF201"),
        ("[{}]", "HF201"),
        ('[{"kind": 7}]', "HF201"),
        ('[{"kind": "k", "done_when": "yes"}]', "HF201"),
        ('[{"kind": ""}]', "HF202"),
        ('[{"kind": "a\\nb"}]', "HF202"),
    ],
)
def test_a_declaration_that_names_no_kind_is_refused(db: Protocol, kinds: str, code: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.connection.execute("select holdfast.declare_kinds(kinds => %s)", [kinds])

    assert refusal.value.sqlstate == code


def _reconciled(db: Protocol) -> int:
    [row] = db.table("select sum(reconciled)::int as jobs from holdfast.queues")
    return int(row.jobs)
