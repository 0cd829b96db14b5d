import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.client import Client
from tests.cli.conftest import PROGRAM, Run


def test_the_demo_needs_nothing_and_ends_by_itself(
    program: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    shown = program("demo")

    lines = shown.out.splitlines()
    assert shown.code == 0
    assert "using PostgreSQL " in shown.err
    assert "embedded, .holdfast/pg" in shown.err
    assert {"hello Ada", "HELLO GRACE", "receipt for order 42"} <= set(lines)
    for event in ("queued", "duplicate", "leased", "failed", "done", "dead"):
        assert any(event in line.split() for line in lines)
    # the rate of success is that of the last fold, whenever that was
    assert lines[-2].split()[:-1] == ["demo", "active", "-", "0", "0", "-", "1", "8"]
    assert ": Dead since" in lines[-1]
    dead = lines[-1].partition(":")[0]
    assert f"holdfast job retry {dead}" in shown.err
    assert program("job", "retry", dead, "--quiet").out == f"{dead}  retried\n"


def test_the_lane_keeps_its_order_and_the_delay_is_kept(holdfast: Run) -> None:
    shown = holdfast("demo", "--json", "--quiet")

    events = shown.json["events"]
    lane = [one["event"] for one in events if one["kind"] == "price_run"]
    assert shown.code == 0
    assert shown.err == ""
    assert lane == ["queued"] * 3 + ["leased", "done"] * 3
    assert shown.json["interrupted"] is False
    assert shown.json["queues"][0]["dead"] == 1
    assert len(shown.json["dead"]) == 1


def test_ctrl_c_ends_it_cleanly_with_a_summary(database: str, client: Client) -> None:
    with subprocess.Popen(
        [*PROGRAM, "demo", "--url", database],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        shown = process.stdout.read()
        said = process.stderr.read()

    assert process.returncode == 0
    assert "queue  state" in shown
    assert "stopped after" in said
    assert "Traceback" not in said
    assert client.jobs.find("state:leased") == []
