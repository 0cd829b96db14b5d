"""A program that runs workers itself ends as the command does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.grammar import Program
from holdfast.errors import CannotConnect, HoldfastError

NOWHERE = "postgresql://ada:secret@127.0.0.1:1/shop"
APP = """
from holdfast import App

app = App()

@app.task
def greet() -> None: ...

"""
RUNS = f'{APP}if __name__ == "__main__":\n    app.run(until_idle=True)\n'


@pytest.mark.parametrize("url", [NOWHERE, "mysql://db/shop", "nonsense", "no schema"])
def test_a_program_ends_with_the_message_and_the_code_of_the_command(
    tmp_path: Path, url: str, empty_database: str
) -> None:
    (tmp_path / "shop.py").write_text(RUNS)
    url = empty_database if url == "no schema" else url

    by_program = _run(tmp_path, url, "shop.py")
    by_command = _run(tmp_path, url, "-m", "holdfast", "worker", "shop.py", "--until-idle")

    assert (by_program.returncode, by_program.stderr) == (by_command.returncode, by_command.stderr)
    assert by_program.returncode in (2, 3, 4)
    assert by_program.stderr.startswith("HF")
    assert len(by_program.stderr.splitlines()) in (2, 3)


def test_the_traceback_is_shown_on_request(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(RUNS)

    ended = _run(tmp_path, NOWHERE, "shop.py", HOLDFAST_DEBUG="1")

    assert ended.returncode == 3
    assert "Traceback (most recent call last):" in ended.stderr


def test_what_run_raises_can_be_caught_and_is_forgotten_then(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        APP
        + "import holdfast\n"
        + "try:\n    app.run(until_idle=True)\n"
        + "except holdfast.HoldfastError as error:\n    print(type(error).__name__)\n"
        + "greet.options(conn=42).enqueue()\n"
    )

    ended = _run(tmp_path, NOWHERE, "shop.py")

    assert ended.stdout == f"{CannotConnect.__name__}\n"
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, True)


def test_a_program_keeps_the_exception_hook_of_its_own(tmp_path: Path) -> None:
    hook = "import sys\nsys.excepthook = lambda kind, *_: print(kind.__name__)\n"
    (tmp_path / "shop.py").write_text(hook + RUNS)

    ended = _run(tmp_path, NOWHERE, "shop.py")

    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "CannotConnect\n", "")


def test_every_error_has_an_exit_code_that_help_names() -> None:
    from holdfast.cli import main

    assert isinstance(main, Program)
    pending, codes = [HoldfastError], set()
    while pending:
        kind = pending.pop()
        codes.add(kind.exit_code)
        pending += kind.__subclasses__()
    assert sorted(codes) == [1, 2, 3, 4, 5]
    assert "1 failed, 2 usage, 3 no database, 4 not migrated, 5 refused" in (main.help or "")


def _run(
    directory: Path, url: str, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**plain, "HOLDFAST_URL": url, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
