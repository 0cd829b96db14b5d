"""What telemetry asks of the database, and how little it reads for the answer."""

import pytest

from tests.protocol import Later, Protocol

pytestmark = pytest.mark.usefixtures("full_minute")


def test_the_age_of_the_oldest_dead_job_is_told_for_each_queue(db: Protocol, later: Later) -> None:
    for queue in ("mail", "mail", "money"):
        _die(db, queue)
        later(minutes=1)
    db.connection.execute("select holdfast.fold()")

    ages = dict(db.connection.execute("select queue, oldest from holdfast.dead_ages").fetchall())

    assert sorted(ages) == ["mail", "money"]
    assert [round(ages[name].total_seconds() / 60) for name in sorted(ages)] == [3, 1]


def test_a_queue_is_told_before_upkeep_has_seen_it(db: Protocol, later: Later) -> None:
    _die(db, "new")
    later(minutes=1)

    ages = dict(db.connection.execute("select queue, oldest from holdfast.dead_ages").fetchall())

    assert [(name, round(age.total_seconds())) for name, age in ages.items()] == [("new", 60)]


def test_one_old_dead_job_is_found_behind_thousands_of_another_queue(
    db: Protocol, later: Later
) -> None:
    _die(db, "noise")
    later(minutes=1)
    _die(db, "mail")
    copy = ", ".join(
        {"id": "gen_random_uuid()"}.get(name, name) for (name,) in db.connection.execute(_COLUMNS)
    )
    columns = ", ".join(name for (name,) in db.connection.execute(_COLUMNS))
    db.connection.execute(
        f"insert into holdfast.dead ({columns}) select {copy} from holdfast.dead, "
        "generate_series(1, 5000) where queue = 'noise'"
    )
    db.connection.execute("select holdfast.fold(), holdfast.recount()")
    db.connection.execute("analyze holdfast.dead")

    plan = "\n".join(
        line
        for (line,) in db.connection.execute("explain (analyze) select * from holdfast.dead_ages")
    )

    assert "dead_queue" in plan
    assert "Seq Scan on dead" not in plan


def _die(db: Protocol, queue: str) -> None:
    db.connection.execute(
        "select holdfast.enqueue(%s::jsonb)",
        [f'[{{"kind": "a", "queue": "{queue}", "max_attempts": 1}}]'],
    )
    [lease] = db.claim(queue)
    db.connection.execute(
        "select holdfast.nack(ids => array[%s::uuid], tokens => array[%s::uuid], "
        "error_kind => 'E', message => 'no')",
        [lease.id, lease.token],
    )


_COLUMNS = """
select attname from pg_attribute
where attrelid = 'holdfast.dead'::regclass and attnum > 0 and not attisdropped order by attnum
"""
