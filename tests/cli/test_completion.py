import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_and_where_to_keep_it(run: Run, shell: str) -> None:
    answer = run("completion", shell)

    assert answer.code == 0
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in answer.out
    assert f"holdfast completion {shell} > " in answer.err
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
