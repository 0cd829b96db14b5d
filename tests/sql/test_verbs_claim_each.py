"""Claims of several callers at once: each gets what it would have got alone."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from psycopg import errors

from tests.protocol import Later, Protocol


class Each(NamedTuple):
    """The jobs of each claim, and the tokens that they were claimed with."""

    jobs: list[list[UUID]]
    tokens: list[UUID]


def claim_each(
    db: Protocol, workers: Sequence[str], numbers: Sequence[int], **options: Any
) -> Each:
    tokens = [uuid4() for _ in workers]
    rows = db.call(
        "claim_each",
        columns=("id", "token"),
        **{"queue": "default", "workers": list(workers), "tokens": tokens}
        | {"numbers": list(numbers)}
        | options,
    )
    return Each([[row.id for row in rows if row.token == token] for token in tokens], tokens)


def test_each_claim_gets_its_own_jobs_under_its_own_name_and_token(db: Protocol) -> None:
    ids = [db.put() for _ in range(6)]

    each = claim_each(db, ["ada", "bob", "cyd"], [1, 3, 1])

    assert [len(jobs) for jobs in each.jobs] == [1, 3, 1]
    assert {id for jobs in each.jobs for id in jobs} == set(ids[:5])
    held = {
        (row.token, row.worker, row.id)
        for row in db.table("select token, worker, id from holdfast.job where token is not null")
    }
    assert held == {
        (token, worker, id)
        for token, worker, jobs in zip(each.tokens, ["ada", "bob", "cyd"], each.jobs, strict=True)
        for id in jobs
    }


def test_a_lease_of_several_claims_is_as_one_of_its_own(db: Protocol) -> None:
    """The rows of jobs and of the ledger, and the counters, are those of claims one by one."""
    query = (
        "select j.queue, j.kind, j.attempt, j.worker, j.held, l.part, l.queue as claimed_from,"
        " l.worker as holder, l.length, l.taken, cardinality(l.ids) as jobs,"
        " j.lease_until - l.claimed_at as runs, l.until - l.claimed_at as until"
        " from holdfast.job j join holdfast.lease l on l.token = j.token order by j.kind"
    )
    found = []
    for together in (False, True):
        db.wipe()
        db.put("a", lease=120)
        db.put("b")
        if together:
            claim_each(db, ["ada", "bob"], [1, 1], lease=timedelta(seconds=50))
        else:
            db.claim(worker="ada", lease=timedelta(seconds=50))
            db.claim(worker="bob", lease=timedelta(seconds=50))
        found.append(([tuple(row) for row in db.table(query)], db.depth()))

    assert len(found[0][0]) == 2
    assert found[0] == found[1]


def test_the_best_jobs_come_first_and_kinds_are_kept_apart(db: Protocol) -> None:
    low, high, other = db.put(priority=1), db.put(priority=9), db.put("other", priority=9)

    each = claim_each(db, ["ada", "bob", "cyd"], [1, 1, 1], kinds=["work"])

    assert each.jobs == [[high], [low], []]
    assert db.state(other) == "queued"


def test_too_few_jobs_go_to_the_first_ones(db: Protocol) -> None:
    ids = [db.put() for _ in range(3)]

    each = claim_each(db, ["ada", "bob", "cyd"], [2, 2, 2])

    assert [len(jobs) for jobs in each.jobs] == [2, 1, 0]
    assert {id for jobs in each.jobs for id in jobs} == set(ids)


def test_due_jobs_and_lost_leases_are_let_in(db: Protocol, later: Later) -> None:
    due = db.put(delay=60)
    lost = db.put()
    db.take(lease=timedelta(seconds=30))
    later(minutes=2)

    each = claim_each(db, ["ada", "bob"], [1, 1])
    again = claim_each(db, ["ada", "bob"], [1, 1])

    got = {id for jobs in each.jobs + again.jobs for id in jobs}
    assert due in got
    assert got <= {due, lost}


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"limit": 1}, 1),
        ({"rate_limit": 2, "rate_period": 60}, 2),
        ({"fair": True}, 3),
        ({"fanout": 4}, 3),
    ],
    ids=["limit", "rate", "fair", "fanout"],
)
def test_the_settings_of_a_queue_hold_for_all_together(
    db: Protocol, settings: dict[str, Any], most: int
) -> None:
    db.queue_set("default", **settings)
    for n in range(3):
        db.put(tenant=f"t{n}")

    each = claim_each(db, ["ada", "bob", "cyd"], [1, 1, 1])

    assert sum(map(len, each.jobs)) == most


def test_jobs_of_one_lane_go_to_one_of_them(db: Protocol) -> None:
    first = db.put(lane="l")
    db.put(lane="l")
    plain = db.put()

    each = claim_each(db, ["ada", "bob", "cyd"], [1, 1, 1])

    assert sorted(id for jobs in each.jobs for id in jobs) == sorted([first, plain])


def test_a_strike_and_a_pause_are_kept(db: Protocol) -> None:
    db.put("bad")
    good = db.put("good")
    db.call("strike_add", columns=["number"], kind="bad", mode="hold")

    struck = claim_each(db, ["ada", "bob"], [1, 1])
    db.put("good")
    db.pause("default")
    paused = claim_each(db, ["ada", "bob"], [1, 1])

    assert [id for jobs in struck.jobs for id in jobs] == [good]
    assert paused.jobs == [[], []]


def test_claims_are_noted_where_every_event_is(db: Protocol) -> None:
    db.queue_set("default", activity="all")
    ids = {db.put(), db.put()}

    claim_each(db, ["ada", "bob"], [1, 1])

    told = db.table("select job, worker from holdfast.event where event = 'claimed'")
    assert {row.job for row in told} == ids
    assert {row.worker for row in told} == {"ada", "bob"}


@pytest.mark.parametrize(
    ("settings", "durable", "commits"),
    [({}, False, "off"), ({}, True, "on"), ({"limit": 5}, False, "on")],
    ids=["plain", "durable", "limited"],
)
def test_a_claim_that_a_limit_lets_in_is_never_lost_in_a_crash(
    db: Protocol, settings: dict[str, Any], durable: bool, commits: str
) -> None:
    db.queue_set("default", **settings)
    db.put()

    with db.connection.transaction():
        claim_each(db, ["ada", "bob"], [1, 1], durable=durable)
        [row] = db.table("select current_setting('synchronous_commit') as setting")

    assert row.setting == commits


def test_what_a_claim_alone_refuses_is_refused(db: Protocol) -> None:
    for wrong in (
        {"workers": ["", "bob"]},
        {"numbers": [0, 1]},
        {"tokens": [uuid4(), None]},
        {"workers": ["ada"]},
        {"lease": timedelta(0)},
        {"queue": ""},
    ):
        given = {"workers": ["ada", "bob"], "numbers": [1, 1]} | wrong
        with pytest.raises(errors.Error) as refused:
            claim_each(db, given.pop("workers"), given.pop("numbers"), **given)
        assert (refused.value.sqlstate or "").startswith("HF2"), wrong
