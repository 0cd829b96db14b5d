"""The command, run inside this process, as a process of its own, and at a terminal."""

import errno
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.client import Client

# `python -m holdfast` in Python's development mode, in which the event loop also warns of each turn
# that took longer than 0.1 s: on a busy machine that says nothing.
UNHURRIED = """
import asyncio.base_events as events, runpy
opened = events.BaseEventLoop.__init__
def opened_unhurried(loop):
    opened(loop)
    loop.slow_callback_duration = 600
events.BaseEventLoop.__init__ = opened_unhurried
runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
"""
PROGRAM = [sys.executable, "-X", "dev", "-W", "error", "-c", UNHURRIED]


@dataclass(frozen=True)
class Ended:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_URL", "HOLDFAST_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run() -> Run:
    """Runs `holdfast` in this process."""

    def invoke(*arguments: object, stdin: str | bytes | None = None) -> Ended:
        result = CliRunner().invoke(
            main, [str(one) for one in arguments], input=stdin, prog_name="holdfast"
        )
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return Ended(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture
def holdfast(run: Run, database: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `holdfast` in this process, on the test's database."""
    monkeypatch.setenv("HOLDFAST_URL", database)
    return run


@pytest.fixture
def program() -> Run:
    """Runs `holdfast` as a process of its own."""

    def execute(*arguments: object, **options: Any) -> Ended:
        done = subprocess.run(
            [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=200, **options
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return execute


@pytest.fixture
def terminal() -> Callable[..., tuple[int, str]]:
    """Runs `holdfast` at a terminal where somebody types; returns its exit code and the screen."""

    def execute(*arguments: object, typed: str = "", **environment: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", **environment},
        ) as process:
            os.close(theirs)
            os.write(ours, typed.encode())
            screen = _read_all(ours)
        os.close(ours)
        return process.returncode, screen

    return execute


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


def _read_all(descriptor: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError as error:
            # What Linux says when the last writer has left a terminal.
            if error.errno != errno.EIO:
                raise
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()
