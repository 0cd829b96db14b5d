"""Schedules against their model, and the proof that the model bites."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.schedule_machine import ScheduleMachine
from tests.model.test_lease_machine import CALM, LONG
from tests.protocol import PLANTED_STAYS, Protocol

SHORT = 20


@pytest.mark.proves("S2.5")
@pytest.mark.timeout(900)
def test_schedules_agree_with_their_model(db: Protocol) -> None:
    class Machine(ScheduleMachine):
        pass

    Machine.db = db

    examples, steps = (60, 2000) if LONG else (SHORT, 600)
    run_state_machine_as_test(Machine, settings=settings(CALM, max_examples=examples))

    assert Machine.steps > steps


@PLANTED_STAYS
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", ["where it stands", "by which rule", "the pause"])
def test_the_machine_finds_a_fire_that_does_not_compare(db: Protocol, bug: str) -> None:
    class Machine(ScheduleMachine):
        pass

    Machine.db = db
    text = db.table("select pg_get_functiondef('holdfast.schedule_fire'::regproc) as text")[0].text
    compared = {
        "where it stands": "x.next_at = coalesce(expected_next, '-infinity') and",
        "by which rule": "and x.revision = coalesce(schedule_fire.revision, x.revision)",
        "the pause": "and x.paused_at is null",
    }[bug]
    assert text.count(compared) == 1
    db.connection.execute(text.replace(compared, ""))

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=settings(CALM, max_examples=SHORT))
