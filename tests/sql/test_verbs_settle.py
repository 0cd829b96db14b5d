"""settle: many ends, each in its own way, in one call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tests.protocol import Leased, Protocol


def item(verb: str, job: Leased, **more: Any) -> dict[str, Any]:
    return {"verb": verb, "id": job.id, "token": job.token, **more}


def test_each_lease_ends_in_its_own_way(db: Protocol) -> None:
    db.queue_set("default", keep_done=60)
    db.enqueue(*[{"kind": "k", "payload": n, "max_attempts": 2} for n in range(6)])
    a, b, c, d, e, f = db.claim(max_jobs=6)

    answers = db.settle(
        item("nack", a, error_kind="E", message="one", delay=0),
        item("ack", b, result={"n": 1}),
        item("release", c),
        item("ack", d, result=[2]),
        item("nack", e, error_kind="F", message="two", traceback="tb", delay=60),
        item("release", f, delay=60),
    )

    assert [(answer.ord, answer.id, answer.outcome) for answer in answers] == [
        (1, a.id, "queued"),
        (2, b.id, "done"),
        (3, c.id, "queued"),
        (4, d.id, "done"),
        (5, e.id, "queued"),
        (6, f.id, "queued"),
    ]
    assert (db.job(b.id).result, db.job(d.id).result) == ({"n": 1}, [2])
    assert (db.job(a.id).error, db.job(e.id).error) == ("E: one", "F: two")
    assert [job.id for job in db.claim(max_jobs=9)] == [c.id, a.id]
    assert (db.job(f.id).attempt, db.job(e.id).attempt) == (0, 1)


def test_each_item_is_judged_by_its_own_token(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 3)
    a, b, c = db.claim(max_jobs=3)
    db.ack(c)

    answers = db.settle(
        {"verb": "ack", "id": a.id, "token": uuid4()},
        item("ack", a),
        item("nack", b),
        item("ack", c),
        {"verb": "release", "id": uuid4(), "token": uuid4()},
    )

    assert [answer.outcome for answer in answers] == [
        "lost",
        "done",
        "queued",
        "already",
        "unknown",
    ]


def test_a_job_settled_twice_in_one_call_is_settled_once(db: Protocol) -> None:
    id = db.put(max_attempts=1)
    job = db.take()

    answers = db.settle(item("nack", job), item("nack", job))

    assert {answer.outcome for answer in answers} <= {"dead", "already"}
    assert db.depth() == {"dead": 1}
    assert len(db.attempts(id)) == 1


def test_an_ack_without_a_result_keeps_none(db: Protocol) -> None:
    db.queue_set("default", keep_done=60)
    db.put()
    job = db.take()

    db.settle(item("ack", job))

    row = db.connection.execute("select result is null from holdfast.history").fetchone()
    assert row == (True,)


def test_a_settle_answers_a_repeat_like_the_verb(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 3)
    a, b, c = db.claim(max_jobs=3)
    items = [item("ack", a), item("nack", b, delay=60), item("release", c, delay=60)]
    db.settle(*items)

    assert [answer.outcome for answer in db.settle(*items)] == ["already"] * 3


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token": None}, "HF207"),
        ({"verb": "delete"}, "HF201"),
        ({"verb": None}, "HF201"),
        ({"id": None}, "HF201"),
        ({"id": "seven"}, "HF201"),
        ({"token": "seven"}, "HF201"),
        ({"colour": "red"}, "HF201"),
        ({"delay": -1}, "HF201"),
        ({"delay": "soon"}, "HF201"),
        ({"delay": 1e300}, "HF201"),
    ],
)
def test_an_item_that_cannot_be_settled_is_refused(
    db: Protocol, change: dict[str, Any], code: str
) -> None:
    db.enqueue(*[{"kind": "k"}] * 2)
    good, bad = db.claim(max_jobs=2)

    with pytest.raises(psycopg.Error) as refusal:
        db.settle(item("ack", good), {**item("nack", bad), **change})

    assert refusal.value.sqlstate == code
    assert "item 2" in str(refusal.value)
    assert (db.state(good.id), db.state(bad.id)) == ("leased", "leased")


@pytest.mark.parametrize("items", ["{}", "7", '["ack"]'])
def test_settle_wants_an_array_of_objects(db: Protocol, items: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.connection.execute("select ord from holdfast.settle(items => %s)", [items])

    assert refusal.value.sqlstate == "HF201"


def test_a_hundred_leases_of_many_queues_are_settled_at_once(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k", "queue": f"q{n % 7}"} for n in range(105)])
    jobs = [job for n in range(7) for job in db.claim(f"q{n}", max_jobs=50)]
    verbs = ["ack", "nack", "release"]

    answers = db.settle(*[item(verbs[n % 3], job) for n, job in enumerate(jobs)])

    expected: list[tuple[UUID, str]] = [
        (job.id, "done" if n % 3 == 0 else "queued") for n, job in enumerate(jobs)
    ]
    assert [(answer.id, answer.outcome) for answer in answers] == expected


def test_an_item_may_keep_its_job_or_end_it_for_good(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k", "max_attempts": 5}] * 5)
    a, b, c, d, e = db.claim(max_jobs=5)

    answers = db.settle(
        item("ack", a, result=1, keep=True),
        item("ack", b, result=2),
        item("nack", c, message="never", final=True),
        item("nack", d, final=False, delay=0),
        item("cancel", e, reason="nothing to do"),
    )

    assert [answer.outcome for answer in answers] == ["done", "done", "dead", "queued", "cancelled"]
    assert [answer.id for answer in answers] == [a.id, b.id, c.id, d.id, e.id]
    assert (db.job(a.id).result, db.get(b.id)) == (1, None)
    assert (db.state(c.id), db.state(d.id)) == ("dead", "queued")
    assert (db.state(e.id), db.job(e.id).reason) == ("cancelled", "nothing to do")
    assert db.depth() == {"done": 2, "dead": 1, "queued": 1, "cancelled": 1}


def test_a_holder_cancels_its_own_lease_only(db: Protocol) -> None:
    id = db.put()
    job = db.take()

    [stranger] = db.settle({"verb": "cancel", "id": id, "token": uuid4()})
    [own] = db.settle(item("cancel", job))
    [again] = db.settle(item("cancel", job))
    [late] = db.settle(item("ack", job))

    assert (stranger.outcome, own.outcome, again.outcome) == ("lost", "cancelled", "already")
    assert late.outcome == "lost"
    assert late.detail is not None
    assert "cancelled by its holder" in late.detail


def test_a_cancel_by_an_operator_is_no_repeat_of_the_holders(db: Protocol) -> None:
    db.put()
    job = db.take()
    db.cancel(job.id)

    [answer] = db.settle(item("cancel", job))

    assert answer.outcome == "lost"


def test_a_lane_goes_on_when_a_holder_cancels(db: Protocol) -> None:
    db.enqueue({"kind": "a", "lane": "l"}, {"kind": "b", "lane": "l"})
    first = db.take()

    db.settle(item("cancel", first))

    assert db.take().kind == "b"


@pytest.mark.parametrize(("verb", "field"), [("ack", "keep"), ("nack", "final")])
def test_a_switch_is_true_or_false(db: Protocol, verb: str, field: str) -> None:
    db.put()
    job = db.take()

    with pytest.raises(psycopg.Error) as refusal:
        db.settle(item(verb, job, **{field: "yes"}))

    assert refusal.value.sqlstate == "HF201"


def many(db: Protocol, jobs: int) -> Sequence[Leased]:
    db.enqueue(*[{"kind": "k", "max_attempts": 9}] * jobs)
    return db.claim(max_jobs=jobs)


def cpu_of(db: Protocol) -> float:
    """Return the seconds this session's backend has run, as the kernel counts them."""
    pid = db.connection.info.backend_pid
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")
@pytest.mark.parametrize("case", ["nack", "release", "touch", "lost", "unknown", "repeated"])
def test_the_cost_of_a_batch_follows_its_size(db: Protocol, case: str) -> None:
    """Four times the jobs are four times the work; matched each with each they would be sixteen."""

    def cost(jobs: int) -> float:
        leased = many(db, jobs)
        ids, tokens = [job.id for job in leased], [leased[0].token]
        verb = case if case in ("nack", "release", "touch") else "ack"
        if case == "lost":
            db.release(leased[0])
        elif case == "unknown":
            ids = [uuid4() for _ in ids]
        elif case == "repeated":
            db.nack(*leased)
            verb = "nack"
        before = cpu_of(db)
        db.connection.execute(
            sql.SQL("select count(*) from holdfast.{}(ids => %s, tokens => %s)").format(
                sql.Identifier(verb)
            ),
            [ids, tokens],
        )
        spent = cpu_of(db) - before
        db.connection.execute("truncate holdfast.job, holdfast.lease, holdfast.tally")
        return spent

    cost(100)  # whatever is only done once
    small = min(cost(1000) for _ in range(3))
    large = min(cost(4000) for _ in range(3))

    assert large < 7 * small


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")
def test_an_unknown_id_costs_little_more_than_a_known_one(db: Protocol) -> None:
    leased = many(db, 2000)
    unknown = [uuid4() for _ in leased]
    ids = [job.id for job in leased]
    query = "select count(*) from holdfast.touch(ids => %s, tokens => %s)"
    for given in (ids, unknown):
        db.connection.execute(query, [given, [leased[0].token]])

    before = cpu_of(db)
    db.connection.execute(query, [ids, [leased[0].token]])
    between = cpu_of(db)
    db.connection.execute(query, [unknown, [leased[0].token]])
    after = cpu_of(db)

    assert after - between < 5 * (between - before)
