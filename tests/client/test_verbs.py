"""Each verb of the protocol, through both clients."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast.errors import InvalidJob, LeaseLost, UnknownJob
from holdfast.records import (
    Cancelled,
    Done,
    Failed,
    Lease,
    NewJob,
    Released,
    new_id,
    part_of,
    queue_part,
)


def claim_one(client: Any, queue: str = "default", **options: Any) -> Lease:
    [lease] = client.claim(queue, worker="ada", **options)
    return lease


def kill(client: Any, message: str = "boom") -> Lease:
    lease = claim_one(client)
    client.nack([lease], error_kind="ValueError", message=message)
    return lease


def test_a_job_travels_from_enqueue_to_ack(client: Any) -> None:
    enqueued = client.enqueue("greet", {"name": "Ada"}, queue="mail", priority=3)

    lease = claim_one(client, "mail")

    assert enqueued.created
    assert lease.id == enqueued.id
    assert lease.payload == {"name": "Ada"}
    assert (lease.kind, lease.queue, lease.worker) == ("greet", "mail", "ada")
    assert (lease.priority, lease.attempt) == (3, 1)
    assert [s.outcome for s in client.ack([lease])] == ["done"]
    assert client.claim("mail", worker="ada") == []


def test_every_option_reaches_the_lease(client: Any) -> None:
    client.enqueue(
        "greet",
        [1, None, "ü"],
        max_attempts=7,
        lease=timedelta(minutes=5),
        key="ada",
        lane="letters",
        tenant="acme",
        subject="order-42",
        headers={"trace": "abc"},
    )

    lease = claim_one(client)

    assert lease.payload == [1, None, "ü"]
    assert lease.headers == {"trace": "abc"}
    assert (lease.key, lease.lane, lease.tenant) == ("ada", "letters", "acme")
    assert (lease.subject, lease.max_attempts) == ("order-42", 7)
    assert lease.lease_until - datetime.now(UTC) > timedelta(minutes=4)


def test_a_payload_that_is_left_out_is_an_empty_object(client: Any) -> None:
    client.enqueue("greet")

    assert claim_one(client).payload == {}


def test_a_delayed_job_is_not_claimed_before_its_time(client: Any) -> None:
    by_delay = client.enqueue("greet", delay=timedelta(hours=1))
    by_time = client.enqueue("greet", run_at=datetime.now(UTC) + timedelta(hours=1))

    assert client.claim(worker="ada", limit=10) == []
    assert {job.id for job in client.jobs.list("state:queued")} == {by_delay.id, by_time.id}


@pytest.mark.proves("S2.4")
def test_the_log_names_who_holds_a_busy_lane(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    first = client.enqueue("price", lane="axiom")
    [held] = client.claim(worker="w1")

    with caplog.at_level(logging.INFO, "holdfast"):
        client.enqueue("price")
        client.enqueue_many(
            [NewJob(kind="price", lane="axiom"), NewJob(kind="price", lane="axiom")]
        )

    [record] = caplog.records
    told = record.getMessage()
    assert told.startswith(
        f"lane axiom of queue default is busy with job {first.id}, which w1 has held since "
    )
    assert told.endswith(": 2 of 2 enqueued jobs wait")
    assert (record.__dict__["holder"], record.__dict__["behind"]) == ("w1", str(held.id))


@pytest.mark.proves("S3.38")
def test_the_log_counts_skipped_duplicates_in_one_line(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sync = [NewJob(kind="price_updated", key=f"item-{n}") for n in range(100)]
    more = [NewJob(kind="price_updated", key=f"item-{n}", on_conflict="replace") for n in range(2)]

    with caplog.at_level(logging.INFO, "holdfast"):
        client.enqueue_many(sync[:60])
        client.enqueue_many(sync + more)

    assert caplog.messages == [
        "62 of 102 enqueued jobs are duplicates of live jobs: 60 skipped, 2 replaced"
    ]


def test_a_second_job_with_the_same_key_is_a_duplicate_of_the_first(client: Any) -> None:
    first = client.enqueue("greet", key="ada")
    second = client.enqueue("greet", key="ada")

    assert (second.created, second.duplicate_of, second.id) == (False, first.id, first.id)


def test_many_jobs_are_answered_in_their_order(client: Any) -> None:
    jobs = [NewJob(kind="greet", payload=nth, queue=f"q{nth % 3}") for nth in range(30)]

    answers = client.enqueue_many(jobs)

    stored = [client.jobs.get(answer.id) for answer in answers]
    assert [job.payload for job in stored] == list(range(30))
    assert [part_of(a.id) for a in answers] == [queue_part(job.queue) for job in jobs]


def test_enqueueing_nothing_is_nothing(client: Any) -> None:
    assert client.enqueue_many([]) == []
    assert client.copy([]) == 0
    assert client.ack([]) == []
    assert client.jobs.cancel([]) == []


def test_a_repeated_enqueue_answers_as_the_first_did(client: Any) -> None:
    jobs = [NewJob(kind="greet", id=new_id()) for _ in range(3)]
    first = client.enqueue_many(jobs)
    client.ack(client.claim(worker="ada", limit=2))

    again = client.enqueue_many(jobs, repeat=True)

    assert again == first
    assert len(client.jobs.list("state:queued")) == 1


def test_copied_jobs_are_like_enqueued_ones(client: Any) -> None:
    text = 'tab\t line\n back\\slash "quote" \\N ü \u2028'
    jobs = [
        NewJob(
            kind="greet",
            payload={"text": text, "n": nth},
            headers={"h": text},
            subject="a\tb",
            priority=nth % 10,
        )
        for nth in range(2500)
    ]

    stored = client.copy(iter(jobs))

    lease = claim_one(client)
    assert stored == 2500
    assert lease.payload == {"text": text, "n": 9}
    assert lease.headers == {"h": text}
    assert lease.subject == "a\tb"
    assert (lease.priority, lease.max_attempts) == (9, 3)
    assert sum(d.jobs for d in client.queues.depth() if d.state == "queued") == 2499


def test_a_copied_job_has_an_id_that_was_made_for_its_queue(client: Any) -> None:
    id = new_id("mail")
    client.copy([NewJob(kind="greet", queue="mail", id=id)])

    with pytest.raises(InvalidJob) as refusal:
        client.copy([NewJob(kind="greet", queue="text", id=id)])

    assert refusal.value.code == "HF206"
    assert [job.id for job in client.jobs.list()] == [id]


def test_copied_jobs_follow_the_settings_of_their_queues(client: Any) -> None:
    client.queues.set("wide", max_attempts=9, fanout=4)

    client.copy(NewJob(kind="greet", queue=queue) for queue in ("wide", "default") * 50)

    jobs = client.jobs.list("queue:wide")
    assert len({part_of(job.id) for job in jobs}) == 4
    assert {job.max_attempts for job in jobs} == {9}
    assert len(client.claim("wide", worker="ada", limit=100)) == 50


def test_a_claim_takes_no_more_than_its_limit_and_only_its_kinds(client: Any) -> None:
    client.enqueue_many(NewJob(kind=kind) for kind in ("a", "b", "a", "b", "a"))

    leases = client.claim(worker="ada", limit=2, kinds=["a"])

    assert [lease.kind for lease in leases] == ["a", "a"]
    assert len({lease.token for lease in leases}) == 1


def test_a_worker_can_ask_what_its_tokens_hold(client: Any) -> None:
    client.enqueue_many([NewJob(kind="greet"), NewJob(kind="greet", queue="mail")])
    token = uuid4()
    leases = client.claim(worker="ada", token=token) + client.claim("mail", worker="ada")

    held = client.held([lease.token for lease in leases])

    assert leases[0].token == token
    assert sorted(held, key=lambda lease: lease.queue) == leases


def test_a_touch_moves_the_end_of_a_lease(client: Any) -> None:
    client.enqueue("greet")
    lease = claim_one(client, lease=10)

    [touched] = client.touch([lease], timedelta(minutes=5))

    assert touched.outcome == "leased"
    assert touched.lease_until - lease.lease_until > timedelta(minutes=4)


def test_a_repeated_ack_answers_already(client: Any) -> None:
    client.enqueue("greet")
    lease = claim_one(client)

    first, second = client.ack([lease]), client.ack([(lease.id, lease.token)])

    assert (first[0].outcome, second[0].outcome) == ("done", "already")
    assert second[0].raise_if_lost() is second[0]


def test_a_settle_with_a_stale_token_is_lost_and_raises_when_asked(client: Any) -> None:
    client.enqueue("greet")
    lease = claim_one(client)

    [settled] = client.ack([(lease.id, uuid4())])

    assert (settled.outcome, settled.held) == ("lost", False)
    with pytest.raises(LeaseLost, match=f"HF300 lease lost: job {lease.id}"):
        settled.raise_if_lost()


def test_a_settle_of_no_job_is_unknown_and_raises_when_asked(client: Any) -> None:
    [settled] = client.ack([(uuid4(), uuid4())])

    assert settled.outcome == "unknown"
    with pytest.raises(UnknownJob, match="HF310"):
        settled.raise_if_lost()


def test_a_failed_job_is_queued_again_and_dies_after_its_last_attempt(client: Any) -> None:
    enqueued = client.enqueue("greet", max_attempts=2)

    first = client.nack([claim_one(client)], error_kind="ValueError", message="1", delay=0)
    second = client.nack(
        [claim_one(client)], error_kind="KeyError", message="\0\ud800", traceback="at line 1"
    )

    attempts = client.jobs.attempts(enqueued.id)
    assert (first[0].outcome, second[0].outcome) == ("queued", "dead")
    assert [(a.attempt, a.error_kind) for a in attempts] == [(1, "ValueError"), (2, "KeyError")]
    assert attempts[1].message == "\\0\\ud800"
    assert attempts[1].traceback == "at line 1"
    assert client.jobs.get(enqueued.id).state == "dead"


def test_a_released_job_keeps_its_attempts(client: Any) -> None:
    client.enqueue("greet")
    lease = claim_one(client)

    [released] = client.release([lease])

    assert released.outcome == "queued"
    assert claim_one(client).attempt == 1


def test_leases_are_settled_in_different_ways_at_once(client: Any) -> None:
    client.queues.set("default", keep_done=timedelta(days=1))
    client.enqueue_many(NewJob(kind="greet", max_attempts=1) for _ in range(4))
    done, dead, back, lost = client.claim(worker="ada", limit=4)

    settled = client.settle(
        [
            Released(back),
            Failed(dead, error_kind="ValueError", message="no"),
            Done((lost.id, uuid4())),
            Done(done, result={"sent": 3}),
        ]
    )

    assert [(s.id, s.outcome) for s in settled] == [
        (back.id, "queued"),
        (dead.id, "dead"),
        (lost.id, "lost"),
        (done.id, "done"),
    ]
    assert client.jobs.get(done.id).result == {"sent": 3}


def test_results_are_kept_where_done_jobs_are(client: Any) -> None:
    client.queues.set("default", keep_done=3600)
    client.enqueue_many(NewJob(kind="greet") for _ in range(2))
    leases = client.claim(worker="ada", limit=2)

    client.ack(leases, [{"n": 1}, None])

    assert [client.jobs.get(lease.id).result for lease in leases] == [{"n": 1}, None]


def test_an_expired_lease_is_reaped(client: Any, clock: Any) -> None:
    client.enqueue("greet")
    lease = claim_one(client, lease=30)
    client.upkeep.reap()
    clock.advance(seconds=31)

    [reaped] = client.upkeep.reap()

    assert (reaped.id, reaped.outcome, reaped.worker) == (lease.id, "queued", "ada")
    assert client.ack([lease])[0].outcome == "lost"


def test_due_jobs_are_promoted(client: Any, clock: Any) -> None:
    client.enqueue("greet", delay=60)
    assert client.upkeep.promote() == 0
    clock.advance(seconds=61)

    assert client.upkeep.promote() == 1


def test_upkeep_and_its_steps_can_be_called_at_any_time(client: Any) -> None:
    client.enqueue("greet")

    assert isinstance(client.upkeep.raise_floors(), int)
    assert client.upkeep.fold() >= 0
    assert isinstance(client.upkeep.run(), dict)


def test_an_idle_worker_is_notified_of_the_next_job(client: Any, connect: Any) -> None:
    listener = connect()
    listener.execute("listen holdfast")
    client.workers.await_work(["mail"], worker="ada")

    client.enqueue("greet", queue="mail")

    [notification] = listener.notifies(timeout=100, stop_after=1)
    assert notification.payload == "mail\nada"


def test_operators_cancel_retry_archive_and_delete(client: Any) -> None:
    id = client.enqueue("greet").id

    verbs = [
        client.jobs.cancel([id], reason="wrong", actor="ada"),
        client.jobs.retry([id], reason="right after all", actor="ada"),
        client.jobs.cancel([id]),
        client.jobs.archive([id]),
        client.jobs.delete([id]),
        client.jobs.delete([id]),
    ]

    assert [(change.changed, change.state) for [change] in verbs] == [
        (True, "cancelled"),
        (True, "queued"),
        (True, "cancelled"),
        (True, "archived"),
        (True, None),
        (False, None),
    ]
    assert client.jobs.get(id) is None


def test_a_waiting_job_can_be_edited(client: Any) -> None:
    id = client.enqueue("greet", {"name": "Ada"}).id

    [change] = client.jobs.edit(
        [id], payload={"name": "Grace"}, priority=9, lease=timedelta(minutes=2), reason="typo"
    )

    job = client.jobs.get(id)
    assert change.changed
    assert (job.payload, job.priority, job.lease) == ({"name": "Grace"}, 9, timedelta(minutes=2))


def test_a_moved_job_has_an_id_of_its_new_queue(client: Any) -> None:
    id = client.enqueue("greet").id

    [change] = client.jobs.move([id], "mail", reason="wrong queue")

    assert change.changed
    assert part_of(change.new_id) == queue_part("mail")
    assert client.jobs.get(change.new_id).queue == "mail"


def test_jobs_are_found_by_filter_newest_first(client: Any) -> None:
    ids = [client.enqueue(kind, {"n": n}).id for n, kind in enumerate(("a", "b", "a", "a"))]

    found = client.jobs.find("kind:a")

    assert found == sorted((ids[0], ids[2], ids[3]), reverse=True)
    assert client.jobs.find("kind:a", limit=1, before=found[0]) == found[1:2]
    assert [job.id for job in client.jobs.list("kind:a", limit=2)] == found[:2]


def test_a_job_is_known_with_everything_that_happened_to_it(client: Any) -> None:
    client.enqueue("greet", {"name": "Ada"}, max_attempts=1, headers={"a": 1})
    lease = kill(client)

    job = client.jobs.get(lease.id)

    assert (job.state, job.error, job.attempt) == ("dead", "ValueError: boom", 1)
    assert (job.payload, job.headers, job.result) == ({"name": "Ada"}, {"a": 1}, None)
    assert client.jobs.get(uuid4()) is None


def test_a_job_explains_why_it_does_not_run(client: Any) -> None:
    id = client.enqueue("greet", delay=3600).id

    assert isinstance(client.jobs.explain(id), str)
    assert client.jobs.explain(id)


def test_queues_tell_their_settings_and_what_waits(client: Any) -> None:
    client.enqueue("greet", queue="mail")

    queue = client.queues.set("mail", limit=5, lease=timedelta(minutes=1), actor="ada")

    assert (queue.limit, queue.lease, queue.queued) == (5, timedelta(minutes=1), 1)
    assert [q.queue for q in client.queues.list()] == ["mail"]
    assert client.queues.get("mail").limit == 5
    assert client.queues.get("nowhere") is None


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(client: Any) -> None:
    client.enqueue("greet")

    until = datetime.now(UTC) + timedelta(hours=1)
    paused = client.queues.pause("default", reason="deploy", until=until, actor="ada")
    nothing = client.claim(worker="ada")
    resumed = client.queues.resume("default")

    assert (paused.paused_reason, paused.paused_until) == ("deploy", until)
    assert nothing == []
    assert resumed.paused_at is None
    assert len(client.claim(worker="ada")) == 1


def test_a_lane_can_be_widened(client: Any) -> None:
    client.enqueue_many(NewJob(kind="greet", lane="l") for _ in range(3))
    assert len(client.claim(worker="ada", limit=3)) == 1

    client.lanes.set("default", "l", limit=2)

    assert len(client.claim(worker="ada", limit=3)) == 1


def test_depth_and_dead_groups_count_what_there_is(client: Any) -> None:
    client.enqueue_many(NewJob(kind="greet", max_attempts=1) for _ in range(3))
    kill(client, "no route to host 10.0.0.1")
    kill(client, "no route to host 10.0.0.2")

    depth = {(d.queue, d.kind, d.state): d.jobs for d in client.queues.depth() if d.jobs}
    [group] = client.dead.groups()

    assert depth == {("default", "greet", "queued"): 1, ("default", "greet", "dead"): 2}
    assert (group.kind, group.jobs) == ("greet", 2)
    assert group.error.startswith("ValueError: no route")


def test_a_lease_knows_the_length_its_job_asks_for(client: Any) -> None:
    client.enqueue("short", lease=5)
    client.enqueue("plain")

    short, plain = client.claim(worker="ada", limit=2)

    assert (short.lease, plain.lease) == (timedelta(seconds=5), None)
    assert [held.lease for held in client.held([short.token])] == [short.lease, None]


def test_a_touch_says_how_far_the_work_is(client: Any) -> None:
    client.enqueue("greet")
    lease = claim_one(client)

    client.touch([lease], progress=[{"done": 3, "total": 20, "note": "page 3"}])

    shown = client.jobs.get(lease.id).progress
    assert (shown["done"], shown["total"], shown["note"]) == (3, 20, "page 3")


def test_a_result_is_kept_for_a_caller_who_asks(client: Any) -> None:
    client.enqueue_many(NewJob(kind="greet") for _ in range(3))
    first, second, third = client.claim(worker="ada", limit=3)

    client.ack([first], [{"n": 1}], keep=True)
    client.settle([Done(second, {"n": 2}, keep=True), Done(third, {"n": 3})])

    assert (client.jobs.get(first.id).result, client.jobs.get(second.id).result) == (
        {"n": 1},
        {"n": 2},
    )
    assert client.jobs.get(third.id) is None


def test_a_holder_can_end_a_job_for_good(client: Any) -> None:
    client.enqueue_many(NewJob(kind="greet", max_attempts=9) for _ in range(3))
    first, second, third = client.claim(worker="ada", limit=3)

    [nacked] = client.nack([first], message="never", final=True)
    settled = client.settle([Failed(second, final=True), Cancelled(third, "nothing to do")])

    assert nacked.outcome == "dead"
    assert [one.outcome for one in settled] == ["dead", "cancelled"]
    assert client.jobs.get(third.id).reason == "nothing to do"


def test_a_lease_that_is_handed_over_is_answered_with_the_ticket(client: Any) -> None:
    client.enqueue("pay")
    lease = claim_one(client)

    ticket = client.hand_over(lease, timeout=60, holder="bank")

    assert (ticket.id, client.jobs.get(lease.id).worker) == (lease.id, "bank")
    assert client.jobs.get(lease.id).lease_until == ticket.lease_until
    [stale], [answer] = client.ack([lease]), client.ack([ticket])
    assert (stale.outcome, answer.outcome) == ("lost", "done")
    with pytest.raises(LeaseLost, match="handed over"):
        client.hand_over(lease, timeout=60)
    with pytest.raises(UnknownJob):
        client.hand_over((uuid4(), uuid4()), timeout=60)


def test_doubtful_jobs_are_reconciled(client: Any, clock: Any) -> None:
    declared = client.kinds.declare([{"kind": "pay", "done_when": True, "queue": "default"}])
    client.enqueue_many(NewJob(kind="pay", payload={"n": n}) for n in range(2))
    client.claim(worker="ada", limit=2)
    clock.advance(seconds=31)

    first, second = client.upkeep.doubtful(["pay"], limit=5)
    answers = client.upkeep.reconcile([(first, True), (second, False)])

    assert declared == 1
    assert (first.payload, first.headers, first.worker) == ({"n": 0}, {}, "ada")
    assert [answer.outcome for answer in answers] == ["done", "queued"]
    assert client.queues.get("default").reconciled == 1
    assert (client.upkeep.doubtful(), client.upkeep.reconcile([])) == ([], [])


def test_a_job_in_a_lane_says_what_it_waits_for(client: Any) -> None:
    first, second = client.enqueue_many(NewJob(kind="greet", lane="l") for _ in range(2))

    assert (first.behind, second.behind) == (None, first.id)
