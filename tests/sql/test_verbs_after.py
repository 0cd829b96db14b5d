"""Order between jobs: who waits, who is released, what becomes of those that follow a failure."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.conftest import Connect
from tests.protocol import Later, Leased, Protocol


def put_all(db: Protocol, *items: dict[str, Any]) -> list[UUID]:
    return [each.id for each in db.enqueue(*items)]


def run(db: Protocol, queue: str = "default", result: Any = None) -> list[str]:
    """Run whatever can run, one after the other; the kinds in their order."""
    ran = []
    while jobs := db.claim(queue):
        [job] = jobs
        ran.append(job.kind)
        db.ack(job, results=[result])
    return ran


def state(db: Protocol, id: UUID) -> str | None:
    found = db.get(id)
    return None if found is None else found.state


def links(db: Protocol) -> int:
    row = db.connection.execute(
        "select (select count(*) from holdfast.link) + (select count(*) from holdfast.countdown)"
    ).fetchone()
    assert row is not None
    return int(row[0])


def waited_for(db: Protocol, id: UUID) -> list[Any]:
    return db.connection.execute(
        "select nth, job, state, waiting, result from holdfast.waited_for(%s)", [id]
    ).fetchall()


def test_a_chain_of_one_call_runs_in_order(db: Protocol) -> None:
    db.enqueue({"kind": "a"}, {"kind": "b", "after": [1]}, {"kind": "c", "after": [2]})

    assert run(db) == ["a", "b", "c"]
    assert links(db) == 0


@pytest.mark.parametrize("jobs", [1, 2, 6, 7, 40, 1100])
def test_a_follower_of_many_runs_when_the_last_of_them_has_ended(db: Protocol, jobs: int) -> None:
    put_all(db, *[{"kind": "p"}] * jobs, {"kind": "f", "after": list(range(1, jobs + 1))})
    held = db.claim(max_jobs=2000)
    assert [job.kind for job in held] == ["p"] * jobs

    db.ack(*held[1:])
    assert db.claim() == []
    db.ack(held[0])

    assert run(db) == ["f"]
    assert links(db) == 0


def test_a_job_may_wait_for_jobs_of_other_calls_and_queues(db: Protocol) -> None:
    first = db.put("a", queue="mail")
    second = db.put("b", queue="default")
    db.put("c", queue="reports", after=[str(first), str(second)])

    assert db.claim("reports") == []
    assert run(db, "mail") == ["a"]
    assert db.claim("reports") == []
    assert run(db) == ["b"]
    assert run(db, "reports") == ["c"]


def test_a_job_may_name_others_of_its_call_by_their_ids(db: Protocol) -> None:
    own = str(uuid4())
    db.enqueue({"kind": "a", "id": own}, {"kind": "b", "after": [own]})

    assert run(db) == ["a", "b"]


def test_what_is_taken_is_in_the_payload_that_a_claim_gives(db: Protocol) -> None:
    db.enqueue(
        {"kind": "a"},
        {"kind": "b"},
        {
            "kind": "c",
            "after": [1, 2],
            "take": {"x": 2, "rows": "all"},
            "payload": {"y": 5, "x": 0},
        },
    )
    one, two = db.claim(max_jobs=2)
    db.ack(one, results=[{"n": 1}])
    db.ack(two, results=[7])

    [job] = db.claim()
    assert job.payload == {"y": 5, "x": 7, "rows": [{"n": 1}, 7]}
    assert db.held(job.token)[0].payload == job.payload
    assert [row[2:] for row in waited_for(db, job.id)] == [
        ("done", False, {"n": 1}),
        ("done", False, 7),
    ]
    db.nack(job, final=True)
    db.retry(job.id)
    assert db.take().payload == job.payload


def test_results_reach_a_follower_through_settle_and_in_the_order_of_after(db: Protocol) -> None:
    db.enqueue(*[{"kind": "p"}] * 9, {"kind": "f", "after": [9, 1, 5], "take": {"r": "all"}})
    held = db.claim(max_jobs=9)
    db.settle(
        *(
            {"id": job.id, "token": job.token, "verb": "ack", "result": n}
            for n, job in reversed([*enumerate(held, 1)])
        )
    )

    assert db.take().payload == {"r": [9, 1, 5]}


def die(db: Protocol, job: Leased) -> None:
    [answer] = db.nack(job, final=True, message="no")
    assert answer.outcome == "dead"


def stop(db: Protocol, job: Leased) -> None:
    db.cancel(job.id)


def stop_oneself(db: Protocol, job: Leased) -> None:
    db.settle({"id": job.id, "token": job.token, "verb": "cancel"})


FAILURES = [die, stop, stop_oneself]


@pytest.mark.parametrize("fail", FAILURES)
def test_a_follower_waits_for_a_person_until_what_failed_is_retried(
    db: Protocol, fail: Any
) -> None:
    parent, follower = put_all(db, {"kind": "a"}, {"kind": "b", "after": [1]})
    fail(db, db.take())
    assert state(db, follower) == "queued"
    assert db.claim() == []
    said = db.value("explain", id=follower)
    assert said.startswith(f"Waits for 1 of 1 job: {parent} (")
    assert said.endswith("Retry what failed, or cancel this job.")

    db.retry(parent)

    assert db.value("explain", id=follower) == f"Waits for 1 of 1 job: {parent} (queued)."
    assert run(db) == ["a", "b"]


@pytest.mark.parametrize("fail", FAILURES)
def test_a_follower_that_runs_anyway_runs_when_all_have_ended(db: Protocol, fail: Any) -> None:
    [_, _, follower] = put_all(
        db,
        *[{"kind": "a"}] * 2,
        {"kind": "b", "after": [1, 2], "if_failed": "run", "take": {"r": "all"}},
    )
    one, two = db.claim(max_jobs=2)
    fail(db, one)
    assert db.claim() == []
    db.ack(two, results=[2])

    job = db.take()
    assert (job.id, job.payload) == (follower, {"r": [None, 2]})


@pytest.mark.parametrize("fail", FAILURES)
def test_followers_are_cancelled_with_what_failed_and_come_back_with_it(
    db: Protocol, fail: Any
) -> None:
    ids = put_all(
        db,
        {"kind": "a"},
        {"kind": "b", "after": [1], "if_failed": "cancel"},
        {"kind": "c", "after": [2], "if_failed": "cancel"},
        {"kind": "d", "after": [3]},
    )
    fail(db, db.take())
    assert [state(db, id) for id in ids[1:]] == ["cancelled", "cancelled", "queued"]
    [reason] = db.connection.execute(
        "select reason from holdfast.jobs where id = %s", [ids[1]]
    ).fetchone() or [None]
    assert str(ids[0]) in reason

    db.retry(ids[0])

    assert [state(db, id) for id in ids] == ["queued"] * 4
    assert run(db) == ["a", "b", "c", "d"]
    assert links(db) == 0


def test_a_long_chain_is_cancelled_as_a_whole(db: Protocol) -> None:
    ids = put_all(
        db,
        {"kind": "p"},
        *({"kind": "p", "after": [n], "if_failed": "cancel"} for n in range(1, 40)),
    )
    die(db, db.take())

    assert {state(db, id) for id in ids[1:]} == {"cancelled"}
    db.retry(ids[0])
    assert {state(db, id) for id in ids} == {"queued"}


def test_a_chain_is_cancelled_and_comes_back_at_once_however_long_it_is(db: Protocol) -> None:
    first, *_ = put_all(
        db,
        {"kind": "a", "max_attempts": 1},
        *[{"kind": "a", "after": [n], "if_failed": "cancel"} for n in range(1, 50)],
    )
    called = (
        "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions"
        " where funcname in ('end_cancelled', 'queue_again')"
    )

    def calls(act: Callable[[], object]) -> int:
        with db.connection.transaction():
            db.connection.execute("set local track_functions = 'all'")
            [[before]] = db.connection.execute(called).fetchall()
            act()
            [[after]] = db.connection.execute(called).fetchall()
        return int(after - before)

    job = db.take()
    ended = calls(lambda: db.nack(job))
    reasons = [row.reason for row in db.table("select reason from holdfast.history order by id")]
    back = calls(lambda: db.retry(first))

    assert (ended, back) == (1, 1)
    assert [text.split(", ")[1:] for text in reasons] == [
        ["which it waited for", "died"],
        *[["which it waited for", "was cancelled"]] * 48,
    ]
    assert run(db) == ["a"] * 50


def test_one_whose_key_is_in_use_keeps_back_what_follows_it(db: Protocol) -> None:
    first, second, third = put_all(
        db,
        {"kind": "a", "max_attempts": 1},
        {"kind": "b", "key": "7", "after": [1], "if_failed": "cancel"},
        {"kind": "c", "after": [2], "if_failed": "cancel"},
    )
    db.nack(db.take())
    db.put("b", key="7", delay=60)
    db.retry(first)

    assert [state(db, id) for id in (first, second, third)] == ["queued", "cancelled", "cancelled"]


def test_a_follower_that_a_person_cancelled_stays_so_when_its_parent_is_retried(
    db: Protocol,
) -> None:
    parent, follower = put_all(
        db, {"kind": "a"}, {"kind": "b", "after": [1], "if_failed": "cancel"}
    )
    db.cancel(follower)
    die(db, db.take())
    db.retry(parent)

    assert state(db, follower) == "cancelled"
    assert run(db) == ["a"]


def test_a_follower_that_came_back_and_was_cancelled_by_a_person_stays_so(db: Protocol) -> None:
    parent, follower = put_all(
        db, {"kind": "a"}, {"kind": "b", "after": [1], "if_failed": "cancel"}
    )
    die(db, db.take())
    db.retry(follower)
    db.cancel(follower)
    db.retry(parent)

    assert state(db, follower) == "cancelled"


def test_a_follower_comes_back_only_with_the_one_that_it_was_cancelled_for(db: Protocol) -> None:
    first, second, follower = put_all(
        db, {"kind": "a"}, {"kind": "b"}, {"kind": "f", "after": [1, 2], "if_failed": "cancel"}
    )
    held = db.claim(max_jobs=2)
    die(db, held[0])
    db.retry(follower)
    die(db, held[1])
    assert state(db, follower) == "cancelled"

    db.retry(first)
    assert state(db, follower) == "cancelled"
    db.retry(second)
    assert state(db, follower) == "queued"
    assert run(db) == ["a", "b", "f"]


def test_what_was_cancelled_for_a_job_that_is_deleted_does_not_come_back_without_it(
    db: Protocol,
) -> None:
    first, second, last = put_all(
        db,
        {"kind": "a"},
        {"kind": "b", "after": [1], "if_failed": "cancel"},
        {"kind": "c", "after": [2], "if_failed": "cancel"},
    )
    die(db, db.take())
    db.delete(second)

    db.retry(first)

    assert (state(db, first), state(db, last)) == ("queued", "cancelled")
    assert run(db) == ["a"]


def test_what_the_deletion_of_a_job_cancels_does_not_come_back_with_the_cause_of_that(
    db: Protocol,
) -> None:
    first, second, last = put_all(
        db,
        {"kind": "a"},
        {"kind": "b", "after": [1], "if_failed": "cancel"},
        {"kind": "c", "after": [2], "if_failed": "cancel"},
    )
    die(db, db.take())
    db.retry(last)
    db.delete(second)
    assert state(db, last) == "cancelled"

    db.retry(first)

    assert (state(db, first), state(db, last)) == ("queued", "cancelled")


def test_a_follower_that_was_brought_back_by_hand_stays_when_another_one_is_added(
    db: Protocol,
) -> None:
    parent, follower = put_all(
        db, {"kind": "a"}, {"kind": "f", "after": [1], "if_failed": "cancel"}
    )
    die(db, db.take())
    db.retry(follower)

    late = db.put("late", after=[str(parent)], if_failed="cancel")

    assert (state(db, late), state(db, follower)) == ("cancelled", "queued")
    db.retry(parent)
    assert run(db) == ["a", "f", "late"]


def test_an_expired_parent_counts_as_cancelled(db: Protocol, later: Later) -> None:
    put_all(db, {"kind": "a", "expires": 5}, {"kind": "b", "after": [1], "if_failed": "run"})
    later(seconds=10)

    assert run(db) == ["b"]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("jobs", [1, 40])
def test_a_cancelled_follower_that_is_retried_waits_for_what_is_left(
    db: Protocol, jobs: int, ended: bool
) -> None:
    follower = put_all(
        db, *[{"kind": "p"}] * jobs, {"kind": "f", "after": list(range(1, jobs + 1))}
    )[-1]
    held = db.claim(max_jobs=50)
    db.cancel(follower)
    db.ack(*(held if ended else held[1:]))
    db.retry(follower)
    if not ended:
        assert db.claim() == []
        db.ack(held[0])

    assert run(db) == ["f"]


def test_a_follower_is_deleted_with_its_links_once_its_parents_ended(db: Protocol) -> None:
    follower = put_all(db, *[{"kind": "p"}] * 9, {"kind": "f", "after": list(range(1, 10))})[-1]
    held = db.claim(max_jobs=9)
    db.ack(*held[:4])
    db.delete(follower)
    db.ack(*held[4:])
    db.connection.execute("select holdfast.forget_links()")

    assert links(db) == 0
    assert run(db) == []


@pytest.mark.parametrize("policy", ["wait", "cancel", "run"])
def test_a_parent_that_is_deleted_counts_as_failed(db: Protocol, policy: str) -> None:
    parent, follower = put_all(db, {"kind": "a"}, {"kind": "b", "after": [1], "if_failed": policy})
    db.delete(parent)

    expected = {"wait": "queued", "cancel": "cancelled", "run": "queued"}
    assert state(db, follower) == expected[policy]
    assert run(db) == (["b"] if policy == "run" else [])


def test_moves_do_not_break_the_chain(db: Protocol) -> None:
    ids = put_all(
        db,
        {"kind": "a"},
        {"kind": "b", "after": [1]},
        {"kind": "c", "after": [2], "take": {"x": 1}},
    )
    [one] = db.move(ids[0], queue="other")
    db.move(ids[1], queue="third")
    [three] = db.move(ids[2], queue="fourth")
    assert state(db, three.new_id) == "queued"

    assert run(db, "third") == []
    assert run(db, "other") == ["a"]
    assert run(db, "third", result=3) == ["b"]
    job = db.take("fourth")
    assert (job.kind, job.payload) == ("c", {"x": 3})
    assert one.new_id != ids[0]


def test_a_dead_parent_that_was_moved_and_retried_still_releases(db: Protocol) -> None:
    parent, _ = put_all(db, {"kind": "a"}, {"kind": "b", "after": [1]})
    die(db, db.take())
    [moved] = db.move(parent, queue="other")
    db.retry(moved.new_id)

    assert run(db, "other") == ["a"]
    assert run(db) == ["b"]


def test_an_edit_does_not_release_a_follower(db: Protocol) -> None:
    _, follower = put_all(db, {"kind": "a"}, {"kind": "b", "after": [1], "lane": "l"})
    db.edit(follower, changes={"payload": {"n": 2}, "priority": 5})
    db.edit(follower, changes={"run_at": "2020-01-01T00:00:00Z"})
    db.upkeep()
    assert [job.kind for job in db.claim(max_jobs=5)] == ["a"]
    assert db.claim() == []


def test_a_follower_whose_time_has_not_come_waits_for_that_too(db: Protocol, later: Later) -> None:
    db.enqueue({"kind": "a"}, {"kind": "b", "after": [1], "delay": 60})
    assert run(db) == ["a"]
    later(seconds=61)

    assert run(db) == ["b"]


def test_followers_keep_their_lanes(db: Protocol) -> None:
    db.enqueue(
        {"kind": "a"},
        {"kind": "b", "after": [1], "lane": "l"},
        {"kind": "c", "after": [1], "lane": "l"},
        {"kind": "d", "lane": "l"},
    )
    first = db.claim(max_jobs=9)
    assert [job.kind for job in first] == ["a", "d"]
    db.ack(first[0])
    assert db.claim(max_jobs=9) == []
    db.ack(first[1])

    assert [job.kind for job in db.claim(max_jobs=9)] == ["b"]


def test_a_follower_may_be_claimed_by_kind_tenant_and_priority(db: Protocol) -> None:
    db.queue_set("default", by_kind=True, fair=True)
    db.enqueue({"kind": "a"}, {"kind": "b", "after": [1], "tenant": "t", "priority": 4})
    assert run(db) == ["a", "b"]


def test_a_queue_with_fanout_keeps_order(db: Protocol) -> None:
    db.queue_set("default", fanout=8)
    db.enqueue(*[{"kind": "p"}] * 20, {"kind": "f", "after": list(range(1, 21))})

    assert run(db) == ["p"] * 20 + ["f"]


def test_an_item_whose_key_is_in_use_stands_for_the_job_that_has_it(db: Protocol) -> None:
    there = db.put("a", key="k")
    answers = db.enqueue({"kind": "a", "key": "k"}, {"kind": "b", "after": [1]})

    assert answers[0].duplicate_of == there
    assert run(db) == ["a", "b"]


def test_a_follower_whose_key_is_in_use_is_not_stored(db: Protocol) -> None:
    there = db.put("b", key="k", delay=60)
    answers = db.enqueue({"kind": "a"}, {"kind": "b", "key": "k", "after": [1]})

    assert (answers[1].created, answers[1].duplicate_of) == (False, there)
    assert links(db) == 0
    assert run(db) == ["a"]


def test_a_call_that_is_sent_again_stores_and_runs_nothing_twice(db: Protocol) -> None:
    ids = [str(uuid4()) for _ in range(9)]
    items: list[dict[str, Any]] = [{"kind": "p", "id": id} for id in ids]
    items.append({"kind": "f", "id": str(uuid4()), "after": list(range(1, 10))})
    first = db.enqueue(*items, repeat=True)
    rows = links(db)

    assert db.enqueue(*items, repeat=True) == first
    assert links(db) == rows
    one = db.take()
    db.ack(one)
    assert db.enqueue(*items, repeat=True) == first
    assert run(db) == ["p"] * 8 + ["f"]
    assert db.enqueue(*items, repeat=True) == first
    assert run(db) == []


def test_to_send_many_again_costs_what_it_cost_the_first_time(connect: Connect) -> None:
    # A database of its own: what other tests left behind decides how the planner reads.
    db = Protocol(connect())
    read = "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0) from pg_stat_xact_user_tables"

    def rows_read(jobs: int) -> int:
        items: list[dict[str, Any]] = [{"kind": "p", "id": str(uuid4())} for _ in range(jobs)]
        items.append({"kind": "f", "id": str(uuid4()), "after": list(range(1, jobs + 1))})
        db.enqueue(*items, repeat=True)
        with db.connection.transaction():
            [[before]] = db.connection.execute(read).fetchall()
            db.enqueue(*items, repeat=True)
            [[after]] = db.connection.execute(read).fetchall()
        return int(after - before)

    few, many = rows_read(20), rows_read(80)

    assert many < 8 * few  # not sixteen times as many for four times the jobs


def test_numbers_of_order_may_be_written_with_a_point(db: Protocol) -> None:
    # as some languages write every number; a claim must not fail because of one
    item = {"kind": "b", "after": [1.0], "take": {"x": 1.0}}
    db.enqueue({"kind": "a"}, item)
    db.ack(db.take(), results=[7])

    assert db.take().payload == {"x": 7}


def test_results_that_are_too_long_together_do_not_stop_the_claims_of_a_queue(
    db: Protocol,
) -> None:
    db.enqueue(*[{"kind": "p"}] * 2, {"kind": "f", "after": [1, 2], "take": {"x": "all", "y": 1}})
    db.ack(*db.claim(max_jobs=2), results=["a", "b"])
    # as a thousand results of the usual limit would be
    db.connection.execute(
        "update holdfast.link set result = to_jsonb(repeat('x', 40 * 1024 * 1024))"
    )

    payload = db.take().payload

    limit = 64 * 1024 * 1024
    too_large = {"too_large": 3 * (40 * 1024 * 1024 + 2), "limit": limit}
    assert payload == {"x": too_large, "y": too_large}


def test_a_job_may_wait_for_one_that_has_ended(db: Protocol) -> None:
    db.queue_set("kept", keep_done=3600)
    kept, lost, dead = db.put("k", queue="kept"), db.put("l"), db.put("d", queue="dying")
    run(db, "kept", result=5)
    run(db)
    die(db, db.take("dying"))

    db.put("one", after=[str(kept)], take={"x": 1})
    db.put("two", after=[str(lost)])
    db.put("three", after=[str(dead), str(kept)], if_failed="run")
    stopped = db.put("four", after=[str(dead)], if_failed="cancel")
    db.put("five", after=[str(dead)])

    jobs = db.claim(max_jobs=9)
    assert [(job.kind, job.payload) for job in jobs] == [
        ("one", {"x": 5}),
        ("two", {}),
        ("three", {}),
    ]
    assert state(db, stopped) == "cancelled"
    db.retry(dead)
    assert state(db, stopped) == "queued"
    assert run(db, "dying") == ["d"]
    assert sorted(run(db)) == ["five", "four"]


def test_what_nobody_knows_cannot_be_waited_for(db: Protocol) -> None:
    with pytest.raises(psycopg.Error, match="is not known, so nothing can wait for it") as caught:
        db.put("a", after=[str(uuid4())])

    assert caught.value.sqlstate == "HF214"


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"after": [2]}, "item 2 waits for item 2, which is not before it"),
        ({"after": [3]}, "item 2 waits for item 3, which is not before it"),
        ({"after": [0]}, "is not a list of jobs"),
        ({"after": [1.5]}, "is not a list of jobs"),
        ({"after": ["x"]}, "is not a list of jobs"),
        ({"after": "1"}, "is not a list of jobs"),
        ({"after": [None]}, "is not a list of jobs"),
        ({"after": [1], "if_failed": "x"}, "if_failed 'x' of item 2 is not wait, cancel or run"),
        ({"after": [1], "take": {"x": "y"}}, "take .* of item 2 cannot be understood"),
        ({"after": [1], "take": [1]}, "take .* of item 2 cannot be understood"),
        ({"after": [1], "take": {"x": 2}}, "take .* names more jobs than its after does"),
        ({"take": {"x": 1}}, "take .* names more jobs than its after does"),
        ({"after": [1], "take": {"x": 1}, "payload": [1]}, "must be an object"),
        ({"after": [1], "key": "k", "on_conflict": "after"}, "has both after and on_conflict"),
        ({"waits": 1}, "unknown field 'waits'"),
        ({"linked": True}, "unknown field 'linked'"),
    ],
)
def test_order_that_cannot_be_understood_is_refused(
    db: Protocol, item: dict[str, Any], says: str
) -> None:
    with pytest.raises(psycopg.Error, match=says) as caught:
        db.enqueue({"kind": "a"}, {"kind": "b", **item})

    assert (caught.value.sqlstate or "").startswith("HF2")
    assert db.claim() == []


def test_undo_of_a_cancel_lets_a_follower_wait_again(db: Protocol) -> None:
    _, follower = put_all(db, {"kind": "a"}, {"kind": "b", "after": [1]})
    db.cancel(follower)
    db.connection.execute(
        "select holdfast.revive(array[%s]::uuid[], 'x', 'y', as_before => true)", [follower]
    )

    assert run(db) == ["a", "b"]


def test_a_lost_lease_does_not_release(db: Protocol, later: Later) -> None:
    put_all(db, {"kind": "a", "max_attempts": 2}, {"kind": "b", "after": [1], "if_failed": "run"})
    job = db.take()
    later(seconds=60)
    db.reap()
    db.ack(job)
    assert [each.kind for each in db.claim(max_jobs=2)] == ["a"]
    later(seconds=60)
    db.reap()

    assert run(db) == ["b"]


def test_a_struck_parent_that_is_skipped_counts_as_cancelled(db: Protocol) -> None:
    put_all(db, {"kind": "a"}, {"kind": "b", "after": [1], "if_failed": "run"})
    db.connection.execute(
        "select holdfast.strike_add(kind => 'a', mode => 'skip', reason => 'x', actor => 'me')"
    )

    assert run(db) == ["b"]


def test_a_job_without_order_has_no_trace_of_it(db: Protocol) -> None:
    id = db.put("a", lane="l", delay=0)
    row = db.connection.execute(
        "select waits, link, takes from holdfast.job where id = %s", [id]
    ).fetchone()

    assert row == (None, None, None)


def test_all_that_waits_for_a_job_is_told(db: Protocol) -> None:
    ids = put_all(db, {"kind": "a"}, {"kind": "b", "after": [1]}, {"kind": "c", "after": [1]})
    rows = db.connection.execute(
        "select job, state, waiting from holdfast.followers(%s)", [ids[0]]
    ).fetchall()

    assert sorted(rows) == sorted((id, "queued", True) for id in ids[1:])


@pytest.mark.parametrize("take", [{"x": 2}, {"x": "all"}])
def test_a_result_that_was_not_kept_cannot_be_taken(db: Protocol, take: dict[str, Any]) -> None:
    first, done = db.put("first", priority=9), db.put("done")
    db.ack(next(job for job in db.claim(max_jobs=2) if job.id == done), results=[{"n": 7}])
    item = {"kind": "next", "after": [str(first), str(done)]}

    with pytest.raises(psycopg.DatabaseError, match="its result was not kept") as refused:
        db.enqueue({**item, "take": take})

    assert refused.value.sqlstate == "HF214"
    # It can be waited for, and what else is waited for can be taken.
    assert db.enqueue({**item, "take": {"x": 1}})[0].created


def test_a_result_that_was_kept_can_be_taken_after_the_end(db: Protocol) -> None:
    db.queue_set("default", keep_done=3600)
    done = db.put("done")
    db.ack(db.take(), results=[{"n": 7}])

    db.enqueue({"kind": "next", "after": [str(done)], "take": {"x": 1}})

    assert db.take().payload == {"x": {"n": 7}}
