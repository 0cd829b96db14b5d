import json
import subprocess
from typing import Any

import pytest

from holdfast.client import Client
from holdfast.records import Failed, NewStep, Suspended
from tests.cli.conftest import PROGRAM, Run


def fail(client: Client, message: str = "no route") -> Any:
    job = client.enqueue("send", {"to": "ada"}, queue="mail", max_attempts=1)
    client.nack(client.claim("mail", worker="w1"), error_kind="Timeout", message=message)
    return job.id


@pytest.mark.proves("S4.10")
def test_tail_shows_who_did_what_and_why_the_newest_last(holdfast: Run, client: Client) -> None:
    id = fail(client)
    client.jobs.retry([id], reason="route is back", actor="eve")
    client.queues.pause("mail", reason="deploy", actor="eve")

    lines = holdfast("event", "tail").out.splitlines()

    assert len(lines) == 3
    assert "nacked" in lines[0]
    assert "-> dead  by w1  Timeout: no route" in lines[0]
    assert f"retried     {str(id)[-8:]}  send in mail  -> queued  by eve  route is back" in lines[1]
    assert "paused" in lines[2]
    assert "by eve  deploy" in lines[2]


def test_tail_can_be_narrowed(holdfast: Run, client: Client) -> None:
    first, second = fail(client), fail(client)
    client.jobs.retry([first], actor="eve")

    assert len(holdfast("event", "tail", "--event", "nacked").out.splitlines()) == 2
    assert len(holdfast("event", "tail", "--job", second).out.splitlines()) == 1
    assert len(holdfast("event", "tail", "--actor", "eve", "-q", "mail").out.splitlines()) == 1
    assert len(holdfast("event", "tail", "-n", 2).out.splitlines()) == 2
    nothing = holdfast("event", "tail", "--worker", "nobody")
    assert (nothing.out, nothing.err) == ("", "no matching events\n")


def test_tail_follows_what_happens_next(database: str, client: Client) -> None:
    fail(client, "before")
    command = [*PROGRAM, "event", "tail", "--follow", "--json", "--url", database]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["reason"] == "Timeout: before"
        for n in range(3):
            fail(client, f"after {n}")
            assert json.loads(process.stdout.readline())["reason"] == f"Timeout: after {n}"
        process.kill()


@pytest.mark.proves("S4.10")
def test_export_prints_every_event_once_the_oldest_first(holdfast: Run, client: Client) -> None:
    client.queues.set("mail", activity="all")
    for n in range(1100):
        client.enqueue("send", {"n": n}, queue="mail")

    told = [json.loads(line) for line in holdfast("event", "export", "-q", "mail").out.splitlines()]

    assert [one["event"] for one in told] == ["queue_set", *["enqueued"] * 1100]
    places = [one["seq"] for one in told]
    assert places == sorted(set(places))
    assert holdfast("event", "export", "--since", "1d", "--kind", "other").out == ""


def test_job_show_has_the_history_and_the_log_of_the_last_attempt(
    holdfast: Run, client: Client
) -> None:
    client.enqueue("send", queue="mail", max_attempts=1)
    [lease] = client.claim("mail", worker="w1")
    client.settle([Failed(lease, "Timeout", "no route", log="12:00 INFO shop: asked for a route")])
    client.jobs.retry([lease.id], actor="eve", reason="route is back")

    shown = holdfast("job", "show", lease.id).out
    document = holdfast("job", "show", lease.id, "--json").json

    assert "log of attempt 1\n  12:00 INFO shop: asked for a route" in shown
    assert "history\n" in shown
    assert "route is back" in shown
    assert [one["event"] for one in document["events"]] == ["nacked", "retried"]
    assert document["attempts"][0]["log"] == "12:00 INFO shop: asked for a route"


def test_strikes_are_added_listed_and_lifted(holdfast: Run, client: Client) -> None:
    client.enqueue("send", {"to": "ada"}, queue="mail")
    rule = ["--kind", "send", "--payload", '{"to": "ada"}', "--for", "1h", "--reason", "down"]
    added = holdfast("strike", "add", *rule)
    assert added.out.startswith('strike 1: hold kind send, payload {"to": "ada"} until ')
    assert client.claim("mail", worker="w") == []

    listed = holdfast("strike", "list").out
    assert "down" in listed
    assert listed.splitlines()[1].split()[:2] == ["1", "hold"]
    assert "Held back by strike 1" in holdfast("job", "explain", client.jobs.find("")[0]).out

    assert holdfast("strike", "lift", 1).out == "strike 1 is over\n"
    assert len(client.claim("mail", worker="w")) == 1
    assert holdfast("strike", "list").err == "no active strikes\n"
    assert holdfast("strike", "list", "--all", "--json").json[0]["in_force"] is False
    wrong = holdfast("strike", "add", "--reason", "everything")
    assert (wrong.code, "HF228" in wrong.err) == (2, True)


def test_a_sent_event_wakes_its_job_whose_steps_are_shown(holdfast: Run, client: Client) -> None:
    id = client.enqueue("refund").id
    [lease] = client.claim(worker="w1")
    client.steps.store([(lease, NewStep("charge", b'{"receipt": 7}', 1, 0.5))])
    client.settle([Suspended(lease, "approval", 2, event="approved", key="42")])
    assert "approval" in holdfast("job", "show", id).out

    assert holdfast("event", "send", "approved", '{"by": "Ada"}', "--key", "42").out == (
        "sent approved\n"
    )

    assert [again.id for again in client.claim(worker="w1")] == [id]
    shown = json.loads(holdfast("job", "show", id, "--json").out)["steps"]
    assert [one["result"] for one in shown] == [{"receipt": 7}, {"by": "Ada"}]
