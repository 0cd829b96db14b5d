"""The example does what its page says."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "report_jobs"

Connect = Callable[..., psycopg.Connection]


@pytest.mark.proves("S1.8")
def test_a_table_of_reports_is_adopted_and_every_report_made_once(
    database: str, connect: Connect
) -> None:
    page = (EXAMPLE / "README.md").read_text("utf-8")
    typed = [line[2:].split() for line in page.splitlines() if line.startswith("$ ")]
    typed = [arguments for arguments in typed if arguments[0] != "pip"]

    for program, *arguments in typed:
        module = ["-m", "holdfast"] if program == "holdfast" else []
        done = subprocess.run(
            [sys.executable, *module, *arguments],
            cwd=EXAMPLE.parents[1],
            env={**os.environ, "HOLDFAST_URL": database},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr

    assert connect().execute("select status, count(*) from jobs group by 1").fetchall() == [
        ("completed", 18)
    ]
    assert connect().execute("select count(*), count(distinct job_id) from report").fetchone() == (
        18,
        18,
    )
    [(chart,)] = connect().execute("select chart from report where title = 'Oslo, March 2026'")
    assert len(chart) == 31
