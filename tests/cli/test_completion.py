import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem

from holdfast.cli import main
from holdfast.cli.completion import PowerShell
from tests.cli.conftest import PROGRAM, Run

SHELLS = ["bash", "zsh", "fish", "powershell"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed_and_where_to_keep_it(run: Run, shell: str) -> None:
    answer = run("completion", shell)

    assert answer.code == 0
    assert re.search(f'_HOLDFAST_COMPLETE ?= ?"?{shell}_complete', answer.out)
    assert re.search(f"holdfast completion {shell} [>|] ", answer.err)
    assert run("completion", shell, "--json").json["script"].strip() == answer.out.strip()


def test_another_shell_is_refused_with_those_there_are(run: Run) -> None:
    answer = run("completion", "tcsh")

    assert answer.code == 2
    assert "bash" in answer.err


def test_the_program_answers_what_the_script_asks() -> None:
    asked = {
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": "holdfast job re",
        "COMP_CWORD": "2",
    }

    done = subprocess.run(
        PROGRAM, env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["plain,retry"]


@pytest.mark.parametrize(
    ("before", "begun", "completed"),
    [
        ("holdfast\njob", "re", ["plain\tretry\t"]),
        ("holdfast\njob", '"re', ["plain\tretry\t"]),
        ("holdfast\ncompletion", None, [f"plain\t{one}\t{one}" for one in SHELLS]),
        ("holdfast\nworker", "--recycle-r", ["plain\t--recycle-rss\ta fresh process above that"]),
        ("holdfast\nqueue\nset\na name with blanks", "--no-such", []),
    ],
)
def test_powershell_gets_the_type_the_value_and_the_help_of_each(
    before: str, begun: str | None, completed: list[str]
) -> None:
    asked = {"_HOLDFAST_COMPLETE": "powershell_complete", "COMP_WORDS": before}
    if begun is not None:  # PowerShell sets no variable without text
        asked["COMP_CWORD"] = begun

    done = subprocess.run(
        PROGRAM, env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )

    lines = [line for line in done.stdout.splitlines() if line]
    assert len(lines) == len(completed)
    assert all(map(str.startswith, lines, completed)), lines
    assert all(len(line.split("\t")) == 3 and line.split("\t")[2] for line in lines)


def test_a_value_with_blanks_is_quoted_as_powershell_reads_it() -> None:
    item: CompletionItem[str] = CompletionItem("the boss's queue", help="of\n two\tlines")

    line = PowerShell(main, {}, "holdfast", "_HOLDFAST_COMPLETE").format_completion(item)

    assert line == "plain\t'the boss''s queue'\tof two lines"


@pytest.mark.skipif(not shutil.which("pwsh"), reason="needs PowerShell")
def test_powershell_completes_commands(run: Run, tmp_path: Path) -> None:
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (tmp_path / "holdfast").chmod(0o755)
    line = "holdfast queue pau"
    script = run("completion", "powershell").out + (
        f"\n(TabExpansion2 '{line}' {len(line)}).CompletionMatches.CompletionText"
    )

    done = subprocess.run(
        ["pwsh", "-NoProfile", "-Command", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "pause"


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_commands(run: Run, tmp_path: Path) -> None:
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (tmp_path / "holdfast").chmod(0o755)
    script = run("completion", "bash").out + (
        "\nCOMP_WORDS=(holdfast queue pau) COMP_CWORD=2\n"
        '_holdfast_completion holdfast pau queue\necho "${COMPREPLY[@]}"\n'
    )

    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "pause"
