"""Schedules, workers and who leads, through both clients."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.errors import InvalidJob, InvalidSchedule, UnknownOutcome, UnknownSchedule
from holdfast.records import Declared, NewSchedule, Slot

DAILY = NewSchedule(
    name="nightly",
    kind="report",
    cron="30 5 * * *",
    tz="Europe/Paris",
    payload={"days": 1},
    options={"lease": timedelta(minutes=5), "priority": 3},
)


def test_a_schedule_lives_from_its_declaration_to_its_end(client: Any) -> None:
    assert client.schedules.declare([DAILY], owner="shop") == [Declared("nightly", "created")]

    found = client.schedules.get("nightly")
    assert (found.state, found.kind, found.cron, found.tz) == (
        *("active", "report"),
        *("30 5 * * *", "Europe/Paris"),
    )
    assert found.payload == {"days": 1}
    assert found.options == {"lease": 300, "priority": 3}
    assert client.schedules.list() == [found]
    assert client.schedules.pause("nightly", reason="audit", actor="ada").paused_by == "ada"
    assert client.schedules.resume("nightly").state == "active"
    assert client.schedules.delete("nightly") is True
    assert client.schedules.get("nightly") is None


def test_a_due_schedule_is_fired_once(client: Any, connect: Any) -> None:
    client.schedules.set("tick", kind="tick", every=timedelta(minutes=1))
    [planned] = client.schedules.due()
    slot = planned.since - timedelta(seconds=1)
    assert client.schedules.fire(planned, [], slot) == []
    [due] = client.schedules.due()
    assert due.next_at == slot

    fired = client.schedules.fire(due, [slot], slot + timedelta(hours=1))

    [job] = client.jobs.list()
    assert fired == [Slot(slot, "fired", job.id)]
    assert client.schedules.fire(due, [slot], slot + timedelta(hours=1)) == []
    assert client.schedules.slots("tick") == fired


def test_a_fire_whose_reply_was_lost_makes_no_second_job(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url)
    client.schedules.set("tick", kind="tick", every=60)
    [planned] = client.schedules.due()
    slot = planned.since - timedelta(seconds=1)
    client.schedules.fire(planned, [], slot)
    [due] = client.schedules.due()
    proxy.swallow_reply()

    client.schedules.fire(due, [slot], slot + timedelta(hours=1))

    assert len(client.jobs.list()) == 1


def test_a_run_whose_reply_was_lost_is_not_repeated(make_client: Any, proxy: Any) -> None:
    client = make_client(proxy.url)
    client.schedules.set("tick", kind="tick", every=60)
    proxy.swallow_reply(after=1)  # the first tells that the connection lives

    with pytest.raises(UnknownOutcome):
        client.schedules.run("tick")

    assert len(client.jobs.list()) == 1


def test_what_is_at_its_default_is_no_part_of_a_declaration(client: Any) -> None:
    client.schedules.declare([NewSchedule(name="a", kind="k", every=60, missed="once", tz="UTC")])

    assert client.schedules.get("a").declared_json == '{"kind": "k", "every": 60}'


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"cron": "61 * * * *"}, InvalidSchedule, "schedule x: cron '61 * * * *': minute '61'"),
        ({"tz": "Europe/Pariss"}, InvalidSchedule, "did you mean Europe/Paris?"),
        ({"every": 0.5}, InvalidSchedule, "out of range"),
        ({"every": 60, "anchor": datetime(2026, 1, 1)}, InvalidJob, "has no time zone"),
        ({"every": 60, "payload": {"a": object()}}, InvalidJob, "is not JSON"),
        ({"every": 60, "nonsense": 1}, InvalidSchedule, "setting 'nonsense' is unknown"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(
    settings: dict[str, Any], error: type[Exception], told: str, client: Any
) -> None:
    with pytest.raises(error) as refused:
        client.schedules.set("x", kind="k", **settings)

    assert told in str(refused.value)


def test_a_schedule_nobody_made_is_an_error_of_its_own(client: Any) -> None:
    with pytest.raises(UnknownSchedule) as refused:
        client.schedules.run("nosuch")
    assert refused.value.code == "HF312"


def test_a_worker_says_that_it_lives_until_it_leaves(client: Any) -> None:
    started = datetime(2026, 1, 1, tzinfo=UTC)
    assert client.workers.beat("ada", host="box", slots=4, started_at=started, kinds=["a"]) is False
    assert client.workers.stop("ada", actor="eve") is True
    assert client.workers.beat("ada", busy=1) is True

    [row] = client.workers.list()
    assert (row.worker, row.alive, row.host, row.slots, row.busy) == ("ada", True, "box", 4, 1)
    assert (row.started_at, row.kinds, row.stop_by) == (started, ["a"], "eve")
    assert client.workers.leave("ada") is True
    assert client.workers.list() == []


def test_one_leads_and_tends(client: Any) -> None:
    assert client.upkeep.lead("ada") is True

    tended, waits = client.upkeep.tend("ada"), client.upkeep.tend("bob")

    assert (tended.leads, tended.next_slot) == (True, None)
    assert "reaped" in tended.done
    assert (waits.leads, waits.done) == (False, None)
    assert client.upkeep.lead("ada", length=0) is True
    assert client.upkeep.lead("bob") is True


def test_now_is_the_time_of_the_database(client: Any, clock: Any) -> None:
    before = client.now()
    clock.advance(days=1)

    assert client.now() - before >= timedelta(days=1)
