import re
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.client import Client
from holdfast.records import NewJob, QueueSettings
from holdfast.records.fields import declared
from tests.cli.conftest import Run
from tests.conftest import Clock


def test_list_shows_what_waits_runs_and_died(holdfast: Run, client: Client) -> None:
    client.queues.set("mail", limit=4)
    client.queues.pause("report")
    for _ in range(3):
        client.enqueue("send", queue="mail")
    client.claim("mail", worker="w")

    table = holdfast("queue", "list").out
    document = holdfast("queue", "list", "--json").json

    rows = {line.split()[0]: line.split() for line in table.splitlines()}
    assert rows["queue"] == [
        "queue",
        "state",
        "oldest",
        "queued",
        "leased",
        "limit",
        "dead",
        "done",
        "success",
    ]
    assert rows["mail"][-6:] == ["2", "1", "4", "0", "0", "-"]
    assert rows["report"][1] == "paused"
    assert [(one["queue"], one["queued"], one["lease"]) for one in document] == [
        ("mail", 2, 30.0),
        ("report", 0, 30.0),
    ]


def test_show_names_settings_and_depth_by_kind(holdfast: Run, client: Client) -> None:
    client.queues.set("mail", keep_done=timedelta(days=7))
    client.enqueue("send", queue="mail")
    client.queues.pause("mail", reason="provider is down", actor="ada")

    text = holdfast("queue", "show", "mail").out
    document = holdfast("queue", "show", "mail", "--json").json

    assert "keep_done        7 d" in text
    assert "by ada (provider is down)" in text
    assert text.splitlines()[-1].split() == ["send", "queued", "1"]
    assert document["keep_done"] == 604800.0
    assert document["depth"] == [{"queue": "mail", "kind": "send", "state": "queued", "jobs": 1}]


@pytest.mark.proves("S2.26")
def test_list_and_show_tell_the_share_of_attempts_that_ended_well(
    holdfast: Run, client: Client, clock: Clock
) -> None:
    clock.begin_a_minute()
    client.enqueue_many(NewJob(kind=kind, queue="mail") for kind in ("send", "send", "print"))
    first, *others = client.claim("mail", worker="w", limit=3)
    client.ack(others)
    client.nack([first], delay=600)
    client.upkeep.run()

    listed = holdfast("queue", "list").out.splitlines()[1].split()
    shown = holdfast("queue", "show", "mail").out
    document = holdfast("queue", "show", "mail", "--json").json["success"]

    assert listed[-1] == "66.7%"
    assert "66.7% of the attempts of the last hour, 66.7% of the last day" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["send", "50.0%", "50.0%"] in rows
    assert ["print", "100.0%", "100.0%"] in rows
    assert [(one["kind"], one["done"], one["failed"]) for one in document["day"]] == [
        (None, 2, 1),
        ("print", 1, 0),
        ("send", 1, 1),
    ]


def test_a_queue_is_told_to_archive_by_itself(holdfast: Run, client: Client) -> None:
    holdfast("queue", "set", "mail", "keep_done=7d", "archive_dead=30d", "archive_done=1d")
    shown = holdfast("queue", "show", "mail").out
    refused = holdfast("queue", "set", "other", "archive_done=1d")

    assert "archive_dead     30 d" in shown
    assert "archive_done     1 d" in shown
    assert refused.code != 0
    assert "archive_done needs keep_done" in refused.err
    holdfast("queue", "set", "mail", "archive_dead=none")
    assert client.queues.get("mail").archive_dead is None


@pytest.mark.parametrize("command", ["show", "pause", "resume"])
def test_an_unknown_queue_is_answered_with_the_nearest(
    holdfast: Run, client: Client, command: str
) -> None:
    client.enqueue("send", queue="mail")

    answer = holdfast("queue", command, "mial")

    assert answer.code == 1
    assert "no queue is named 'mial' (did you mean `mail`?)" in answer.err
    assert [found.queue for found in client.queues.list()] == ["mail"]


def test_set_reads_every_setting_as_people_write_it(holdfast: Run, client: Client) -> None:
    answer = holdfast(
        *("queue", "set", "mail", "max_attempts=5", "lease=2m", "keep_done=7d"),
        *("payload_limit=1MB", "backoff=500ms", "backoff_cap=1h", "limit=4", "rate_limit=100"),
        *("rate_period=1m", "fair=on", "by_kind=yes", "lane_limit=2", "lane_on_failure=halt"),
        "fanout=4",
    )

    queue = client.queues.get("mail")
    assert answer.code == 0
    assert "queue mail is new" in answer.err
    assert queue is not None
    assert (queue.max_attempts, queue.limit, queue.rate_limit) == (5, 4, 100)
    assert (queue.fair, queue.by_kind, queue.lane_limit) == (True, True, 2)
    assert (queue.lane_on_failure, queue.fanout, queue.payload_limit) == ("halt", 4, 1048576)
    assert (queue.lease, queue.keep_done) == (timedelta(minutes=2), timedelta(days=7))
    assert (queue.backoff, queue.rate_period) == (timedelta(seconds=0.5), timedelta(minutes=1))


def test_the_help_names_every_setting(holdfast: Run) -> None:
    said = re.findall(r"\w+", holdfast("queue", "set", "--help").out)

    assert [one.name for one in declared(QueueSettings) if one.name not in said] == []


def test_a_limit_is_lifted_by_none(holdfast: Run, client: Client) -> None:
    client.queues.set("mail", limit=4)

    answer = holdfast("queue", "set", "mail", "limit=none")

    queue = client.queues.get("mail")
    assert answer.out == "limit  none\n"
    assert queue is not None
    assert queue.limit is None


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("lmit=3", "unknown setting 'lmit' (did you mean `limit`?)"),
        ("limit", "'limit' is not KEY=VALUE"),
        ("limit=many", "limit: 'many' is not a whole number"),
        ("limit=-1", "HF221"),
        ("lease=soon", "lease: 'soon' is not a duration"),
        ("fair=perhaps", "fair: 'perhaps' is neither on nor off"),
        ("payload_limit=1TB", "payload_limit: '1TB' is not a size"),
        ("lane_on_failure=explode", "HF221"),
        ("max_attempts=none", "HF221"),
    ],
)
def test_a_bad_setting_changes_nothing(
    holdfast: Run, client: Client, setting: str, told: str
) -> None:
    answer = holdfast("queue", "set", "mail", setting)

    assert answer.code == 2
    assert told in answer.err
    assert client.queues.list() == []


def test_a_queue_paused_for_a_while_says_until_when(holdfast: Run, client: Client) -> None:
    client.enqueue("send", queue="mail")

    answer = holdfast("queue", "pause", "mail", "--for", "10m", "--reason", "provider is down")

    queue = client.queues.get("mail")
    assert (answer.code, answer.out[:17]) == (0, "mail paused until")
    assert queue is not None
    assert queue.paused_reason == "provider is down"
    assert queue.paused_until is not None
    assert timedelta(minutes=9) < queue.paused_until - datetime.now(UTC) < timedelta(minutes=11)
    assert client.claim("mail", worker="w") == []


def test_resume_hands_out_jobs_again(holdfast: Run, client: Client) -> None:
    client.enqueue("send", queue="mail")
    client.queues.pause("mail")

    first = holdfast("queue", "resume", "mail")
    second = holdfast("queue", "resume", "mail")

    assert (first.code, first.out) == (0, "mail resumed\n")
    assert (second.code, second.out) == (0, "mail was not paused\n")
    assert len(client.claim("mail", worker="w")) == 1


def test_an_empty_database_says_how_to_begin(holdfast: Run) -> None:
    answer = holdfast("queue", "list")

    assert (answer.code, answer.out) == (0, "")
    assert "holdfast job enqueue" in answer.err


def test_a_pause_for_a_while_goes_by_the_clock_of_the_database(
    holdfast: Run, client: Client, clock: Clock
) -> None:
    client.enqueue("send", queue="mail")
    clock.advance(days=3)

    answer = holdfast("queue", "pause", "mail", "--for", "10m")
    during = client.claim("mail", worker="w")
    clock.advance(minutes=11)

    assert answer.code == 0
    assert during == []
    assert len(client.claim("mail", worker="w")) == 1


def test_a_queue_is_told_to_keep_no_recent_jobs(holdfast: Run, client: Client) -> None:
    usual = client.queues.set("mail").keep_recent

    answer = holdfast("queue", "set", "mail", "keep_recent=off")

    queue = client.queues.get("mail")
    assert queue is not None
    assert (usual, queue.keep_recent) == (True, False)
    assert answer.out.split() == ["keep_recent", "off"]
    assert "keep_recent" in holdfast("queue", "show", "mail").out
