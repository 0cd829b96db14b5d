"""Queues that run the same load as Holdfast, each in an environment of its own.

What an adapter needs is in `contract`; it is imported there too, so it is standard library only.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from bench import proc
from bench.peers import environment
from bench.peers.contract import Ledger, Queue
from bench.peers.environment import Environment, NotInstalledError

ROOT = Path(__file__).parents[2]
# Of the others, in the order of the table.
NAMES = (
    "pgmq",
    "graphile_worker",
    "pg_boss",
    "river",
    "river_2000",
    "pgqueuer",
    "awa",
    "oban",
    "procrastinate",
)
PATIENCE = 300

__all__ = [
    "NAMES",
    "EndedError",
    "NotInstalledError",
    "Peer",
    "Workers",
    "available",
    "here",
    "installed",
    "queue",
    "until",
]


class EndedError(Exception):
    """A worker ended that was to go on."""


@dataclass(frozen=True)
class Peer:
    """One queue and how its adapter is started."""

    queue: Queue
    environment: Environment

    @property
    def name(self) -> str:
        return self.queue.name

    def run(self, action: str, *arguments: object) -> dict[str, float]:
        """Run an action of the adapter to its end; returns what its last line says."""
        done = subprocess.run(
            self._command(action, arguments),
            cwd=ROOT,
            env=self._variables(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-400:]
            raise RuntimeError(f"`{action}` of {self.name} ended with {done.returncode}: {said}")
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}

    @contextmanager
    def working(
        self, url: str, place: Path, jobs: int, style: str, processes: int = 1
    ) -> Iterator["Workers"]:
        """Run worker processes while the block lasts; raises if one ended before."""
        paths = [place / f"ledger-{nth}" for nth in range(processes)]
        ledgers = [Ledger(path, jobs) for path in paths]
        with ExitStack() as stack:
            running = [stack.enter_context(self._worker(url, path, jobs, style)) for path in paths]
            yield Workers(running, ledgers)
            for process, path in zip(running, paths, strict=True):
                if (code := process.poll()) is not None:
                    said = " ".join(path.with_suffix(".said").read_text().split())[-400:]
                    raise EndedError(f"a worker of {self.name} ended by itself with {code}: {said}")

    @contextmanager
    def _worker(
        self, url: str, ledger: Path, jobs: int, style: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        with ledger.with_suffix(".said").open("wb") as said:
            process = subprocess.Popen(
                self._command("work", (url, ledger, jobs, style)),
                cwd=ROOT,
                env=self._variables(),
                stdout=said,
                stderr=said,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _command(self, action: str, arguments: Sequence[object]) -> list[str]:
        return [*self.environment.command, action, *map(str, arguments)]

    def _variables(self) -> dict[str, str]:
        return {**os.environ, **self.environment.variables}


@dataclass(frozen=True)
class Workers:
    """Worker processes of one queue, and the ledger of each."""

    processes: list[subprocess.Popen[bytes]]
    ledgers: list[Ledger]

    def begun(self) -> int:
        """Return how many jobs have run at least once."""
        counts = [ledger.counts() for ledger in self.ledgers]
        seen = 0
        for each in counts:
            seen |= int.from_bytes(each, "little")
        jobs = len(counts[0])
        return jobs - seen.to_bytes(jobs, "little").count(0)

    def doubled(self) -> int:
        """Return how many jobs have run more than once, in one process or in two."""
        counts = zip(*(ledger.counts() for ledger in self.ledgers), strict=True)
        return sum(sum(each) > 1 for each in counts)

    def times(self) -> list[float]:
        """Return the time each job ran first; 0 for one that never did."""
        times = zip(*(ledger.times() for ledger in self.ledgers), strict=True)
        return [min(filter(None, each), default=0.0) for each in times]

    def ended(self) -> bool:
        """Return whether one of them has ended."""
        return any(process.poll() is not None for process in self.processes)

    def cpu(self) -> float:
        """Return the seconds they and their children have run; 0 where the kernel is silent."""
        return sum(proc.family_cpu(process.pid) for process in self.processes)

    def memory(self) -> float:
        """Return the resident megabytes of one with its children; 0 where the kernel is silent."""
        total = sum(proc.family_memory(process.pid) for process in self.processes)
        return total / len(self.processes)


def queue(name: str) -> Queue:
    """Return what is known of a queue before it is installed."""
    found: Queue = import_module(f"bench.peers.{name}").QUEUE
    return found


def here(name: str) -> Peer:
    """Return what runs in this very environment: Holdfast itself, and the floors."""
    return Peer(queue(name), environment.here(queue(name)))


def installed(name: str) -> Peer:
    """Return another queue, installed if that was not done before; raises NotInstalledError."""
    return Peer(queue(name), environment.made(queue(name)))


def available(name: str) -> Peer:
    """Return another queue if it was installed before; raises NotInstalledError."""
    return Peer(queue(name), environment.existing(queue(name)))


def until(deadline: float, *, every: float = 0.005) -> Iterator[float]:
    """Yield the time now and then, for a loop that waits; raises TimeoutError in the end."""
    while (now := time.time()) < deadline:
        yield now
        time.sleep(every)
    raise TimeoutError
