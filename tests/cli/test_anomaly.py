"""holdfast anomaly, webhook, lane, doctor, top, and queue explain and forecast."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast.cli import main
from holdfast.client import Client
from tests.cli.conftest import Run
from tests.conftest import Clock, Connect

# The package has the command of that name in its place.
top: Any = import_module("holdfast.cli.top")


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def died(client: Client) -> str:
    """The id of an anomaly: a job died."""
    client.enqueue("send", queue="mail", max_attempts=1)
    client.nack(client.claim("mail", worker="w"), error_kind="Timeout", message="30 s")
    [change] = client.detectors.run(["job_died"])
    assert change.id
    return change.id


def test_list_and_show(holdfast: Run, died: str) -> None:
    listed = holdfast("anomaly", "list")
    shown = holdfast("anomaly", "show", died)
    document = holdfast("anomaly", "show", died, "--json").json

    assert listed.out.splitlines()[0].split() == ["id", "severity", "code", "for", "state", "what"]
    assert f"{died}  warning   job_died" in listed.out
    assert "1 send died" in listed.out
    assert "type      holdfast dead groups" in shown.out
    assert '"count": 1' in shown.out
    assert document["evidence"]["count"] == 1
    assert holdfast("anomaly", "list", "--over").err == "no resolved anomalies\n"


def test_an_unknown_anomaly(holdfast: Run) -> None:
    for command in ("show", "ack"):
        ended = holdfast("anomaly", command, "nonsense")
        assert ended.code == 1
        assert ended.err.startswith("HF319 no anomaly has the id nonsense")
    assert holdfast("anomaly", "list").err == "no anomalies\n"


def test_ack_mute_and_unmute(holdfast: Run, client: Client, died: str) -> None:
    acked = holdfast("anomaly", "ack", died, "--note", "on it")
    muted = holdfast("anomaly", "mute", "job_died", "--queue", "mail", "--for", "1d")
    listed = holdfast("anomaly", "list")
    unmuted = holdfast("anomaly", "unmute", "job_died", "--queue", "mail")
    again = holdfast("anomaly", "unmute", "job_died", "--queue", "mail")

    found = client.anomalies.get(died)
    assert found is not None
    assert acked.out == f"{died} acknowledged by {found.acked_by}\n"
    assert found.note == "on it"
    assert muted.out.startswith("job_died muted until 2")
    assert "  muted  " in listed.out
    assert (unmuted.out, again.out) == ("job_died unmuted\n", "job_died was not muted\n")
    assert "acknowledged by" in holdfast("anomaly", "list").out
    assert holdfast("anomaly", "mute", "nonsense").err.startswith("HF227 no detector is called")


def test_detectors_and_their_thresholds(holdfast: Run) -> None:
    usual = holdfast("anomaly", "detectors").out
    changed = holdfast("anomaly", "set", "late", "seconds=60", "--queue", "mail")
    off = holdfast("anomaly", "set", "job_died", "enabled=off", "jobs=3")
    back = holdfast("anomaly", "set", "job_died", "enabled=none", "jobs=none", "--json").json

    assert "flash_job" in usual
    assert changed.out == "seconds  60.0\n"
    assert off.out.splitlines() == ["enabled  False", "jobs     3.0", "seconds  300"]
    assert (back["enabled"], back["thresholds"]["jobs"]) == (True, 1)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("seconds", "'seconds' is not KEY=VALUE"),
        ("seconds=soon", "seconds: 'soon' is not a number"),
        ("enabled=perhaps", "enabled:"),
        ("hours=1", "HF221 setting 'hours' of detector late cannot be 1"),
    ],
)
def test_a_setting_that_is_none(holdfast: Run, setting: str, told: str) -> None:
    ended = holdfast("anomaly", "set", "late", setting)

    assert ended.code == 2
    assert told in ended.err


def test_webhooks(holdfast: Run, client: Client) -> None:
    nobody = holdfast("webhook", "list")
    made = holdfast("webhook", "set", "ops", "https://example.org/hook", "--code", "job_died")
    changed = holdfast("webhook", "set", "ops", "https://example.org/other", "--severity", "info")
    listed = holdfast("webhook", "list")
    wrong = holdfast("webhook", "set", "ops", "example.org")
    deleted = holdfast("webhook", "delete", "ops")
    again = holdfast("webhook", "delete", "ops")

    assert nobody.err == "no webhooks yet; add one with  holdfast webhook set NAME URL\n"
    assert len(made.out) == 65
    assert "not shown again" in made.err
    assert changed.out == "ops changed\n"
    assert listed.out.splitlines()[1].split() == [
        *("ops", "info", "all", "all", "https://example.org/other"),
    ]
    assert wrong.err.startswith("HF221 settings")
    assert (deleted.out, again.out) == ("ops deleted\n", "no webhook is named ops\n")


def test_a_secret_of_ones_own_is_not_printed(holdfast: Run, client: Client) -> None:
    ended = holdfast("webhook", "set", "ops", "http://a/", "--secret", "x" * 20, "--json")

    assert "secret" not in ended.json
    assert client.webhooks.target("ops") == ("http://a/", "x" * 20)


@pytest.mark.parametrize("way", ["file", "stdin", "variable"])
def test_a_secret_need_not_stand_on_the_command_line(
    holdfast: Run, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    secret = f"kept in a {way}, with ünusual letters"
    given: tuple[str, ...] = ()
    if way == "file":
        (tmp_path / "secret").write_text(f"{secret}\n", "utf-8")
        given = ("--secret", f"@{tmp_path}/secret")
    elif way == "stdin":
        given = ("--secret", "-")
    else:
        monkeypatch.setenv("HOLDFAST_WEBHOOK_SECRET", secret)

    ended = holdfast(
        *("webhook", "set", "ops", "http://a/", *given),
        stdin=f"{secret}\n" if way == "stdin" else None,
    )

    assert (ended.code, secret in ended.out + ended.err) == (0, False)
    assert client.webhooks.target("ops") == ("http://a/", secret)


def test_a_file_of_a_secret_that_is_not_there_is_named(holdfast: Run, client: Client) -> None:
    ended = holdfast("webhook", "set", "ops", "http://a/", "--secret", "@/nosuch/secret")

    assert ended.code == 2
    assert "@/nosuch/secret: No such file" in ended.err
    assert client.webhooks.list() == []


def test_a_lane_is_explained(holdfast: Run, client: Client) -> None:
    assert holdfast("lane", "list").err == "no lanes\n"
    client.enqueue("a", lane="l")
    client.enqueue("a", lane="l")
    [held] = client.claim(worker="w1")

    listed = holdfast("lane", "list").out.splitlines()[1].split()
    told = holdfast("lane", "explain", "default", "l").out
    document = holdfast("lane", "explain", "default", "l", "--json").json

    assert listed[:5] == ["default", "l", "busy", "1/1", "1"]
    assert told.startswith(f"Lane l is busy: job {held.id} runs on w1 until ")
    assert document["explain"] in told


def test_a_queue_is_explained_and_forecast(holdfast: Run, client: Client, clock: Clock) -> None:
    client.enqueue_many(_jobs(120))
    client.upkeep.run()
    client.detectors.run()
    clock.advance(seconds=10)
    client.ack(client.claim(worker="w1", limit=20))
    client.claim(worker="w1", limit=2)
    client.detectors.run()

    told = holdfast("queue", "forecast", "default", "--target", "10m")
    document = holdfast("queue", "forecast", "--json").json
    explained = holdfast("queue", "explain", "default")

    assert told.out.startswith("Queue default will be empty at ")
    assert re.search(r"0 jobs arrive and ([01]\.\d+|1|2) finish per second", told.out)
    assert "would empty it in 00:10:00." in told.out
    # Twenty in ten seconds, and in whatever time has passed since.
    assert 0 < document[0]["finishing"] <= 2.0
    assert re.match(
        r"98 jobs wait in queue default, the first for \d+ s; 2 running\."
        r" Queue default will be empty",
        explained.out,
    )
    assert holdfast("queue", "forecast", "nonsense").err.startswith("HF311")
    assert holdfast("queue", "explain", "nonsense").err.startswith("HF311")


def test_a_queue_that_also_fills_takes_longer_to_be_drained(
    holdfast: Run, client: Client, clock: Clock
) -> None:
    client.enqueue_many(_jobs(180))
    client.detectors.run()
    clock.advance(seconds=20)
    client.ack(client.claim(worker="w1", limit=60))
    client.enqueue_many(_jobs(20))
    client.detectors.run()

    now = client.now()
    [told] = holdfast("queue", "forecast", "--json").json
    left = datetime.fromisoformat(told["drained_at"]) - now

    # 140 wait, three are finished a second and one arrives: 70 seconds, not 47.
    assert told["waiting"] == 140
    assert told["finishing"] == pytest.approx(3 * told["arriving"], rel=0.01)
    at_this_pace = told["waiting"] / (told["finishing"] - told["arriving"])
    assert left.total_seconds() == pytest.approx(at_this_pace, abs=10)


def test_a_queue_that_fills_is_never_drained(holdfast: Run, client: Client, clock: Clock) -> None:
    client.enqueue("a")
    client.detectors.run()
    clock.advance(seconds=20)
    client.enqueue_many(_jobs(40))
    client.upkeep.run()
    client.detectors.run()

    told = holdfast("queue", "forecast", "default").out

    assert re.fullmatch(
        r"Queue default will never be empty at this pace:"
        r" (1\.\d|2) jobs arrive and 0 finish per second\.\n",
        told,
    )


def test_the_doctor_finds_a_healthy_database_healthy(holdfast: Run, client: Client) -> None:
    client.upkeep.run()
    ended = holdfast("doctor")
    document = holdfast("doctor", "--json")

    # the server of the tests is faster and less careful than one should be
    found = {one["name"]: one for one in document.json}
    assert ended.code == document.code == 0
    assert {one["level"] for one in document.json} == {"ok", "warn"}
    assert found["settings"]["what"] == "fsync is off, full_page_writes is off"
    assert "ok    connection     PostgreSQL " in ended.out
    assert found["pooling"]["what"] == "a direct connection"
    assert found["listen"]["what"] == "notifications arrive"
    assert found["workers"]["what"].startswith("0 workers may open up to 0 connections; the server")
    for one in document.json:
        assert one["why"]
        assert one["level"] == "ok" or one["fix"]


def test_the_doctor_finds_what_is_wrong_and_fails(
    holdfast: Run, client: Client, clock: Clock, connect: Connect
) -> None:
    client.enqueue("send_sms")
    client.upkeep.run()
    clock.advance(minutes=2)
    connect().execute("alter table holdfast.job set (autovacuum_enabled = off)")
    ended = holdfast("doctor")
    found = {one["name"]: one for one in holdfast("doctor", "--json").json}

    assert ended.code == 1
    assert "no running worker handles send_sms in default" in ended.out
    assert (found["upkeep"]["level"], found["upkeep"]["fix"]) == ("fail", "holdfast upkeep")
    assert (found["clock"]["level"], found["clock"]["fix"]) == ("warn", "timedatectl status")
    assert found["autovacuum"]["fix"] == "alter table holdfast.job reset (autovacuum_enabled);"
    assert "alter table holdfast.job reset" in ended.out


def test_the_doctor_without_a_schema_and_without_a_database(run: Run, empty_database: str) -> None:
    bare = run("doctor", "--url", empty_database)
    away = run("doctor", "--url", "postgresql://127.0.0.1:1/none")

    assert bare.code == 4
    assert "fail  schema" in bare.out
    assert "holdfast migrate" in bare.out
    assert away.code == 3
    assert away.err.startswith("HF100")


def test_top_is_one_frame_when_piped(holdfast: Run, client: Client, died: str) -> None:
    client.workers.beat("web1", host="web1", queues=["mail"], kinds=["send"], slots=8, busy=3)
    client.enqueue("send", queue="mail")
    frame = holdfast("top").out
    document = holdfast("top", "--json").json

    assert "1 waiting   0 leased   1 dead   1 worker, 3 of 8 slots busy" in frame
    assert "▲ 1 send died" in frame
    assert "mail   active" in frame
    assert "web1    web1  3/8" in frame
    assert "\x1b[H" not in frame
    assert sorted(document) == ["anomalies", "forecasts", "queues", "workers"]


def test_top_of_an_empty_database(holdfast: Run) -> None:
    assert "no queue" in holdfast("top", "--once").out


def test_top_draws_over_itself_until_interrupted(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.enqueue("send", queue="mail")
    naps = iter([None, None])

    def nap(seconds: float) -> None:
        if next(naps, "enough") == "enough":
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", nap)
    top._watch(client, 0.1)

    drawn = capsys.readouterr().out
    assert drawn.count("\x1b[H\x1b[J") == 3
    assert drawn.count("mail   active") == 3
    assert drawn.endswith("\x1b[?1049l")


def test_top_is_one_frame_on_a_terminal_that_obeys_no_sequences(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(top, "sequences_obeyed", lambda: nullcontext(enter_result=False))
    monkeypatch.setattr(top.time, "sleep", Mock(side_effect=KeyboardInterrupt))

    main(["--url", database, "top"], standalone_mode=False)

    drawn = capsys.readouterr().out
    assert "no queue" in drawn
    assert "\x1b" not in drawn


def _jobs(count: int) -> Any:
    from holdfast import NewJob

    return [NewJob(kind="a") for _ in range(count)]


def test_the_forecast_has_a_target(client: Client) -> None:
    client.enqueue("a")

    [found] = client.queues.forecast("default", target=timedelta(minutes=1))

    assert found.sentence.startswith("No forecast for queue default yet")
    assert json.dumps(found.slots_needed) == "null"


def test_a_mute_for_a_while_goes_by_the_clock_of_the_database(holdfast: Run, clock: Clock) -> None:
    clock.advance(days=3)

    answer = holdfast("anomaly", "mute", "late", "--for", "1d")

    assert answer.code == 0


def test_a_secret_comes_from_a_file_from_standard_input_or_from_the_environment(
    holdfast: Run, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "secret"
    kept.write_text("s" * 20 + "\n")
    by_file = holdfast("webhook", "set", "a", "http://a/", "--secret", f"@{kept}", "--json")
    monkeypatch.setenv("HOLDFAST_WEBHOOK_SECRET", "e" * 20)
    by_environment = holdfast("webhook", "set", "b", "http://b/", "--json")

    assert (by_file.code, by_environment.code) == (0, 0)
    assert client.webhooks.target("a") == ("http://a/", "s" * 20)
    assert client.webhooks.target("b") == ("http://b/", "e" * 20)
