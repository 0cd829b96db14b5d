import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import PROGRAM, Run

APP = """
import holdfast

app = holdfast.App()


@app.task
def greet(name: str) -> None:
    print("hello", name, flush=True)
"""


def test_one_command_gives_a_database_the_dashboard_and_a_worker(
    program: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)

    with subprocess.Popen(
        [*PROGRAM, "dev", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        said = [process.stderr.readline() for _ in range(2)]
        while not said[-1].startswith("worker "):
            said.append(process.stderr.readline())
        program("job", "enqueue", "greet", '{"name": "Ada"}')
        greeted = process.stdout.readline()
        address = said[1].removeprefix("dashboard").strip()
        page, health = httpx.get(f"{address}/"), httpx.get(f"{address}/readyz")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)

    assert greeted == "hello Ada\n"
    assert said[0].startswith("using PostgreSQL ")
    assert "kinds: greet" in said[-1]
    assert page.headers["content-type"].startswith("text/html")
    assert (page.status_code, health.status_code) == (200, 200)
    assert process.returncode == 0


def test_without_an_app_it_says_where_it_looked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    ended = run("dev")

    assert ended.code == 2
    assert ended.err.startswith("HF240 no app found in app.py, main.py, ")
    assert not os.path.lexists(tmp_path / ".holdfast")


def test_a_database_of_ones_own_is_not_migrated_unasked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)

    ended = run("dev", "--url", empty_database)

    assert ended.code == 4
    assert ended.err.startswith("HF110 ")


def test_the_shop_of_the_examples_is_busy_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Path(__file__).parents[2] / "examples" / "shop" / "app.py"
    monkeypatch.chdir(tmp_path)

    with subprocess.Popen(
        [*PROGRAM, "dev", str(shop), "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        while not (line := process.stderr.readline()).startswith("dashboard"):
            assert process.poll() is None
        address = line.removeprefix("dashboard").strip()
        deadline = time.monotonic() + 120
        while not any(row["done"] for row in httpx.get(f"{address}/v1/queues").json()["queues"]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)

    assert process.returncode == 0
