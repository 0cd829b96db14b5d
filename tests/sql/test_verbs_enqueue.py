"""enqueue: what a producer may ask for, what it is told, and what a repeat does."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.protocol import Enqueued, Later, Open, Protocol


def uuid8(at: float) -> str:
    """An id as a client makes it whose clock says this."""
    return str(UUID(hex=f"{int(at * 1000):012x}8000{'8'}{uuid4().hex[:15]}"))


@pytest.mark.proves("S0.29", "S3.1", "S4.1", "S4.3", "S4.5", "S4.6", "S4.14")
def test_a_job_starts_queued_with_the_defaults(db: Protocol) -> None:
    id = db.put("greet", payload={"name": "Ada"})

    job = db.job(id)

    assert (job.queue, job.kind, job.state) == ("default", "greet", "queued")
    assert (job.priority, job.attempt, job.max_attempts) == (0, 0, 3)
    assert (job.payload, job.worker, job.lease_until, job.error) == (
        {"name": "Ada"},
        None,
        None,
        None,
    )
    assert job.run_at == job.created_at


@pytest.mark.proves("S3.36")
def test_a_job_keeps_everything_it_was_given(db: Protocol) -> None:
    id = db.put(
        "greet",
        queue="mail",
        payload=[1, None, "x"],
        priority=7,
        run_at="2035-05-05T05:05:05Z",
        max_attempts=9,
        lease=77,
        key="k",
        lane="l",
        tenant="t",
        headers={"trace": "1"},
        subject="user/7",
    )

    job = db.job(id)

    assert (job.queue, job.payload, job.priority, job.max_attempts) == (
        "mail",
        [1, None, "x"],
        7,
        9,
    )
    assert job.run_at.isoformat() == "2035-05-05T05:05:05+00:00"
    assert job.lease == timedelta(seconds=77)
    assert (job.key, job.lane, job.tenant, job.subject) == ("k", "l", "t", "user/7")
    assert job.headers == {"trace": "1"}


def test_a_field_that_is_null_counts_as_absent(db: Protocol) -> None:
    fields = "queue priority run_at delay max_attempts lease key on_conflict lane tenant headers"

    id = db.put("greet", **dict.fromkeys([*fields.split(), "subject"]))

    assert (db.job(id).queue, db.job(id).priority, db.job(id).headers) == ("default", 0, None)


def test_run_at_beside_a_null_delay_counts(db: Protocol) -> None:
    id = db.put("greet", delay=None, run_at="2035-05-05T05:05:05Z")

    assert db.job(id).run_at.year == 2035


@pytest.mark.parametrize("field", [{"priority": 5.0}, {"max_attempts": 4.0}, {"lease": 30.0}])
def test_a_whole_number_may_be_written_as_a_float(db: Protocol, field: dict[str, float]) -> None:
    job = db.job(db.put("greet", **field))

    assert job.priority == field.get("priority", 0)
    assert job.max_attempts == field.get("max_attempts", 3)


@pytest.mark.proves("S3.8", "S4.1")
@pytest.mark.parametrize(
    ("item", "code"),
    [
        ({"payload": {}}, "HF201"),
        ({"kind": "k", "colour": 1}, "HF201"),
        ({"kind": "k", "headers": [1]}, "HF201"),
        ("k", "HF201"),
        ({"kind": ""}, "HF202"),
        ({"kind": "k" * 201}, "HF202"),
        ({"kind": "k\n"}, "HF202"),
        ({"kind": "k", "queue": ""}, "HF202"),
        ({"kind": "k", "queue": "q" * 121}, "HF202"),
        ({"kind": "k", "queue": "a\tb"}, "HF202"),
        ({"kind": "k", "lane": ""}, "HF202"),
        ({"kind": "k", "lane": "l" * 201}, "HF202"),
        ({"kind": "k", "tenant": ""}, "HF202"),
        ({"kind": "k", "tenant": "\x01"}, "HF202"),
        ({"kind": "k", "key": ""}, "HF202"),
        ({"kind": "k", "key": "k" * 501}, "HF202"),
        ({"kind": "k", "subject": ""}, "HF202"),
        ({"kind": "k", "priority": 10}, "HF203"),
        ({"kind": "k", "priority": -1}, "HF203"),
        ({"kind": "k", "priority": 1.5}, "HF203"),
        ({"kind": "k", "priority": "5"}, "HF203"),
        ({"kind": "k", "max_attempts": 0}, "HF204"),
        ({"kind": "k", "max_attempts": 40000}, "HF204"),
        ({"kind": "k", "max_attempts": 1.5}, "HF204"),
        ({"kind": "k", "max_attempts": "3"}, "HF204"),
        ({"kind": "k", "lease": 0}, "HF204"),
        ({"kind": "k", "lease": -1}, "HF204"),
        ({"kind": "k", "lease": 1e300}, "HF204"),
        ({"kind": "k", "delay": -1}, "HF204"),
        ({"kind": "k", "delay": 1e300}, "HF204"),
        ({"kind": "k", "delay": 1, "run_at": "2035-01-01"}, "HF204"),
        ({"kind": "k", "run_at": "soon"}, "HF204"),
        ({"kind": "k", "run_at": 7}, "HF204"),
        ({"kind": "k", "on_conflict": "ignore"}, "HF205"),
        ({"kind": "k", "payload": "x" * 300_000}, "HF210"),
    ],
)
def test_an_item_that_is_no_job_is_refused_by_its_code(db: Protocol, item: Any, code: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue({"kind": "good"}, item)

    assert refusal.value.sqlstate == code
    assert "item 2" in str(refusal.value)
    assert refusal.value.diag.message_hint
    assert db.list() == []


def test_an_id_that_is_no_uuid_is_refused(db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue({"kind": "k", "id": "seven"})

    assert refusal.value.sqlstate is not None
    assert refusal.value.sqlstate.startswith("HF2")


@pytest.mark.parametrize("items", ["7", "null", '"text"'])
def test_items_that_are_no_array_are_refused(db: Protocol, items: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.connection.execute("select ord from holdfast.enqueue(items => %s)", [items])

    assert refusal.value.sqlstate == "HF201"


def test_one_item_may_come_without_its_array(db: Protocol) -> None:
    rows = db.connection.execute(
        "select created from holdfast.enqueue(items => %s)", ['{"kind": "greet"}']
    ).fetchall()

    assert rows == [(True,)]


@pytest.mark.proves("S3.12")
def test_no_items_are_no_jobs(db: Protocol) -> None:
    assert db.enqueue() == []


@pytest.mark.proves("S3.11", "S3.15", "S3.28")
def test_a_thousand_items_answer_one_row_each_in_their_order(db: Protocol) -> None:
    answers = db.enqueue(*[{"kind": "k", "payload": n} for n in range(1000)])

    assert [answer.ord for answer in answers] == list(range(1, 1001))
    assert [job.payload for job in db.claim(max_jobs=1000)] == list(range(1000))


@pytest.mark.proves("S3.33", "S3.38")
def test_one_bad_item_stores_none(db: Protocol) -> None:
    with pytest.raises(psycopg.Error):
        db.enqueue({"kind": "a"}, {"kind": "b"}, {"kind": "c", "priority": 11})

    assert db.depth() == {}


@pytest.mark.proves("S3.28", "S3.33")
def test_an_enqueue_is_undone_with_the_callers_transaction(db: Protocol, other: Open) -> None:
    importer = other(autocommit=False)
    importer.enqueue({"kind": "price", "key": "1"}, {"kind": "price", "key": "2"})

    importer.connection.rollback()

    assert db.claim(max_jobs=5) == []
    assert db.depth() == {}


@pytest.mark.proves("S3.10", "S3.13", "S3.17", "S3.23", "S3.30", "S3.38")
def test_a_key_that_is_queued_or_leased_is_a_duplicate(db: Protocol) -> None:
    first = db.put("price", key="item/1")

    [queued] = db.enqueue({"kind": "price", "key": "item/1"})
    db.take()
    [leased] = db.enqueue({"kind": "price", "key": "item/1"})

    assert (queued.created, queued.id, queued.duplicate_of) == (False, first, first)
    assert (leased.created, leased.id, leased.duplicate_of) == (False, first, first)


@pytest.mark.proves("S3.30")
def test_a_key_is_taken_per_queue_and_kind(db: Protocol) -> None:
    db.put("price", key="item/1")

    others = db.enqueue(
        {"kind": "new", "key": "item/1"},
        {"kind": "price", "key": "item/1", "queue": "other"},
        {"kind": "price", "key": "item/2"},
    )

    assert [other.created for other in others] == [True, True, True]


@pytest.mark.proves("S3.11", "S3.14", "S3.16")
def test_a_key_twice_in_one_batch_is_stored_once(db: Protocol) -> None:
    answers = db.enqueue(
        {"kind": "price", "key": "1", "payload": "first"},
        {"kind": "price", "key": "2"},
        {"kind": "price", "key": "1", "payload": "second"},
        {"kind": "price", "key": "1", "payload": "third", "on_conflict": "after"},
    )

    assert [answer.created for answer in answers] == [True, True, False, False]
    assert {answers[2].duplicate_of, answers[3].duplicate_of} == {answers[0].id}
    assert db.job(answers[0].id).payload == "first"
    assert db.depth() == {"queued": 2}


def test_replace_inside_one_batch_keeps_the_last(db: Protocol) -> None:
    first, second = db.enqueue(
        {"kind": "price", "key": "1", "payload": "first"},
        {"kind": "price", "key": "1", "payload": "second", "on_conflict": "replace"},
    )

    assert second.duplicate_of == first.id
    assert db.job(first.id).payload == "second"
    assert db.depth() == {"queued": 1}


def test_replace_gives_the_waiting_job_a_new_body(db: Protocol) -> None:
    id = db.put("price", key="1", payload="old", max_attempts=5)
    db.nack(db.take(), message="boom", delay=timedelta(0))

    [answer] = db.enqueue(
        {"kind": "price", "key": "1", "payload": "new", "priority": 8, "on_conflict": "replace"}
    )

    job = db.job(id)
    assert (answer.created, answer.duplicate_of) == (False, id)
    assert (job.payload, job.priority, job.attempt, job.error) == ("new", 8, 0, None)


def test_replace_may_put_a_job_off_and_bring_it_back(db: Protocol) -> None:
    id = db.put("price", key="1")

    db.enqueue({"kind": "price", "key": "1", "delay": 60, "on_conflict": "replace"})
    put_off = db.claim()
    db.enqueue({"kind": "price", "key": "1", "on_conflict": "replace"})

    assert put_off == []
    assert [job.id for job in db.claim()] == [id]


def test_replace_keeps_the_place_in_the_line(db: Protocol) -> None:
    first = db.put("price", key="1")
    second = db.put("price", key="2")

    db.enqueue({"kind": "price", "key": "1", "payload": "new", "on_conflict": "replace"})

    assert [job.id for job in db.claim(max_jobs=2)] == [first, second]


@pytest.mark.parametrize("policy", ["after", "replace"])
def test_a_running_job_gets_exactly_one_follow_up(db: Protocol, policy: str) -> None:
    running = db.put("sync", key="1")
    db.take()

    answers = [
        db.enqueue({"kind": "sync", "key": "1", "payload": n, "on_conflict": policy})[0]
        for n in range(3)
    ]

    follow_up = answers[0].id
    assert [answer.created for answer in answers] == [True, False, False]
    assert {answer.id for answer in answers} == {follow_up} != {running}
    assert db.job(follow_up).payload == (2 if policy == "replace" else 0)
    assert db.depth() == {"queued": 1, "leased": 1}
    assert db.claim() == []


def test_after_joins_a_job_that_has_not_started(db: Protocol) -> None:
    waiting = db.put("sync", key="1")

    [answer] = db.enqueue({"kind": "sync", "key": "1", "on_conflict": "after"})

    assert (answer.created, answer.duplicate_of) == (False, waiting)


@pytest.mark.parametrize("how", ["ack", "dead", "cancel"])
def test_a_follow_up_becomes_ready_when_its_job_is_over(db: Protocol, how: str) -> None:
    db.put("sync", key="1", max_attempts=1)
    running = db.take()
    follow_up = db.put("sync", key="1", on_conflict="after")
    over: dict[str, Callable[[], object]] = {
        "ack": lambda: db.ack(running),
        "dead": lambda: db.nack(running),
        "cancel": lambda: db.cancel(running.id),
    }

    over[how]()

    assert [job.id for job in db.claim(max_jobs=5)] == [follow_up]


def test_a_follow_up_is_ready_when_an_abandoned_job_dies(db: Protocol, later: Later) -> None:
    db.put("sync", key="1", max_attempts=1)
    db.take()
    follow_up = db.put("sync", key="1", on_conflict="after")
    later(seconds=31)

    assert [job.id for job in db.claim()] == [follow_up]


@pytest.mark.parametrize("how", ["nack", "release"])
def test_a_follow_up_waits_while_its_job_will_run_again(db: Protocol, how: str) -> None:
    running = db.put("sync", key="1")
    job = db.take()
    follow_up = db.put("sync", key="1", on_conflict="after")

    _ = db.nack(job, delay=timedelta(0)) if how == "nack" else db.release(job)

    assert [job.id for job in db.claim(max_jobs=5)] == [running]
    assert "it runs after" in db.explain(follow_up)


def test_a_delayed_follow_up_waits_for_its_time_too(db: Protocol, later: Later) -> None:
    db.put("sync", key="1")
    running = db.take()
    follow_up = db.put("sync", key="1", delay=60, on_conflict="after")
    db.ack(running)

    early = db.claim()
    later(seconds=61)

    assert early == []
    assert [job.id for job in db.claim()] == [follow_up]


@pytest.mark.proves("S3.7", "S3.30", "S3.31", "S3.38")
def test_a_dead_job_does_not_hold_its_key(db: Protocol) -> None:
    dead = []
    for _ in range(3):
        dead.append(db.put("price", key="1", max_attempts=1))
        db.nack(db.take(), message="boom")

    waiting = db.put("price", key="1")

    assert {job.id for job in db.list("state:dead")} == set(dead)
    assert db.depth() == {"dead": 3, "queued": 1}
    assert db.state(waiting) == "queued"


@pytest.mark.proves("S3.24")
def test_the_keys_that_are_live_can_be_asked_for(db: Protocol) -> None:
    db.enqueue(*[{"kind": "price", "key": key} for key in "abc"])
    db.ack(db.take())
    db.take()

    live = db.list("kind:price state:queued,leased key:a,b,c,d")

    assert {job.key for job in live} == {"b", "c"}
    assert db.list("kind:price key:x") == []


def test_a_repeat_of_a_waiting_job_answers_as_before(db: Protocol) -> None:
    item = {"kind": "k", "id": str(db.value("new_id"))}
    [first] = db.enqueue(item)

    [again] = db.enqueue(item, repeat=True)

    assert again == first
    assert db.depth() == {"queued": 1}


@pytest.mark.parametrize("end", ["leased", "deleted", "kept", "dead", "cancelled", "archived"])
def test_a_repeat_never_runs_a_job_twice(db: Protocol, end: str) -> None:
    db.queue_set("default", keep_done=60 if end == "kept" else 0)
    item = {"kind": "k", "id": str(db.value("new_id")), "max_attempts": 1}
    [first] = db.enqueue(item)
    job = db.take()
    if end in ("deleted", "kept"):
        db.ack(job)
    elif end in ("dead", "archived"):
        db.nack(job)
        if end == "archived":
            db.archive(job.id)
    elif end == "cancelled":
        db.cancel(job.id)
    before = db.depth()

    [again] = db.enqueue(item, repeat=True)

    assert again == first
    assert db.claim() == []
    assert db.depth() == before


def test_a_repeat_after_its_key_was_taken_by_itself_is_created(db: Protocol) -> None:
    item = {"kind": "k", "key": "1", "id": str(db.value("new_id"))}
    [first] = db.enqueue(item)

    [again] = db.enqueue(item, repeat=True)

    assert (again.id, again.created) == (first.id, True)


def test_a_repeated_batch_stores_only_what_is_missing(db: Protocol) -> None:
    items = [{"kind": "k", "id": str(db.value("new_id"))} for _ in range(4)]
    db.enqueue(*items[:2])
    db.ack(db.take())

    answers = db.enqueue(*items, repeat=True)

    assert [answer.created for answer in answers] == [True] * 4
    assert len(db.claim(max_jobs=9)) == 3


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_repeat_from_a_clock_that_is_wrong_does_not_run_again(db: Protocol, hours: int) -> None:
    item = {"kind": "k", "id": uuid8(time.time() + 3600 * hours)}
    db.enqueue(item)
    db.ack(db.take())

    [again] = db.enqueue(item, repeat=True)

    assert again.created
    assert db.claim() == []


def test_a_repeat_after_a_move_does_not_run_again(db: Protocol) -> None:
    item = {"kind": "k", "id": str(db.value("new_id"))}
    [first] = db.enqueue(item)
    db.move(first.id, queue="other")

    [again] = db.enqueue(item, repeat=True)

    assert again.created
    assert len(db.claim("default")) + len(db.claim("other")) == 1


def test_an_id_of_another_job_is_refused(db: Protocol) -> None:
    id = db.put("greet")

    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue({"kind": "part", "id": str(id)})

    assert refusal.value.sqlstate == "HF206"
    assert db.job(id).kind == "greet"


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("others", [0, 11])
@pytest.mark.parametrize(
    "more",
    [{}, {"key": "K"}, {"lane": "L"}, {"delay": 5}, {"key": "K", "on_conflict": "replace"}],
    ids=["plain", "key", "lane", "delay", "replace"],
)
def test_two_different_jobs_of_one_id_are_refused_in_one_call(
    db: Protocol, more: dict[str, Any], others: int, repeat: bool
) -> None:
    id = str(db.value("new_id"))

    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue(
            {"kind": "greet", "id": id, **more},
            *[{"kind": "other", "id": str(db.value("new_id"))} for _ in range(others)],
            {"kind": "part", "id": id, **more},
            repeat=repeat,
        )

    assert refusal.value.sqlstate == "HF206"
    assert "of kind 'greet' in queue 'default'" in str(refusal.value)
    assert db.list() == []


@pytest.mark.parametrize("repeat", [False, True])
def test_two_different_followers_of_one_id_are_refused_in_one_call(
    db: Protocol, repeat: bool
) -> None:
    first = db.put("first")
    id = str(db.value("new_id"))

    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue(
            *[{"kind": kind, "id": id, "after": [str(first)]} for kind in ("greet", "part")],
            repeat=repeat,
        )

    assert refusal.value.sqlstate == "HF206"
    assert db.depth() == {"queued": 1}


@pytest.mark.parametrize("repeat", [False, True])
def test_two_jobs_of_one_id_in_queues_of_one_part_are_refused_in_one_call(
    db: Protocol, repeat: bool
) -> None:
    id = str(db.value("new_id"))
    [twin] = db.table(
        "select 'q' || n as queue from generate_series(1, 9999) n"
        " where holdfast.queue_part('q' || n) = holdfast.queue_part('default') limit 1"
    )

    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue(
            {"kind": "k", "id": id}, {"kind": "k", "id": id, "queue": twin.queue}, repeat=repeat
        )

    assert refusal.value.sqlstate == "HF206"
    assert db.list() == []


@pytest.mark.parametrize(("jobs", "way"), [(1, "store_one"), (12, "store_plain")])
def test_a_plain_job_with_an_id_takes_the_short_way(db: Protocol, jobs: int, way: str) -> None:
    items = [{"kind": "k", "queue": "default", "id": str(db.value("new_id"))} for _ in range(jobs)]
    called = (
        "select funcname, calls from pg_stat_xact_user_functions "
        "where funcname in "
        "('store_one', 'store_plain', 'store_items', 'check_items', 'enqueue_any')"
    )
    with db.connection.transaction():
        db.connection.execute("set local track_functions = 'all'")
        before = Counter(dict(db.connection.execute(called)))
        answers = db.enqueue(*items)
        ways = Counter(dict(db.connection.execute(called))) - before

    assert set(ways) == {way}
    assert [(str(answer.id), answer.created) for answer in answers] == [
        (item["id"], True) for item in items
    ]


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("jobs", [1, 3, 12])
def test_an_id_that_is_there_already_is_stored_once(db: Protocol, jobs: int, repeat: bool) -> None:
    items = [{"kind": "k", "id": str(db.value("new_id"))} for _ in range(jobs)]
    db.enqueue(items[-1])

    answers = db.enqueue(*items, *items[:1], repeat=repeat)

    assert [str(answer.id) for answer in answers] == [item["id"] for item in [*items, items[0]]]
    assert all(answer.created for answer in answers)
    assert db.depth() == {"queued": jobs}
    assert len(db.claim(max_jobs=99)) == jobs


@pytest.mark.parametrize("others", [0, 11])
def test_an_id_of_another_job_is_refused_among_others(db: Protocol, others: int) -> None:
    id = db.put("greet")

    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue(
            *[{"kind": "part", "id": str(db.value("new_id"))} for _ in range(others)],
            {"kind": "part", "id": str(id)},
        )

    assert refusal.value.sqlstate == "HF206"
    assert db.depth() == {"queued": 1}


@pytest.mark.parametrize(
    "id",
    [
        "0190abcd-0000-8000-8000-00000000000g",
        "0190abcd-0000-8000-8000-00000000000",
        "0190abcd-0000-8000-8000-00000000000-",
        "0190abcd000080008000000000000000",
        "{190abcd-0000-8000-8000-000000000000",
    ],
)
def test_what_is_nearly_an_id_is_refused(db: Protocol, id: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.enqueue({"kind": "k", "id": id})

    assert refusal.value.sqlstate == "HF201"


def test_a_follow_up_that_is_replaced_takes_everything_of_the_new_one(db: Protocol) -> None:
    db.put("sync", key="1")
    db.take()
    [first] = db.enqueue({"kind": "sync", "key": "1", "on_conflict": "after", "max_attempts": 2})

    db.enqueue(
        {
            "kind": "sync",
            "key": "1",
            "on_conflict": "replace",
            "max_attempts": 7,
            "lease": 77,
            "subject": "user/7",
        }
    )

    job = db.job(first.id)
    assert (job.max_attempts, job.lease, job.subject) == (7, timedelta(seconds=77), "user/7")


def test_the_answered_id_carries_the_part_of_the_queue(db: Protocol) -> None:
    [answer] = db.enqueue({"kind": "k", "queue": "mail", "id": str(db.value("new_id", queue="x"))})

    assert db.value("part_of", id=answer.id) == db.value("queue_part", queue="mail")
    assert [job.id for job in db.claim("mail")] == [answer.id]


@pytest.mark.proves("S3.29", "S3.32")
def test_jobs_can_be_read_with_plain_sql(db: Protocol) -> None:
    kinds = ["a", "b", "c"]
    for kind in kinds:
        db.put(kind)

    rows = db.connection.execute(
        "select kind, state from holdfast.jobs order by created_at desc limit 10"
    ).fetchall()

    assert rows == [(kind, "queued") for kind in reversed(kinds)]


@pytest.mark.proves("S3.27", "S4.33")
def test_the_depth_of_a_kind_is_kept_and_not_counted(db: Protocol) -> None:
    db.enqueue(*[{"kind": "price"}] * 3, {"kind": "new"})
    db.take(kinds=["price"])
    query = "select state, jobs from holdfast.depth where kind = 'price' and jobs <> 0"

    before = dict(db.connection.execute(query).fetchall())
    db.fold()

    assert before == {"queued": 2, "leased": 1}
    assert dict(db.connection.execute(query).fetchall()) == before


def test_a_copy_of_rows_becomes_jobs(db: Protocol) -> None:
    ids = [db.value("new_id", queue="mail") for _ in range(3)]
    part = db.value("queue_part", queue="mail")
    with db.connection.transaction(), db.connection.cursor() as cursor:
        with cursor.copy("copy holdfast.job (part, id, queue, kind, payload) from stdin") as copy:
            for n, id in enumerate(ids):
                copy.write_row((part, id, "mail", "send", f'{{"n": {n}}}'))
        cursor.execute("select holdfast.copied('mail', array['send'], array[3])")

    assert [job.id for job in db.claim("mail", max_jobs=5)] == ids


@pytest.mark.proves("S0.3")
@pytest.mark.parametrize(
    "item", [{}, {"key": "k{}"}, {"lane": "l{}"}], ids=["plain", "keyed", "in lanes"]
)
@pytest.mark.parametrize("at_once", [1, 3], ids=["one by one", "in one call"])
def test_an_idle_worker_that_waits_is_woken_once(
    db: Protocol, other: Open, item: dict[str, str], at_once: int
) -> None:
    listener = other().connection
    listener.execute("listen holdfast")
    db.value("await_work", queues=["mail", "default"], worker="ada")

    for start in range(0, 6, at_once):
        db.enqueue(
            *(
                {"kind": "k", "queue": "mail"} | {f: v.format(n) for f, v in item.items()}
                for n in range(start, start + at_once)
            )
        )

    heard = list(listener.notifies(timeout=100, stop_after=1))
    assert [notice.payload for notice in heard] == ["mail\nada"]
    assert list(listener.notifies(timeout=0.2)) == []


@pytest.mark.proves("S0.3")
def test_nobody_is_notified_when_nobody_waits(db: Protocol, other: Open) -> None:
    listener = other().connection
    listener.execute("listen holdfast")

    db.put()

    assert list(listener.notifies(timeout=0.2)) == []


def test_the_wake_up_comes_with_the_commit(db: Protocol, other: Open) -> None:
    listener = other().connection
    listener.execute("listen holdfast")
    db.value("await_work", queues=["default"], worker="ada")
    producer = other(autocommit=False)
    producer.put()
    early = list(listener.notifies(timeout=0.2))

    producer.connection.commit()

    assert early == []
    assert len(list(listener.notifies(timeout=100, stop_after=1))) == 1


def test_producers_in_threads_lose_nothing(db: Protocol, other: Open) -> None:
    def produce(producer: Protocol) -> None:
        for _ in range(25):
            producer.put("k")

    threads = [threading.Thread(target=produce, args=[other()]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert db.depth() == {"queued": 100}
    assert len({job.id for job in db.claim(max_jobs=200)}) == 100


def test_a_job_in_a_lane_where_none_runs_is_behind_the_one_before_it(db: Protocol) -> None:
    first, second = db.enqueue({"kind": "k", "lane": "l"}, {"kind": "k", "lane": "l"})
    [third] = db.enqueue({"kind": "k", "lane": "l"})
    [other] = db.enqueue({"kind": "k", "lane": "m"})
    [outside] = db.enqueue({"kind": "k"})

    assert (first.behind, second.behind, third.behind) == (None, first.id, second.id)
    assert (other.behind, outside.behind) == (None, None)


@pytest.mark.proves("S2.3", "S2.4")
def test_a_job_in_a_lane_is_behind_the_one_that_runs(db: Protocol) -> None:
    running = db.put(lane="l")
    db.take()

    [next] = db.enqueue({"kind": "k", "lane": "l", "id": str(uuid4())})
    [last] = db.enqueue({"kind": "k", "lane": "l"})

    assert (next.behind, last.behind) == (running, running)


@pytest.mark.proves("S2.4")
def test_enqueue_tells_who_holds_the_lane_and_since_when(db: Protocol, later: Later) -> None:
    running = db.put(lane="l")
    held = db.take(worker="w1")
    later(seconds=5)
    claimed = held.lease_until - timedelta(seconds=30)

    alone = db.enqueue({"kind": "k", "lane": "l"})
    batch = db.enqueue({"kind": "k", "lane": "l"}, {"kind": "k"}, {"kind": "k", "lane": "m"})
    keyed = db.enqueue(
        {"kind": "k", "lane": "l", "key": "a"}, {"kind": "k", "lane": "l", "key": "a"}
    )

    busy = (running, "w1", claimed)
    free = (None, None, None)
    assert [told(one) for one in alone] == [busy]
    assert [told(one) for one in batch] == [busy, free, free]
    assert [told(one) for one in keyed] == [busy, free]
    assert keyed[1].duplicate_of == keyed[0].id


def told(answer: Enqueued) -> tuple[UUID | None, str | None, datetime | None]:
    return answer.behind, answer.holder, answer.held_since


def test_a_lane_that_nobody_holds_names_no_holder(db: Protocol) -> None:
    first = db.put(lane="l")
    [second] = db.enqueue({"kind": "k", "lane": "l"})
    db.lane_set("default", "h", on_failure="halt")
    dead = db.put(lane="h", queue="default", max_attempts=1, priority=9)
    db.nack(db.take())
    [halted] = db.enqueue({"kind": "k", "lane": "h"})

    assert told(second) == (first, None, None)
    assert told(halted) == (dead, None, None)


def test_who_was_cancelled_and_has_not_stopped_still_holds_the_lane(db: Protocol) -> None:
    first = db.put(lane="l")
    db.take(worker="w1")
    db.cancel(first)

    [waiting] = db.enqueue({"kind": "k", "lane": "l"})

    assert (waiting.behind, waiting.holder) == (first, "w1")
    assert waiting.held_since is not None


def test_a_full_queue_and_a_follow_up_name_the_holder_too(db: Protocol) -> None:
    db.queue_set("few", limit=1)
    running, keyed = db.put(queue="few"), db.put(key="k")
    db.take("few", worker="w1")
    db.take(worker="w2")

    [full] = db.enqueue({"kind": "k", "queue": "few"})
    [other] = db.enqueue({"kind": "k", "queue": "few", "subject": "s"})
    [follow] = db.enqueue({"kind": "work", "key": "k", "on_conflict": "after"})

    assert {(one.behind, one.holder) for one in (full, other)} == {(running, "w1")}
    assert (follow.behind, follow.holder) == (keyed, "w2")


def test_of_a_long_line_in_a_lane_only_the_holder_is_looked_up(db: Protocol) -> None:
    items = [{"kind": "k", "lane": "l"}] * 200

    with db.connection.transaction():
        before = db.rows_read()
        db.enqueue(*items)
        waiting = db.rows_read() - before
    db.take()
    with db.connection.transaction():
        before = db.rows_read()
        answers = db.enqueue(*items)
        busy = db.rows_read() - before

    assert {answer.holder for answer in answers} == {"ada"}
    assert busy < waiting + 50


def test_a_job_in_a_lane_of_a_full_queue_is_behind_one_that_runs(db: Protocol) -> None:
    db.queue_set("few", limit=1)
    running = db.put(queue="few")
    db.take("few")

    first, second = db.enqueue(*[{"kind": "k", "queue": "few", "lane": "l"}] * 2)

    assert (first.behind, second.behind) == (running, running)


def test_a_full_queue_is_looked_at_once_for_a_whole_batch(db: Protocol) -> None:
    db.queue_set("few", limit=100)
    db.enqueue(*[{"kind": "k", "queue": "few"}] * 100)
    running = {job.id for job in db.claim("few", max_jobs=100)}
    items = [{"kind": "k", "queue": "few", "subject": "s"}] * 200

    with db.connection.transaction():
        before = db.rows_read()
        answers = db.enqueue(*items)
        read = db.rows_read() - before

    assert {answer.behind for answer in answers} < running
    assert read < 1000


def test_a_lane_with_a_free_slot_keeps_nobody_waiting(db: Protocol) -> None:
    db.lane_set("default", "l", limit=2)

    first, second, third = db.enqueue(*[{"kind": "k", "lane": "l"}] * 3)

    assert (first.behind, second.behind, third.behind) == (None, None, second.id)


def test_a_halted_lane_names_the_job_that_halted_it(db: Protocol) -> None:
    db.lane_set("default", "l", on_failure="halt")
    dead = db.put(lane="l", max_attempts=1)
    db.nack(db.take())

    [waiting] = db.enqueue({"kind": "k", "lane": "l"})

    assert waiting.behind == dead


@pytest.mark.parametrize("more", [{}, {"subject": "s"}, {"key": "k2"}])
def test_a_queue_at_its_limit_names_the_job_that_started_first(
    db: Protocol, more: dict[str, Any]
) -> None:
    db.queue_set("few", limit=2)
    item = {"kind": "k", "queue": "few"}
    first, second, free = db.enqueue(item, item, {**item, "delay": 60})
    db.claim("few", max_jobs=1)
    [room] = db.enqueue({**item, "delay": 60})
    db.claim("few", max_jobs=1)

    [full] = db.enqueue({**item, **more})

    assert (first.behind, second.behind, free.behind, room.behind) == (None, None, None, None)
    assert full.behind == first.id


@pytest.mark.proves("S2.3")
def test_a_queue_below_its_limit_keeps_nobody_waiting(db: Protocol) -> None:
    db.queue_set("few", limit=2)
    db.put(queue="few")
    db.take("few")

    [answer] = db.enqueue({"kind": "k", "queue": "few"})

    assert answer.behind is None


def test_a_job_for_later_is_behind_nobody_yet(db: Protocol) -> None:
    db.put(lane="l")

    [later_on] = db.enqueue({"kind": "k", "lane": "l", "delay": 60})

    assert later_on.behind is None


def test_a_follow_up_is_behind_the_job_it_follows(db: Protocol) -> None:
    running = db.put(key="k")
    db.take()

    [follow] = db.enqueue({"kind": "work", "key": "k", "on_conflict": "after"})
    [again] = db.enqueue({"kind": "work", "key": "k", "on_conflict": "after"})

    assert (follow.created, follow.behind) == (True, running)
    assert (again.created, again.duplicate_of, again.behind) == (False, follow.id, None)


def test_in_a_batch_with_duplicates_each_is_behind_its_own(db: Protocol) -> None:
    db.put(key="k")
    lane = {"kind": "work", "lane": "l"}

    first, twin, second = db.enqueue(lane, {"kind": "work", "key": "k"}, lane)

    assert (first.behind, twin.behind, second.behind) == (None, None, first.id)


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"payload": 1},
        {"kind": None},
        {"kind": 5},
        {"kind": "x", "priority": 3.0},
        {"kind": "x", "priority": True},
        {"kind": "x", "priority": None},
        {"kind": "x", "queue": None},
        {"kind": "x", "id": 5},
    ],
)
def test_one_job_of_a_queue_with_settings_is_judged_as_others_are(
    db: Protocol, item: dict[str, Any]
) -> None:
    """The shortest way is taken there, and leaves to the others what is not for it."""
    judged = []
    for items in ([item], [item, {"kind": "x"}]):
        db.wipe()
        db.queue_set("default", max_attempts=7)
        try:
            job = db.job(db.enqueue(*items)[0].id)
            judged.append((job.priority, job.max_attempts, job.payload))
        except psycopg.Error as error:
            judged.append((error.sqlstate, str(error)))

    assert judged[0] == judged[1]


@pytest.mark.parametrize("jobs", [1, 12])
@pytest.mark.parametrize(
    ("key", "fine"),
    [
        ("k", True),
        ("k" * 388, True),
        ("k" * 389, True),
        ("k" * 500, True),
        ("ü" * 194, True),
        ("ü" * 500, True),
        (7, True),
        ("", False),
        ("k" * 501, False),
        ("漢" * 334, False),
        ([], False),
        (True, False),
    ],
)
def test_a_key_is_judged_by_its_length_alone(db: Protocol, jobs: int, key: Any, fine: bool) -> None:
    others = [{"kind": "k", "key": f"other {n}"} for n in range(jobs - 1)]
    items = [*others, {"kind": "k", "key": key}]
    if fine:
        assert all(answer.created for answer in db.enqueue(*items))
        assert db.enqueue(items[-1])[0].created is False
        return

    with pytest.raises(psycopg.Error) as refused:
        db.enqueue(*items)

    assert refused.value.sqlstate == "HF202"
    assert db.depth() == {}


@pytest.mark.parametrize("known", [False, True])
def test_one_job_with_a_new_key_takes_the_short_way(db: Protocol, known: bool) -> None:
    if known:
        db.queue_set("default", max_attempts=3)
    called = (
        "select funcname, calls from pg_stat_xact_user_functions "
        "where funcname in ('store_one', 'store_plain', 'store_items', 'enqueue_any')"
    )
    with db.connection.transaction():
        db.connection.execute("set local track_functions = 'all'")
        before = Counter(dict(db.connection.execute(called)))
        [first] = db.enqueue({"kind": "k", "key": "one"})
        ways = Counter(dict(db.connection.execute(called))) - before
    [second] = db.enqueue({"kind": "k", "key": "one"})
    [third] = db.enqueue({"kind": "other", "key": "one"})

    assert set(ways) == {"store_one"}
    assert (first.created, second.created, second.duplicate_of) == (True, False, first.id)
    assert third.created
    assert db.depth() == {"queued": 2}


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_key_that_an_old_snapshot_does_not_see_is_not_stored_twice(
    db: Protocol, other: Open, isolation: str
) -> None:
    session = other(autocommit=False)
    session.connection.execute(f"set transaction isolation level {isolation}")
    session.connection.execute("select from holdfast.job")
    db.put("k", key="one")

    with pytest.raises(psycopg.errors.SerializationFailure):
        session.enqueue({"kind": "k", "key": "one"})
    session.connection.rollback()

    assert db.depth() == {"queued": 1}
