"""What the server keeps: secrets, answers to requests that come twice, consumers, receipts."""

from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.protocol import Later, Protocol

HASH = sha256(b"secret").digest()


def make(db: Protocol, id: str = "t1", **more: Any) -> None:
    given = {"hash": HASH, "name": "php", "scopes": ["read"]} | more
    db.call("token_create", columns=("id",), id=id, **given)


def find(db: Protocol, id: str = "t1") -> list[Any]:
    return list(db.call("token_find", columns=("name", "hash", "scopes", "sort"), id=id))


def test_a_token_is_found_until_it_expires_or_is_revoked(db: Protocol, later: Later) -> None:
    make(db, "t1", expires=timedelta(hours=1))
    make(db, "t2")

    assert find(db, "t1")[0].hash == HASH
    assert db.value("token_revoke", id="t2", actor="ada") is True
    later(hours=2)

    assert (find(db, "t1"), find(db, "t2"), find(db, "t3")) == ([], [], [])
    assert db.value("token_revoke", id="t3") is False


def test_the_use_of_a_token_is_noted_once_a_minute(db: Protocol, later: Later) -> None:
    make(db)
    noted = []

    for _ in range(3):
        find(db)
        [row] = db.table("select used_at from holdfast.api_token")
        noted.append(row.used_at)
        later(seconds=40)

    assert noted[0] == noted[1] < noted[2]


def test_a_link_is_spent_once_and_is_no_token(db: Protocol) -> None:
    make(db, sort="link")

    wrong = db.call("link_spend", columns=("name",), id="t1", hash=sha256(b"x").digest())
    first = db.call("link_spend", columns=("name",), id="t1", hash=HASH)
    second = db.call("link_spend", columns=("name",), id="t1", hash=HASH)

    assert (len(wrong), len(first), len(second)) == (0, 1, 0)
    assert find(db) == []


def test_a_session_ends_with_its_parent_and_is_forgotten(db: Protocol, later: Later) -> None:
    make(db, "parent")
    make(db, "session", sort="session", parent="parent", expires=timedelta(hours=1))

    before = len(find(db, "session"))
    db.value("token_revoke", id="parent")
    after = len(find(db, "session"))
    later(hours=2)
    db.upkeep()

    assert (before, after) == (1, 0)
    assert [row.id for row in db.table("select id from holdfast.api_token")] == ["parent"]


@pytest.mark.parametrize(
    "bad",
    [
        {"scopes": []},
        {"scopes": ["everything"]},
        {"queues": []},
        {"queues": ["a b"]},
        {"queues": ['a"b']},
        {"queues": ["a*"]},
        {"queues": ["a,b"]},
        {"hash": b"short"},
        {"sort": "spell"},
    ],
)
def test_a_token_that_makes_no_sense_is_refused(db: Protocol, bad: dict[str, Any]) -> None:
    with pytest.raises(errors.Error) as refused:
        make(db, **bad)

    assert refused.value.sqlstate == "HF224"


def test_an_answer_is_remembered_for_its_caller_and_for_a_day(db: Protocol, later: Later) -> None:
    columns = ("known", "same", "answer")

    def ask(caller: str = "a", digest: str = "d") -> Any:
        [row] = db.call("once", columns=columns, caller=caller, key="k", digest=digest)
        return tuple(row)

    first = ask()
    db.value("answered", caller="a", key="k", answer="done")
    later(hours=25)
    kept = (ask(), ask(digest="e"), ask(caller="b"))
    db.upkeep()

    assert first == (False, True, None)
    assert kept == ((True, True, "done"), (True, False, "done"), (False, True, None))
    assert ask() == (False, True, None)


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_a_key_has_1_to_200_characters(db: Protocol, key: str) -> None:
    with pytest.raises(errors.Error) as refused:
        db.call("once", columns=("known",), caller="a", key=key, digest="d")

    assert refused.value.sqlstate == "HF202"


def test_counts_of_a_consumer_add_up(db: Protocol) -> None:
    for counts in ({"claimed": 3, "acked": 1}, {"acked": 1, "failed": 1, "lost": 2}, {}):
        db.call("tell", columns=("stop",), worker="php", counts=Jsonb(counts))

    [worker] = db.table("select claimed, acked, failed, lost from holdfast.workers")
    assert tuple(worker) == (3, 2, 1, 2)


def test_a_receipt_is_kept_for_minutes(db: Protocol, later: Later) -> None:
    id = db.put()
    db.ack(db.take(worker="ada"))

    [known] = db.call("receipt", columns=("queue", "worker", "outcome"), id=id)
    later(minutes=1)
    db.upkeep()
    later(minutes=10)
    db.upkeep()

    assert tuple(known) == ("default", "ada", "acked")
    assert db.call("receipt", columns=("queue",), id=id) == []
    assert db.call("receipt", columns=("queue",), id=uuid4()) == []


def test_lanes_tell_who_holds_them_and_who_waits(db: Protocol) -> None:
    for _ in range(3):
        db.put(lane="l")
    job = db.take(worker="ada")

    [lane] = db.table(
        'select lane, "limit", job, worker, running, waiting, oldest from holdfast.lanes'
    )

    assert (lane.lane, lane.limit, lane.job, lane.worker) == ("l", 1, job.id, "ada")
    assert (lane.running, lane.waiting) == (1, 2)
    assert lane.oldest is not None


def test_a_lane_is_released_when_its_worker_is_gone_and_not_before(
    db: Protocol, later: Later
) -> None:
    for _ in range(2):
        db.put(lane="l")
    db.take(worker="ada", lease=timedelta(hours=1))
    db.beat("ada")

    def release() -> str:
        [row] = db.call("lane_release", columns=("outcome", "job"), queue="default", lane="l")
        return str(row.outcome)

    alive = release()
    later(minutes=2)
    released = release()

    assert (alive, released, release()) == ("alive", "released", "free")
    assert db.depth() == {"queued": 2}
    assert len(db.claim(max_jobs=5)) == 1


def test_a_lane_of_a_worker_nobody_saw_yet_is_not_released_within_a_minute(
    db: Protocol, later: Later
) -> None:
    db.put(lane="l")
    db.take(worker="never seen", lease=timedelta(hours=1))

    outcomes = [_lane_released(db)]
    later(minutes=2)
    outcomes.append(_lane_released(db))

    assert outcomes == ["alive", "released"]


def test_a_lane_is_not_released_while_somebody_outside_may_answer(
    db: Protocol, later: Later
) -> None:
    db.put(lane="l")
    db.hand_over(db.take(worker="ada"), timeout=timedelta(hours=1))

    later(minutes=30)
    waiting = _lane_released(db)
    later(minutes=31)

    assert (waiting, _lane_released(db)) == ("alive", "released")


def test_a_halted_lane_is_resumed(db: Protocol) -> None:
    db.queue_set("default", lane_on_failure="halt")
    for _ in range(2):
        db.put(lane="l", max_attempts=1)
    db.nack(db.take())

    [row] = db.call("lane_release", columns=("outcome",), queue="default", lane="l")

    assert row.outcome == "resumed"
    assert len(db.claim(max_jobs=5)) == 1
    [none] = db.call("lane_release", columns=("outcome",), queue="default", lane="nosuch")
    assert none.outcome == "unknown"


def _lane_released(db: Protocol) -> str:
    [row] = db.call("lane_release", columns=("outcome",), queue="default", lane="l")
    return str(row.outcome)
