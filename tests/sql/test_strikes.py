"""Strikes: rules that keep jobs from running, decided by the claim, and named by explain."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Later, Protocol


def strike(db: Protocol, **rule: Any) -> int:
    if "payload" in rule:
        rule["payload"] = Jsonb(rule["payload"])
    [row] = db.call("strike_add", columns=["number"], **rule)
    return int(row[0])


def lift(db: Protocol, number: int) -> None:
    [row] = db.call("strike_lift", number=number, columns=["number"])
    assert row[0] == number


def kinds(db: Protocol, **options: Any) -> list[str]:
    return [job.kind for job in db.claim(max_jobs=10, **options)]


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "send"},
        {"queue": "default", "kind": "send"},
        {"payload": {"user": 42}},
        {"kind": "send", "payload": {"user": 42}},
    ],
)
def test_a_job_that_fits_all_of_a_strike_is_held_back_and_the_others_run(
    db: Protocol, rule: dict[str, Any]
) -> None:
    held = db.put("send", payload={"user": 42, "to": "ada"})
    free = db.put("other", payload={"user": 7})
    elsewhere = db.put("other", queue="mail")
    number = strike(db, **rule)

    assert [job.id for job in db.claim(max_jobs=10)] == [free]
    assert [job.id for job in db.claim("mail")] == [elsewhere]
    assert db.claim(max_jobs=10) == []

    lift(db, number)
    assert [job.id for job in db.claim(max_jobs=10)] == [held]


def test_a_strike_that_names_another_queue_kind_or_payload_holds_nothing_back(db: Protocol) -> None:
    strike(db, queue="mail", kind="send")
    strike(db, kind="sent")
    strike(db, payload={"user": {"id": 1}})
    db.put("send", payload={"user": {"id": 2}})

    assert kinds(db) == ["send"]


def test_a_job_enqueued_under_a_strike_is_held_back_too(db: Protocol) -> None:
    strike(db, kind="send")
    db.put("send")
    db.put("other")

    assert kinds(db) == ["other"]
    assert kinds(db) == []


@pytest.mark.parametrize("upkeep", [True, False])
def test_a_strike_ends_by_itself(db: Protocol, later: Later, upkeep: bool) -> None:
    strike(db, kind="send", expires=timedelta(minutes=10))
    db.put("send")
    assert kinds(db) == []

    later(minutes=9)
    assert kinds(db) == []
    later(minutes=2)
    if upkeep:
        db.connection.execute("select holdfast.upkeep()")
    assert kinds(db) == ["send"]


def test_skipped_jobs_end_as_cancelled_and_say_by_which_strike(db: Protocol) -> None:
    id = db.put("send")
    number = strike(db, kind="send", mode="skip", reason="wrong template", actor="ada")

    assert kinds(db) == []

    job = db.job(id)
    assert (job.state, job.reason) == ("cancelled", f"skipped by strike {number}: wrong template")


def test_explain_names_the_strike_before_and_after_a_claim_met_the_job(
    db: Protocol, later: Later
) -> None:
    id = db.put("send", payload={"user": 42})
    number = strike(
        db,
        kind="send",
        payload={"user": 42},
        reason="provider is down",
        actor="ada",
        expires=timedelta(hours=1),
    )

    sentence = db.explain(id)
    assert sentence.startswith(
        f"Held back by strike {number} on kind send, payload fields user by ada until "
    )
    assert sentence.endswith("(provider is down).")
    assert db.claim() == []
    assert db.explain(id) == sentence

    later(minutes=61)
    assert db.explain(id) == (
        f"Strike {number}, which held it back, is over; a worker will pick it up shortly."
    )
    lift(db, number)
    db.beat("w1", kinds=["send"], queues=["default"])
    assert db.explain(id).startswith("Ready since")


def test_a_lane_waits_behind_its_job_that_is_held_back(db: Protocol) -> None:
    first = db.put("send", lane="a")
    second = db.put("other", lane="a")
    third = db.put("other", lane="b")
    number = strike(db, kind="send")

    assert [job.id for job in db.claim(max_jobs=10)] == [third]
    assert db.claim(max_jobs=10) == []
    lift(db, number)
    assert [job.id for job in db.claim(max_jobs=10)] == [first]
    assert second


def test_a_lane_goes_on_behind_its_job_that_is_skipped(db: Protocol) -> None:
    db.put("send", lane="a")
    second = db.put("other", lane="a")
    strike(db, kind="send", mode="skip")

    assert [job.id for job in db.claim(max_jobs=10)] == [second]


@pytest.mark.parametrize("settings", [{"fair": True}, {"by_kind": True}, {"limit": 5}])
def test_strikes_hold_in_queues_of_every_sort(db: Protocol, settings: dict[str, Any]) -> None:
    db.queue_set("default", **settings)
    db.put("send", tenant="a")
    db.put("other", tenant="b")
    number = strike(db, kind="send")

    assert kinds(db, kinds=["send", "other"]) == ["other"]
    assert kinds(db, kinds=["send"]) == []
    lift(db, number)
    assert kinds(db, kinds=["send"]) == ["send"]


def test_a_claim_for_one_gets_past_thousands_that_are_held_back(db: Protocol) -> None:
    db.enqueue(*({"kind": "send"} for _ in range(3000)))
    behind = db.put("other")
    strike(db, kind="send")

    assert db.take().id == behind
    held = db.connection.execute("select held from holdfast.strikes").fetchone()
    assert held == (3000,)


def test_an_edited_job_is_judged_by_what_it_is_now(db: Protocol) -> None:
    id = db.put("send", payload={"user": 42})
    strike(db, payload={"user": 42})
    assert db.claim() == []

    db.edit(id, changes={"payload": {"user": 7}})

    assert db.take().id == id


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({}, "needs a queue, a kind or a payload"),
        ({"kind": "send", "mode": "drop"}, "mode 'drop' is not hold or skip"),
        ({"payload": {}}, "is not valid for a strike"),
        ({"payload": [1]}, "is not valid for a strike"),
        ({"kind": "send", "expires": timedelta(0)}, "must be above 0"),
    ],
)
def test_a_strike_that_means_nothing_is_refused(
    db: Protocol, rule: dict[str, Any], told: str
) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        strike(db, **rule)
    assert refusal.value.sqlstate == "HF228"
    assert told in str(refusal.value)


def test_held_heads_of_lanes_do_not_starve_the_other_lanes(db: Protocol) -> None:
    strike(db, kind="held")
    db.enqueue(*[{"kind": "held", "lane": f"l{n:03}"} for n in range(120)])
    free = [db.put("k", lane=name) for name in "xyz"]

    assert [job.id for job in db.claim()] == free[:1]
    assert [job.id for job in db.claim(max_jobs=9)] == free[1:]
