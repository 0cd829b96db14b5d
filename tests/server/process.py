"""A server in a process of its own, whose memory can be measured."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parents[2]


class Process:
    """`holdfast serve`, and what the system says of it."""

    def __init__(self, running: "subprocess.Popen[bytes]", port: int) -> None:
        self._running = running
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running.pid

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._running.poll() is None

    def memory(self) -> float:
        """Megabytes that it has in memory."""
        return self._status("VmRSS")

    def most_memory(self) -> float:
        """Megabytes that it had in memory at most."""
        return self._status("VmHWM")

    def forget_most_memory(self) -> None:
        """Begin to measure anew what it has in memory at most."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def connections(self) -> int:
        """How many connections it has, or has still to accept, that it has not closed."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port, established, closed_there = f":{self.port:04X}", "01", "08"
        return sum(row[1].endswith(port) and row[3] in (established, closed_there) for row in rows)

    def cpu(self) -> float:
        """Seconds of a processor that it used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status(self, name: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise LookupError(name)


@contextmanager
def served(
    url: str, *options: str, log: Path | None = None, port: int | None = None, **variables: str
) -> Iterator[Process]:
    """Run `holdfast serve` on a database until the end of the context."""
    port = port or free_port()
    command = [sys.executable, "-m", "holdfast", "serve", "--port", str(port), *options]
    environment = os.environ | {"HOLDFAST_URL": url} | variables
    with (log or Path(os.devnull)).open("wb") as output:
        running = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    process = Process(running, port)
    try:
        _wait(running, process)
        yield process
    finally:
        if process.runs():
            running.send_signal(signal.SIGINT)
        try:
            running.wait(100)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _wait(running: "subprocess.Popen[bytes]", process: Process) -> None:
    until = time.monotonic() + 120
    while True:
        assert running.poll() is None, "the server ended"
        assert time.monotonic() < until, "the server does not listen"
        try:
            socket.create_connection(("127.0.0.1", process.port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
