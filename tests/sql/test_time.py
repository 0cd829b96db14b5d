"""Time is the clock's when it is given: neither the statement's, nor one that was set back."""

from datetime import timedelta

import pytest

from tests.protocol import Later, Protocol


def long_statement(db: Protocol, steps: str) -> None:
    """Run steps in one DO block, of which the first fifth of a second is gone."""
    db.connection.execute(f"do $do$ begin perform pg_sleep(0.2); {steps} end $do$")


def test_a_lease_given_late_in_a_statement_is_a_whole_one(db: Protocol) -> None:
    db.put()

    long_statement(
        db,
        "create temp table seen as select clock_timestamp() as before;"
        "perform holdfast.claim('default', 'ada', gen_random_uuid(), lease => '10 seconds');",
    )

    [(whole,)] = db.table(
        "select j.lease_until - interval '10 seconds' >= s.before from holdfast.job j, seen s"
    )
    assert whole


def test_a_job_that_came_due_in_a_statement_is_seen_by_it(db: Protocol) -> None:
    db.connection.execute(
        "do $do$ begin"
        " perform holdfast.enqueue(jsonb_build_array("
        "   jsonb_build_object('kind', 'k', 'run_at', clock_timestamp() + interval '0.1 s')));"
        " perform pg_sleep(0.2);"
        " create temp table given as"
        "   select c.id from holdfast.claim('default', 'ada', gen_random_uuid()) c;"
        " end $do$"
    )

    assert len(db.table("select id from given")) == 1


def test_a_lease_that_lapsed_in_a_statement_is_taken_back_by_it(db: Protocol) -> None:
    db.put()

    db.connection.execute(
        "do $do$ begin"
        " perform holdfast.claim('default', 'ada', gen_random_uuid(), lease => '0.1 s');"
        " perform pg_sleep(0.2);"
        " create temp table reaped as select r.id from holdfast.reap() r;"
        " end $do$"
    )

    assert len(db.table("select id from reaped")) == 1


@pytest.mark.parametrize(
    "verb",
    [
        "holdfast.nack(array[v_id], array[v_token], delay => '1 hour')",
        "holdfast.release(array[v_id], array[v_token], delay => '1 hour')",
        "holdfast.touch(array[v_id], array[v_token], lease => '1 hour')",
        "holdfast.hand_over(v_id, v_token, gen_random_uuid(), '1 hour')",
    ],
    ids=["nack", "release", "touch", "hand_over"],
)
def test_a_delay_is_counted_from_the_call(db: Protocol, verb: str) -> None:
    job = db.take() if db.put() else None
    assert job

    db.connection.execute(
        f"do $do$ declare v_id uuid := '{job.id}'; v_token uuid := '{job.token}'; begin"
        " perform pg_sleep(0.2);"
        " create temp table seen as select clock_timestamp() as before;"
        f" perform {verb};"
        " end $do$"
    )

    [(counted,)] = db.table(
        "select coalesce(j.lease_until, j.run_at) - interval '1 hour' >= s.before"
        " from holdfast.job j, seen s"
    )
    assert counted


def test_a_job_enqueued_late_in_a_statement_waits_for_all_of_its_delay(db: Protocol) -> None:
    long_statement(
        db,
        "create temp table seen as select clock_timestamp() as before;"
        """perform holdfast.enqueue('[{"kind": "k", "delay": 3600}]');""",
    )

    [(counted,)] = db.table(
        "select j.run_at - interval '1 hour' >= s.before from holdfast.job j, seen s"
    )
    assert counted


def test_a_beat_late_in_a_statement_counts_from_then(db: Protocol) -> None:
    long_statement(
        db,
        "create temp table seen as select clock_timestamp() as before;"
        "perform holdfast.beat('ada');",
    )

    [(counted,)] = db.table("select w.seen_at >= s.before from holdfast.worker w, seen s")
    assert counted


def test_a_rate_goes_on_after_the_clock_was_set_back(db: Protocol, later: Later) -> None:
    db.queue_set("default", rate_limit=2, rate_period=60)
    db.enqueue(*[{"kind": "k"}] * 6)
    first = db.claim(max_jobs=9)
    later(hours=-3)

    at_once = db.claim(max_jobs=9)
    later(seconds=61)
    next_window = db.claim(max_jobs=9)

    assert [len(jobs) for jobs in (first, at_once, next_window)] == [2, 0, 2]


def test_the_rate_of_a_lane_goes_on_after_the_clock_was_set_back(
    db: Protocol, later: Later
) -> None:
    db.lane_set("default", "a", limit=9, rate_limit=2, rate_period=60)
    db.enqueue(*[{"kind": "k", "lane": "a"}] * 6)
    first = db.claim(max_jobs=9, lease=timedelta(days=1))
    later(hours=-3)
    # whatever waits for its time was put off by the clock too
    db.connection.execute("update holdfast.job set run_at = holdfast.now() where token is null")

    at_once = db.claim(max_jobs=9)
    later(seconds=61)
    next_window = db.claim(max_jobs=9)

    assert [len(jobs) for jobs in (first, at_once, next_window)] == [2, 0, 2]


def test_an_outage_is_credited_after_the_clock_was_set_back(db: Protocol, later: Later) -> None:
    db.reap()
    later(hours=-3)
    db.reap()

    [(remembered,)] = db.table("select reaped_at <= holdfast.now() from holdfast.pulse")
    assert remembered
