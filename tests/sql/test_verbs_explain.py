"""explain: one sentence why a job is not running."""

import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from tests.protocol import Later, Protocol

AT_ONCE = timedelta(0)
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+"
CLOCK = r"\d\d:\d\d:\d\d \S+"


def says(pattern: str, sentence: str) -> bool:
    return re.fullmatch(pattern, sentence) is not None


def test_a_ready_job_knows_how_many_are_ahead(db: Protocol) -> None:
    ids = [db.put(priority=priority) for priority in (0, 0, 5)]

    assert says(
        rf"Ready since {STAMP}; nothing is ahead of it in queue default\.", db.explain(ids[2])
    )
    assert says(
        rf"Ready since {STAMP}; 1 job is ahead of it in queue default\.", db.explain(ids[0])
    )
    assert says(
        rf"Ready since {STAMP}; 2 jobs are ahead of it in queue default\.", db.explain(ids[1])
    )


def test_a_job_that_is_not_due(db: Protocol) -> None:
    id = db.put(delay=120)

    assert says(rf"Not due before {STAMP} \(in 00:02:00\)\.", db.explain(id))


def test_a_job_that_failed_and_waits(db: Protocol) -> None:
    id = db.put()
    db.nack(db.take(), error_kind="Timeout", message="slow", delay=timedelta(minutes=5))

    assert db.explain(id) == "Attempt 1 of 3 failed (Timeout: slow); the next is due in 00:05:00."


def test_a_leased_job(db: Protocol) -> None:
    id = db.put()
    db.take(worker="w1")

    assert says(rf"Leased by w1 until {CLOCK}, attempt 1 of 3\.", db.explain(id))


def test_a_lease_that_ran_out(db: Protocol, later: Later) -> None:
    id = db.put()
    db.take(worker="w1")
    later(seconds=40)

    assert (
        db.explain(id) == "The lease of w1 ran out 00:00:10 ago; the next reap takes the job back."
    )


def test_a_paused_queue(db: Protocol) -> None:
    id = db.put()

    db.pause("default")
    plain = db.explain(id)
    db.pause("default", reason="deploy", actor="ada", until=datetime.now(UTC) + timedelta(hours=1))

    assert says(rf"Queue default is paused since {STAMP}\.", plain)
    assert says(
        rf"Queue default is paused by ada since {STAMP} until {STAMP}: deploy\.", db.explain(id)
    )


def test_a_busy_lane(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 2)
    running = db.take(worker="w1")
    waiting = next(id for id in db.find() if id != running.id)

    assert says(
        rf"Lane l is busy: job {running.id} runs on w1 until {CLOCK} \(1 of 1 at a time\)\.",
        db.explain(waiting),
    )


def test_the_order_of_a_lane(db: Protocol) -> None:
    first, second = (answer.id for answer in db.enqueue(*[{"kind": "k", "lane": "l"}] * 2))

    assert (
        db.explain(second)
        == f"Lane l keeps its order: job {first} is first and waits to be claimed."
    )
    assert db.explain(first).startswith("Ready")


def test_a_lane_whose_first_job_is_retried(db: Protocol) -> None:
    db.lane_set("default", "l", on_failure="retry")
    first, second = (answer.id for answer in db.enqueue(*[{"kind": "k", "lane": "l"}] * 2))
    db.nack(db.take(), delay=timedelta(minutes=1))

    assert (
        db.explain(second)
        == f"Lane l keeps its order: job {first} is first and is retried in 00:01:00."
    )


def test_a_halted_lane(db: Protocol) -> None:
    db.lane_set("default", "l", on_failure="halt")
    first, second = (
        answer.id for answer in db.enqueue(*[{"kind": "k", "lane": "l", "max_attempts": 1}] * 2)
    )
    db.nack(db.take())

    assert db.explain(second) == (
        f"Lane l is halted since job {first} died in it; retry, archive or purge that job to go on."
    )


def test_a_lane_that_used_its_rate(db: Protocol) -> None:
    db.lane_set("default", "l", rate_limit=1, rate_period=60)
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 2)
    db.ack(db.take())
    [waiting] = db.find("state:queued")

    assert says(
        rf"Lane l has used its rate of 1 per 00:01:00; the next may start at {CLOCK}\.",
        db.explain(waiting),
    )


def test_a_queue_at_its_limit(db: Protocol) -> None:
    db.queue_set("default", limit=2)
    ids = [db.put() for _ in range(3)]
    db.claim(max_jobs=9)

    assert db.explain(ids[2]) == "Queue default runs 2 jobs, its limit is 2."


def test_a_queue_that_used_its_rate(db: Protocol) -> None:
    db.queue_set("default", rate_limit=1, rate_period=60)
    db.put()
    waiting = db.put()
    db.ack(db.take())

    assert says(
        rf"Queue default has used its rate of 1 per 00:01:00; the next may start at {CLOCK}\.",
        db.explain(waiting),
    )


def test_a_follow_up(db: Protocol) -> None:
    running = db.put(key="1")
    db.take(worker="w1")
    follow_up = db.put(key="1", on_conflict="after")

    assert (
        db.explain(follow_up)
        == f"Follows job {running}, which has the same key '1' and runs on w1."
    )


def test_a_due_job_that_nobody_promoted_yet(db: Protocol, later: Later) -> None:
    id = db.put(delay=5)
    later(seconds=6)

    assert db.explain(id) == "Due; it enters the ready order with the next claim or upkeep."


def test_a_dead_job(db: Protocol) -> None:
    id = db.put(max_attempts=1)
    db.nack(db.take(), error_kind="E", message="boom")

    assert says(rf"Dead since {STAMP} after attempt 1 of 1: E: boom", db.explain(id))


def test_a_done_job(db: Protocol) -> None:
    db.queue_set("default", keep_done=60)
    id = db.put()
    db.ack(db.take(worker="w1"))

    assert says(rf"Done since {STAMP} by w1\.", db.explain(id))


def test_a_cancelled_and_an_archived_job(db: Protocol) -> None:
    id = db.put()

    db.cancel(id, reason="not needed")
    cancelled = db.explain(id)
    db.archive(id)

    assert says(rf"Cancelled since {STAMP}: not needed\.", cancelled)
    assert says(rf"Archived since {STAMP}: not needed\.", db.explain(id))


def test_a_job_that_is_not_there(db: Protocol) -> None:
    id = uuid4()

    assert db.explain(id) == (
        f"There is no job {id}: it never existed, or it is done and its queue keeps no history."
    )


def test_a_queue_that_serves_tenants_in_turn(db: Protocol) -> None:
    db.queue_set("default", fair=True)
    id = db.put(tenant="a")

    assert db.explain(id).endswith("in queue default, which serves tenants in turn.")


def test_a_job_that_is_told_it_is_next_is_next(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k", "priority": n % 3} for n in range(9)])
    db.release(*db.claim(max_jobs=4))
    for _ in range(9):
        [next_up] = [id for id in db.find("state:queued") if "nothing is ahead" in db.explain(id)]
        assert db.take().id == next_up
