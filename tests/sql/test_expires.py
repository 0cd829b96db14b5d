"""Jobs that are not worth starting after a time: no claim takes them, and they end as cancelled."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.protocol import Later, Protocol


def late(db: Protocol) -> list[Any]:
    """The jobs that a filter lists as expired."""
    return [job.id for job in db.list("state:cancelled reason:expired")]


# Every way in which a claim picks.
WAYS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}),
    ({}, {}, {"kinds": ["work"]}),
    ({"by_kind": True}, {}, {"kinds": ["work"]}),
    ({"fair": True}, {"tenant": "a"}, {}),
    ({"limit": 50}, {}, {}),
    ({"rate_limit": 50, "rate_period": 60}, {}, {}),
    ({"fanout": 4}, {}, {}),
    ({"lane_limit": 50}, {"lane": "a"}, {}),
]


@pytest.mark.parametrize(("settings", "item", "how"), WAYS)
def test_a_claim_takes_what_has_not_expired_and_ends_what_has(
    db: Protocol,
    later: Later,
    settings: dict[str, Any],
    item: dict[str, Any],
    how: dict[str, Any],
) -> None:
    if settings:
        db.queue_set("default", **settings)
    gone = [db.put(**item, expires=60) for _ in range(3)]
    stays = [db.put(**item, expires=600), db.put(**item)]
    later(seconds=61)

    assert {job.id for job in db.claim(max_jobs=10, **how)} == set(stays)
    assert set(late(db)) == set(gone)
    assert db.depth() == {"leased": 2, "cancelled": 3}
    assert db.recount() == []


def test_one_that_is_claimed_in_time_runs_to_its_end(db: Protocol, later: Later) -> None:
    id = db.put(expires=60)
    held = db.take()
    later(seconds=90)

    [touched] = db.touch(held)
    assert touched.outcome == "leased"
    db.upkeep()
    assert db.state(id) == "leased"
    assert [done.outcome for done in db.ack(held)] == ["done"]


def test_an_attempt_after_a_failure_is_not_started_once_the_job_has_expired(
    db: Protocol, later: Later
) -> None:
    id = db.put(expires=60)
    db.nack(db.take(), message="no route to host", delay=timedelta(seconds=90))
    later(seconds=100)

    assert db.claim() == []
    job = db.job(id)
    assert (job.state, job.reason, job.error) == ("cancelled", "expired", "no route to host")
    assert "before it could start again" in db.explain(id)


def test_the_time_counts_from_when_the_job_is_due(db: Protocol, later: Later) -> None:
    put_off = db.put(delay=3600, expires=60)
    at_once = db.put(expires=60)
    job = db.job(put_off)
    assert job.expires_at == job.run_at + timedelta(seconds=60)

    later(seconds=3630)
    assert [job.id for job in db.claim(max_jobs=5)] == [put_off]
    assert late(db) == [at_once]


def test_a_time_can_be_given_instead(db: Protocol, later: Later) -> None:
    id = db.put(expires_at="2030-01-31T08:00:00Z")
    assert str(db.job(id).expires_at).startswith("2030-01-31")
    gone = db.put(expires_at="2020-01-31T08:00:00Z")

    assert [job.id for job in db.claim(max_jobs=5)] == [id]
    assert late(db) == [gone]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"expires": 0},
            "expires 0 of item 1 is not a number of seconds above 0, up to 3153600000",
        ),
        (
            {"expires": "soon"},
            'expires "soon" of item 1 is not a number of seconds above 0, up to 3153600000',
        ),
        ({"expires_at": "soon"}, "expires_at 'soon' of item 1 is not a time"),
        (
            {"expires": 5, "expires_at": "2030-01-31T08:00:00Z"},
            "item 1 has both expires and expires_at",
        ),
    ],
)
def test_what_is_not_a_time_is_refused(db: Protocol, item: dict[str, Any], message: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        db.put(**item)
    assert refused.value.diag.message_primary == message
    assert refused.value.sqlstate == "HF204"


def test_upkeep_ends_those_that_nobody_claims(db: Protocol, later: Later) -> None:
    """Of a paused queue, not due before they expire, behind a lane, and after a key."""
    db.pause("mail")
    paused = db.put(queue="mail", expires=60)
    early = db.put(delay=3600, expires_at="2020-01-31T08:00:00Z")
    db.put("lane", lane="a")
    behind = db.put("lane", lane="a", expires=60)
    db.put("keyed", key="k")
    db.claim(kinds=["keyed"])
    follows = db.put("keyed", key="k", on_conflict="after", expires=60)
    stays = db.put(queue="mail", expires=600)
    later(seconds=61)
    expected = {paused, early, behind, follows}
    assert {db.explain(id).partition(" at ")[0] for id in expected} == {"Expired"}

    assert db.upkeep()["expired"] == 4
    assert set(late(db)) == expected
    assert db.state(stays) == "queued"
    assert db.recount() == []
    later(seconds=10)
    assert db.upkeep()["expired"] == 0


def test_upkeep_forgets_jobs_that_are_gone_and_looks_again_at_those_that_run(
    db: Protocol, later: Later
) -> None:
    db.put("done", expires=86400)
    failing = db.put("failing", expires=60)
    db.put("waits", queue="mail", expires=86400)
    [done, running] = db.claim(max_jobs=2)
    db.ack(done)
    later(seconds=3700)
    db.touch(running)
    assert db.upkeep()["expired"] == 0
    looked = db.table("select kind from holdfast.expiry x join holdfast.job j using (part, id)")
    assert {row.kind for row in looked} == {"failing", "waits"}
    assert db.table("select count(*) as n from holdfast.expiry")[0].n == 2

    db.pause("default")
    db.nack(running, delay=timedelta(0))
    later(seconds=61)
    assert db.upkeep()["expired"] == 1
    assert late(db) == [failing]


def test_a_cancel_that_is_undone_leaves_it_to_expire(db: Protocol, later: Later) -> None:
    db.put(expires=60)
    [seen] = db.call("operation_preview", columns=("token",), verb="cancel", filter="kind:work")
    [started] = db.call("operation_start", columns=("id",), token=seen.token)
    db.call("operation_step", columns=("id",))
    db.connection.execute("delete from holdfast.expiry")
    db.call("operation_undo", columns=("id",), id=started.id)
    db.call("operation_step", columns=("id",))
    assert db.depth() == {"queued": 1}
    db.pause("default")
    later(seconds=61)
    assert db.upkeep()["expired"] == 1


def test_a_lane_goes_on_behind_one_that_has_expired(db: Protocol, later: Later) -> None:
    first = db.put(lane="a", expires=60)
    second = db.put(lane="a")
    later(seconds=61)

    assert [job.id for job in db.claim(max_jobs=5)] == [second]
    assert late(db) == [first]


def test_explain_and_the_log_say_that_it_expired(db: Protocol, later: Later) -> None:
    id = db.put(expires=60)
    assert " It expires at " in db.explain(id)
    later(seconds=61)
    assert db.explain(id).startswith("Expired at ")
    assert db.claim() == []

    assert "it expired at" in db.explain(id)
    [event] = db.table("select * from holdfast.events where event = 'cancelled'")
    assert (event.job, event.actor, event.reason) == (id, "expiry", "expired")


def test_one_that_is_retried_by_hand_no_longer_expires(db: Protocol, later: Later) -> None:
    id = db.put(expires=60)
    later(seconds=61)
    assert db.claim() == []

    assert db.retry(id)[0].changed
    assert db.job(id).expires_at is None
    assert db.take().id == id


def test_it_expires_in_another_queue_too(db: Protocol, later: Later) -> None:
    id = db.put(expires=60)
    [moved] = db.move(id, queue="other")
    assert moved.changed
    assert db.job(id).expires_at is not None
    db.pause("other")
    later(seconds=61)
    assert db.upkeep()["expired"] == 1
    assert db.job(id).reason == "expired"


def test_a_replacement_brings_its_own_time(db: Protocol, later: Later) -> None:
    db.put(key="k", expires=60)
    [replaced] = db.enqueue({"kind": "work", "key": "k", "on_conflict": "replace", "expires": 600})
    later(seconds=61)
    assert [job.id for job in db.claim()] == [replaced.id]


def test_of_several_claims_each_gets_what_has_not_expired(db: Protocol, later: Later) -> None:
    """Whose place an expired job had gets another: none twice, none too few."""
    old = [db.put(), db.put(expires=60), db.put()]
    later(seconds=61)
    new = [db.put(), db.put()]
    tokens = [uuid4(), uuid4(), uuid4(), uuid4()]

    rows = db.call(
        "claim_each",
        columns=("id", "token"),
        queue="default",
        workers=["ada", "bob", "cyd", "dee"],
        tokens=tokens,
        numbers=[1, 1, 1, 1],
    )

    assert {row.token for row in rows} == set(tokens)
    assert {row.id for row in rows} == {old[0], old[2], *new}
    assert late(db) == [old[1]]


def test_a_claim_does_not_pass_many_expired_jobs_one_by_one(db: Protocol, later: Later) -> None:
    db.enqueue(*({"kind": "work", "expires": 60} for _ in range(900)))
    later(seconds=61)
    last = db.put()

    with db.connection.transaction():
        before = db.rows_read()
        assert db.take().id == last
        read = db.rows_read() - before
    assert db.depth() == {"leased": 1, "cancelled": 900}
    # Found, locked and ended once each, in two rounds: not once for each job in front of it.
    assert read < 900 * 12
