"""What a worker shows, and to whom."""

import json
import logging
import re
from uuid import uuid4

import pytest

from holdfast.worker.screen import MOST_LINES, Screen

log = logging.getLogger("holdfast.worker")
FACTS = {"job": str(uuid4()), "kind": "greet", "attempt": 1, "max_attempts": 3}


def test_more_lines_than_anybody_reads_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen("lines").shown():
        for _ in range(MOST_LINES + 1000):
            log.debug("done", extra={**FACTS, "seconds": 0.004})
        log.warning("job died", extra={**FACTS, "error": "ValueError: no"})

    *lines, last, rest = capsys.readouterr().err.splitlines()
    assert len(lines) == MOST_LINES
    assert re.search(r"  greet  \w{8}  done      4 ms$", lines[0])
    # A failure is always shown.
    assert last.endswith("dead      attempt 1/3  ValueError: no")
    assert rest.endswith("  … and 1000 done")


@pytest.mark.parametrize(
    ("screen", "each_job"),
    [
        (Screen("lines"), True),
        (Screen("json"), True),
        (Screen("log"), False),
        (Screen("lines", quiet=True), False),
    ],
)
def test_records_of_single_jobs_are_made_only_where_somebody_reads_them(
    screen: Screen, each_job: bool
) -> None:
    with screen.shown():
        assert log.isEnabledFor(logging.DEBUG) is each_job
        assert log.isEnabledFor(logging.WARNING)

    assert not log.isEnabledFor(logging.DEBUG)


def test_facts_are_kept_whole_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen("json").shown():
        log.debug("leased", extra=FACTS)

    [line] = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told.pop("at").endswith("Z")
    assert told == {
        "level": "debug",
        "logger": "holdfast.worker",
        "event": "leased",
        **FACTS,
    }


def test_a_traceback_is_shown_under_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen("log").shown():
        log.critical("worker part failed", exc_info=ValueError("no"), extra={"part": "keeper"})

    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("CRITICAL  worker part failed  part=keeper")
    assert rest[-1] == "ValueError: no"


def test_the_traceback_of_a_job_is_shown_under_its_line_and_controls_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Screen("lines").shown():
        log.warning("attempt failed", exc_info=ValueError("no\x1b[2J"), extra=FACTS)
        log.error("job died", extra={**FACTS, "traceback": "in a child\nKilled: 9\n"})

    failed, *trace, dead, first, last = capsys.readouterr().err.splitlines()
    assert "failed" in failed
    assert trace == ["    ValueError: no\\x1b[2J"]
    assert "dead" in dead
    assert [first, last] == ["    in a child", "    Killed: 9"]


def test_a_program_that_set_up_its_logging_is_left_alone(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with Screen.default().shown():
        log.warning("job died", extra=FACTS)

    assert caplog.messages == ["job died"]
    assert capsys.readouterr().err == ""
