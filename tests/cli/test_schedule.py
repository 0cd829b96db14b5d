import json
import signal
import subprocess
from datetime import datetime

import pytest

from holdfast.client import Client
from holdfast.records import NewSchedule
from holdfast.upkeep.loop import Upkeep
from tests.cli.conftest import PROGRAM, Run
from tests.conftest import Clock, Connect


@pytest.fixture
def nightly(client: Client) -> str:
    """A schedule that code declared."""
    rule = {"cron": "30 5 * * MON-FRI", "tz": "Europe/Paris"}
    client.schedules.declare([NewSchedule(name="nightly", kind="report", **rule)], owner="shop")
    Upkeep(client, holder="test").turn()
    return "nightly"


@pytest.mark.proves("S2.5")
def test_set_makes_a_schedule_and_says_when_it_comes(holdfast: Run, client: Client) -> None:
    answer = holdfast(
        *("schedule", "set", "process-pricing-queue"),
        *("kind=pricing", "cron=*/5 * * * *", "queue=slow", 'payload={"n": 1}'),
        *('options={"lane": "axiom"}', "missed=skip", "overlap=skip"),
    )

    made = client.schedules.get("process-pricing-queue")
    assert answer.code == 0
    assert "every fifth minute of every hour" in answer.out
    assert made is not None
    assert (made.kind, made.cron, made.queue, made.payload) == (
        *("pricing", "*/5 * * * *"),
        *("slow", {"n": 1}),
    )
    assert (made.options, made.missed, made.overlap) == ({"lane": "axiom"}, "skip", "skip")


def test_list_shows_the_rule_and_when_it_comes(holdfast: Run, client: Client, nightly: str) -> None:
    client.schedules.set("sync", kind="sync", every=300)

    answer = holdfast("schedule", "list")

    lines = answer.out.splitlines()
    assert lines[0].split()[:5] == ["schedule", "state", "runs", "zone", "next"]
    assert "nightly   active  30 5 * * MON-FRI  Europe/Paris  in " in lines[1]
    assert "sync      active  every 5 minutes   -" in lines[2]


def test_an_empty_list_says_what_makes_one(holdfast: Run) -> None:
    answer = holdfast("schedule", "list")

    assert (answer.code, answer.out) == (0, "")
    assert "holdfast schedule set" in answer.err


def test_show_tells_the_rule_in_english_its_next_slots_and_its_last(
    holdfast: Run, client: Client, nightly: str, clock: Clock
) -> None:
    clock.advance(days=4)
    Upkeep(client, holder="test").turn()

    answer = holdfast("schedule", "show", nightly)
    document = holdfast("schedule", "show", nightly, "--json").json

    assert "at 05:30 on Monday through Friday (Europe/Paris)" in answer.out
    assert "declared  by shop" in answer.out
    assert len(document["next"]) == 3
    assert [slot["outcome"] for slot in document["slots"]] == ["fired"]
    assert document["payload"] == {}


def test_show_warns_of_a_paused_queue_and_a_last_job_that_has_not_ended(
    holdfast: Run, client: Client, nightly: str
) -> None:
    job = client.schedules.run(nightly).job
    client.queues.pause("default")

    answer = holdfast("schedule", "show", nightly)

    assert f"queue default is paused; job {str(job)[-8:]} of its last slot is still queued" in (
        answer.out
    )


def test_next_shows_slots_by_the_clock_of_the_database(
    holdfast: Run, client: Client, clock: Clock
) -> None:
    client.schedules.set("yearly", kind="tick", cron="30 2 29 3 *", tz="Europe/Berlin")
    database = client.now()
    clock.advance(seconds=(datetime(2026, 1, 1, tzinfo=database.tzinfo) - database).total_seconds())

    answer = holdfast("schedule", "next", "yearly", "-n", 2)
    listed = holdfast("schedule", "next", "yearly", "-n", 2, "--json").json

    assert answer.out.splitlines() == [
        "Sun 2026-03-29 03:00:00 CEST  2026-03-29 01:00:00 UTC",
        "Mon 2027-03-29 02:30:00 CEST  2027-03-29 00:30:00 UTC",
    ]
    assert listed == ["2026-03-29T01:00:00Z", "2027-03-29T00:30:00Z"]


@pytest.mark.proves("S2.6")
def test_run_enqueues_a_job_at_once(holdfast: Run, client: Client, nightly: str) -> None:
    answer = holdfast("schedule", "run", nightly)

    [job] = client.jobs.list()
    assert answer.out == f"{str(job.id)[-8:]}  enqueued\n"
    assert job.headers["schedule"] == nightly
    assert job.headers["run_by"]


def test_pause_and_resume(holdfast: Run, client: Client, nightly: str) -> None:
    paused = holdfast("schedule", "pause", nightly, "--reason", "month-end")
    shown = holdfast("schedule", "show", nightly)
    resumed = holdfast("schedule", "resume", nightly)
    again = holdfast("schedule", "resume", nightly)

    assert paused.out == "nightly paused until resumed\n"
    assert "(month-end)" in shown.out
    assert resumed.out == "nightly resumed\n"
    assert again.out == "nightly was not paused\n"


def test_an_edit_is_kept_and_shown_as_such(holdfast: Run, client: Client, nightly: str) -> None:
    answer = holdfast("schedule", "set", nightly, "cron=0 7 * * *")

    assert answer.code == 0
    assert "edited later" in holdfast("schedule", "show", nightly).out
    found = client.schedules.get(nightly)
    assert found is not None
    assert (found.cron, found.tz, found.kind) == ("0 7 * * *", "Europe/Paris", "report")


def test_delete_asks_first(holdfast: Run, client: Client, nightly: str) -> None:
    refused = holdfast("schedule", "delete", nightly)
    assert (refused.code, refused.err.split()[0]) == (5, "HF401")

    assert holdfast("schedule", "delete", nightly, "--yes").out == "nightly deleted\n"
    assert client.schedules.list() == []


@pytest.mark.parametrize("verb", ["show", "next", "run", "pause", "resume", "delete"])
def test_a_name_that_is_almost_one_is_suggested(verb: str, holdfast: Run, nightly: str) -> None:
    answer = holdfast("schedule", verb, "nihgtly")

    assert answer.code == 1
    assert "HF312 no schedule is named 'nihgtly' (did you mean `nightly`?)" in answer.err


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("cron=61 * * * *", "HF223 schedule x: cron '61 * * * *': minute '61' is not valid"),
        ("tz=Europe/Pariss", "did you mean Europe/Paris?"),
        ("crom=1 * * * *", "did you mean `cron`?"),
        ("every=soon", "every: 'soon' is not a duration"),
        ("anchor=noon", "anchor: 'noon' is not a time"),
        ("payload={", "HF204 payload is not JSON"),
        ("cron", "'cron' is not KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, told: str, holdfast: Run) -> None:
    answer = holdfast("schedule", "set", "x", "kind=a", setting)

    assert answer.code == 2
    assert told in answer.err


def test_a_schedule_that_cannot_be_computed_says_why(
    holdfast: Run, client: Client, nightly: str, connect: Connect
) -> None:
    connect().execute("update holdfast.schedule set tz = 'Mars/Olympus', next_at = '-infinity'")
    Upkeep(client, holder="test").turn()

    assert "time zone 'Mars/Olympus' is unknown" in holdfast("schedule", "list").out
    assert "problem" in holdfast("schedule", "show", nightly).out


@pytest.mark.proves("S2.5")
def test_upkeep_alone_fires_schedules(database: str, client: Client) -> None:
    client.schedules.set("tick", kind="tick", every=1)
    command = [*PROGRAM, "upkeep", "--json", "--url", database]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline()).get("fired") != 1:
            pass
        process.send_signal(signal.SIGINT)
        process.stdout.read()

    assert client.jobs.list("kind:tick")
    assert process.returncode == 0


def test_one_turn_of_upkeep_says_what_it_fired(holdfast: Run, client: Client, clock: Clock) -> None:
    client.schedules.set("tick", kind="tick", every=60)
    holdfast("upkeep", "--once")
    clock.advance(minutes=1)

    assert holdfast("upkeep", "--once", "--json").json["fired"] == 1
