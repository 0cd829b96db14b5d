"""Queues that run the same load as Holdfast, each in a virtual environment of its own.

What an adapter needs is in `contract`; it is imported there too, so it is standard library only.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = Path(__file__).parent / ".venv"


@dataclass(frozen=True)
class Peer:
    """One queue and the interpreter its adapter runs in."""

    name: str
    python: Path
    # Counts the jobs that have not ended, and empties the queue.
    remaining: str
    reset: str
    about: str

    def run(self, action: str, *arguments: object) -> None:
        """Run an action of the adapter to its end."""
        subprocess.run(self._command(action, arguments), cwd=ROOT, check=True)

    @contextmanager
    def working(self, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
        """Run one worker process while the block lasts; raises if it ended before."""
        process = subprocess.Popen(self._command("work", arguments), cwd=ROOT)
        try:
            yield process
            if (code := process.poll()) is not None:
                raise RuntimeError(f"the worker of {self.name} ended by itself with {code}")
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _command(self, action: str, arguments: Sequence[object]) -> list[str]:
        module = f"bench.peers.{self.name}"
        return [str(self.python), "-m", module, action, *map(str, arguments)]


def here(name: str) -> Peer:
    """Return the peer that runs in this very environment: Holdfast itself."""
    return _peer(name, Path(sys.executable))


def installed(name: str) -> Peer:
    """Return another queue, installed at the pinned versions if that was not done before."""
    wanted = "\n".join(import_module(f"bench.peers.{name}").REQUIREMENTS)
    place = PLACE / name
    python = place / "bin" / "python"
    mark = place / "installed"
    if not mark.exists() or mark.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "--only-binary", ":all:", *wanted.splitlines()], check=True)
        mark.write_text(wanted)
    return _peer(name, python)


def cpu(process: subprocess.Popen[bytes]) -> float:
    """Return the seconds that all threads of a process have run; 0 where the kernel is silent."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def memory(process: subprocess.Popen[bytes]) -> float:
    """Return the resident megabytes of a process; 0 where the kernel is silent."""
    try:
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 1e6


def until(deadline: float, *, every: float = 0.005) -> Iterator[float]:
    """Yield the time now and then, for a loop that waits; raises TimeoutError in the end."""
    while (now := time.time()) < deadline:
        yield now
        time.sleep(every)
    raise TimeoutError


def _peer(name: str, python: Path) -> Peer:
    module = import_module(f"bench.peers.{name}")
    return Peer(name, python, module.REMAINING, module.RESET, module.ABOUT)
