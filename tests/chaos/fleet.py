"""Worker processes that can be killed, stopped, continued and told to end, children included."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.chaos.witness import VARIABLE, Witness

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "holdfast", "worker"]
APP = "tests.chaos.app:app"
ROUGH = "tests.chaos.rough:app"


class Worker:
    """One `holdfast worker`, all its processes together."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.started = time.time()
        self.signalled_at = self.gone_at = float("inf")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def pids(self) -> list[int]:
        """Return its processes, children before parents."""
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
        found: list[int] = []
        waiting = [self.pid]
        while waiting:
            found.append(pid := waiting.pop())
            waiting += children.get(pid, [])
        return found[::-1]

    def send(self, sig: signal.Signals, *, family: bool = False) -> None:
        """Send a signal to the worker, or to every process of its family."""
        for pid in self.pids() if family else [self.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, sig)

    def kill(self) -> None:
        """Kill it as the machine's power switch does: all of it, with nothing said."""
        self.send(signal.SIGKILL, family=True)
        self._process.wait()
        self.gone_at = time.time()

    def kill_alone(self) -> None:
        """Kill the process that was started, and none of those it started itself."""
        self.send(signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """Freeze all of it."""
        self.send(signal.SIGSTOP, family=True)

    def cont(self) -> None:
        """Let all of it go on."""
        self.send(signal.SIGCONT, family=True)

    def terminate(self) -> None:
        """Ask it to end."""
        self.signalled_at = min(self.signalled_at, time.time())
        self.send(signal.SIGTERM)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        code = self._process.wait(timeout)
        self.gone_at = time.time()
        return code

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    @property
    def ready(self) -> bool:
        """Whether it has said who it is."""
        return "\nworker " in self.said()

    def said(self) -> str:
        """Return what it wrote to its output."""
        return self.log.read_text(errors="replace")


class Fleet:
    """The workers of one scenario; a context manager that leaves none behind."""

    def __init__(self, url: str, place: Path, **environment: str) -> None:
        self.url = url
        self.witness = Witness(place / "witness")
        self.workers: list[Worker] = []
        self._place = place
        self._environment = {"HOLDFAST_URL": url, VARIABLE: str(self.witness.path), **environment}

    def start(self, *options: str, app: str = APP, url: str = "") -> Worker:
        """Start one more worker of an app."""
        return self.run([*COMMAND, app, *options], **({"HOLDFAST_URL": url} if url else {}))

    def run(self, command: list[str], **environment: str) -> Worker:
        """Start one more program, which is treated as the workers are."""
        log = self._place / f"worker-{len(self.workers)}.log"
        worker = Worker(command, {**self._environment, **environment}, log)
        self.workers.append(worker)
        return worker

    def fallen(self) -> list[Worker]:
        """Return the workers that have ended though nobody told them to."""
        return [
            worker
            for worker in self.workers
            if worker.code and worker.signalled_at == worker.gone_at == float("inf")
        ]

    def gone(self) -> dict[int, float]:
        """Return when each worker process that has ended was gone."""
        return {worker.pid: worker.gone_at for worker in self.workers if worker.code is not None}

    def said(self) -> str:
        """Return the last words of each worker, to be read after a failure."""
        return "\n".join(
            f"--- {worker.log.name}, exit code {worker.code}\n{worker.said()[-3000:]}"
            for worker in self.workers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            if worker.code is None:
                worker.cont()
                worker.kill()
