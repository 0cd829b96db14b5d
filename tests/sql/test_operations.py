"""Work on many jobs: counted first, done in chunks, never twice, and only what was there."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.protocol import Later, Protocol


def die(db: Protocol, count: int, queue: str = "default", kind: str = "work") -> list[UUID]:
    """Jobs that are dead."""
    db.enqueue(*[{"kind": kind, "queue": queue, "max_attempts": 1}] * count)
    leased = db.claim(queue, max_jobs=count, kinds=[kind])
    db.nack(*leased, error_kind="Timeout", message="30 s")
    return [job.id for job in leased]


def preview(db: Protocol, verb: str, filter: str, **more: Any) -> Any:
    columns = ("id", "token", "selects", "total", "capped", "sample")
    [row] = db.call("operation_preview", columns=columns, verb=verb, filter=filter, **more)
    return row


def start(db: Protocol, token: UUID, **more: Any) -> Any:
    rows = db.call("operation_start", columns=("id", "state", "rate"), token=token, **more)
    return rows[0] if rows else None


def step(db: Protocol, max_jobs: int | None = None) -> Any:
    # Without a rate, the next chunk is due when others had their turn.
    db.connection.execute("update holdfast.operation set next_at = created_at where rate is null")
    columns = ("id", "state", "seen", "changed", "total", "problem")
    rows = db.call("operation_step", columns=columns, max_jobs=max_jobs)
    return rows[0] if rows else None


def run(db: Protocol, token: UUID, max_jobs: int | None = None) -> Any:
    start(db, token)
    last = None
    while (now := step(db, max_jobs)) is not None:
        last = now
    return last


@pytest.mark.parametrize(
    ("verb", "states"),
    [
        ("retry", "dead,cancelled"),
        ("cancel", "queued,leased"),
        ("archive", "dead,cancelled,done"),
        ("move", "queued,dead"),
        ("delete", "queued,done,dead,cancelled,archived"),
    ],
)
def test_a_filter_without_a_state_means_those_the_verb_is_for(
    db: Protocol, verb: str, states: str
) -> None:
    arguments = Jsonb({"queue": "x"}) if verb == "move" else None

    assert preview(db, verb, "kind:a", arguments=arguments).selects == f"kind:a state:{states}"
    named = preview(db, verb, "kind:a -state:done", arguments=arguments)
    assert named.selects == "kind:a -state:done"


def test_chunks_of_all_parts_add_up_to_all(db: Protocol) -> None:
    for n in range(10):
        die(db, 7, queue=f"queue-{n}")

    found = preview(db, "retry", "state:dead")
    done = run(db, found.token, max_jobs=9)

    assert (found.total, found.capped, len(found.sample)) == (70, False, 10)
    assert (done.state, done.seen, done.changed) == ("done", 70, 70)
    assert len(db.list("state:queued", max_jobs=1000)) == 70


def test_only_the_newest_are_taken_of_all_parts(db: Protocol) -> None:
    ids = [id for n in range(5) for id in die(db, 4, queue=f"queue-{n}")]

    done = run(db, preview(db, "retry", "state:dead", most=6).token, max_jobs=4)

    retried = {job.id for job in db.list("state:queued", max_jobs=100)}
    assert (done.state, done.seen) == ("done", 6)
    assert retried == set(sorted(ids)[-6:])


def test_a_step_looks_at_a_bounded_number_of_jobs(db: Protocol) -> None:
    [wanted] = die(db, 1, kind="rare")
    db.connection.execute(
        "insert into holdfast.dead (part, id, state, queue, kind, priority, attempt, max_attempts, "
        "run_at, created_at, ended_at, payload) "
        "select d.part, holdfast.id_in(d.part), d.state, d.queue, 'common', 0, 1, 1, "
        "d.run_at, d.created_at, d.ended_at, '{}' from holdfast.dead d, generate_series(1, 60000)"
    )
    db.connection.execute("select holdfast.recount()")

    found = preview(db, "retry", "kind:rare")
    start(db, found.token)
    steps = []
    while (now := step(db)) is not None:
        steps.append(now)

    # A preview looks no longer than somebody waits for it, and may not come so far.
    assert set(found.sample) <= {wanted}
    assert len(steps) >= 3
    assert [one.seen for one in steps[:2]] == [0, 0]
    assert (steps[-1].state, steps[-1].changed) == ("done", 1)


def test_jobs_that_die_again_meanwhile_are_left_alone(db: Protocol, later: Later) -> None:
    die(db, 3)
    found = preview(db, "retry", "state:dead")
    start(db, found.token)
    step(db, 1)
    later(seconds=1)
    db.nack(*db.claim(max_jobs=5))

    while (now := step(db, 1)) is not None:
        last = now

    assert (last.state, last.seen) == ("done", 3)
    assert db.depth() == {"queued": 2, "dead": 1}


def test_an_operation_is_started_once_and_within_ten_minutes(db: Protocol, later: Later) -> None:
    die(db, 1)
    early = preview(db, "retry", "state:dead")
    late = preview(db, "retry", "state:dead")

    first, again = start(db, early.token, rate=5.0), start(db, early.token, rate=9.0)
    later(minutes=11)

    assert (first.state, first.rate, again.rate) == ("running", 5.0, 5.0)
    assert start(db, uuid4()) is None
    with pytest.raises(errors.Error) as refused:
        start(db, late.token)
    assert refused.value.sqlstate == "HF412"


def test_an_operation_without_a_rate_leaves_most_of_the_time_to_others(db: Protocol) -> None:
    die(db, 200)
    start(db, preview(db, "retry", "state:dead").token)

    step(db, 100)

    query = "select next_at > holdfast.now() from holdfast.operation where state = 'running'"
    assert db.connection.execute(query).fetchall() == [(True,)]


def test_a_rate_is_kept(db: Protocol, later: Later) -> None:
    db.enqueue(*[{"kind": "a"}] * 1000)
    token = preview(db, "cancel", "kind:a").token
    began = db.value("now")
    start(db, token, rate=8.0)
    seen = []

    for _ in range(10):
        while (now := step(db)) is not None:
            seen.append(now.seen)
        later(seconds=1)

    # Time passes as it is moved and as it goes by; a step of two may be ahead of it.
    elapsed = (db.value("now") - began).total_seconds()
    assert 70 <= seen[-1] <= 8 * elapsed + 2
    assert seen[0] == 2


def test_a_cancelled_operation_does_no_more(db: Protocol) -> None:
    die(db, 5)
    found = preview(db, "retry", "state:dead")
    start(db, found.token)
    step(db, 2)

    [cancelled] = db.call(
        "operation_cancel", columns=("state", "changed", "ended_by"), id=found.id, actor="ada"
    )

    assert tuple(cancelled) == ("cancelled", 2, "ada")
    assert step(db) is None
    assert db.depth() == {"queued": 2, "dead": 3}
    assert db.call("operation_cancel", columns=("state",), id=999999999) == []


def test_an_operation_that_cannot_go_on_says_why(db: Protocol) -> None:
    die(db, 3)
    found = preview(db, "retry", "state:dead")
    start(db, found.token)
    db.connection.execute("update holdfast.operation set filter = 'colour:red'")

    failed = step(db)

    assert (failed.state, failed.changed) == ("failed", 0)
    assert failed.problem.startswith("HF220: filter:")
    assert db.depth() == {"dead": 3}


@pytest.mark.parametrize(
    ("verb", "filter", "more", "code"),
    [
        ("destroy", "kind:a", {}, "HF225"),
        (None, "kind:a", {}, "42883"),
        ("retry", "  ", {}, "HF220"),
        ("retry", "colour:red", {}, "HF220"),
        ("retry", "kind:a", {"most": 0}, "HF225"),
        ("retry", "kind:a", {"arguments": Jsonb([])}, "HF225"),
        ("retry", "kind:a", {"arguments": Jsonb({"delay": "soon"})}, "HF225"),
        ("retry", "kind:a", {"arguments": Jsonb({"queue": "x"})}, "HF225"),
        ("move", "kind:a", {}, "HF225"),
        ("move", "kind:a", {"arguments": Jsonb({"queue": "a\n"})}, "HF202"),
    ],
)
def test_what_makes_no_sense_is_refused(
    db: Protocol, verb: Any, filter: str, more: dict[str, Any], code: str
) -> None:
    with pytest.raises(errors.Error) as refused:
        preview(db, verb, filter, **more)

    assert refused.value.sqlstate == code


def test_a_step_reads_what_it_takes_whatever_else_there_is(db: Protocol) -> None:
    die(db, 50)
    db.enqueue(*[{"kind": "noise"}] * 3000)
    start(db, preview(db, "retry", "state:dead").token)
    db.connection.execute("analyze holdfast.job")

    with db.connection.transaction():
        before = db.rows_read()
        step(db, 10)
        read = db.rows_read() - before

    assert read < 200


def test_previews_that_nobody_starts_are_forgotten(db: Protocol, later: Later) -> None:
    preview(db, "retry", "state:dead")
    later(hours=2)

    db.upkeep()

    assert db.table("select from holdfast.operation") == []


@pytest.mark.parametrize(
    ("verb", "filter", "count"),
    [
        ("retry", "state:queued", 0),
        ("retry", "-state:done", 3),
        ("archive", "state:queued,dead", 3),
        ("cancel", "state:dead", 0),
        ("cancel", "-state:done", 2),
        ("delete", "-state:done", 5),
    ],
)
def test_a_preview_counts_only_where_the_verb_will_look(
    db: Protocol, verb: str, filter: str, count: int
) -> None:
    die(db, 3)
    for _ in range(2):
        db.put()

    found = preview(db, verb, filter)
    done = run(db, found.token)

    assert (found.total, found.capped, len(found.sample)) == (count, False, count)
    assert done.seen == count


def test_a_preview_of_the_newest_is_not_capped(db: Protocol) -> None:
    dead = die(db, 7)

    some, all_of_them = (preview(db, "retry", "state:dead", most=most) for most in (2, 7))

    assert (some.total, some.capped, some.sample) == (2, False, sorted(dead, reverse=True)[:2])
    assert (all_of_them.total, all_of_them.capped) == (7, False)
