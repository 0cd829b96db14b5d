"""A queue spread over several parts behaves like any other."""

import psycopg
import pytest

from tests.protocol import Later, Protocol


@pytest.fixture
def fanned(db: Protocol) -> Protocol:
    db.queue_set("default", fanout=8)
    return db


def parts(db: Protocol) -> set[int]:
    return {part for (part,) in db.connection.execute("select distinct part from holdfast.job")}


def test_its_jobs_lie_in_several_parts_and_are_all_claimed(fanned: Protocol) -> None:
    answers = fanned.enqueue(*[{"kind": "k"}] * 100)
    spread = parts(fanned)

    claimed = fanned.claim(max_jobs=200)

    assert len(spread) == 8
    assert {job.id for job in claimed} == {answer.id for answer in answers}
    assert {answer.outcome for answer in fanned.ack(*claimed)} == {"done"}


def test_a_claim_gives_no_more_than_asked_for(fanned: Protocol) -> None:
    fanned.enqueue(*[{"kind": "k"}] * 100)

    assert len(fanned.claim(max_jobs=7)) == 7


def test_its_limit_counts_all_parts(fanned: Protocol) -> None:
    fanned.queue_set("default", limit=5)
    fanned.enqueue(*[{"kind": "k"}] * 50)

    assert (len(fanned.claim(max_jobs=3)), len(fanned.claim(max_jobs=9))) == (3, 2)


def test_its_limit_is_explained(fanned: Protocol) -> None:
    fanned.queue_set("default", limit=2)
    ids = [fanned.put("k", key=str(n)) for n in range(6)]
    fanned.claim(max_jobs=9)

    waiting = [fanned.explain(id) for id in ids if fanned.state(id) == "queued"]

    assert len(waiting) == 4
    assert all("its limit is 2" in sentence for sentence in waiting)


def test_a_key_is_unique(fanned: Protocol) -> None:
    answers = fanned.enqueue(*[{"kind": "k", "key": str(n % 4)} for n in range(12)])

    assert [answer.created for answer in answers] == [True] * 4 + [False] * 8


def test_a_job_with_a_key_and_a_lane_is_refused(fanned: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        fanned.put("k", key="1", lane="l")

    assert refusal.value.sqlstate == "HF204"


def test_keys_and_lanes_may_be_in_one_batch(fanned: Protocol) -> None:
    answers = fanned.enqueue({"kind": "k", "key": "1"}, {"kind": "k", "lane": "l"})

    assert [answer.created for answer in answers] == [True, True]


def test_a_lane_stays_in_order(fanned: Protocol) -> None:
    ids = [fanned.put("k", lane="l") for _ in range(5)]

    ran = []
    for _ in ids:
        [job] = fanned.claim(max_jobs=9)
        ran.append(job.id)
        fanned.ack(job)

    assert ran == ids


def test_a_repeat_is_recognised(fanned: Protocol) -> None:
    items = [{"kind": "k", "id": str(fanned.value("new_id"))} for _ in range(10)]
    fanned.enqueue(*items)
    fanned.ack(*fanned.claim(max_jobs=5))

    fanned.enqueue(*items, repeat=True)

    assert len(fanned.claim(max_jobs=20)) == 5


def test_its_expired_leases_are_reaped(fanned: Protocol, later: Later) -> None:
    fanned.enqueue(*[{"kind": "k"}] * 30)
    fanned.claim(max_jobs=30)
    later(seconds=31)

    assert len(fanned.reap()) == 30


def test_its_parts_cannot_change_while_it_holds_jobs(fanned: Protocol) -> None:
    fanned.put()

    with pytest.raises(psycopg.Error) as refusal:
        fanned.queue_set("default", fanout=2)

    assert refusal.value.sqlstate == "HF221"


def test_its_parts_only_grow(fanned: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        fanned.queue_set("default", fanout=4)

    assert refusal.value.sqlstate == "HF221"


def test_jobs_that_died_in_fewer_parts_can_be_retried_in_more(fanned: Protocol) -> None:
    fanned.enqueue(*[{"kind": "k", "max_attempts": 1}] * 20)
    fanned.nack(*fanned.claim(max_jobs=20))
    fanned.queue_set("default", fanout=16)

    fanned.retry(*fanned.find("state:dead"))

    assert len(fanned.claim(max_jobs=20)) == 20


def test_tenants_are_served_in_turn_over_all_parts(fanned: Protocol) -> None:
    fanned.queue_set("default", fair=True)
    fanned.enqueue(*[{"kind": "k", "tenant": f"t{n % 3}"} for n in range(60)])

    assert len(fanned.claim(max_jobs=60)) == 60


def test_its_parts_cannot_change_while_a_cancelled_job_keeps_its_lane(db: Protocol) -> None:
    db.put(lane="l")
    running = db.take()
    db.cancel(running.id)

    with pytest.raises(psycopg.Error) as refusal:
        db.queue_set("default", fanout=7)
    db.release(running)
    db.queue_set("default", fanout=7)

    assert refusal.value.sqlstate == "HF221"


def test_claims_alone_let_in_a_lane_in_whichever_part_it_is(fanned: Protocol, later: Later) -> None:
    lanes = [f"l{n}" for n in range(6)]
    for lane in lanes:
        fanned.lane_set("default", lane, rate_limit=1, rate_period=10)
    fanned.enqueue(*[{"kind": "k", "lane": lane} for lane in lanes for _ in range(2)])
    fanned.ack(*fanned.claim(max_jobs=12))
    assert fanned.claim(max_jobs=12) == []

    later(seconds=11)

    assert {job.lane for job in fanned.claim(max_jobs=12)} == set(lanes)


def test_a_key_or_a_lane_that_is_null_is_none(fanned: Protocol) -> None:
    fanned.enqueue({"kind": "k", "key": "a", "lane": None}, {"kind": "k", "key": None, "lane": "l"})

    assert len(fanned.claim(max_jobs=9)) == 2
