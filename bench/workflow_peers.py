"""Workflows and durable steps beside others: the same two programs in each, and a kill in each.

Programs are in bench/workflows; each effect adds a line to a file, so nobody's own counters are
believed. `fan`: workflows of 1 → 100 → 1. `steps`: jobs of five steps. Each runs once undisturbed,
and once with its worker, all of its processes, killed when a third of the effects has happened;
another is started at once.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench import measures
from bench.harness import Options, Server
from bench.peers import environment
from bench.peers.contract import Queue
from bench.report import Figure
from bench.workflows.ledger import STEPS, WIDTH
from tests.ports import free_port

ROOT = Path(__file__).parents[1]
PATIENCE = 45.0
NAMES = ("holdfast", "dbos", "absurd", "celery")
REQUIRES = {
    "dbos": ("dbos==3.3.0", "psycopg[binary]"),
    "absurd": ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]"),
    "celery": ("celery[redis]==5.7.0",),
}
REDIS = "/usr/bin/redis-server"


@dataclass(frozen=True)
class Run:
    """What came of one run: seconds, and how many effects happened how often."""

    seconds: float
    wanted: int
    effects: Counter[str]

    @property
    def missing(self) -> int:
        """How many effects never happened."""
        return self.wanted - len(self.effects)

    @property
    def doubled(self) -> int:
        """How many happened more than once."""
        return sum(count > 1 for count in self.effects.values())


def run(server: Server, options: Options) -> list[Figure]:
    """Run both programs in each, undisturbed and with a kill; without peers, ours undisturbed."""
    flows, jobs = max(options.drain // 1000, 1), max(options.drain // 25, 20)
    figures = []
    for name in NAMES if options.peers else NAMES[:1]:
        try:
            python = _python(name)
        except environment.NotInstalledError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        lines = _lines(name)
        for role, count, each in (("fan", flows, WIDTH), ("steps", jobs, STEPS)):
            if f"# begin {role}" not in (ROOT / "bench/workflows" / f"{name}.py").read_text():
                continue
            figures.append(Figure("workflows", f"{name}, {role}: program", "lines", [lines[role]]))
            for kill in (False, True) if options.peers else (False,):
                with _database(server, name) as variables:
                    found = _run(python, name, role, count, variables, kill=kill)
                what = f"{name}, {role}, {count:,} of {each}"
                what += ", its worker killed" if kill else ""
                done = len(found.effects)
                figures += [
                    Figure("workflows", what, "s", [found.seconds]),
                    Figure("workflows", what, "effects/s", [done / found.seconds]),
                    Figure(
                        "workflows",
                        f"{what}: never happened",
                        "effects",
                        [found.missing],
                        at_most=0,
                    ),
                    Figure("workflows", f"{what}: happened twice", "effects", [found.doubled]),
                ]
                print(f"{what}: {found.seconds:.1f} s, missing {found.missing}", file=sys.stderr)
    return figures


def _run(
    python: str, name: str, role: str, count: int, variables: Mapping[str, str], *, kill: bool
) -> Run:
    with tempfile.TemporaryDirectory() as place:
        ledger = Path(place) / "ledger"
        ledger.touch()
        told = {**os.environ, **variables, "LEDGER": str(ledger)}
        command = [python, "-m", f"bench.workflows.{name}"]

        def act(*words: str) -> None:
            subprocess.run([*command, *words], cwd=ROOT, env=told, check=True, timeout=300)

        def working() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [*command, "work"],
                cwd=ROOT,
                env=told,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

        act("setup")
        act(role, str(count))
        # Of a workflow's parts all have the same number: they are counted by how many there are.
        wanted = count * (WIDTH + 2 if role == "fan" else STEPS)
        ends = count if role == "fan" else wanted
        started, worker = time.monotonic(), working()
        try:
            moved, before = started, -1
            while True:
                seen = ledger.read_text().splitlines()
                now = time.monotonic()
                if len(seen) != before:
                    moved, before = now, len(seen)
                ended = {one for one in seen if role == "steps" or one.startswith("last")}
                if len(ended) >= ends or now > moved + PATIENCE:
                    break
                if kill and len(seen) > wanted // 3:
                    _kill(worker)
                    kill, worker = False, working()
                time.sleep(0.02)
            # What is done twice may be so a little later.
            time.sleep(1)
        finally:
            _kill(worker)
        seen = ledger.read_text().splitlines()
        first = [one for one in seen if not one.startswith("part")]
        return Run(moved - started, count * (2 if role == "fan" else STEPS), Counter(first))


def _kill(worker: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _python(name: str) -> str:
    if name == "holdfast":
        return sys.executable
    if name == "celery" and not Path(REDIS).exists():
        raise environment.NotInstalledError(f"there is no {REDIS}")
    queue = Queue(name=name, version="", about="", remaining="", requirements=REQUIRES[name])
    return environment.made(queue).command[0]


@contextmanager
def _database(server: Server, name: str) -> Iterator[dict[str, str]]:
    if name != "celery":
        with server.database(f"workflows_{name}") as database:
            yield {"DATABASE": measures.url_of(database)}
        return
    port = str(free_port())
    with tempfile.TemporaryDirectory() as place:
        # As durable as PostgreSQL: each write is on disk before it is answered.
        command = [REDIS, "--port", port, "--bind", "127.0.0.1", "--dir", place]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            time.sleep(1)
            yield {"REDIS": f"redis://127.0.0.1:{port}/0"}
        finally:
            process.terminate()
            process.wait()


def _lines(name: str) -> dict[str, int]:
    """Count the lines of each program, blank ones and comments apart."""
    text, found = (ROOT / "bench/workflows" / f"{name}.py").read_text(), {}
    for role in ("fan", "steps"):
        _, _, rest = text.partition(f"# begin {role}\n")
        lines = [line.strip() for line in rest.partition(f"# end {role}\n")[0].splitlines()]
        found[role] = sum(bool(line) and not line.startswith("#") for line in lines)
    return found
