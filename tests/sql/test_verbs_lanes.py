"""Lanes: in order, so many at a time, and never stuck."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.protocol import Hold, Later, Leased, Open, Protocol

AT_ONCE = timedelta(0)


def lane(db: Protocol, jobs: int, name: str = "l", **fields: Any) -> list[UUID]:
    """Jobs of one lane, enqueued together."""
    answers = db.enqueue(*[{"kind": "k", "lane": name, **fields} for _ in range(jobs)])
    return [answer.id for answer in answers]


def one_by_one(db: Protocol, jobs: int, name: str = "l") -> list[UUID]:
    return [db.put("k", lane=name) for _ in range(jobs)]


@pytest.mark.parametrize("enqueue", [lane, one_by_one])
def test_a_lane_runs_one_job_at_a_time_in_order(db: Protocol, enqueue: Any) -> None:
    ids = enqueue(db, 4)

    ran = []
    for _ in ids:
        [job] = db.claim(max_jobs=9)
        assert db.claim(max_jobs=9) == []
        ran.append(job.id)
        db.ack(job)

    assert ran == ids


@pytest.mark.parametrize("end", ["ack", "nack"])
def test_whoever_ends_a_job_of_a_lane_wakes_a_worker_for_the_next(
    db: Protocol, other: Open, end: str
) -> None:
    lane(db, 2)
    job = db.take()
    listener = other().connection
    listener.execute("listen holdfast")
    db.value("await_work", queues=["default"], worker="ada")

    getattr(db, end)(job)

    heard = list(listener.notifies(timeout=100, stop_after=1))
    assert [notice.payload for notice in heard] == ["default\nada"]


@pytest.mark.parametrize("enqueue", [lane, one_by_one])
def test_a_lane_with_a_limit_runs_so_many_at_a_time(db: Protocol, enqueue: Any) -> None:
    db.lane_set("default", "l", limit=3)
    ids = enqueue(db, 7)

    first = db.claim(max_jobs=9)
    db.ack(first[1])
    second = db.claim(max_jobs=9)

    assert [job.id for job in first] == ids[:3]
    assert [job.id for job in second] == ids[3:4]


def test_the_queue_gives_its_lanes_their_limit(db: Protocol) -> None:
    db.queue_set("default", lane_limit=2)
    lane(db, 4)

    assert len(db.claim(max_jobs=9)) == 2


def test_wider_lanes_let_jobs_in_at_once_a_hundred_lanes_of_them_and_upkeep_the_others(
    db: Protocol,
) -> None:
    db.enqueue(*[{"kind": "k", "lane": f"l{n % 103}"} for n in range(3 * 103)])
    running = db.claim(max_jobs=103)
    ready = "select count(*) as jobs from holdfast.job where pos is not null and token is null"

    db.queue_set("default", lane_limit=2)
    [at_once] = db.table(ready)
    db.upkeep()
    [after_upkeep] = db.table(ready)

    assert len(running) == 103
    assert (at_once.jobs, after_upkeep.jobs) == (100, 103)


def test_lanes_run_beside_each_other_and_beside_other_jobs(db: Protocol) -> None:
    a, b = lane(db, 3, "a"), lane(db, 3, "b")
    free = [db.put("k") for _ in range(2)]

    assert {job.id for job in db.claim(max_jobs=9)} == {a[0], b[0], *free}


def test_a_claim_of_one_finds_the_next_lane(db: Protocol) -> None:
    a, b = one_by_one(db, 3, "a"), one_by_one(db, 3, "b")

    assert [db.take().id, db.take().id] == [a[0], b[0]]
    assert db.claim() == []


def test_a_busy_lane_does_not_hide_the_jobs_behind_it(db: Protocol) -> None:
    one_by_one(db, 60)
    db.take()
    free = db.put("k")

    assert [job.id for job in db.claim()] == [free]


def test_a_lane_keeps_its_order_against_priorities(db: Protocol) -> None:
    low = db.put("k", lane="l", priority=0)
    high = db.put("k", lane="l", priority=9)

    first = db.take()
    db.ack(first)

    assert [first.id, db.take().id] == [low, high]


@pytest.mark.parametrize("how", ["ack", "nack to death", "reap to death"])
def test_the_next_starts_when_the_first_is_over(db: Protocol, later: Later, how: str) -> None:
    ids = lane(db, 2, max_attempts=1)
    job = db.take()
    if how == "ack":
        db.ack(job)
    elif how == "nack to death":
        db.nack(job)
    else:
        later(seconds=31)
        db.reap()

    assert [each.id for each in db.claim(max_jobs=9)] == ids[1:]


@pytest.mark.parametrize("how", ["cancel", "delete", "move", "put off"])
@pytest.mark.parametrize("enqueue", [lane, one_by_one])
def test_a_lane_goes_on_when_its_first_job_leaves_before_any_claim(
    db: Protocol, enqueue: Any, how: str
) -> None:
    ids = enqueue(db, 3)

    if how == "cancel":
        db.cancel(ids[0])
    elif how == "delete":
        db.delete(ids[0])
    elif how == "move":
        db.move(ids[0], queue="other")
    else:
        db.edit(ids[0], changes={"run_at": "2090-01-01T00:00:00Z"})

    assert [job.id for job in db.claim(max_jobs=9)] == ids[1:2]


@pytest.mark.parametrize("how", ["cancel", "delete", "move", "put off"])
def test_a_lane_goes_past_a_waiting_job_that_left(db: Protocol, how: str) -> None:
    ids = lane(db, 3)
    running = db.take()
    if how == "cancel":
        db.cancel(ids[1])
    elif how == "delete":
        db.delete(ids[1])
    elif how == "move":
        db.move(ids[1], queue="other")
    else:
        db.edit(ids[1], changes={"run_at": "2090-01-01T00:00:00Z"})

    db.ack(running)

    assert [job.id for job in db.claim(max_jobs=9)] == ids[2:]


def test_a_scheduled_lane_job_edited_to_run_now_is_claimed(db: Protocol) -> None:
    id = db.put("k", lane="l", delay=3600)

    db.edit(id, changes={"run_at": "2020-01-01T00:00:00Z"})

    assert [job.id for job in db.claim()] == [id]


def test_a_due_lane_job_edited_before_its_promotion_is_claimed(db: Protocol, later: Later) -> None:
    id = db.put("k", lane="l", delay=10)
    later(seconds=11)

    db.edit(id, changes={"payload": {"new": True}})

    assert [job.id for job in db.claim()] == [id]


def test_a_scheduled_lane_job_replaced_by_one_for_now_is_claimed(db: Protocol) -> None:
    item = {"kind": "k", "lane": "l", "key": "1"}
    [first] = db.enqueue({**item, "delay": 3600})

    db.enqueue({**item, "on_conflict": "replace"})

    assert [job.id for job in db.claim()] == [first.id]


def test_a_lane_goes_on_when_its_first_job_is_replaced_by_a_later_one(db: Protocol) -> None:
    items = [{"kind": "k", "lane": "l", "key": str(n)} for n in range(2)]
    first, second = db.enqueue(*items)

    db.enqueue({**items[0], "delay": 3600, "on_conflict": "replace"})

    assert [job.id for job in db.claim(max_jobs=9)] == [second.id] != [first.id]


def test_a_new_lane_job_does_not_wait_for_a_repeated_one_that_is_done(db: Protocol) -> None:
    sent = {"kind": "k", "lane": "l", "id": str(db.value("new_id"))}
    db.enqueue(sent)
    db.ack(db.take())
    db.upkeep()

    _, new = db.enqueue(sent, {"kind": "k", "lane": "l"}, repeat=True)

    assert [job.id for job in db.claim()] == [new.id]


@pytest.mark.parametrize("how", ["skip", "retry", "halt"])
def test_after_a_failed_attempt_the_lane_does_what_it_was_told(
    db: Protocol, later: Later, how: str
) -> None:
    db.lane_set("default", "l", on_failure=how)
    first, second = lane(db, 2)
    db.nack(db.take(), delay=timedelta(seconds=60))

    meanwhile = [job.id for job in db.claim(max_jobs=9)]
    later(seconds=20)
    db.ack(*db.held(*_tokens(db)))
    later(seconds=41)
    afterwards = [job.id for job in db.claim(max_jobs=9)]

    if how == "skip":
        assert (meanwhile, afterwards) == ([second], [first])
    else:
        assert (meanwhile, afterwards) == ([], [first])


def test_retry_in_place_goes_first_again(db: Protocol) -> None:
    db.queue_set("default", lane_on_failure="retry")
    ids = lane(db, 3)

    db.nack(db.take(), delay=AT_ONCE)

    assert db.take().id == ids[0]


def test_skip_sends_a_failed_job_to_the_end_of_its_lane(db: Protocol) -> None:
    ids = lane(db, 3)
    db.nack(db.take(), delay=AT_ONCE)

    order = []
    for _ in ids:
        job = db.take()
        order.append(job.id)
        db.ack(job)

    assert order == [ids[1], ids[2], ids[0]]


def test_a_death_halts_a_lane_that_halts(db: Protocol) -> None:
    db.lane_set("default", "l", on_failure="halt")
    ids = lane(db, 3, max_attempts=1)
    db.nack(db.take(), message="boom")
    db.put("k", lane="l")
    db.upkeep()

    assert db.claim(max_jobs=9) == []
    assert f"halted because job {ids[0]} died" in db.explain(ids[1])


@pytest.mark.parametrize("enqueue", [lane, one_by_one])
def test_a_claim_whose_own_reap_halts_a_lane_starts_nothing_more_in_it(
    db: Protocol, later: Later, enqueue: Any
) -> None:
    db.queue_set("default", max_attempts=1)
    db.lane_set("default", "l", limit=2, on_failure="halt")
    first, second, third = enqueue(db, 3)
    abandoned = db.claim(max_jobs=1)
    later(seconds=31)

    claimed = db.claim(max_jobs=9)

    # The second was taken before the claim came up short and reaped; the third must not be.
    assert [job.id for job in abandoned] == [first]
    assert [job.id for job in claimed] == [second]
    assert [db.state(id) for id in (first, second, third)] == ["dead", "leased", "queued"]
    assert f"halted because job {first} died" in db.explain(third)
    assert db.claim(max_jobs=9) == []


@pytest.mark.parametrize("how", ["retry", "archive", "delete", "move", "lane_set"])
def test_a_halted_lane_goes_on_when_the_dead_job_is_dealt_with(db: Protocol, how: str) -> None:
    db.lane_set("default", "l", on_failure="halt")
    ids = lane(db, 2, max_attempts=1)
    db.nack(db.take(), message="boom")

    if how == "lane_set":
        db.lane_set("default", "l", halted=False)
    elif how == "move":
        db.move(ids[0], queue="other")
    else:
        getattr(db, how)(ids[0])

    assert [job.id for job in db.claim(max_jobs=9)] == [ids[0] if how == "retry" else ids[1]]


def test_a_released_lane_job_is_first_again(db: Protocol) -> None:
    ids = lane(db, 2)

    db.release(db.take())

    assert [job.id for job in db.claim(max_jobs=9)] == ids[:1]


def test_an_abandoned_lane_job_frees_its_slot(db: Protocol, later: Later) -> None:
    ids = lane(db, 2)
    db.take()
    later(seconds=31)

    # skip: the lane goes on with the next; the abandoned one is at its end
    assert [job.id for job in db.claim(max_jobs=9)] == [ids[1]]


def test_a_lane_made_wider_runs_more(db: Protocol) -> None:
    ids = lane(db, 4)
    db.take()

    db.lane_set("default", "l", limit=3)

    assert [job.id for job in db.claim(max_jobs=9)] == ids[1:3]


def test_a_queue_that_widens_its_lanes_is_followed_by_upkeep(db: Protocol) -> None:
    ids = lane(db, 4)
    db.take()

    db.queue_set("default", lane_limit=2)
    db.upkeep()

    assert [job.id for job in db.claim(max_jobs=9)] == ids[1:2]


def test_a_worker_that_does_not_know_the_first_kind_passes_the_lane(db: Protocol) -> None:
    first = db.put("a", lane="l")
    second = db.put("b", lane="l")

    assert db.claim(kinds=["b"]) == []
    db.ack(db.take(kinds=["a"]))
    assert [job.id for job in db.claim(kinds=["b"])] == [second] != [first]


def test_a_delayed_lane_job_joins_when_it_is_due(db: Protocol, later: Later) -> None:
    delayed = db.put("k", lane="l", delay=10)
    now = db.put("k", lane="l")

    first = db.take()
    later(seconds=11)
    busy = db.claim()
    db.ack(first)

    assert (first.id, busy) == (now, [])
    assert db.take().id == delayed


def test_a_lane_with_a_rate_starts_so_many_per_period(db: Protocol, later: Later) -> None:
    db.lane_set("default", "l", limit=9, rate_limit=2, rate_period=60)
    ids = lane(db, 5)

    first = db.claim(max_jobs=9)
    db.ack(*first)
    db.upkeep()
    none = db.claim(max_jobs=9)
    later(seconds=61)
    db.upkeep()

    assert [job.id for job in first] == ids[:2]
    assert none == []
    assert [job.id for job in db.claim(max_jobs=9)] == ids[2:4]


def test_the_follow_up_of_a_lane_job_takes_its_turn(db: Protocol) -> None:
    running = db.put("k", lane="l", key="1")
    job = db.take()
    waiting = db.put("k", lane="l")
    follow_up = db.put("k", lane="l", key="1", on_conflict="after")
    order = []
    while True:
        order.append(job.id)
        db.ack(job)
        jobs = db.claim(max_jobs=9)
        if not jobs:
            break
        [job] = jobs

    assert order == [running, waiting, follow_up]


def test_lanes_nobody_uses_are_forgotten(db: Protocol) -> None:
    for n in range(5):
        db.put("k", lane=f"l{n}")
    db.ack(*db.claim(max_jobs=9))
    db.upkeep()
    db.upkeep()

    assert db.connection.execute("select count(*) from holdfast.lane").fetchone() == (0,)


def test_a_retried_lane_job_takes_its_turn(db: Protocol) -> None:
    ids = lane(db, 2, max_attempts=1)
    db.nack(db.take())
    running = db.take()

    db.retry(ids[0])
    busy = db.claim()
    db.ack(running)

    assert busy == []
    assert [job.id for job in db.claim()] == [ids[0]]


def test_a_moved_lane_job_takes_its_turn_in_the_other_queue(db: Protocol) -> None:
    other = db.put("k", lane="l", queue="other")
    ids = lane(db, 1)

    [moved] = db.move(ids[0], queue="other")

    assert [job.id for job in db.claim("other", max_jobs=9)] == [other]
    db.ack(*db.held(*_tokens(db)))
    assert [job.id for job in db.claim("other", max_jobs=9)] == [moved.new_id]


LETS_GO: dict[str, Callable[[Protocol, Leased], Any]] = {
    "ack": lambda db, job: db.ack(job),
    "nack": lambda db, job: db.nack(job),
    "release": lambda db, job: db.release(job),
    "give up": lambda db, job: db.settle({"verb": "cancel", "id": job.id, "token": job.token}),
    "settle": lambda db, job: db.settle(
        {"verb": "ack", "id": job.id, "token": job.token},
        {"verb": "release", "id": job.id, "token": job.token},
    ),
}


@pytest.mark.parametrize("bound_by", ["lane", "limit"])
@pytest.mark.parametrize("how", LETS_GO)
def test_a_job_cancelled_while_it_runs_keeps_its_slot_until_its_holder_lets_go(
    db: Protocol, bound_by: str, how: str
) -> None:
    if bound_by == "limit":
        db.queue_set("default", limit=1)
    ids = [db.put("k", lane="l" if bound_by == "lane" else None) for _ in range(3)]
    job = db.take()
    [cancelled] = db.cancel(job.id)

    [touched] = db.touch(job)
    db.ack(Hold(job.id, uuid4()), Hold(ids[1], job.token))
    db.upkeep()
    still_busy = db.claim(max_jobs=9)
    LETS_GO[how](db, job)

    assert (cancelled.changed, cancelled.state) == (True, "cancelled")
    assert touched.outcome == "lost"
    assert still_busy == []
    assert [each.id for each in db.claim(max_jobs=9)] == ids[1:2]
    assert db.claim(max_jobs=9) == []


@pytest.mark.parametrize("bound_by", ["lane", "limit"])
def test_a_job_cancelled_while_it_runs_keeps_its_slot_until_its_lease_has_ended(
    db: Protocol, later: Later, bound_by: str
) -> None:
    if bound_by == "limit":
        db.queue_set("default", limit=1)
    ids = [db.put("k", lane="l" if bound_by == "lane" else None) for _ in range(2)]
    db.cancel(db.take().id)

    later(seconds=29)
    db.upkeep()
    before = db.claim(max_jobs=9)
    later(seconds=2)

    assert before == []
    assert [each.id for each in db.claim(max_jobs=9)] == ids[1:]
    assert db.connection.execute("select from holdfast.leaving").fetchall() == []


def test_of_a_lane_with_two_slots_a_cancelled_job_keeps_one(db: Protocol) -> None:
    db.lane_set("default", "l", limit=2)
    ids = lane(db, 4)
    first, second = db.claim(max_jobs=9)
    db.cancel(first.id)

    db.ack(second)

    assert [each.id for each in db.claim(max_jobs=9)] == ids[2:3]


def test_a_job_cancelled_while_it_waits_keeps_nothing(db: Protocol) -> None:
    ids = lane(db, 3)
    db.cancel(ids[0])

    assert [each.id for each in db.claim(max_jobs=9)] == ids[1:2]


def test_a_cancelled_job_that_is_retried_waits_for_its_former_holder(db: Protocol) -> None:
    [id] = lane(db, 1)
    job = db.take()
    db.cancel(id)

    db.retry(id)
    while_it_runs = db.claim()
    db.ack(job)

    assert while_it_runs == []
    assert db.take().id == id


def test_who_waits_behind_a_cancelled_job_is_told_so(db: Protocol) -> None:
    [id] = lane(db, 1)
    db.take(worker="ada")
    db.cancel(id)

    [waiting] = db.enqueue({"kind": "k", "lane": "l"})

    assert waiting.behind == id
    told = db.explain(waiting.id)
    assert f"Lane l is busy: job {id} was cancelled, and ada has until " in told
    [row] = db.table("select job, worker, running, waiting from holdfast.lanes")
    assert (row.job, row.worker, row.running, row.waiting) == (id, "ada", 1, 1)


def test_who_waits_for_a_limit_behind_a_cancelled_job_is_told_so(db: Protocol) -> None:
    db.queue_set("default", limit=1)
    id = db.put("k")
    db.take()
    db.cancel(id)

    [waiting] = db.enqueue({"kind": "k"})

    assert waiting.behind == id
    assert db.explain(waiting.id) == "Queue default has 1 job running; its limit is 1."


def test_a_lane_kept_by_a_cancelled_job_is_released_once_its_worker_is_gone(
    db: Protocol, later: Later
) -> None:
    ids = lane(db, 2)
    db.take(worker="ada", lease=timedelta(hours=1))
    db.beat("ada")
    db.cancel(ids[0])
    release = "select outcome, job from holdfast.lane_release('default', 'l')"

    [alive] = db.table(release)
    later(seconds=61)
    [gone] = db.table(release)

    assert (alive.outcome, alive.job) == ("alive", ids[0])
    assert (gone.outcome, gone.job) == ("released", ids[0])
    assert [each.id for each in db.claim(max_jobs=9)] == ids[1:]


def _tokens(db: Protocol) -> list[UUID]:
    return [row[0] for row in db.connection.execute("select token from holdfast.lease")]


def test_a_job_cancelled_twice_under_one_token_keeps_its_slot(db: Protocol, later: Later) -> None:
    db.queue_set("default", limit=2)
    id, token = db.put(), uuid4()
    for _ in range(2):
        db.take(token=token)
        assert db.cancel(id)[0].changed
        db.retry(id)

    assert len(db.table("select from holdfast.leaving")) == 1
    later(seconds=31)
    db.upkeep()
    assert db.table("select from holdfast.leaving") == []
