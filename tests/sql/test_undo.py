"""An operation can be undone: jobs that are as it left them are as they were before."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.protocol import Later, Protocol
from tests.sql.test_operations import die, preview, run, start, step


def undo(db: Protocol, id: int, **more: Any) -> Any:
    columns = ("id", "state", "verb", "total", "arguments")
    rows = db.call("operation_undo", columns=columns, id=id, **more)
    return rows[0] if rows else None


def undone(db: Protocol, id: int, max_jobs: int | None = None, **more: Any) -> Any:
    undo(db, id, **more)
    last = None
    while (now := step(db, max_jobs)) is not None:
        last = now
    return last


def asked(db: Protocol, query: str, *parameters: Any) -> Any:
    [(value,)] = db.connection.execute(query, parameters).fetchall()
    return value


def undoable(db: Protocol, id: int) -> int:
    return int(asked(db, "select undoable from holdfast.operations where id = %s", id))


def ended(db: Protocol) -> dict[UUID, Any]:
    """All that is known of ended jobs, apart from why they were changed."""
    rows = db.connection.execute("select e.id, to_jsonb(e) - 'reason' from holdfast.ended e")
    return dict(rows.fetchall())


def live(db: Protocol) -> dict[UUID, Any]:
    rows = db.connection.execute(
        "select j.id, to_jsonb(j) - 'reason' - 'pos' - 'lane_seq' from holdfast.job j"
    )
    return dict(rows.fetchall())


def counts(db: Protocol) -> dict[str, Any]:
    """Kept counters, which must be what the rows say."""
    kept = db.connection.execute(
        "select queue, kind, sum(queued), sum(leased), sum(dead), sum(cancelled), sum(archived) "
        "from (select queue, kind, queued, leased, dead, cancelled, archived from holdfast.tally "
        "union all select queue, kind, queued, leased, dead, cancelled, archived "
        "from holdfast.total) t group by 1, 2"
    ).fetchall()
    groups = db.connection.execute(
        "select fingerprint, queue, sum(jobs) from holdfast.dead_tally "
        "group by 1, 2 having sum(jobs) <> 0"
    ).fetchall()
    return {
        "kept": sorted(row for row in kept if any(row[2:])),
        "groups": sorted(groups),
    }


def test_retried_jobs_that_nobody_began_are_dead_again(db: Protocol) -> None:
    die(db, 7)
    die(db, 5, queue="mail")
    before, counted = ended(db), counts(db)
    found = preview(db, "retry", "state:dead")
    run(db, found.token, max_jobs=4)
    assert (undoable(db, found.id), len(live(db))) == (12, 12)

    done = undone(db, found.id, max_jobs=3, actor="ada", reason="wrong group")

    assert done.problem is None
    assert (done.state, done.seen, done.changed, done.total) == ("done", 12, 12, 12)
    assert ended(db) == before
    assert (live(db), counts(db), undoable(db, found.id)) == ({}, counted, 0)
    assert asked(db, "select distinct reason from holdfast.dead") == (
        f"undo of operation {found.id}: wrong group"
    )


def test_what_was_begun_since_goes_on(db: Protocol) -> None:
    db.enqueue(*[{"kind": "work", "max_attempts": 2}] * 6)
    db.nack(*db.claim(max_jobs=6), error_kind="Timeout", message="30 s", final=True)
    found = preview(db, "retry", "state:dead")
    run(db, found.token)
    begun = db.claim(max_jobs=4)
    [done] = db.ack(begun[0])
    db.nack(begun[1], error_kind="Timeout", message="again", delay="1 hour")

    result = undone(db, found.id)

    assert done.outcome == "done"
    assert (result.seen, result.changed) == (6, 2)
    assert [one.outcome for one in db.ack(*begun[2:])] == ["done", "done"]
    assert len(db.list("state:dead")) == 2
    assert len(db.list("state:queued")) == 1  # waits for its second attempt


def test_what_was_moved_since_stays_where_it_is(db: Protocol) -> None:
    die(db, 2, queue="mail")
    found = preview(db, "retry", "state:dead queue:mail")
    run(db, found.token)
    [first, _] = db.list("queue:mail")
    db.move(first.id, queue="secret")

    result = undone(db, found.id)

    assert (result.seen, result.changed) == (2, 1)
    assert [job.state for job in db.list("queue:secret")] == ["queued"]
    assert [job.state for job in db.list("queue:mail")] == ["dead"]


def test_what_was_moved_on_is_not_moved_back(db: Protocol) -> None:
    die(db, 1, queue="mail")
    db.enqueue(*[{"kind": "work", "queue": "mail"}] * 2)
    found = preview(db, "move", "queue:mail", arguments=Jsonb({"queue": "press"}))
    run(db, found.token)
    # Queues of one part: a job that moves between them keeps its id.
    part = "select holdfast.queue_part(%s)"
    there = asked(db, part, "press")
    secret = next(f"s{n}" for n in range(10_000) if asked(db, part, f"s{n}") == there)
    moved = [job.id for job in db.list("queue:press") if job.state != "dead"][:1]
    moved += [job.id for job in db.list("queue:press state:dead")]
    db.move(*moved, queue=secret)

    result = undone(db, found.id)

    assert (result.seen, result.changed) == (3, 1)
    assert sorted(job.state for job in db.list(f"queue:{secret}")) == ["dead", "queued"]


def test_each_of_the_retried_becomes_what_it_was(db: Protocol) -> None:
    [dead] = die(db, 1)
    [cancelled] = db.enqueue({"kind": "work"})
    db.call("cancel", columns=("changed",), ids=[cancelled.id])
    [archived] = die(db, 1)
    db.call("archive", columns=("changed",), ids=[archived])
    found = preview(db, "retry", "state:dead,cancelled,archived")
    run(db, found.token)

    undone(db, found.id)

    states = dict(db.connection.execute("select id, state from holdfast.ended").fetchall())
    assert states == {dead: "dead", cancelled.id: "cancelled", archived: "archived"}
    [group] = counts(db)["groups"]
    assert group[2] == 1


def test_done_jobs_that_were_retried_are_done_again_as_they_were(
    db: Protocol, later: Later
) -> None:
    db.queue_set("default", keep_done=3600)
    db.enqueue(*[{"kind": "work", "max_attempts": 5}] * 3)
    db.nack(*db.claim(max_jobs=3), delay=timedelta(0))
    jobs = db.claim(max_jobs=3, worker="ada")
    db.ack(*jobs, results=[{"sum": n} for n in range(3)])
    before, counted = ended(db), counts(db)
    later(minutes=5)
    found = preview(db, "retry", "state:done")
    run(db, found.token)

    undone(db, found.id, max_jobs=2)

    assert (ended(db), live(db), counts(db)) == (before, {}, counted)
    kept = db.job(jobs[2].id)
    assert (kept.result, kept.worker, kept.attempt) == ({"sum": 2}, "ada", 2)


def test_cancelled_jobs_wait_again_as_they_did(db: Protocol, later: Later) -> None:
    db.enqueue(
        {"kind": "work", "delay": 3600, "headers": {"a": "b"}, "priority": 4},
        {"kind": "work", "lane": "l"},
        {"kind": "work", "lane": "l"},
        {"kind": "work", "key": "k"},
        {"kind": "failed"},
    )
    [failed] = db.claim(kinds=["failed"])
    db.nack(failed, error_kind="Timeout", message="30 s", delay="1 hour")
    before, counted = live(db), counts(db)
    found = preview(db, "cancel", "state:queued")
    run(db, found.token)
    assert live(db) == {}

    done = undone(db, found.id)

    assert (done.seen, done.changed) == (5, 5)
    assert live(db) == before
    assert counts(db) == counted
    assert [job.lane for job in db.claim(max_jobs=9)] == ["l", None]
    later(hours=2)
    [again] = [job for job in db.claim(max_jobs=9) if job.kind == "failed"]
    assert again.attempt == 2


def test_what_ran_when_it_was_cancelled_stays_so(db: Protocol) -> None:
    db.enqueue({"kind": "work"}, {"kind": "work"})
    [running] = db.claim()
    found = preview(db, "cancel", "kind:work")
    run(db, found.token)

    done = undone(db, found.id)

    assert (done.seen, done.changed) == (2, 1)
    assert [job.id for job in db.list("state:cancelled")] == [running.id]


def test_a_key_that_is_taken_meanwhile_keeps_its_job(db: Protocol) -> None:
    db.enqueue({"kind": "work", "key": "k"})
    found = preview(db, "cancel", "kind:work")
    run(db, found.token)
    [rival] = db.enqueue({"kind": "work", "key": "k"})

    done = undone(db, found.id)

    assert (done.seen, done.changed, list(live(db))) == (1, 0, [rival.id])


def test_archived_jobs_get_their_states_back(db: Protocol) -> None:
    db.call("queue_set", columns=("queue",), queue="default", settings=Jsonb({"keep_done": 86400}))
    die(db, 3)
    db.enqueue({"kind": "work"}, {"kind": "work"})
    db.ack(*db.claim(max_jobs=2))
    before, counted = ended(db), counts(db)
    found = preview(db, "archive", "kind:work")
    run(db, found.token)
    assert {row["state"] for row in ended(db).values()} == {"archived"}

    done = undone(db, found.id, max_jobs=2)

    assert (done.changed, ended(db), counts(db)) == (5, before, counted)


def test_moved_jobs_go_back_each_to_its_queue(db: Protocol) -> None:
    db.enqueue({"kind": "work", "queue": "a"}, {"kind": "work", "queue": "b"})
    die(db, 2, queue="c")
    before, counted = {**live(db), **ended(db)}, counts(db)
    found = preview(db, "move", "kind:work", arguments=Jsonb({"queue": "z"}))
    run(db, found.token)
    assert {job.queue for job in db.list("", max_jobs=9)} == {"z"}

    done = undone(db, found.id)

    assert (done.changed, counts(db)) == (4, counted)
    assert {**live(db), **ended(db)} == before


def test_half_of_an_operation_and_half_of_an_undo(db: Protocol) -> None:
    die(db, 9)
    found = preview(db, "retry", "state:dead")
    start(db, found.token)
    step(db, 6)
    db.call("operation_cancel", columns=("state",), id=found.id)
    first = undo(db, found.id, rate=1000.0)
    assert undo(db, found.id) == first  # asked again, while it runs
    step(db, 2)
    db.call("operation_cancel", columns=("state",), id=first.id)

    assert (len(live(db)), undoable(db, found.id)) == (4, 4)

    assert undone(db, found.id).changed == 4
    assert len(db.list("state:dead", max_jobs=99)) == 9


@pytest.mark.parametrize(
    ("told", "verb"),
    [
        ("is previewed", "previewed"),
        ("is running", "running"),
        ("cannot be undone: the jobs are deleted", "delete"),
        ("cannot be undone: it is an undo", "undo"),
        ("cannot be undone: it changed nothing", "nothing"),
        (
            "cannot be undone: it was already undone, is older than seven days, or",
            "twice",
        ),
    ],
)
def test_what_cannot_be_undone_says_why(db: Protocol, told: str, verb: str) -> None:
    die(db, 2)
    found = preview(
        db,
        "delete" if verb == "delete" else "retry",
        "kind:x" if verb == "nothing" else "state:dead",
    )
    id = found.id
    if verb == "running":
        start(db, found.token)
    elif verb != "previewed":
        run(db, found.token)
    if verb in ("undo", "twice"):
        last = undone(db, id)
        id = last.id if verb == "undo" else id

    with pytest.raises(errors.Error, match=told) as raised:
        undo(db, id)

    assert raised.value.sqlstate == "HF409"


def test_there_is_nothing_to_undo_of_no_operation(db: Protocol) -> None:
    assert undo(db, 4711) is None
    with pytest.raises(errors.Error, match="rate -1 is not"):
        undo(db, 4711, rate=-1.0)


def test_what_an_operation_changed_is_kept_for_a_week(db: Protocol, later: Later) -> None:
    die(db, 3)
    found = preview(db, "retry", "state:dead")
    run(db, found.token)

    later(days=6)
    db.connection.execute("select holdfast.upkeep()")
    assert undoable(db, found.id) == 3
    later(days=2)
    db.connection.execute("select holdfast.upkeep()")

    assert undoable(db, found.id) == 0
    assert asked(db, "select count(*) from holdfast.operation_chunk") == 0


def test_an_undo_is_on_record(db: Protocol) -> None:
    die(db, 2)
    found = preview(db, "retry", "state:dead", actor="ada")
    run(db, found.token)
    undone(db, found.id, actor="bob", reason="wrong")

    rows = db.connection.execute(
        "select event, actor, state, count(*) from holdfast.event "
        "where event in ('undone', 'operation_started', 'operation_ended') "
        "group by 1, 2, 3 order by 1, 2"
    ).fetchall()
    assert rows == [
        ("operation_ended", "ada", None, 1),
        ("operation_ended", "bob", None, 1),
        ("operation_started", "ada", None, 1),
        ("operation_started", "bob", None, 1),
        ("undone", "bob", "dead", 2),
    ]


def test_followers_are_told_what_they_were_told_before_the_retry(db: Protocol) -> None:
    [parent, follower] = db.enqueue({"kind": "work"}, {"kind": "next", "after": [1]})
    db.cancel(parent.id)
    before = db.explain(follower.id)
    found = preview(db, "retry", "state:cancelled")
    run(db, found.token)

    undone(db, found.id)

    assert f"{parent.id} (cancelled)" in before
    assert db.explain(follower.id) == before


def test_a_follower_gets_the_result_of_a_job_whose_retry_is_undone(db: Protocol) -> None:
    db.queue_set("default", keep_done=3600)
    db.enqueue(*[{"kind": "work"}] * 3)
    jobs = db.claim(max_jobs=3)
    db.ack(*jobs, results=[{"sum": 1}, None, {"sum": 3}])
    found = preview(db, "retry", "state:done")
    run(db, found.token)
    after = [str(job.id) for job in jobs]
    follower = db.put("next", after=after, take={"all": "all", "last": 3})

    undone(db, found.id, max_jobs=2)

    next_one = db.take()
    assert next_one.id == follower
    assert next_one.payload == {"all": [{"sum": 1}, None, {"sum": 3}], "last": {"sum": 3}}
