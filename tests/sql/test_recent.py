"""Recent jobs: done jobs that are kept for a day, so that a person finds what has just run."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Connect
from tests.protocol import Hold, Later, Protocol


def test_a_recent_job_is_kept_with_its_result(db: Protocol) -> None:
    id = db.put(payload={"to": "ada"})

    [answer] = db.ack(db.take(), results=[{"rows": 3}], recent=1)

    kept = db.job(id)
    assert answer.outcome == "done"
    assert (kept.state, kept.worker, kept.payload, kept.result) == (
        "done",
        "ada",
        {"to": "ada"},
        {"rows": 3},
    )
    assert [job.id for job in db.list("state:done")] == [id]
    assert db.depth() == {"done": 1}


@pytest.mark.parametrize("recent", [None, 0, -1])
def test_an_ack_that_does_not_ask_for_it_keeps_nothing(db: Protocol, recent: int | None) -> None:
    id = db.put()

    db.ack(db.take(), recent=recent)

    assert db.state(id) is None
    assert db.depth() == {"done": 1}


def test_an_ack_that_does_not_ask_for_it_runs_nothing_more(connect: Connect) -> None:
    db = Protocol(connect())
    db.connection.execute("drop function holdfast.keep_done")
    db.put()

    [answer] = db.ack(db.take())

    assert answer.outcome == "done"


def test_each_queue_decides_whether_it_keeps_recent_jobs(db: Protocol) -> None:
    db.queue_set("private", keep_recent=False)
    db.queue_set("usual", limit=5)
    jobs = [db.put(queue=queue) for queue in ("private", "usual", "unknown")]

    db.ack(*[db.take(queue) for queue in ("private", "usual", "unknown")], recent=3)

    assert [db.state(id) for id in jobs] == [None, "done", "done"]


def test_as_many_jobs_are_kept_as_the_caller_says_from_the_first(db: Protocol) -> None:
    ids = [db.put() for _ in range(4)]
    held = db.claim(max_jobs=4)

    db.ack(*held, results=[1, 2, 3, 4], recent=2)

    assert [db.state(id) for id in ids] == ["done", "done", None, None]
    assert [db.job(id).result for id in ids[:2]] == [1, 2]
    assert db.depth() == {"done": 4}


def test_beside_a_queue_that_keeps_all_no_more_are_kept_than_the_caller_says(
    db: Protocol,
) -> None:
    db.queue_set("all", keep_done=3600)
    ids = [db.put(queue=queue) for queue in ("all", "some", "some", "all")]
    held = [db.take(queue) for queue in ("all", "some", "some", "all")]

    db.ack(*held, recent=2)

    assert [db.state(id) for id in ids] == ["done", "done", None, "done"]
    assert recent(db) == [ids[1]]


def test_a_job_that_is_named_twice_is_kept_once(db: Protocol) -> None:
    first, second = db.put(), db.put()
    one, other = db.claim(max_jobs=2)

    db.ack(one, one, other, results=["a", "b", "c"], recent=2)

    assert [job.id for job in db.list("state:done")] == [first]
    assert (db.job(first).result, db.state(second)) == ("a", None)


def test_a_job_that_is_not_held_is_not_kept(db: Protocol, later: Later) -> None:
    lost, mine = db.put(), db.put()
    slow, held = db.claim(max_jobs=2)
    later(seconds=31)
    db.touch(held)
    db.take(worker="quick")

    outcomes = [one.outcome for one in db.ack(slow, held, Hold(mine, uuid4()), recent=3)]

    assert outcomes == ["lost", "done", "lost"]
    assert (db.state(lost), db.state(mine)) == ("leased", "done")
    assert db.connection.execute("select count(*) from holdfast.history").fetchone() == (1,)


def test_what_a_queue_keeps_anyway_is_not_recent(db: Protocol) -> None:
    db.queue_set("default", keep_done=3600)
    asked, kept = db.put(), db.put(queue="other")

    db.ack(db.take(), recent=1)
    db.ack(db.take("other"), keep=True, recent=1)

    assert [db.state(asked), db.state(kept)] == ["done", "done"]
    assert recent(db) == []


@pytest.mark.parametrize("what", ["payload", "headers", "result", "elsewhere"])
def test_a_large_job_is_not_kept(db: Protocol, what: str) -> None:
    large = "".join(f"{nth:x}" for nth in range(5000))
    items: dict[str, dict[str, Any]] = {
        "payload": {"payload": {"text": large}},
        "headers": {"headers": {"text": large}},
        "result": {},
        "elsewhere": {"payload": {"$holdfast": {"store": "disk", "address": "a"}}},
    }
    id, small = db.put(**items[what]), db.put(payload={"text": "short"})

    held = db.claim(max_jobs=2)
    db.ack(*held, results=[large if what == "result" else None, None], recent=2)

    assert (db.state(id), db.state(small)) == (None, "done")


@pytest.mark.parametrize(("parents", "result", "kept"), [(20, 1, True), (21, 1, False)])
def test_a_job_that_waited_for_many_is_not_kept(
    db: Protocol, parents: int, result: Any, kept: bool
) -> None:
    ids = [
        *db.enqueue(*[{"kind": "p"}] * parents, {"kind": "f", "after": list(range(1, parents + 1))})
    ]
    db.ack(*db.claim(max_jobs=parents), results=[result] * parents)

    db.ack(db.take(), recent=1)

    assert db.state(ids[-1].id) == ("done" if kept else None)
    assert (rows_of_order(db) == 0) is not kept


def test_a_job_that_took_large_results_is_not_kept(db: Protocol) -> None:
    large = "".join(f"{nth:x}" for nth in range(5000))
    [_, follower] = db.enqueue({"kind": "p"}, {"kind": "f", "after": [1], "take": {"text": 1}})
    db.ack(db.take(), results=[large])

    db.ack(db.take(), recent=1)

    assert db.state(follower.id) is None
    assert rows_of_order(db) == 0


def test_what_kept_jobs_waited_for_goes_as_fast_as_they_do(db: Protocol, later: Later) -> None:
    pairs = [item for n in range(0, 402, 2) for item in ({"kind": "p"}, follows(n + 1))]
    db.queue_set("default", keep_done=3600)
    db.enqueue(*pairs)
    for _ in range(2):
        db.ack(*db.claim(max_jobs=201))
    db.connection.execute("delete from holdfast.history")  # as a page that is dropped
    before = rows_of_order(db)

    left = []
    for _ in range(2):
        db.value("upkeep_step", step="links")
        left.append(rows_of_order(db))
        later(seconds=2)

    assert (before, left) == (201, [1, 0])


def test_settle_keeps_the_jobs_that_say_so(db: Protocol) -> None:
    ids = [db.put() for _ in range(5)]
    held = db.claim(max_jobs=5)
    says: list[dict[str, Any]] = [
        {"verb": "ack", "result": 1},
        {"verb": "ack", "result": 2, "recent": True},
        {"verb": "nack", "message": "no", "final": True},
        {"verb": "ack", "result": 4, "keep": True, "recent": True},
        {"verb": "ack", "result": 5, "recent": True},
    ]

    answers = db.settle(
        *[{"id": one.id, "token": one.token, **said} for one, said in zip(held, says, strict=True)]
    )

    assert [(one.id, one.outcome) for one in answers] == list(
        zip(ids, ["done", "done", "dead", "done", "done"], strict=True)
    )
    assert [db.state(id) for id in ids] == [None, "done", "dead", "done", "done"]
    assert [db.job(ids[nth]).result for nth in (1, 3, 4)] == [2, 4, 5]
    assert recent(db) == sorted([ids[1], ids[4]])


def test_settle_refuses_a_recent_that_is_not_true_or_false(db: Protocol) -> None:
    db.put()
    held = db.take()

    with pytest.raises(psycopg.Error, match="recent") as refused:
        db.settle({"id": held.id, "token": held.token, "verb": "ack", "recent": 3})

    assert refused.value.sqlstate == "HF201"


def test_recent_jobs_go_after_a_day_and_what_their_neighbours_keep_stays(
    connect: Connect, clock: Any
) -> None:
    db = Protocol(connect())
    db.upkeep()  # makes the pages of the days to come
    clock.advance(days=1)
    ids = ended_in_three_ways(db)

    clock.advance(days=1)
    db.upkeep()
    after_a_day = [db.state(id) for id in ids]
    clock.advance(days=1)
    db.upkeep()
    after_two = [db.state(id) for id in ids]

    assert after_a_day == ["done", "done", "cancelled"]
    assert after_two == [None, "done", "cancelled"]
    assert db.connection.execute(
        "select count(*) from pg_class where relname like 'history\\_%\\_recent'"
    ).fetchone() == (5,)


def test_recent_jobs_of_the_first_day_go_after_a_day_too(connect: Connect, clock: Any) -> None:
    db = Protocol(connect())
    ids = ended_in_three_ways(db)

    clock.advance(days=1)
    db.upkeep()
    after_a_day = [db.state(id) for id in ids]
    clock.advance(days=1)
    db.upkeep()
    after_two = [db.state(id) for id in ids]

    assert after_a_day == ["done", "done", "cancelled"]
    assert after_two == [None, "done", "cancelled"]


def test_a_queue_that_keeps_all_for_longer_keeps_no_recent_job_for_longer(
    connect: Connect, clock: Any
) -> None:
    db = Protocol(connect())
    db.queue_set("archives", keep_done=100 * 86400)
    db.upkeep()
    clock.advance(days=1)
    db.put()
    db.ack(db.take(), recent=1)

    clock.advance(days=2)
    db.upkeep()

    assert db.connection.execute("select count(*) from holdfast.history").fetchone() == (0,)


def test_whether_a_job_can_be_waited_for_does_not_depend_on_what_else_was_kept(
    db: Protocol, later: Later
) -> None:
    id = db.put()
    db.ack(db.take(), results=[7], recent=1)

    with pytest.raises(psycopg.Error, match="its result was not kept"):
        db.put("next", after=[str(id)], take={"rows": 1})
    waits = db.put("next", after=[str(id)])
    for _ in range(3):  # its receipt is closed, and then forgotten
        later(minutes=10)
        db.upkeep()
    with pytest.raises(psycopg.Error, match="is not known"):
        db.put("next", after=[str(id)])

    assert (db.state(id), db.state(waits)) == ("done", "queued")


def test_a_recent_job_can_be_retried_and_the_retry_undone(db: Protocol) -> None:
    id = db.put()
    db.ack(db.take(), recent=1)

    [answer] = db.retry(id)

    assert answer.changed
    assert db.state(id) == "queued"
    db.ack(db.take())
    assert db.state(id) is None


def test_a_recent_job_that_is_archived_stays(connect: Connect, clock: Any) -> None:
    db = Protocol(connect())
    id = db.put()
    db.ack(db.take(), recent=1)

    db.archive(id)
    clock.advance(days=3)
    db.upkeep()

    assert db.state(id) == "archived"
    assert recent(db) == []


def test_a_recent_job_repeats_its_answers(db: Protocol) -> None:
    id = uuid4()
    item = {"id": str(db.value("id_in", part=5)), "kind": "work"}
    [stored] = db.enqueue(item, repeat=True)
    held = db.take()
    db.ack(held, recent=1)

    [again] = db.enqueue(item, repeat=True)

    assert again.id == stored.id != id
    assert [one.outcome for one in db.ack(held, recent=1)] == ["already"]
    assert (db.depth(), db.state(stored.id)) == ({"done": 1}, "done")


def test_the_steps_of_a_recent_job_are_kept_with_it(db: Protocol) -> None:
    id = db.put()
    held = db.take()
    item = {"id": str(id), "token": str(held.token), "name": "a", "result": 3}
    db.value("step", items=Jsonb([item]))

    db.ack(held, recent=1)

    steps = db.call("steps", columns=["name", "result"], id=id)
    assert [tuple(step) for step in steps] == [("a", 3)]


def recent(db: Protocol) -> list[UUID]:
    rows = db.connection.execute("select id from holdfast.ended where recent order by id")
    return [id for (id,) in rows.fetchall()]


def rows_of_order(db: Protocol) -> int:
    return int(db.table("select count(*) as rows from holdfast.link")[0].rows)


def follows(nth: int) -> dict[str, Any]:
    return {"kind": "f", "after": [nth]}


def ended_in_three_ways(db: Protocol) -> list[UUID]:
    """Jobs of one moment: a recent one, one that is kept, and one that was cancelled."""
    ids = [db.put(), db.put(), db.put()]
    first, second, _ = db.claim(max_jobs=3)
    db.ack(first, recent=1)
    db.ack(second, keep=True)
    db.cancel(ids[2])
    return ids
