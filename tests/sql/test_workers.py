"""Workers that say they live, who leads, and a turn of upkeep by whoever does."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Later, Open, Protocol


def beat(db: Protocol, worker: str = "ada", **facts: Any) -> bool:
    [row] = db.call("beat", worker=worker, facts=Jsonb(facts), columns=("stop",))
    return bool(row.stop)


def workers(db: Protocol) -> Any:
    return db.table("select * from holdfast.workers order by worker")


def test_facts_a_beat_leaves_out_stay_as_they_were(db: Protocol, later: Later) -> None:
    beat(db, host="box", pid=7, slots=8, queues=["mail", "default"], kinds=["greet"], rss=1 << 40)
    later(seconds=10)

    beat(db, busy=3, loop_lag=0.25, claimed=5)

    [row] = workers(db)
    assert (row.worker, row.host, row.pid, row.slots, row.busy) == ("ada", "box", 7, 8, 3)
    assert (row.queues, row.kinds, row.rss) == (["mail", "default"], ["greet"], 1 << 40)
    assert (row.loop_lag, row.claimed, row.acked) == (0.25, 5, 0)
    assert row.seen_at - row.started_at >= timedelta(seconds=10)


def test_a_worker_is_alive_for_a_minute_after_its_last_beat(db: Protocol, later: Later) -> None:
    beat(db)
    later(seconds=59)
    assert [row.alive for row in workers(db)] == [True]

    later(seconds=2)

    assert [row.alive for row in workers(db)] == [False]


def test_a_worker_that_was_asked_to_stop_learns_of_it_by_its_next_beat(db: Protocol) -> None:
    assert not beat(db)

    assert db.value("stop_worker", worker="ada", actor="eve") is True

    [row] = workers(db)
    assert row.stop_by == "eve"
    assert beat(db)
    assert not beat(db, "bob")


def test_asking_a_worker_that_is_not_there_to_stop_answers_false(db: Protocol) -> None:
    assert db.value("stop_worker", worker="nobody") is False


def test_whoever_listens_is_told_which_worker_should_stop(db: Protocol, other: Open) -> None:
    listener = other().connection
    listener.execute("listen holdfast")
    beat(db)

    db.value("stop_worker", worker="ada")

    assert [n.payload for n in listener.notifies(timeout=100, stop_after=1)] == ["\nada"]


def test_a_worker_that_leaves_is_off_the_list(db: Protocol) -> None:
    beat(db)

    assert db.value("leave", worker="ada") is True
    assert db.value("leave", worker="ada") is False
    assert workers(db) == []


def test_upkeep_forgets_workers_not_seen_for_a_day(db: Protocol, later: Later) -> None:
    beat(db, "old")
    later(hours=23)
    beat(db, "young")
    db.upkeep()
    assert len(workers(db)) == 2

    later(hours=2)
    db.upkeep()

    assert [row.worker for row in workers(db)] == ["young"]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"stop_at": "now"}, "fact 'stop_at' of a worker is unknown"),
        ({"slots": "many"}, "are not valid for a worker"),
        ({"queues": "mail"}, "are not valid for a worker"),
        ({"pid": 1 << 40}, "are not valid for a worker"),
        ({"started_at": "yesterday-ish"}, "are not valid for a worker"),
        ([], "facts must be a JSON object"),
    ],
)
def test_facts_that_fit_no_worker_are_refused(facts: Any, told: str, db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refused:
        db.call("beat", worker="ada", facts=Jsonb(facts), columns=("stop",))

    assert refused.value.sqlstate == "HF221"
    assert told in str(refused.value)


def test_one_leads_until_its_time_is_over(db: Protocol, later: Later) -> None:
    assert db.value("lead", holder="ada") is True
    assert db.value("lead", holder="bob") is False
    later(seconds=4)
    assert db.value("lead", holder="ada") is True
    later(seconds=4)
    assert db.value("lead", holder="bob") is False
    later(seconds=2)
    assert db.value("lead", holder="bob") is True
    assert db.value("lead", holder="ada") is False


def test_whoever_leads_for_no_time_hands_over(db: Protocol) -> None:
    db.value("lead", holder="ada")

    db.value("lead", holder="ada", length=timedelta(0))

    assert db.value("lead", holder="bob") is True


def test_a_term_begins_when_the_leader_changes(db: Protocol, later: Later) -> None:
    terms = []
    for holder in ("ada", "ada", "bob", "ada"):
        db.value("lead", holder=holder)
        terms += [row.term for row in db.table("select term from holdfast.pulse")]
        if holder == "ada" and len(terms) == 1:
            continue
        later(seconds=6)

    assert terms == [1, 1, 2, 3]


def test_a_leader_from_a_future_that_was_taken_back_does_not_lead_for_years(
    db: Protocol, later: Later
) -> None:
    later(days=900)
    db.value("lead", holder="ada")
    later(days=-900)

    assert db.value("lead", holder="bob") is True


def test_only_the_leader_tends(db: Protocol, later: Later) -> None:
    db.put(delay=5)
    db.value("lead", holder="ada")
    later(seconds=5)

    db.value("lead", holder="ada")
    [idle] = db.call("tend", holder="bob", columns=("leads", "done", "next_slot"))
    [tended] = db.call("tend", holder="ada", columns=("leads", "done", "next_slot"))

    assert idle == (False, None, None)
    assert (tended.leads, tended.done["promoted"], tended.next_slot) == (True, 1, None)


def test_a_tending_leader_is_told_how_long_it_is_till_the_next_slot(
    db: Protocol, later: Later
) -> None:
    db.connection.execute(
        "insert into holdfast.schedule (name, kind, cron, next_at, since, created_at, updated_at)"
        " select name, 'k', '* * * * *', next_at, now(), now(), now()"
        " from (values ('a', holdfast.now() + interval '90 s'),"
        "   ('b', holdfast.now() + interval '60 s'), ('never', 'infinity')) s(name, next_at)"
    )

    def wait() -> timedelta:
        [tended] = db.call("tend", holder="ada", columns=("next_slot",))
        assert isinstance(tended.next_slot, timedelta)
        return tended.next_slot

    assert timedelta(seconds=30) < wait() <= timedelta(seconds=60)
    later(seconds=70)
    assert wait() < timedelta()


def test_a_step_of_upkeep_that_fails_does_not_stop_the_others(db: Protocol, later: Later) -> None:
    db.put(delay=5)
    later(seconds=6)
    with db.connection.transaction(force_rollback=True):
        db.connection.execute(
            "create or replace function holdfast.fold() returns integer language plpgsql"
            " as 'begin raise exception ''no space''; end'"
        )

        report: dict[str, Any] = dict(db.upkeep())

    assert report["failed"] == {"folded": "P0001: no space"}
    assert report["promoted"] == 1
    assert "folded" not in report


def test_upkeep_on_a_server_that_takes_no_writes_says_so(other: Open) -> None:
    session = other()
    session.connection.execute("set default_transaction_read_only = on")

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        session.upkeep()
