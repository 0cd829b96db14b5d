"""Numbers over time: sampled by upkeep, kept at ever coarser steps, read as series."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Later, Protocol

pytestmark = pytest.mark.usefixtures("full_minute")


def series(db: Protocol, metric: str, **options: Any) -> list[float | None]:
    rows = db.call("series", metric=metric, columns=["at", "value"], **options)
    return [row[1] for row in rows]


def run(db: Protocol, jobs: int, queue: str = "default", kind: str = "work") -> None:
    db.enqueue(*({"kind": kind, "queue": queue} for _ in range(jobs)))
    for job in db.claim(queue, max_jobs=jobs):
        db.ack(job)


@pytest.mark.proves("S4.13")
def test_what_was_counted_is_told_as_rates_and_depths(db: Protocol, later: Later) -> None:
    run(db, 20)
    db.put(max_attempts=2)
    db.nack(db.take(), delay=timedelta(hours=1))
    db.upkeep()

    step = timedelta(seconds=10)
    assert series(db, "queued", step=step) == [1.0]
    assert series(db, "done", step=step) == []  # not as if it were over
    later(seconds=10)
    assert series(db, "enqueued", step=step) == [2.1]
    assert series(db, "done", step=step) == [2.0]
    assert series(db, "failed", step=step) == [0.1]
    assert series(db, "queued", step=step) == [1.0]
    assert series(db, "done", step=step, queues=["mail"]) == [0.0]
    assert series(db, "done", step=step, kind="other") == [0.0]
    assert series(db, "done", step=step, kind="work") == [2.0]

    later(seconds=20)
    db.upkeep()
    later(seconds=10)
    assert series(db, "done", step=step) == [2.0, 0.0]
    assert series(db, "done", step=timedelta(minutes=10)) in ([], [1.0])


def test_the_oldest_is_the_age_of_the_first_that_waits(db: Protocol, later: Later) -> None:
    db.put()
    later(seconds=42)
    db.upkeep()

    [age] = series(db, "oldest", step=timedelta(seconds=10))
    assert age is not None
    assert 42 <= age < 50


def test_the_busiest_queues_are_kept_one_by_one_and_the_others_in_the_sum(
    db: Protocol, later: Later
) -> None:
    busy = [{"kind": "work", "queue": f"busy {n}"} for n in range(200) for _ in range(2)]
    db.enqueue(*busy, {"kind": "work", "queue": "small"}, {"kind": "work", "queue": "tiny"})
    db.upkeep()
    later(seconds=20)
    db.enqueue({"kind": "work", "queue": "small"}, {"kind": "work", "queue": "busy 7"})
    db.upkeep()
    later(seconds=10)

    step = timedelta(seconds=10)
    assert series(db, "queued", step=step)[-1] == 404
    assert series(db, "queued", step=step, queues=["busy 7"])[-1] == 3
    assert series(db, "queued", step=step, queues=["small", "tiny"])[-1] == 0
    assert series(db, "enqueued", step=step)[-1] == 0.2
    assert series(db, "enqueued", step=step, queues=["small"])[-1] == 0
    assert (series(db, "oldest", step=step)[-1] or 0) >= 20
    kept = db.connection.execute(
        "select count(distinct queue) from holdfast.sample where at = (select max(at) from"
        " holdfast.sample where step = 10) and step = 10"
    ).fetchone()
    assert kept == (201,)


def test_nobody_looked_is_a_gap_and_nothing_done_is_a_zero(db: Protocol, later: Later) -> None:
    db.upkeep()
    later(seconds=60)
    db.upkeep()
    later(seconds=10)

    rows = db.call("series", metric="done", step=timedelta(seconds=10), columns=["at", "value"])
    assert [row[1] for row in rows] == [0.0, 0.0]
    assert (rows[1][0] - rows[0][0]).total_seconds() == 60


@pytest.mark.proves("S4.13")
def test_a_year_of_samples_is_kept_in_a_bounded_number_of_rows(db: Protocol, later: Later) -> None:
    run(db, 6)
    db.upkeep()
    for _ in range(3):
        later(minutes=61)
        db.upkeep()
    week = {"since": db.value("now") - timedelta(days=7), "step": timedelta(hours=1)}
    assert sum(value or 0 for value in series(db, "done", **week)) * 3600 == pytest.approx(6)

    # An hour is what is left of days long past: nothing is lost in the sum, only detail.
    for _ in range(100):
        later(days=4)
        db.upkeep()
        rows = db.connection.execute("select count(*) from holdfast.sample").fetchone()
        assert rows is not None
        assert rows[0] < 1000
    left = db.connection.execute("select distinct step from holdfast.sample").fetchall()
    assert (3600,) in left
    oldest = db.connection.execute(
        "select holdfast.now() - min(at) from holdfast.sample"
    ).fetchone()
    assert oldest is not None
    assert oldest[0] <= timedelta(days=401)


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([10], 0.5, 0.0005),
        ([0, 0, 100], 0.5, 0.003),
        ([50, 50], 0.5, 0.001),
        ([99, 0, 0, 1], 0.99, 0.001),
        ([98, 0, 0, 2], 0.99, 0.006),
        ([], 0.5, None),
        ([0, 0], 0.5, None),
    ],
)
def test_quantiles_are_read_off_the_spans(
    db: Protocol, counts: list[int], share: float, value: float | None
) -> None:
    found = db.connection.execute(
        "select holdfast.quantile(%s::bigint[], %s)", [counts, share]
    ).fetchone()

    assert found == (value,) if value is None else found == (pytest.approx(value),)


def test_what_workers_measured_adds_up_over_workers_and_steps(db: Protocol, later: Later) -> None:
    times = {"times": [{"queue": "default", "kind": "work", "pickup": [1, 3], "run": [0, 0, 4]}]}
    for worker in ("ada", "bob"):
        db.call("beat", worker=worker, measured=Jsonb(times), columns=["stop"])
    db.upkeep()
    kept = db.connection.execute(
        "select pickup, run from holdfast.sample where step = 10 and kind = 'work'"
    ).fetchall()
    assert kept == [([2, 6], [0, 0, 8])]

    db.call("beat", worker="ada", measured=Jsonb(times), columns=["stop"])
    db.upkeep()
    later(seconds=70)
    db.upkeep()
    kept = db.connection.execute(
        "select sum(x) from holdfast.sample, unnest(run) x where step = 60"
    ).fetchall()
    assert kept == [(12,)]
    assert series(db, "run_p50", step=timedelta(minutes=1))[0] == pytest.approx(0.003)
    assert series(db, "pickup_p99", step=timedelta(minutes=1), queues=["mail"])[0] is None


@pytest.mark.parametrize("metric", ["", "doen", "run_p12", "pickup"])
def test_an_unknown_metric_is_refused(db: Protocol, metric: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        series(db, metric)
    assert refusal.value.sqlstate == "HF229"


@pytest.mark.parametrize(
    "times", [{"times": 1}, {"times": [{"queue": "a", "kind": "b", "run": ["x"]}]}]
)
def test_measures_that_cannot_be_read_are_refused(db: Protocol, times: Any) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.call("beat", worker="ada", measured=Jsonb(times), columns=["stop"])
    assert refusal.value.sqlstate == "HF221"
