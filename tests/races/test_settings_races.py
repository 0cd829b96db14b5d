"""Settings that change while others are at work under the old ones."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.protocol import Protocol

Start = Callable[..., Any]


def test_a_limit_counts_a_claim_that_was_under_way(db: Protocol, held_open: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 6)
    held_open.claim(max_jobs=2)
    db.queue_set("default", limit=2)
    held_open.connection.commit()

    db.upkeep()
    db.upkeep()

    assert db.claim(max_jobs=6) == []


def test_a_job_enqueued_while_fair_share_began_is_claimed(
    db: Protocol, held_open: Protocol
) -> None:
    id = held_open.put()
    db.queue_set("default", fair=True)
    held_open.connection.commit()

    db.upkeep()
    db.upkeep()

    assert [job.id for job in db.claim()] == [id]


def test_a_job_enqueued_while_by_kind_began_is_found_by_its_kind(
    db: Protocol, held_open: Protocol
) -> None:
    id = held_open.put("a")
    db.queue_set("default", by_kind=True)
    held_open.connection.commit()

    db.upkeep()
    db.upkeep()

    assert [job.id for job in db.claim(kinds=["a"])] == [id]


def test_a_writer_that_outlasts_an_upkeep_is_waited_for(db: Protocol, held_open: Protocol) -> None:
    id = held_open.put("a")
    db.queue_set("default", by_kind=True)
    db.upkeep()
    db.upkeep()
    held_open.connection.commit()

    db.upkeep()

    assert [job.id for job in db.claim(kinds=["a"])] == [id]


def test_a_pause_under_way_does_not_hold_up_a_claim(db: Protocol, held_open: Protocol) -> None:
    db.put()
    held_open.pause("default")

    before = db.claim()
    held_open.connection.commit()
    db.put()

    assert len(before) == 1
    assert db.claim() == []


@pytest.mark.parametrize("setting", ["limit", "rate", "pause"])
def test_a_claim_that_waited_at_the_gate_goes_by_what_was_set_meanwhile(
    db: Protocol, held_open: Protocol, start: Start, setting: str
) -> None:
    db.queue_set("default", limit=5)
    db.enqueue(*[{"kind": "k"}] * 6)
    db.ack(db.take())  # the gate is there from the first claim on

    held_open.take()
    claim = start(lambda session: session.claim(max_jobs=4))
    assert claim.waits()
    match setting:
        case "limit":
            db.queue_set("default", limit=2)
        case "rate":
            db.queue_set("default", rate_limit=1, rate_period=3600)
        case "pause":
            db.pause("default")
    held_open.connection.commit()
    given = claim.answer()
    db.queue_set("default", limit=9)

    assert len(given) == (0 if setting == "pause" else 1)
    if setting == "rate":
        assert db.claim(max_jobs=4) == []


def test_upkeep_applies_settings_without_waiting_for_a_job_that_somebody_is_at(
    db: Protocol, held_open: Protocol, start: Start
) -> None:
    """It holds other jobs by then: who waits for those and is at this one would deadlock."""
    db.queue_set("default", fair=True)
    stray = (
        "insert into holdfast.job (part, id, queue, kind)"
        " select holdfast.part_of(i), i, 'default', 'k' from holdfast.new_id('default') i"
        " returning id"
    )
    ids = {row.id for _ in range(2) for row in db.table(stray)}
    db.upkeep()  # from now on it waits for no transaction
    held_open.connection.execute("select from holdfast.job where id = %s for update", [min(ids)])

    upkeep = start(lambda session: session.upkeep())
    waited = upkeep.waits()
    upkeep.answer()
    found = [job.id for job in db.claim(max_jobs=9)]
    held_open.connection.rollback()
    db.upkeep()

    assert not waited
    assert found == [max(ids)]
    assert [job.id for job in db.claim(max_jobs=9)] == [min(ids)]
    db.recount()
