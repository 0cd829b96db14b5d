"""Lists in the order that people ask for: what failed last, what runs next."""

from datetime import timedelta

import pytest

from tests.protocol import Later, Protocol


def ids(db: Protocol, call: str) -> list[str]:
    return [str(row.id) for row in db.table(f"select id from holdfast.{call}")]


def test_dead_jobs_come_by_the_time_of_their_failure_newest_first(
    db: Protocol, later: Later
) -> None:
    made = [
        db.put(max_attempts=1, priority=priority, kind=f"k{priority}") for priority in (0, 9, 5)
    ]
    for _ in made:
        db.nack(db.take(), message="boom")
        later(seconds=1)
    db.put()

    died = [made[0], made[2], made[1]]
    assert ids(db, "died()") == [str(id) for id in died]
    assert ids(db, "died('kind:k9')") == [str(made[1])]
    [last] = db.table("select ended_at, id from holdfast.died(max_jobs => 1)")
    page = f"died(before => '{last.ended_at.isoformat()}', before_id => '{last.id}')"
    assert ids(db, page) == [str(id) for id in died[1:]]


def test_what_waits_comes_in_the_order_in_which_it_will_run(db: Protocol) -> None:
    timed = [db.put(delay=delay, priority=9) for delay in (60, 30)]
    ready = [db.put(priority=priority) for priority in (0, 5, 5, 9)]
    held = db.take()
    waits = ids(db, "upcoming('default')")
    db.nack(held, message="later", delay=timedelta(seconds=10))
    again = ids(db, "upcoming('default', 4)")

    order = [ready[1], ready[2], ready[0], timed[1], timed[0]]
    assert held.id == ready[3]
    assert waits == [str(id) for id in order]
    assert again == [str(id) for id in (*order[:3], held.id)]


FORGOTTEN = """
delete from pg_statistic where starelid = 'holdfast.dead'::regclass;
update pg_class set relpages = 0, reltuples = -1, relallvisible = 0
where oid = 'holdfast.dead'::regclass
  or oid in (select indexrelid from pg_index where indrelid = 'holdfast.dead'::regclass);
"""


@pytest.mark.parametrize("planned", ["never analysed", "while empty", "with a few"])
def test_a_list_of_what_died_last_reads_no_more_than_it_shows(
    db: Protocol, later: Later, planned: str
) -> None:
    if planned == "with a few":
        db.put(max_attempts=1)
        db.nack(db.take())
    if planned == "never analysed":
        # As autovacuum may have done in the minutes of other tests.
        db.connection.execute(FORGOTTEN)
    else:
        db.connection.execute("vacuum analyze holdfast.dead")
    db.enqueue(*[{"kind": "work", "max_attempts": 1}] * 400)
    for _ in range(40):
        db.nack(*db.claim(max_jobs=10), message="boom")
        later(seconds=1)
    read = (
        "select seq_tup_read + idx_tup_fetch as rows from pg_stat_xact_user_tables"
        " where relid = 'holdfast.dead'::regclass"
    )
    with db.connection.transaction():
        [before] = db.table(read)
        found = ids(db, "died(max_jobs => 5)")
        [after] = db.table(read)

    assert len(found) == 5
    # Of a table that it believes to be tiny it may read all once, but not all for each of them.
    limit = 100 if planned == "never analysed" else 4 * 400
    assert after.rows - before.rows < limit
