"""The rate of success: which share of attempts ended well, by queue and kind, over a span."""

from datetime import timedelta

import psycopg
import pytest

from tests.protocol import Later, Protocol


def success(
    db: Protocol, queue: str | None = None, span: timedelta | None = None
) -> dict[tuple[str, str | None], tuple[int, int, float]]:
    columns = ("queue", "kind", "done", "failed", "rate")
    rows = db.call("success", columns=columns, only_queue=queue, span=span)
    return {(name, kind): (done, failed, rate) for name, kind, done, failed, rate in rows}


def run(db: Protocol, kind: str, done: int, failed: int, queue: str = "default") -> None:
    db.enqueue(*[{"kind": kind, "queue": queue, "max_attempts": 9}] * (done + failed))
    held = db.claim(queue, max_jobs=done + failed)
    db.ack(*held[:done])
    db.nack(*held[done:], delay=timedelta(days=300))
    db.upkeep()


@pytest.mark.proves("S2.26")
def test_the_share_of_attempts_that_ended_well_is_known_for_each_queue_and_kind(
    db: Protocol, full_minute: None
) -> None:
    run(db, "price", 3, 1)
    run(db, "mail", 1, 1)
    run(db, "mail", 5, 0, queue="other")

    assert success(db) == {
        ("default", None): (4, 2, pytest.approx(4 / 6)),
        ("default", "mail"): (1, 1, 0.5),
        ("default", "price"): (3, 1, 0.75),
        ("other", None): (5, 0, 1.0),
        ("other", "mail"): (5, 0, 1.0),
    }
    assert success(db, "other") == {("other", None): (5, 0, 1.0), ("other", "mail"): (5, 0, 1.0)}


def test_what_is_older_than_the_span_does_not_count(
    db: Protocol, later: Later, full_minute: None
) -> None:
    run(db, "price", 1, 3)
    for _ in range(3):
        later(minutes=40)
        run(db, "price", 2, 0)

    hour, day = success(db), success(db, span=timedelta(days=1))

    assert hour["default", None] == (4, 0, 1.0)
    assert day["default", None] == (7, 3, 0.7)
    later(hours=25)
    db.upkeep()
    assert success(db, span=timedelta(days=1)) == {}


def test_samples_that_were_summed_up_are_counted_once(
    db: Protocol, later: Later, full_minute: None
) -> None:
    for _ in range(30):
        run(db, "price", 1, 1)
        later(minutes=1)
    db.upkeep()

    for span in (timedelta(minutes=59), timedelta(hours=1), timedelta(hours=3), timedelta(days=1)):
        assert success(db, span=span)["default", "price"] == (30, 30, 0.5)


def test_an_expired_attempt_has_failed_and_a_released_one_does_not_count(
    db: Protocol, later: Later, full_minute: None
) -> None:
    db.enqueue({"kind": "k"}, {"kind": "k"})
    first, _second = db.claim(max_jobs=2)
    db.release(first, delay=timedelta(days=1))
    later(seconds=31)
    db.reap()
    db.upkeep()

    assert success(db)["default", "k"] == (0, 1, 0.0)


@pytest.mark.parametrize("span", [timedelta(seconds=1), timedelta(days=15)])
def test_a_span_that_no_samples_cover_is_refused(db: Protocol, span: timedelta) -> None:
    with pytest.raises(psycopg.Error, match="is out of range") as refused:
        success(db, span=span)

    assert refused.value.sqlstate == "HF204"
