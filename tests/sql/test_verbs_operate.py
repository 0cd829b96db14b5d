"""cancel, retry, edit, move, archive, delete: what a person may do to jobs."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.protocol import Hold, Later, Open, Protocol

AT_ONCE = timedelta(0)
REASON = "Retry requested by nightly workflow"


def dead(db: Protocol, **fields: Any) -> UUID:
    id = db.put(max_attempts=1, **fields)
    db.nack(db.take(fields.get("queue", "default")), error_kind="E", message="boom")
    return id


# -- cancel


def test_a_cancelled_job_keeps_the_reason(db: Protocol) -> None:
    one, two, three = (db.put() for _ in range(3))

    db.cancel(one, reason="not needed", actor="ada")
    db.cancel(two, actor="ada")
    db.cancel(three)

    assert [db.job(id).state for id in (one, two, three)] == ["cancelled"] * 3
    assert db.job(one).reason == "not needed"
    assert db.job(two).reason == "cancelled by ada"
    assert db.claim(max_jobs=9) == []
    assert db.depth() == {"cancelled": 3}


def test_a_running_handler_learns_that_it_was_cancelled(db: Protocol) -> None:
    id = db.put()
    job = db.take()

    [answer] = db.cancel(id)

    assert (answer.changed, answer.state) == (True, "cancelled")
    assert [db.touch(job)[0].outcome, db.ack(job)[0].outcome] == ["lost", "lost"]
    assert "cancelled" in (db.ack(job)[0].detail or "")


def test_an_answer_comes_for_each_id_in_order(db: Protocol) -> None:
    waiting, gone = db.put(), uuid4()
    done = dead(db, queue="q")

    answers = db.cancel(gone, waiting, done, waiting)

    assert [answer.id for answer in answers] == [gone, waiting, done, waiting]
    assert [answer.changed for answer in answers] == [False, True, False, True]
    assert [answer.state for answer in answers] == [None, "cancelled", "dead", "cancelled"]
    assert answers[0].detail == f"no job has the id {gone}"
    assert answers[2].detail == f"job {done} is dead and cannot be cancelled"


def test_jobs_are_cancelled_by_filter(db: Protocol) -> None:
    db.enqueue(*[{"kind": "a"}] * 3, *[{"kind": "b"}] * 2)

    answers = db.cancel(*db.find("kind:a state:queued"))

    assert len(answers) == 3
    assert {job.kind for job in db.claim(max_jobs=9)} == {"b"}


# -- retry


@pytest.mark.proves("S0.17", "S0.18", "S0.19", "S0.20", "S3.31")
def test_a_retried_job_starts_a_new_life_with_the_reason(db: Protocol) -> None:
    id = dead(db, payload={"n": 1})

    [answer] = db.retry(id, reason=REASON)

    job = db.job(id)
    assert (answer.changed, answer.state, answer.detail) == (True, "queued", None)
    assert job.reason == REASON
    assert (job.attempt, job.error, job.worker, job.lease_until) == (0, None, None, None)
    assert (job.ended_at, job.fingerprint, job.payload) == (None, None, {"n": 1})
    assert db.take().id == id
    assert db.job(id).reason == REASON


@pytest.mark.proves("S0.23")
def test_a_retried_job_waits_behind_those_of_its_priority_that_wait_already(db: Protocol) -> None:
    ended = dead(db)
    waiting = [db.put(), db.put()]
    urgent = dead(db, priority=5)

    db.retry(ended, urgent)
    later = db.put()

    assert [job.id for job in db.claim(max_jobs=9)] == [urgent, *waiting, ended, later]


@pytest.mark.proves("S0.21")
def test_a_job_that_runs_cannot_be_retried(db: Protocol) -> None:
    id = db.put()
    job = db.take()

    [answer] = db.retry(id, reason=REASON)

    assert (answer.changed, answer.state) == (False, "leased")
    assert answer.detail == f"job {id} is leased and cannot be retried"
    assert db.ack(job)[0].outcome == "done"


@pytest.mark.proves("S0.17", "S0.31")
def test_all_that_failed_are_retried_at_once(db: Protocol) -> None:
    ids = [dead(db, queue=f"q{n % 3}") for n in range(9)]

    answers = db.retry(*db.find("state:dead"), reason=REASON, actor="cron")

    assert {answer.id for answer in answers if answer.changed} == set(ids)
    assert sum(len(db.claim(f"q{n}", max_jobs=9)) for n in range(3)) == 9


def test_a_retry_is_signed_by_its_actor(db: Protocol) -> None:
    id = dead(db)

    db.retry(id, actor="ada")

    assert db.job(id).reason == "retried by ada"


def test_a_retry_may_wait(db: Protocol, later: Later) -> None:
    id = dead(db)
    db.retry(id, delay=timedelta(seconds=60))

    early = db.claim()
    later(seconds=61)

    assert early == []
    assert db.take().id == id


def test_a_retried_job_may_die_again_and_remembers_both_lives(db: Protocol) -> None:
    id = dead(db)
    db.retry(id)
    db.nack(db.take(), message="again")

    assert db.state(id) == "dead"
    assert [attempt.message for attempt in db.attempts(id)] == ["boom", "again"]


def test_the_old_holder_gains_nothing_by_a_retry(db: Protocol) -> None:
    id = db.put(max_attempts=1)
    old = db.take()
    db.nack(old)
    db.retry(id)
    db.take()

    assert [db.ack(old)[0].outcome, db.touch(old)[0].outcome] == ["lost", "lost"]


@pytest.mark.proves("S3.30")
def test_a_retry_gives_way_to_a_live_job_with_its_key(db: Protocol) -> None:
    old = dead(db, key="1")
    db.put(key="1")

    [answer] = db.retry(old)

    assert (answer.changed, answer.state) == (False, "dead")
    assert answer.detail == "a live job has the same key '1'"


def test_two_dead_jobs_of_one_key_come_back_one_at_a_time(db: Protocol) -> None:
    ids = [dead(db, key="1") for _ in range(2)]

    answers = db.retry(*ids)

    assert sorted(answer.changed for answer in answers) == [False, True]
    assert db.depth() == {"dead": 1, "queued": 1}


def test_done_and_archived_jobs_can_be_run_again(db: Protocol) -> None:
    db.queue_set("default", keep_done=3600)
    done = db.put()
    db.ack(db.take(), results=[1])
    archived = dead(db)
    db.archive(archived)

    db.retry(done, archived)

    assert {job.id for job in db.claim(max_jobs=9)} == {done, archived}
    assert db.job(done).result is None


def test_a_job_from_before_fair_share_is_retried_into_it(db: Protocol) -> None:
    id = dead(db)
    db.queue_set("default", fair=True)

    db.retry(id)

    assert [job.id for job in db.claim()] == [id]


def test_a_job_from_before_by_kind_is_retried_into_it(db: Protocol) -> None:
    id = dead(db)
    db.queue_set("default", by_kind=True)

    db.retry(id)

    assert [job.id for job in db.claim(kinds=["work"])] == [id]


def test_a_retry_below_zero_is_refused(db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.retry(dead(db), delay=timedelta(seconds=-1))

    assert refusal.value.sqlstate == "HF204"


# -- edit


def test_a_waiting_job_can_be_edited(db: Protocol) -> None:
    id = db.put(payload={"a": 1}, headers={"h": 1})

    db.edit(
        id,
        changes={
            "payload": {"a": 2},
            "priority": 7,
            "max_attempts": 5,
            "lease": 90,
            "headers": None,
            "run_at": "2035-05-05T05:05:05Z",
        },
        reason="typo",
    )

    job = db.job(id)
    assert (job.payload, job.priority, job.max_attempts) == ({"a": 2}, 7, 5)
    assert (job.lease, job.headers, job.reason) == (timedelta(seconds=90), None, "typo")
    assert job.run_at.year == 2035
    assert db.claim() == []


def test_an_edited_priority_counts_at_once(db: Protocol) -> None:
    first, second = db.put(), db.put()

    db.edit(second, changes={"priority": 1})

    assert [job.id for job in db.claim(max_jobs=2)] == [second, first]


def test_an_edit_of_the_payload_keeps_the_place(db: Protocol) -> None:
    first, second = db.put(), db.put()

    db.edit(first, changes={"payload": 1})

    assert [job.id for job in db.claim(max_jobs=2)] == [first, second]


def test_a_scheduled_job_can_be_brought_forward_and_put_off(db: Protocol) -> None:
    id = db.put(delay=3600)

    db.edit(id, changes={"run_at": "2020-01-01T00:00:00Z"})
    forward = db.take()
    db.release(forward)
    db.edit(id, changes={"run_at": "2090-01-01T00:00:00Z"})

    assert forward.id == id
    assert db.claim() == []


def test_a_dead_job_is_edited_and_then_retried(db: Protocol) -> None:
    id = dead(db, payload="bad")

    db.edit(id, changes={"payload": "good", "max_attempts": 4})
    db.retry(id)

    job = db.take()
    assert (job.payload, job.max_attempts) == ("good", 4)


def test_an_edit_never_leaves_fewer_attempts_than_were_made(db: Protocol) -> None:
    id = db.put(max_attempts=5)
    for _ in range(3):
        db.nack(db.take(), delay=AT_ONCE)

    db.edit(id, changes={"max_attempts": 1})

    job = db.take()
    assert job.attempt <= job.max_attempts


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "HF222"),
        ([], "HF222"),
        (7, "HF222"),
        ({"kind": "x"}, "HF222"),
        ({"queue": "x"}, "HF222"),
        ({"state": "done"}, "HF222"),
        ({"priority": 10}, "HF203"),
        ({"max_attempts": 0}, "HF204"),
        ({"lease": 0}, "HF204"),
        ({"headers": 1}, "HF201"),
        ({"run_at": "soon"}, "HF204"),
        ({"payload": "x" * 300_000}, "HF210"),
    ],
)
def test_an_edit_that_makes_no_job_is_refused(db: Protocol, changes: Any, code: str) -> None:
    id = db.put(payload="before")

    with pytest.raises(psycopg.Error) as refusal:
        db.edit(id, changes=changes)

    assert refusal.value.sqlstate == code
    assert db.job(id).payload == "before"


@pytest.mark.parametrize(
    ("limit", "size", "fits"), [(100, 1000, False), (1_000_000, 400_000, True)]
)
def test_an_edit_is_measured_by_the_limit_of_the_jobs_queue(
    db: Protocol, limit: int, size: int, fits: bool
) -> None:
    db.queue_set("own", payload_limit=limit)
    id = db.put(queue="own")

    if fits:
        assert db.edit(id, changes={"payload": "x" * size})[0].changed
    else:
        with pytest.raises(psycopg.Error) as refusal:
            db.edit(id, changes={"payload": "x" * size})
        assert refusal.value.sqlstate == "HF210"


# -- move


def test_a_moved_job_runs_in_the_other_queue_and_answers_to_its_old_id(db: Protocol) -> None:
    id = db.put(payload=1, priority=3)

    [moved] = db.move(id, queue="other", reason="wrong queue")

    assert (moved.changed, moved.state) == (True, "queued")
    assert moved.new_id is not None
    assert db.value("part_of", id=moved.new_id) == db.value("queue_part", queue="other")
    by_old, by_new = db.job(id), db.job(moved.new_id)
    assert by_old == by_new
    assert (by_new.queue, by_new.payload, by_new.priority) == ("other", 1, 3)
    assert by_new.reason == "wrong queue"
    assert db.claim() == []
    assert db.take("other").id == moved.new_id


@pytest.mark.parametrize("verb", ["cancel", "delete", "edit", "explain"])
def test_every_verb_of_an_operator_finds_a_moved_job_by_its_old_id(db: Protocol, verb: str) -> None:
    id = db.put()
    db.move(id, queue="other")

    if verb == "edit":
        assert db.edit(id, changes={"priority": 4})[0].changed
    elif verb == "explain":
        assert db.explain(id).startswith("Ready")
    else:
        assert getattr(db, verb)(id)[0].changed


def test_a_moved_job_keeps_its_failed_attempts(db: Protocol) -> None:
    id = db.put()
    db.nack(db.take(), message="one", delay=AT_ONCE)

    [moved] = db.move(id, queue="other")

    assert moved.new_id is not None
    assert [attempt.message for attempt in db.attempts(id)] == ["one"]
    assert [attempt.message for attempt in db.attempts(moved.new_id)] == ["one"]
    assert db.take("other").attempt == 2


def test_a_dead_job_is_moved_with_its_attempts_and_retried_there(db: Protocol) -> None:
    id = dead(db)

    db.move(id, queue="other")
    depths = (db.depth("default"), db.depth("other"))
    attempts = len(db.attempts(id))
    db.retry(id)

    assert depths == ({}, {"dead": 1})
    assert attempts == 1
    assert len(db.claim("other")) == 1


def test_a_move_gives_way_to_a_live_job_with_its_key(db: Protocol) -> None:
    id = db.put(key="1")
    db.put(key="1", queue="other")

    [answer] = db.move(id, queue="other")

    assert (answer.changed, answer.state, answer.new_id) == (False, "queued", id)
    assert db.take().id == id


def test_a_move_to_where_it_is_changes_nothing(db: Protocol) -> None:
    id = db.put()

    [answer] = db.move(id, queue="default")

    assert (answer.changed, answer.new_id) == (False, id)


def test_a_moved_job_comes_back(db: Protocol) -> None:
    id = db.put()
    db.move(id, queue="other")

    [back] = db.move(id, queue="default")

    assert (back.changed, back.new_id) == (True, id)
    assert db.take().id == id


def test_moving_a_running_jobs_follow_up_frees_it(db: Protocol) -> None:
    db.put(key="1")
    db.take()
    follow_up = db.put(key="1", on_conflict="after")

    db.move(follow_up, queue="other")

    assert len(db.claim("other")) == 1


def test_moving_a_job_lets_its_follow_up_take_its_place(db: Protocol) -> None:
    id = db.put(key="1")
    job = db.take()
    follow_up = db.put(key="1", on_conflict="after")
    db.release(job)

    db.move(id, queue="other")

    assert [each.id for each in db.claim()] == [follow_up]


def test_a_queue_without_a_name_is_refused(db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.move(db.put(), queue="")

    assert refusal.value.sqlstate == "HF202"


# -- archive and delete


@pytest.mark.proves("S4.2", "S4.15")
def test_what_ended_can_be_put_away(db: Protocol) -> None:
    db.queue_set("default", keep_done=3600)
    done = db.put()
    db.ack(db.take())
    cancelled = db.put()
    db.cancel(cancelled)
    died = dead(db)

    db.archive(done, cancelled, died, reason="reviewed", actor="ada")

    assert [db.job(id).state for id in (done, cancelled, died)] == ["archived"] * 3
    assert db.job(died).reason == "reviewed"
    assert db.job(died).error == "E: boom"
    assert db.depth() == {"archived": 3, "done": 1}


@pytest.mark.proves("S3.31", "S4.15")
def test_what_was_reviewed_is_deleted_with_all_its_traces(db: Protocol) -> None:
    id = dead(db)

    [answer] = db.delete(id)

    assert (answer.changed, answer.state) == (True, None)
    assert db.get(id) is None
    assert db.attempts(id) == []
    assert db.depth() == {}


def test_a_running_job_is_not_deleted(db: Protocol) -> None:
    id = db.put()
    job = db.take(worker="w1")

    [answer] = db.delete(id)

    assert (answer.changed, answer.state) == (False, "leased")
    assert answer.detail is not None
    assert "w1" in answer.detail
    assert "cancel it first" in answer.detail
    assert db.ack(job)[0].outcome == "done"


def test_deleting_a_job_lets_its_follow_up_take_its_place(db: Protocol) -> None:
    id = db.put(key="1")
    job = db.take()
    follow_up = db.put(key="1", on_conflict="after")
    db.release(job)

    db.delete(id)

    assert [each.id for each in db.claim()] == [follow_up]


@pytest.mark.proves("S3.9", "S3.38")
def test_jobs_can_be_made_to_die_with_their_subject(db: Protocol) -> None:
    db.connection.execute(
        """
        create temporary table item (id int primary key);
        insert into item values (1), (2);
        create function pg_temp.forget() returns trigger language plpgsql as $$
        begin
          perform holdfast.delete(holdfast.find(format('subject:"item/%s" -state:leased', old.id)));
          return old;
        end $$;
        create trigger forget after delete on item for each row execute function pg_temp.forget();
        """
    )
    first, second = db.put("price", subject="item/1"), db.put("price", subject="item/2")

    with db.connection.transaction() as undone:
        db.connection.execute("delete from item where id = 1")
        during = db.state(first)
        raise psycopg.Rollback(undone)
    db.connection.execute("delete from item where id = 2")

    assert during is None
    assert (db.state(first), db.state(second)) == ("queued", None)


@pytest.mark.parametrize("verb", ["cancel", "retry", "archive", "delete"])
def test_no_ids_are_no_answers(db: Protocol, verb: str) -> None:
    assert getattr(db, verb)() == []


@pytest.mark.parametrize("verb", ["cancel", "retry", "archive", "delete"])
def test_an_id_given_twice_is_changed_once(db: Protocol, verb: str) -> None:
    id = db.put() if verb == "cancel" else dead(db)

    getattr(db, verb)(id, id)

    assert len([job for job in db.list() if job.id == id]) == (0 if verb == "delete" else 1)


def test_the_holder_of_a_deleted_jobs_past_gets_no_job_back(db: Protocol) -> None:
    id = db.put()
    job = db.take()
    db.release(job)
    db.delete(id)

    assert db.release(job)[0].outcome == "already"
    assert db.ack(Hold(id, job.token))[0].outcome == "lost"


def test_the_worker_of_a_cancelled_job_is_told_to_look(db: Protocol, other: Open) -> None:
    listener = other().connection
    listener.execute("listen holdfast")
    db.enqueue(*[{"kind": "k"}] * 4)
    running = [*db.claim(worker="ada", max_jobs=2), *db.claim(worker="eve")]
    waiting = db.find("state:queued")

    db.cancel(*waiting)
    db.cancel(*[job.id for job in running])

    heard = [n.payload for n in listener.notifies(timeout=100, stop_after=2)]
    assert sorted(heard) == ["\nada", "\neve"]
    assert list(listener.notifies(timeout=0.2)) == []


@pytest.mark.parametrize("verb", ["cancel", "retry", "edit", "move", "archive", "delete"])
def test_ids_that_nobody_gave_are_looked_up_once_and_not_once_for_each_part_they_seem_to_name(
    db: Protocol, verb: str
) -> None:
    more = {"edit": ", changes => '{\"priority\": 1}'", "move": ", queue => 'other'"}.get(verb, "")

    def took(parts: int) -> float:
        ids = [
            UUID(f"{uuid4().hex[:12]}8{100 + n % parts:03x}8{uuid4().hex[17:]}")
            for n in range(1500)
        ]
        row = db.connection.execute(
            f"explain (analyze, format json) select from holdfast.{verb}(ids => %s{more})", [ids]
        ).fetchone()
        assert row
        return float(row[0][0]["Execution Time"])

    of_one_part, of_each = (min(took(parts) for _ in range(3)) for parts in (1, 1500))
    assert of_each < 5 * of_one_part
