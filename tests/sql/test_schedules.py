"""Schedules as SQL has them: what fires, what survives an edit, what is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.protocol import Later, Protocol

MINUTE = timedelta(minutes=1)
DAILY = {"kind": "report", "cron": "30 5 * * *"}


class Due(NamedTuple):
    name: str
    revision: int
    next_at: datetime | None
    since: datetime
    now: datetime


class Slot(NamedTuple):
    slot: datetime
    outcome: str
    job: UUID | None


def declare(
    db: Protocol,
    *items: dict[str, Any],
    owner: str | None = None,
    origin: tuple[str, list[str]] | None = None,
) -> list[str]:
    rows = db.call(
        "schedule_declare",
        items=Jsonb(items),
        owner=owner,
        origin=origin and Jsonb({"module": origin[0], "kinds": origin[1]}),
        columns=("ord", "name", "outcome"),
    )
    return [row.outcome for row in sorted(rows)]


def put(db: Protocol, name: str = "nightly", **settings: Any) -> None:
    db.call("schedule_set", name=name, settings=Jsonb(settings), actor="ada", columns=("name",))


def schedule(db: Protocol, name: str = "nightly") -> Any:
    [row] = db.table("select * from holdfast.schedules where name = '" + name + "'")
    return row


def due(db: Protocol) -> list[Due]:
    return [Due(*row) for row in db.call("schedule_due", columns=Due._fields)]


def fire(
    db: Protocol, seen: Due, *slots: datetime, next_at: datetime | None = None, **rest: Any
) -> list[Slot]:
    """Fire as whoever saw the schedule due would."""
    following = next_at or (max(slots) if slots else seen.now) + MINUTE
    rows = db.connection.execute(
        "select slot, outcome, job from holdfast.schedule_fire(name => %s, expected_next => %s,"
        " slots => %s::timestamptz[], next_at => %s, revision => %s, problem => %s)",
        [seen.name, seen.next_at, list(slots), following, seen.revision, rest.get("problem")],
    ).fetchall()
    return [Slot(*row) for row in rows]


def planned(db: Protocol, name: str = "nightly", **settings: Any) -> datetime:
    """A schedule whose first slot, a minute from now, was found; returns that slot."""
    put(db, name, **({"kind": "report", "every": 60} | settings))
    [seen] = [one for one in due(db) if one.name == name]
    slot = seen.since.replace(microsecond=0) + MINUTE
    fire(db, seen, next_at=slot)
    return slot


def fired(db: Protocol, later: Later, **settings: Any) -> Slot:
    """A schedule that fired its first slot."""
    slot = planned(db, **settings)
    later(minutes=1)
    [seen] = due(db)
    [only] = fire(db, seen, slot)
    return only


def test_a_declared_schedule_waits_for_its_first_slot_to_be_found(db: Protocol) -> None:
    assert declare(db, {"name": "nightly", **DAILY}) == ["created"]

    [seen] = due(db)
    row = schedule(db)
    assert (seen.name, seen.next_at) == ("nightly", None)
    assert seen.since <= seen.now
    assert (row.kind, row.cron, row.tz, row.missed, row.overlap) == (
        *("report", "30 5 * * *", "UTC"),
        *("once", "queue"),
    )


@pytest.mark.proves("S2.5")
def test_a_slot_that_has_come_makes_one_job_that_says_whose_it_is(
    db: Protocol, later: Later
) -> None:
    options = {"priority": 7, "headers": {"by": "us"}, "lane": "axiom", "max_attempts": 5}
    slot = planned(db, payload={"n": 1}, queue="pricing", options=options)
    assert due(db) == []
    later(minutes=1)
    [seen] = due(db)

    [only] = fire(db, seen, slot)

    assert only.job is not None
    job = db.job(only.job)
    row = schedule(db)
    assert (only.slot, only.outcome) == (slot, "fired")
    assert (job.kind, job.queue, job.payload, job.priority) == ("report", "pricing", {"n": 1}, 7)
    assert (job.lane, job.max_attempts) == ("axiom", 5)
    assert job.headers == {
        "by": "us",
        "schedule": "nightly",
        "slot": slot.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    assert (row.last_at, row.last_job, row.next_at) == (slot, job.id, slot + MINUTE)
    assert row.fired == 1
    assert due(db) == []


def test_whoever_saw_it_due_and_comes_second_fires_nothing(db: Protocol, later: Later) -> None:
    slot = planned(db)
    later(minutes=1)
    [first], [second] = due(db), due(db)

    assert len(fire(db, first, slot)) == 1
    assert fire(db, second, slot) == []
    assert len(db.list()) == 1


def test_a_slot_is_fired_once_even_if_the_schedule_comes_back_to_it(
    db: Protocol, later: Later
) -> None:
    slot = fired(db, later).slot
    put(db, every=120)
    [seen] = due(db)
    fire(db, seen, next_at=slot)
    [again] = due(db)

    assert fire(db, again, slot) == []
    assert len(db.list()) == 1
    assert schedule(db).next_at == slot + MINUTE


def test_a_slot_in_the_future_is_not_fired_whatever_the_caller_thinks_the_time_is(
    db: Protocol, later: Later
) -> None:
    slot = planned(db)
    row = schedule(db)
    early = Due("nightly", 1, slot, slot, slot + MINUTE)

    assert fire(db, early, slot) == []
    assert schedule(db) == row
    later(minutes=1)
    assert fire(db, early, slot, slot + MINUTE) == []
    assert db.list() == []


def test_a_slot_computed_by_an_older_rule_is_not_fired(db: Protocol, later: Later) -> None:
    slot = planned(db)
    later(minutes=1)
    [seen] = due(db)
    put(db, every=90)

    assert fire(db, seen, slot) == []
    [fresh] = due(db)
    assert fresh.next_at is None
    assert fresh.revision > seen.revision
    assert fresh.since > seen.since


def test_an_older_rule_does_not_say_what_comes_next_even_if_it_waits_for_the_same_slot(
    db: Protocol, later: Later
) -> None:
    slot = planned(db)
    later(minutes=1)
    [stale] = due(db)
    put(db, every=90)
    [seen] = due(db)
    fire(db, seen, next_at=slot)
    [fresh] = due(db)
    assert fresh.next_at == stale.next_at

    assert fire(db, stale, slot, next_at=slot + MINUTE) == []
    assert len(fire(db, fresh, slot, next_at=slot + 1.5 * MINUTE)) == 1
    assert schedule(db).next_at == slot + 1.5 * MINUTE


def test_schedules_with_a_problem_do_not_stand_in_the_way_of_the_others(db: Protocol) -> None:
    for name in ("a", "b", "c", "d"):
        put(db, name, kind="k", cron="0 0 * * *")
    for name in ("a", "b", "c"):
        db.value("schedule_fault", name=name, revision=1, problem="?")

    [first] = db.call("schedule_due", max_schedules=1, columns=("name",))

    assert first.name == "d"


def test_next_at_lies_behind_the_slots(db: Protocol, later: Later) -> None:
    slot = planned(db)
    later(minutes=1)
    [seen] = due(db)

    with pytest.raises(psycopg.Error, match="is not after its slots") as refused:
        fire(db, seen, slot, next_at=slot)
    assert refused.value.sqlstate == "HF223"


def test_several_missed_slots_are_fired_in_one_call_in_their_order(
    db: Protocol, later: Later
) -> None:
    slot = planned(db, missed="all")
    later(minutes=5)
    [seen] = due(db)
    slots = [slot + n * MINUTE for n in range(5)]

    answered = fire(db, seen, *reversed(slots))

    assert [one.slot for one in answered] == slots
    assert len({one.job for one in answered}) == 5
    assert schedule(db).last_at == slots[-1]


def test_a_schedule_without_a_further_slot_is_never_due_again(db: Protocol, later: Later) -> None:
    put(db, kind="report", cron="0 0 29 2 *")
    [seen] = due(db)

    db.connection.execute(
        "select from holdfast.schedule_fire(name => 'nightly', expected_next => null,"
        " slots => '{}', next_at => null, revision => %s, problem => 'there is none')",
        [seen.revision],
    )
    later(days=9000)

    assert due(db) == []
    assert (schedule(db).next_at, schedule(db).problem) == (None, "there is none")


# -- overlap


@pytest.mark.proves("S2.27")
@pytest.mark.parametrize("running", [False, True])
def test_overlap_queue_enqueues_behind_the_last_job(
    running: bool, db: Protocol, later: Later
) -> None:
    first = fired(db, later, overlap="queue")
    if running:
        db.take()
    later(minutes=1)

    [second] = fire(db, *due(db), first.slot + MINUTE)

    assert second.outcome == "fired"
    assert len(db.list("state:queued,leased")) == 2


@pytest.mark.proves("S2.27")
@pytest.mark.parametrize("running", [False, True])
def test_overlap_skip_records_the_slot_and_makes_no_job(
    running: bool, db: Protocol, later: Later
) -> None:
    first = fired(db, later, overlap="skip")
    if running:
        db.take(lease=timedelta(hours=1))
    later(minutes=1)

    [second] = fire(db, *due(db), first.slot + MINUTE)

    row = schedule(db)
    assert (second.outcome, second.job) == ("skipped", None)
    assert (row.skipped, row.fired, row.last_job) == (1, 1, first.job)
    assert [job.id for job in db.list()] == [first.job]


@pytest.mark.parametrize("running", [False, True])
def test_overlap_cancel_cancels_the_last_job_and_says_why(
    running: bool, db: Protocol, later: Later
) -> None:
    first = fired(db, later, overlap="cancel")
    assert first.job is not None
    held = db.take(lease=timedelta(hours=1)) if running else None
    later(minutes=1)

    [second] = fire(db, *due(db), first.slot + MINUTE)

    gone = db.job(first.job)
    assert second.outcome == "fired"
    assert (gone.state, gone.reason) == ("cancelled", "schedule nightly: its next slot is due")
    if held:
        assert [answer.outcome for answer in db.ack(held)] == ["lost"]


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
@pytest.mark.parametrize("ending", ["ack", "dead"])
def test_a_last_job_that_has_ended_is_in_nobodys_way(
    overlap: str, ending: str, db: Protocol, later: Later
) -> None:
    first = fired(db, later, overlap=overlap, options={"max_attempts": 1})
    held = db.take()
    if ending == "ack":
        db.ack(held)
    else:
        db.nack(held, message="no")
    later(minutes=1)

    [second] = fire(db, *due(db), first.slot + MINUTE)

    assert second.outcome == "fired"
    assert db.list("state:cancelled") == []


def test_a_live_job_with_the_key_of_the_schedule_stands_for_the_slot(
    db: Protocol, later: Later
) -> None:
    id = db.put("report", key="one")

    only = fired(db, later, options={"key": "one"})

    assert (only.outcome, only.job) == ("duplicate", id)


def test_a_job_its_queue_refuses_is_recorded_and_the_schedule_goes_on(
    db: Protocol, later: Later
) -> None:
    slot = planned(db, payload={"text": "x" * 5000})
    db.queue_set("default", payload_limit=100)
    later(minutes=1)

    [only] = fire(db, *due(db), slot)

    row = schedule(db)
    assert (only.outcome, only.job) == ("refused", None)
    assert row.problem.startswith("HF210: payload of item 1 (report) is ")
    assert row.next_at == slot + MINUTE
    db.queue_set("default", payload_limit=100_000)
    later(minutes=1)
    assert [one.outcome for one in fire(db, *due(db), slot + MINUTE)] == ["fired"]
    assert schedule(db).problem is None


# -- pause, run, delete


def test_a_paused_schedule_fires_nothing_and_does_not_catch_up(db: Protocol, later: Later) -> None:
    slot = planned(db, missed="all")
    [paused] = db.call(
        "schedule_pause", name="nightly", reason="audit", actor="ada", columns=("state",)
    )
    later(minutes=10)

    assert paused.state == "paused"
    assert due(db) == []
    assert fire(db, Due("nightly", 1, slot, slot, slot), slot) == []
    db.call("schedule_resume", name="nightly", columns=("name",))
    [seen] = due(db)
    assert seen.next_at is None
    assert seen.since > slot + 5 * MINUTE


def test_resuming_what_is_not_paused_changes_nothing(db: Protocol) -> None:
    slot = planned(db)

    [row] = db.call("schedule_resume", name="nightly", columns=("state", "next_at"))

    assert row == ("active", slot)


@pytest.mark.proves("S2.6")
@pytest.mark.parametrize("paused", [False, True])
def test_run_enqueues_one_job_at_once_and_leaves_the_slots_alone(
    paused: bool, db: Protocol
) -> None:
    slot = planned(db, payload={"n": 1})
    if paused:
        db.call("schedule_pause", name="nightly", columns=("name",))

    [run] = db.call("schedule_run", name="nightly", actor="ada", columns=Slot._fields)

    job = db.job(run.job)
    row = schedule(db)
    assert run.outcome == "run"
    assert (job.kind, job.payload) == ("report", {"n": 1})
    assert job.headers == {"schedule": "nightly", "run_by": "ada"}
    assert (row.next_at, row.last_job, row.last_at) == (slot, job.id, None)


def test_a_run_in_the_very_instant_of_a_slot_does_not_take_its_place(db: Protocol) -> None:
    slot = planned(db)
    with db.connection.transaction(force_rollback=True):
        db.connection.execute(
            "create or replace function holdfast.now() returns timestamptz language sql stable as"
            f" $$ select '{slot.isoformat()}'::timestamptz $$"
        )
        db.call("schedule_run", name="nightly", columns=("job",))

        assert [one.outcome for one in fire(db, *due(db), slot)] == ["fired"]


def test_a_run_counts_as_the_last_job(db: Protocol, later: Later) -> None:
    slot = planned(db, overlap="skip")
    db.call("schedule_run", name="nightly", columns=("job",))
    later(minutes=1)

    assert [one.outcome for one in fire(db, *due(db), slot)] == ["skipped"]


def test_a_deleted_schedule_leaves_its_jobs(db: Protocol, later: Later) -> None:
    job = fired(db, later).job
    assert job is not None

    assert db.value("schedule_delete", name="nightly") is True
    assert db.value("schedule_delete", name="nightly") is False
    assert db.state(job) == "queued"
    assert db.table("select from holdfast.schedule_slots") == []


@pytest.mark.parametrize(
    ("verb", "column"), [("pause", "name"), ("resume", "name"), ("run", "job")]
)
def test_verbs_on_a_schedule_nobody_made_are_refused(verb: str, column: str, db: Protocol) -> None:
    with pytest.raises(psycopg.Error, match="no schedule is named 'nosuch'") as refused:
        db.call(f"schedule_{verb}", name="nosuch", columns=(column,))
    assert refused.value.sqlstate == "HF312"


def test_a_thousand_slots_are_remembered(db: Protocol, later: Later) -> None:
    slot = planned(db, every=1, missed="all")
    later(seconds=1200)
    [seen] = due(db)

    fire(db, seen, *[slot + timedelta(seconds=n) for n in range(1100)])

    rows = db.table("select min(slot), count(*) from holdfast.schedule_slots")
    assert rows == [(slot + timedelta(seconds=100), 1000)]
    assert schedule(db).fired == 1100


# -- declarations and edits


def test_the_same_declaration_changes_nothing(db: Protocol) -> None:
    declare(db, {"name": "nightly", **DAILY}, owner="shop")
    before = schedule(db)

    assert declare(db, {"name": "nightly", **DAILY}, owner="shop") == ["same"]
    assert schedule(db) == before


def test_an_edit_survives_the_same_declaration_until_the_declaration_changes(db: Protocol) -> None:
    declare(db, {"name": "nightly", **DAILY, "queue": "slow"})
    put(db, cron="0 7 * * *", payload={"n": 1})

    assert declare(db, {"name": "nightly", **DAILY, "queue": "slow"}) == ["edited"]
    edited = schedule(db)
    assert (edited.cron, edited.payload, edited.queue) == ("0 7 * * *", {"n": 1}, "slow")
    assert (edited.edited, edited.updated_by) == (True, "ada")

    assert declare(db, {"name": "nightly", **DAILY, "tz": "Europe/Paris"}) == ["changed"]
    fresh = schedule(db)
    assert (fresh.cron, fresh.payload, fresh.queue) == ("30 5 * * *", {}, "default")
    assert (fresh.tz, fresh.edited) == ("Europe/Paris", False)


def test_a_declaration_that_changes_no_rule_keeps_the_next_slot(db: Protocol) -> None:
    declare(db, {"name": "nightly", "kind": "report", "every": 60})
    [seen] = due(db)
    fire(db, seen, next_at=seen.now + MINUTE)
    before = schedule(db)

    declare(db, {"name": "nightly", "kind": "report", "every": 60, "payload": {"n": 2}})

    after = schedule(db)
    assert (after.next_at, after.anchor) == (before.next_at, before.anchor)
    assert after.payload == {"n": 2}


def test_a_pause_survives_a_changed_declaration(db: Protocol) -> None:
    declare(db, {"name": "nightly", **DAILY})
    db.call("schedule_pause", name="nightly", columns=("name",))

    declare(db, {"name": "nightly", **DAILY, "queue": "slow"})

    assert schedule(db).state == "paused"


def test_what_its_owner_declares_no_more_is_withdrawn_and_can_come_back(
    db: Protocol, later: Later
) -> None:
    hourly = {"name": "hourly", "kind": "tick", "cron": "0 * * * *"}
    declare(db, {"name": "nightly", **DAILY}, hourly, owner="shop")
    declare(db, {"name": "theirs", **DAILY}, owner="mail")
    declare(db, hourly, owner="shop")

    assert schedule(db).state == "withdrawn"
    assert {one.name for one in due(db)} == {"hourly", "theirs"}
    later(days=3)
    declare(db, {"name": "nightly", **DAILY}, hourly, owner="shop")
    back = next(one for one in due(db) if one.name == "nightly")
    assert back.next_at is None
    assert back.now - back.since < MINUTE


def test_what_a_program_without_a_name_declares_no_more_is_withdrawn(db: Protocol) -> None:
    """Known by its module and by a kind that both have: not by one of these alone."""
    nightly = {"name": "nightly", **DAILY}
    declare(db, nightly, origin=("tasks", ["report", "sync"]))
    declare(db, {"name": "imported", **DAILY})
    declare(db, {"name": "named", **DAILY}, owner="shop")

    for other in (("tasks", ["mail"]), ("jobs", ["report", "sync"]), ("tasks", [])):
        declare(db, origin=other)
    declare(db)
    assert schedule(db).state == "active"

    declare(db, origin=("tasks", ["sync", "new"]))
    assert schedule(db).state == "withdrawn"
    assert {schedule(db, name).state for name in ("imported", "named")} == {"active"}
    declare(db, nightly, origin=("tasks", ["sync"]))
    assert schedule(db).state == "active"


def test_the_last_schedule_of_an_owner_is_withdrawn_too(db: Protocol) -> None:
    declare(db, {"name": "nightly", **DAILY}, owner="shop")
    declare(db, owner="shop")
    assert schedule(db).state == "withdrawn"


def test_declarations_answer_in_their_order(db: Protocol) -> None:
    declare(db, {"name": "b", **DAILY})

    outcomes = declare(db, {"name": "c", **DAILY}, {"name": "b", **DAILY}, {"name": "a", **DAILY})

    assert outcomes == ["created", "same", "created"]


def test_an_interval_keeps_its_anchor_until_it_changes(db: Protocol, later: Later) -> None:
    put(db, kind="report", every=60, anchor="2026-01-01T00:00:30Z")
    put(db, payload={"n": 1}, every=60)
    assert schedule(db).anchor == datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)

    later(minutes=1)
    put(db, every=90)

    assert schedule(db).anchor > datetime(2026, 1, 2, tzinfo=UTC)


def test_cron_takes_the_place_of_every_and_back(db: Protocol) -> None:
    put(db, kind="report", every=60)
    put(db, cron="0 0 * * *")
    assert (schedule(db).every, schedule(db).anchor) == (None, None)

    put(db, every=60)
    assert schedule(db).cron is None


@pytest.mark.parametrize(
    ("settings", "code", "told"),
    [
        ({"cron": "0 0 * * *"}, "HF223", "schedule nightly has no kind"),
        ({"kind": "a"}, "HF223", "has neither cron nor every"),
        ({"kind": "a", "cron": "0 0 * * *", "every": 5}, "HF223", "has both cron and every"),
        ({"kind": "a", "cron": "0 0 * *"}, "HF223", "cron '0 0 * *' has 4 fields"),
        ({"kind": "a", "cron": 5}, "HF223", "cron 5 is not a text"),
        ({"kind": "a", "every": 0}, "HF223", "every 0 is out of range"),
        ({"kind": "a", "every": 1.5}, "HF223", "every 1.5 is out of range"),
        ({"kind": "a", "every": "5"}, "HF223", 'every "5" is out of range'),
        ({"kind": "a", "every": 1e12}, "HF223", "is out of range"),
        ({"kind": "a", "every": 60, "anchor": "noon"}, "HF223", "anchor 'noon' is not a time"),
        ({"kind": "a", "every": 60, "missed": "none"}, "HF223", "is not skip, once or all"),
        ({"kind": "a", "every": 60, "overlap": "none"}, "HF223", "is not queue, skip or cancel"),
        ({"kind": "a", "every": 60, "qeue": "b"}, "HF223", "setting 'qeue' is unknown"),
        ({"kind": "a", "every": 60, "options": {"delay": 5}}, "HF223", "option 'delay' is unknown"),
        ({"kind": "a", "every": 60, "options": {"headers": 5}}, "HF201", "headers of item 1"),
        ({"kind": "a", "every": 60, "options": {"priority": 10}}, "HF203", "priority 10"),
        ({"kind": "\n", "every": 60}, "HF202", "schedule nightly: kind of item 1"),
        ({"kind": "a", "every": 60, "queue": "q" * 121}, "HF202", "queue of item 1"),
        ([], "HF223", "settings must be a JSON object"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(
    settings: Any, code: str, told: str, db: Protocol
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        db.call("schedule_set", name="nightly", settings=Jsonb(settings), columns=("name",))

    assert refused.value.sqlstate == code
    assert told in str(refused.value)
    assert db.table("select from holdfast.schedules") == []


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ({"name": "a"}, "HF223"),
        ([{"kind": "a", "cron": "0 0 * * *"}], "HF202"),
        ([{"name": "a", "kind": "a"}], "HF223"),
        ([{"name": "a", **DAILY}, {"name": "b", **DAILY, "nonsense": 1}], "HF223"),
    ],
)
def test_declarations_are_stored_all_or_none(items: Any, code: str, db: Protocol) -> None:
    with pytest.raises(psycopg.Error) as refused:
        db.call("schedule_declare", items=Jsonb(items), columns=("name",))

    assert refused.value.sqlstate == code
    assert db.table("select from holdfast.schedules") == []


def test_a_declaration_must_be_whole_even_if_the_row_has_what_it_lacks(db: Protocol) -> None:
    declare(db, {"name": "nightly", **DAILY})

    for lacking in ({"cron": "0 0 * * *"}, {"kind": "report"}):
        with pytest.raises(psycopg.Error) as refused:
            declare(db, {"name": "nightly", **lacking})
        assert refused.value.sqlstate == "HF223"


def test_a_problem_is_remembered_and_the_schedule_stays_due(db: Protocol) -> None:
    put(db, kind="report", cron="@nonsense")
    [seen] = due(db)

    db.value("schedule_fault", name="nightly", revision=seen.revision, problem="unknown")
    db.value("schedule_fault", name="nightly", revision=seen.revision - 1, problem="outdated")

    assert schedule(db).problem == "unknown"
    assert [one.name for one in due(db)] == ["nightly"]
    put(db, cron="0 0 * * *")
    assert schedule(db).problem is None
