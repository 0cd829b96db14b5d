"""What handlers did, written by themselves to a file: it goes on when the database is away.

Each line is one fact with the clock of the machine. What the handlers wrote in the database under
their fence is in chaos.effect.
"""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

VARIABLE = "CHAOS_WITNESS"


@dataclass(frozen=True)
class Fact:
    """A handler began, ended, or was refused by its fence."""

    at: float
    what: str
    kind: str
    n: int
    job: str
    token: str
    attempt: int
    worker: str
    pid: int


@dataclass(frozen=True)
class Run:
    """One run of a handler; `end` is None if it never said so itself."""

    kind: str
    n: int
    job: str
    token: str
    attempt: int
    worker: str
    pid: int
    start: float
    end: float | None
    how: str


def note(what: str, kind: str, n: int, job: Any) -> None:
    """Write down one fact; called by handlers, in any thread or process."""
    lease = job.lease
    who = [str(job.id), str(lease.token), job.attempt, lease.worker, os.getpid()]
    os.write(_file(), json.dumps([time.time(), what, kind, n, *who]).encode() + b"\n")


class Witness:
    """Reads what was written so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read = 0
        self._facts: list[Fact] = []

    def facts(self) -> list[Fact]:
        """Return all facts in the order of writing."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            *lines, _ = file.read().split(b"\n")
        self._facts += [Fact(*json.loads(line)) for line in lines]
        self._read += sum(len(line) + 1 for line in lines)
        return self._facts

    def runs(self, kind: str | None = None) -> list[Run]:
        """Return the runs of handlers, in the order in which they began."""
        began: dict[tuple[str, str], Fact] = {}
        ended: dict[tuple[str, str], Fact] = {}
        for fact in self.facts():
            if kind in (None, fact.kind):
                key = (fact.job, fact.token)
                (began if fact.what == "start" else ended).setdefault(key, fact)
        return [
            Run(
                *(fact.kind, fact.n, fact.job, fact.token, fact.attempt),
                *(fact.worker, fact.pid, fact.at),
                end=ended[key].at if key in ended else None,
                how=ended[key].what if key in ended else "",
            )
            for key, fact in began.items()
        ]

    def count(self, what: str = "finish", since: float = 0.0) -> int:
        """Return how many facts of one sort there are."""
        return sum(fact.what == what and fact.at >= since for fact in self.facts())

    def rates(self, start: float, end: float, width: float = 1.0) -> list[float]:
        """Return how many handlers ended in each second, as a rate."""
        seen: Counter[int] = Counter(
            int((fact.at - start) / width)
            for fact in self.facts()
            if fact.what == "finish" and start <= fact.at < end
        )
        return [seen[n] / width for n in range(int((end - start) / width))]


def overlaps(runs: Iterable[Run], gone: dict[int, float]) -> list[tuple[Run, Run]]:
    """Return the runs that went on at the same time.

    `gone` says when a process was killed: what it had not ended then, ended then.
    """

    def end(run: Run) -> float:
        return run.end or gone.get(run.pid, float("inf"))

    ordered = sorted(runs, key=lambda run: run.start)
    return [(one, next) for one, next in pairwise(ordered) if next.start < end(one)]


def by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each job."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.job].append(run)
    return found


_opened: dict[int, int] = {}


def _file() -> int:
    # One descriptor for each process, opened to append: lines of many processes never mix.
    pid = os.getpid()
    if pid not in _opened:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        _opened[pid] = os.open(os.environ[VARIABLE], flags, 0o600)
    return _opened[pid]
