"""Queues and lanes: their settings, and what they refuse."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Protocol

SETTINGS = {
    "max_attempts": 5,
    "lease": 45,
    "keep_done": 3600,
    "payload_limit": 1000,
    "backoff": 2,
    "backoff_cap": 60,
    "limit": 4,
    "rate_limit": 10,
    "rate_period": 60,
    "fair": True,
    "by_kind": True,
    "lane_limit": 2,
    "lane_on_failure": "halt",
    "fanout": 2,
}


def test_a_queue_keeps_its_settings(db: Protocol) -> None:
    db.queue_set("mail", **SETTINGS)

    row = db.connection.execute(
        'select max_attempts, payload_limit, "limit", rate_limit, fair, by_kind, lane_limit,'
        " lane_on_failure, fanout, extract(epoch from lease)::int,"
        " extract(epoch from keep_done)::int, extract(epoch from backoff)::int,"
        " extract(epoch from backoff_cap)::int,"
        " extract(epoch from rate_period)::int from holdfast.queues where queue = 'mail'"
    ).fetchone()

    assert row == (5, 1000, 4, 10, True, True, 2, "halt", 2, 45, 3600, 2, 60, 60)


def test_one_setting_leaves_the_others(db: Protocol) -> None:
    db.queue_set("mail", limit=4, max_attempts=7)

    db.queue_set("mail", limit=5)

    row = db.connection.execute(
        "select \"limit\", max_attempts from holdfast.queues where queue = 'mail'"
    ).fetchone()
    assert row == (5, 7)


@pytest.mark.proves("S0.16", "S4.3")
def test_a_queue_says_how_often_its_jobs_are_tried(db: Protocol) -> None:
    db.queue_set("mail", max_attempts=1)

    by_queue, by_job = db.put(queue="mail"), db.put(queue="mail", max_attempts=8)

    assert (db.job(by_queue).max_attempts, db.job(by_job).max_attempts) == (1, 8)


@pytest.mark.parametrize("jobs", [1, 2, 30])
@pytest.mark.parametrize("item", [{}, {"subject": "s"}, {"lane": "l"}, {"key": "k"}], ids=str)
def test_however_many_are_enqueued_in_whatever_way_the_queue_says_how_often_they_are_tried(
    db: Protocol, jobs: int, item: dict[str, str]
) -> None:
    db.queue_set("mail", max_attempts=7)
    items: list[dict[str, str]] = [{"kind": "k", "queue": "mail", **item} for _ in range(jobs)]
    if "key" in item:
        items = [one | {"key": f"k{n}"} for n, one in enumerate(items)]

    stored = db.enqueue(*items)

    assert [db.job(one.id).max_attempts for one in stored] == [7] * jobs


@pytest.mark.parametrize(
    "settings",
    [
        {"colour": "red"},
        {"max_attempts": 0},
        {"max_attempts": "many"},
        {"max_attempts": None},
        {"max_attempts": 40_000},
        {"lease": 0},
        {"lease": -1},
        {"lease": "soon"},
        {"lease": 1e300},
        {"keep_done": -1},
        {"payload_limit": 0},
        {"backoff": -1},
        {"limit": -1},
        {"limit": 1.5},
        {"rate_limit": 5},
        {"rate_period": 5},
        {"rate_limit": 5, "rate_period": 0},
        {"rate_limit": 5, "rate_period": 1e300},
        {"fair": "maybe"},
        {"fair": None},
        {"lane_limit": 0},
        {"lane_on_failure": "explode"},
        {"fanout": 0},
        {"fanout": 65},
    ],
)
def test_a_setting_that_does_not_fit_a_queue_is_refused(
    db: Protocol, settings: dict[str, Any]
) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.queue_set("mail", **settings)

    assert refusal.value.sqlstate == "HF221"
    assert refusal.value.diag.message_hint


@pytest.mark.parametrize(
    "settings",
    [
        {"colour": "red"},
        {"limit": 0},
        {"limit": "many"},
        {"on_failure": "explode"},
        {"rate_limit": 5},
        {"rate_limit": 5, "rate_period": 0},
        {"rate_limit": 5, "rate_period": 1e300},
    ],
)
def test_a_setting_that_does_not_fit_a_lane_is_refused(
    db: Protocol, settings: dict[str, Any]
) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.lane_set("mail", "l", **settings)

    assert refusal.value.sqlstate == "HF221"


@pytest.mark.parametrize("settings", [[], 7, None, "x"])
@pytest.mark.parametrize("function", ["queue_set", "lane_set"])
def test_settings_are_an_object(db: Protocol, function: str, settings: Any) -> None:
    lane = {"lane": "l"} if function == "lane_set" else {}

    with pytest.raises(psycopg.Error) as refusal:
        db.value(function, queue="q", settings=Jsonb(settings), **lane)

    assert refusal.value.sqlstate == "HF221"


@pytest.mark.parametrize("name", ["", "q" * 121, "a\nb"])
@pytest.mark.parametrize("function", ["queue_set", "pause", "resume"])
def test_a_queue_has_a_name(db: Protocol, function: str, name: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        getattr(db, function)(name)

    assert refusal.value.sqlstate == "HF202"


def test_a_lane_has_a_name(db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.lane_set("mail", "")

    assert refusal.value.sqlstate == "HF202"


def test_a_setting_of_a_lane_goes_back_to_the_queues(db: Protocol) -> None:
    db.queue_set("default", lane_limit=3)
    db.lane_set("default", "l", limit=1)
    db.lane_set("default", "l", limit=None)
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 5)

    assert len(db.claim(max_jobs=9)) == 3


def test_a_queue_shows_how_many_of_its_jobs_are_where(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k", "queue": "mail", "max_attempts": 1} for _ in range(6)])
    a, b, c, d = db.claim("mail", max_jobs=4)
    db.ack(a)
    db.nack(b)
    db.cancel(c.id)
    db.fold()

    row = db.connection.execute(
        "select queued, leased, dead, done, cancelled from holdfast.queues where queue = 'mail'"
    ).fetchone()

    assert row == (2, 1, 1, 1, 1)
    assert db.state(d.id) == "leased"


def test_the_oldest_age_is_that_of_the_longest_waiting_ready_job(db: Protocol) -> None:
    query = "select extract(epoch from oldest)::int from holdfast.queues where queue = 'mail'"
    db.queue_set("mail")
    nothing = db.connection.execute(query).fetchone()
    db.put(queue="mail")
    db.later(seconds=60)
    db.put(queue="mail", priority=5)
    db.put(queue="mail", delay=600)

    waiting = db.connection.execute(query).fetchone()

    assert nothing == (None,)
    assert waiting == (60,)


def declare(db: Protocol, **queues: dict[str, Any]) -> list[str]:
    items = Jsonb([{"queue": name, **settings} for name, settings in queues.items()])
    rows = db.call("queue_declare", items=items, columns=("ord", "name", "outcome"))
    return [row.outcome for row in sorted(rows)]


def settings_of(db: Protocol, queue: str) -> Any:
    [row] = db.table(f"select * from holdfast.queues where queue = '{queue}'")
    return row


def test_what_code_declares_is_set_and_an_operators_change_stays_until_it_declares_another(
    db: Protocol,
) -> None:
    assert declare(db, b={"limit": 4, "lease": 60}, a={"fair": True}) == ["created", "created"]
    assert declare(db, b={"limit": 4, "lease": 60}) == ["same"]
    db.queue_set("b", limit=2, max_attempts=9)

    assert declare(db, b={"limit": 4, "lease": 60}) == ["same"]
    assert settings_of(db, "b").limit == 2
    assert declare(db, b={"limit": 4, "lease": 90}) == ["changed"]
    b = settings_of(db, "b")
    assert (b.limit, b.lease.total_seconds(), b.max_attempts) == (2, 90, 9)
    assert declare(db, b={"limit": 5, "lease": 90}) == ["changed"]
    assert settings_of(db, "b").limit == 5
    assert settings_of(db, "a").fair


def test_a_setting_that_is_no_longer_declared_goes_back_to_its_default(db: Protocol) -> None:
    db.put(queue="plain")
    every: dict[str, Any] = {
        "max_attempts": 9,
        "lease": 90,
        "keep_done": 60,
        "payload_limit": 50,
        "backoff": 7,
        "backoff_cap": 70,
        "limit": 3,
        "rate_limit": 5,
        "rate_period": 60,
        "fair": True,
        "by_kind": True,
        "lane_limit": 2,
        "lane_on_failure": "halt",
        "activity": "all",
        "keep_activity": 86400 * 3,
        "archive_dead": 90,
        "archive_done": 90,
    }
    declare(db, mail=every)
    assert declare(db, mail={}) == ["changed"]

    mail, plain = settings_of(db, "mail"), settings_of(db, "plain")
    assert {name: getattr(mail, name) for name in every} == {
        name: getattr(plain, name) for name in every
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limits": 4}, "queue setting 'limits' is unknown"),
        ({"fanout": 4}, "fanout of queue 'mail' cannot be declared"),
        ({"rate_limit": 4}, 'settings {"rate_limit": 4} are not valid for a queue'),
    ],
)
def test_a_declaration_that_cannot_be_set_is_refused(
    db: Protocol, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        declare(db, mail=settings)
    assert refused.value.diag.message_primary == message
    assert refused.value.sqlstate == "HF221"
