import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from holdfast import embedded, schema
from holdfast.client import Client
from tests.cli.conftest import PROGRAM, Run
from tests.conftest import Clock


def test_one_turn_takes_back_expired_leases(holdfast: Run, client: Client, clock: Clock) -> None:
    id = client.enqueue("greet").id
    client.claim(worker="w", lease=30)
    clock.advance(seconds=31)

    answer = holdfast("upkeep", "--once", "--json")

    job = client.jobs.get(id)
    assert answer.code == 0
    assert answer.json["reaped"] == 1
    assert job is not None
    assert job.state == "queued"


def test_one_turn_for_people_is_a_list(holdfast: Run) -> None:
    answer = holdfast("upkeep", "--once")

    assert answer.code == 0
    assert {line.split()[0] for line in answer.out.splitlines()} >= {"reaped", "promoted", "folded"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_turns_until_it_is_stopped_and_that_is_success(database: str, number: int) -> None:
    command = [*PROGRAM, "upkeep", "--every", "10ms", "--json", "--url", database]

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        turns = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(number)
        process.stdout.read()
        said = process.stderr.read()

    assert all("reaped" in turn for turn in turns)
    assert process.returncode == 0
    assert said == "upkeep until Ctrl-C\n"


def test_an_outage_is_told_once_and_so_is_its_end(tmp_path: Path) -> None:
    server = embedded.start(tmp_path / "pg")
    schema.migrate(server.url)
    command = [*PROGRAM, "upkeep", "--every", "10ms", "--json", "--url", server.url]

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        server.stop()
        process.stderr.readline()
        gone = process.stderr.readline()
        with embedded.start(tmp_path / "pg"):
            back = process.stderr.readline()
            time.sleep(0.3)  # it is told while the connection is being made
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            rest = process.stderr.read()

    assert gone.startswith("database unreachable: ")
    assert back.startswith("database reachable again after ")
    assert rest == ""
    assert process.returncode == 0


def test_started_during_an_outage_it_waits_for_the_database(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "pg") as server:
        schema.migrate(server.url)
        url = server.url
    command = [*PROGRAM, "upkeep", "--every", "10ms", "--json", "--url", url]

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        with embedded.start(tmp_path / "pg"):
            turn = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            process.stderr.read()

    assert said[0] == "upkeep until Ctrl-C\n"
    assert said[1].startswith("duty failed: ")
    assert "reaped" in turn
    assert process.returncode == 0
