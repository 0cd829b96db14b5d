"""Type checkers follow a function's signature through options, calls and bulk."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOOR = Path(__file__).with_name("door.py")
REFUSED = {
    number
    for number, line in enumerate(DOOR.read_text("utf-8").splitlines(), 1)
    if line.endswith("# refused")
}


def test_mypy_reports_every_planted_error_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(DOOR)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.stderr == ""
    reported = re.findall(
        rf"^{re.escape(str(DOOR.relative_to(ROOT)))}:(\d+): error", done.stdout, re.MULTILINE
    )
    assert {int(line) for line in reported} == REFUSED, done.stdout


def test_pyright_reports_every_planted_error_and_nothing_else() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyright",
            "--outputjson",
            "--pythonpath",
            sys.executable,
            str(DOOR),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )

    reports = json.loads(done.stdout)["generalDiagnostics"]
    reported = {report["range"]["start"]["line"] + 1 for report in reports}
    assert reported == REFUSED, "\n".join(
        f"{report['range']['start']['line'] + 1}: {report['message']}" for report in reports
    )
