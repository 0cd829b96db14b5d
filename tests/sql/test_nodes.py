"""Queues that live on other nodes, without a cluster: nothing of theirs is stored or set here.

What a cluster does with them is tested in tests/citus.
"""

from typing import Any

import psycopg
import pytest

from tests.protocol import Protocol

TEN = range(10)


@pytest.fixture
def away(db: Protocol) -> Protocol:
    """The queue `mail` lives on node 1."""
    db.queue_set("mail", lease=30)
    db.connection.execute("update holdfast.queue set node = 1")
    return db


def refused(db: Protocol, call: str, *arguments: Any) -> str:
    with pytest.raises(psycopg.Error) as told:
        db.connection.execute(call.encode(), arguments)
    assert told.value.sqlstate == "HF415"
    return told.value.diag.message_primary or ""


@pytest.mark.parametrize(
    "items",
    [
        [{}],
        [{"key": "k"}],
        [{"lane": "a"}],
        [{"delay": 60}],
        [{"n": n} for n in TEN],
        [{"key": f"k{n}"} for n in TEN],
        [{"tenant": "ada"} for _ in TEN],
        [{"queue": "here"}, {}],
        [{}, {"after": [1]}],
        [{"workflow": "0190f5c3-5a00-8000-8000-000000000001"}],
    ],
    ids=str,
)
def test_no_job_of_a_queue_of_another_node_is_stored_here(
    away: Protocol, items: list[dict[str, Any]]
) -> None:
    jobs = [
        {"kind": "work", "queue": "mail", **({"payload": item} if "n" in item else item)}
        for item in items
    ]
    with pytest.raises(psycopg.Error) as told:
        away.enqueue(*jobs)

    assert told.value.sqlstate == "HF415"
    assert away.connection.execute("select count(*) from holdfast.job").fetchone() == (0,)


def test_one_job_of_another_node_is_not_stored_here(away: Protocol) -> None:
    call = "select holdfast.enqueue_one(holdfast.new_id('mail'), 'work', 'mail')"

    assert refused(away, call) == "node 1 is not set up"


def test_a_session_may_say_where_queues_live_that_nobody_placed(db: Protocol) -> None:
    db.connection.execute("set holdfast.unplaced = '1'")
    call = "select holdfast.enqueue_one(holdfast.new_id('mail'), 'work', 'mail')"
    many = """select from holdfast.enqueue('[{"kind": "a", "queue": "b"}, {"kind": "a"}]')"""
    own = "select holdfast.unset_queue('holdfast.alerts')"

    assert refused(db, call) == "node 1 is not set up"
    assert refused(db, many) == "node 1 is not set up"
    assert db.connection.execute(f"select ({own[7:]}).node".encode()).fetchone() == (None,)


@pytest.mark.parametrize(
    "call",
    [
        "select from holdfast.queue_set('mail', '{\"limit\": 2}')",
        'select from holdfast.queue_declare(\'[{"queue": "mail", "limit": 2}]\')',
        "select from holdfast.pause('mail')",
        "select from holdfast.resume('mail')",
        "select holdfast.lane_set('mail', 'a', '{\"limit\": 2}')",
        "select holdfast.copied('mail', array['work'], array[1]::bigint[])",
        "select from holdfast.move(array[holdfast.new_id('x')], 'mail')",
    ],
)
def test_what_only_its_node_can_do_to_a_queue_is_refused_here(away: Protocol, call: str) -> None:
    assert refused(away, call) == "queue 'mail' lives on node 1 of the cluster"


def test_without_a_cluster_nothing_is_placed_and_the_doctor_is_silent(db: Protocol) -> None:
    told = refused(db, "select holdfast.place('mail', 1)")
    assert told == "this database is not the coordinator of a Citus cluster"
    assert db.connection.execute("select * from holdfast.nodes()").fetchall() == []
    query = "select count(*) from holdfast.doctor() where name = 'nodes'"
    assert db.connection.execute(query).fetchone() == (0,)
    assert db.connection.execute("select holdfast.here()").fetchone() == (None,)


def test_strays_whose_node_cannot_be_reached_stay_and_are_told(db: Protocol) -> None:
    db.put(queue="mail")
    db.connection.execute("insert into holdfast.queue select * from holdfast.unset_queue('mail')")
    db.connection.execute("update holdfast.queue set node = 1")
    db.connection.execute("select holdfast.upkeep('{strays}')")

    assert db.connection.execute("select count(*) from holdfast.job").fetchone() == (1,)
    query = "select step, problem from holdfast.failing"
    [(step, problem)] = db.connection.execute(query).fetchall()
    assert step == "strays"
    assert "node 1 is not set up" in problem
