"""explain: one sentence why a job is not running."""

import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from tests.protocol import Later, Protocol

AT_ONCE = timedelta(0)
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+"
NOBODY = r" No worker that handles it has reported itself\."
CLOCK = r"\d\d:\d\d:\d\d \S+"


def says(pattern: str, sentence: str) -> bool:
    return re.fullmatch(pattern, sentence) is not None


def test_a_ready_job_knows_how_many_are_ahead(db: Protocol) -> None:
    ids = [db.put(priority=priority) for priority in (0, 0, 5)]

    assert says(
        rf"Ready since {STAMP}; nothing is ahead of it in queue default\.{NOBODY}",
        db.explain(ids[2]),
    )
    assert says(
        rf"Ready since {STAMP}; 1 job is ahead of it in queue default\.{NOBODY}", db.explain(ids[0])
    )
    assert says(
        rf"Ready since {STAMP}; 2 jobs are ahead of it in queue default\.{NOBODY}",
        db.explain(ids[1]),
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

    assert db.explain(id) == "The lease of w1 expired 00:00:10 ago; the next reap reclaims the job."


def test_a_paused_queue(db: Protocol) -> None:
    id = db.put()

    db.pause("default")
    plain = db.explain(id)
    db.pause("default", reason="deploy", actor="ada", until=datetime.now(UTC) + timedelta(hours=1))

    assert says(rf"Queue default has been paused since {STAMP}\.", plain)
    assert says(
        rf"Queue default has been paused by ada since {STAMP} until {STAMP}: deploy\.",
        db.explain(id),
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
        == f"Lane l keeps its order: job {first} is first and will be retried in 00:01:00."
    )


def test_a_halted_lane(db: Protocol) -> None:
    db.lane_set("default", "l", on_failure="halt")
    first, second = (
        answer.id for answer in db.enqueue(*[{"kind": "k", "lane": "l", "max_attempts": 1}] * 2)
    )
    db.nack(db.take())

    assert db.explain(second) == (
        f"Lane l is halted because job {first} died; retry, archive or delete that job to continue."
    )


def test_a_lane_that_used_its_rate(db: Protocol) -> None:
    db.lane_set("default", "l", rate_limit=1, rate_period=60)
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 2)
    db.ack(db.take())
    [waiting] = db.find("state:queued")

    assert says(
        rf"Lane l has reached its rate of 1 per 00:01:00; the next job may start at {CLOCK}\.",
        db.explain(waiting),
    )


def test_a_queue_at_its_limit(db: Protocol) -> None:
    db.queue_set("default", limit=2)
    ids = [db.put() for _ in range(3)]
    db.claim(max_jobs=9)

    assert db.explain(ids[2]) == "Queue default has 2 jobs running; its limit is 2."


def test_a_queue_that_used_its_rate(db: Protocol) -> None:
    db.queue_set("default", rate_limit=1, rate_period=60)
    db.put()
    waiting = db.put()
    db.ack(db.take())

    assert says(
        r"Queue default has reached its rate of 1 per 00:01:00;"
        rf" the next job may start at {CLOCK}\.",
        db.explain(waiting),
    )


def test_a_follow_up(db: Protocol) -> None:
    running = db.put(key="1")
    db.take(worker="w1")
    follow_up = db.put(key="1", on_conflict="after")

    assert db.explain(follow_up) == (
        f"Duplicate of job {running}, which has the same key '1' and runs on w1;"
        " it runs after that job has ended."
    )


def test_a_due_job_that_nobody_promoted_yet(db: Protocol, later: Later) -> None:
    id = db.put(delay=5)
    later(seconds=6)

    assert says(rf"Due now\.{NOBODY}", db.explain(id))
    db.beat("w1", kinds=["work"], queues=["default"])
    assert db.explain(id) == "Due now; a worker will pick it up shortly."


def test_a_dead_job(db: Protocol) -> None:
    id = db.put(max_attempts=3)
    db.nack(db.take(), delay=timedelta(0))
    db.nack(db.take(), error_kind="E", message="boom", final=True)

    assert says(rf"Dead since {STAMP} after attempt 2 of 3: E: boom", db.explain(id))


def test_a_done_job(db: Protocol) -> None:
    db.queue_set("default", keep_done=60)
    id = db.put()
    db.ack(db.take(worker="w1"))

    assert says(rf"Done at {STAMP} by w1\.", db.explain(id))


def test_a_cancelled_and_an_archived_job(db: Protocol) -> None:
    id = db.put()

    db.cancel(id, reason="not needed")
    cancelled = db.explain(id)
    db.archive(id)

    assert says(rf"Cancelled at {STAMP}: not needed\.", cancelled)
    assert says(rf"Archived at {STAMP}: not needed\.", db.explain(id))


def test_a_job_that_is_not_there(db: Protocol) -> None:
    id = uuid4()

    assert db.explain(id) == (
        f"No job has the id {id}: it never existed,"
        " or it is done and its queue does not keep done jobs."
    )


def test_a_queue_that_serves_tenants_in_turn(db: Protocol) -> None:
    db.queue_set("default", fair=True)
    db.enqueue(*[{"kind": "k", "tenant": "b"}] * 3)
    first, second = db.put(tenant="a"), db.put(tenant="a")

    turn = f"Ready since {STAMP}; queue default serves tenants in turn, and"
    assert says(rf"{turn} nothing of tenant 'a' is ahead of it\.{NOBODY}", db.explain(first))
    assert says(rf"{turn} 1 job of tenant 'a' is ahead of it\.{NOBODY}", db.explain(second))


def test_a_kind_without_a_worker(db: Protocol, later: Later) -> None:
    id = db.put("send_sms", queue="mail")
    nobody_lives = db.explain(id)
    db.beat("w1", kinds=["send_email"], queues=["mail"])
    other_kind = db.explain(id)
    db.beat("w1", kinds=["send_sms"], queues=["letters"])
    other_queue = db.explain(id)
    db.beat("w1", kinds=["send_sms"], queues=["mail"])
    handled = db.explain(id)
    later(minutes=2)
    gone = db.explain(id)

    none = (
        r"No running worker handles kind send_sms in queue mail \(%s running\)\."
        rf" Waiting since {STAMP}\."
    )
    # One that says nothing of itself may be about to claim it.
    assert says(
        rf"Ready since {STAMP}; nothing is ahead of it in queue mail\.{NOBODY}", nobody_lives
    )
    assert says(none % "1 worker", other_kind)
    assert says(none % "1 worker", other_queue)
    assert says(rf"Ready since {STAMP}; nothing is ahead of it in queue mail\.", handled)
    assert says(none % "0 workers", gone)


def test_a_worker_that_says_nothing_of_itself_counts_by_its_claims(
    db: Protocol, later: Later
) -> None:
    waiting = db.put(run_at=(datetime.now(UTC) - timedelta(hours=1)).isoformat(), priority=0)
    db.put(priority=9)
    db.take(worker="a script")

    assert db.explain(waiting).startswith("Ready since")
    later(minutes=2)
    assert db.explain(waiting).startswith("No running worker handles kind work")


def queue_says(db: Protocol, queue: str = "default") -> str:
    return str(db.value("explain_queue", queue=queue))


def test_a_queue_says_what_keeps_it_back(db: Protocol, later: Later) -> None:
    assert queue_says(db) == ("No queue is named default: it has no jobs and no settings.")
    db.queue_set("default", limit=1)
    assert queue_says(db) == "No jobs are waiting in queue default; 0 running."
    db.enqueue(*[{"kind": "k"}] * 2)
    db.fold()
    held = db.take(worker="w1")
    db.fold()
    assert says(
        r"Queue default has 1 job running; its limit is 1\. 1 waiting, the first for \S+ s\.",
        queue_says(db),
    )
    db.queue_set("default", limit=None, rate_limit=1, rate_period=60)
    db.release(held)
    db.take(worker="w1")
    db.fold()
    assert says(
        r"Queue default has reached its rate of 1 per 00:01:00;"
        rf" the next job may start at {CLOCK}\.",
        queue_says(db),
    )
    db.queue_set("default", rate_limit=None, rate_period=None)
    db.beat("w1", kinds=["other"])
    assert says(
        r"No running worker handles k in queue default; 1 waiting, the first of these for \S+ s\.",
        queue_says(db),
    )
    db.beat("w1", kinds=["k"])
    assert queue_says(db).startswith("1 job waits in queue default, the first for ")
    db.pause("default", actor="ada", reason="deploy")
    assert says(
        rf"Queue default has been paused by ada since {STAMP}: deploy; 1 waiting\.", queue_says(db)
    )


def test_a_queue_whose_jobs_wait_for_their_time(db: Protocol) -> None:
    db.put(delay=60)
    db.fold()

    assert queue_says(db) == (
        "1 job waits in queue default, none is ready:"
        " they are due later, or wait for others in their lane or for a strike to be lifted."
    )


def lane_says(db: Protocol, lane: str = "l") -> str:
    return str(db.value("explain_lane", queue="default", lane=lane))


def test_a_lane_says_who_holds_it_and_what_is_next(db: Protocol) -> None:
    assert lane_says(db) == "Lane l of queue default has no jobs."
    db.enqueue(*[{"kind": "k", "lane": "l", "max_attempts": 1}] * 2)
    held = db.take(worker="w1")
    assert says(
        rf"Lane l is busy: job {held.id} runs on w1 until {CLOCK} \(1 of 1 at a time\);"
        r" 1 waiting\.",
        lane_says(db),
    )
    db.release(held)
    assert says(
        rf"Job {held.id} is next in lane l: Ready since {STAMP};"
        r" nothing is ahead of it in queue default\.",
        lane_says(db),
    )
    db.lane_set("default", "l", on_failure="halt")
    db.nack(db.take(), message="boom")
    assert says(
        rf"Lane l was halted at {STAMP} because job {held.id} died \(boom\); 1 waiting\."
        r" Retry, archive or delete that job to continue\.",
        lane_says(db),
    )
    db.lane_set("default", "l", halted=False, rate_limit=1, rate_period=60)
    db.ack(db.take())
    assert says(
        rf"Lane l has reached its rate of 1 per 00:01:00; the next job may start at {CLOCK}\.",
        lane_says(db),
    )
    db.lane_set("default", "l", rate_limit=None, rate_period=None)
    assert lane_says(db) == "No jobs are waiting in lane l; 0 running."
    db.put(lane="l")
    db.pause("default", actor="ada")
    assert lane_says(db).startswith("Queue default has been paused by ada since")


def test_a_job_that_is_told_it_is_next_is_next(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k", "priority": n % 3} for n in range(9)])
    db.release(*db.claim(max_jobs=4))
    for _ in range(9):
        [next_up] = [id for id in db.find("state:queued") if "nothing is ahead" in db.explain(id)]
        assert db.take().id == next_up


def test_a_job_copied_with_a_time_to_come_is_ready(db: Protocol) -> None:
    db.connection.execute(
        "insert into holdfast.job (part, id, queue, kind, run_at)"
        " select holdfast.part_of(i), i, 'default', 'k', holdfast.now() + interval '1 day'"
        " from holdfast.new_id() i"
    )
    db.value("copied", queue="default", kinds=["k"], counts=[1])
    [id] = db.find("")

    assert db.explain(id).startswith("Ready")
    assert db.take().id == id


def test_a_lane_with_several_slots_keeps_back_only_whom_it_has_no_slot_for(db: Protocol) -> None:
    db.lane_set("default", "l", limit=3)
    first, second, third, fourth = (
        answer.id for answer in db.enqueue(*[{"kind": "k", "lane": "l"}] * 4)
    )
    before = db.explain(fourth)
    assert db.take().id == first
    told = {id: db.explain(id) for id in (second, third, fourth)}

    assert before == f"Lane l keeps its order: job {first} is first and waits to be claimed."
    assert told[second].startswith("Ready")
    assert told[third].startswith("Ready")
    assert told[fourth] == f"Lane l keeps its order: job {second} is first and waits to be claimed."
    assert [job.id for job in db.claim(max_jobs=9)] == [second, third]


def test_a_lane_and_a_limit_whose_holder_is_gone(db: Protocol, later: Later) -> None:
    db.queue_set("limited", limit=1)
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 2, *[{"kind": "k", "queue": "limited"}] * 2)
    held = db.take(worker="w1")
    db.take("limited")
    [behind] = (job.id for job in db.list("queue:default state:queued"))
    [over] = (job.id for job in db.list("queue:limited state:queued"))

    later(seconds=40)

    assert says(
        rf"Lane l is busy: the lease of job {held.id} on w1 expired 00:00:\d\d ago, and the next"
        r" reap reclaims it \(1 of 1 at a time\)\.",
        db.explain(behind),
    )
    assert db.explain(over) == (
        "Queue limited has 1 job running; its limit is 1."
        " One of the leases has expired; the next reap reclaims it."
    )
