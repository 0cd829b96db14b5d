"""What every scenario is given: a server to be hurt, a database, a fleet, and how much of it all.

`python -m tests.chaos --long` runs them at full length and prints what was measured.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.server import Server
from tests.chaos.stage import Stage

LONG = bool(os.environ.get("CHAOS_LONG"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
measured: dict[str, dict[str, object]] = {}

at_full_length = pytest.mark.skipif(not LONG, reason="at full length only")


@dataclass(frozen=True)
class Scale:
    """Chooses between the size for every day and the one that proves a promise."""

    long: bool

    def __call__(self, short: int, long: int) -> int:
        return long if self.long else short


@pytest.fixture(scope="session")
def hurt_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def scale() -> Scale:
    return Scale(LONG)


@pytest.fixture
def stage(hurt_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A database and a fleet; after a failure the last words of its workers are shown."""
    with hurt_server.database() as url, Stage(hurt_server, url, tmp_path, SEED) as stage:
        yield stage
        measured[request.node.name] = stage.facts
        print(f"seed {SEED}\n{stage.facts}\n{stage.fleet.said()}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LONG:
        terminalreporter.section(f"measured, seed {SEED}")
        for name, facts in measured.items():
            told = ", ".join(f"{fact} {value}" for fact, value in facts.items())
            terminalreporter.write_line(f"{name}: {told}")
