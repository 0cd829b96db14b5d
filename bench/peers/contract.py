"""What an adapter does, and the ledger its handlers write. Standard library only.

An adapter is a module of this package that says what its queue needs (`QUEUE`) and ends in
`main(…)`, or a directory with a program in another language that reads the same command line and
answers the same lines. It imports its queue inside its functions: the bench reads `QUEUE` in an
environment that does not have it.
"""

import argparse
import json
import mmap
import resource
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

# Jobs beyond the measured ones, to warm up a client and a worker that are fed one by one.
WARM_UP = 16
# The work of a job of the style "sleep", and how many of them a worker runs at once.
SLEEP = 0.01
AT_ONCE = 100


@dataclass(frozen=True)
class Queue:
    """What the bench knows of a queue before it is installed.

    `remaining` counts the jobs that have not ended. `packages` come from npm, `requirements` from
    PyPI, where Node and Go come from too. `styles` are the handlers it can run, `keys` whether its
    bulk call takes a key for each job, `share` how many of the jobs it is given: all of them, or so
    few that it is done within the time of the others.
    """

    name: str
    version: str
    about: str
    remaining: str
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    styles: tuple[str, ...] = ("async", "sleep")
    keys: bool = False
    share: float = 1.0
    # For one program that takes part twice: where it is, and what it is told.
    home: str = ""
    flags: tuple[str, ...] = ()

    def jobs(self, asked: int) -> int:
        """Return how many of the jobs that are asked for it is given."""
        return max(1, round(asked * self.share))


class Ledger:
    """How often and when first each job's handler began: a file, one for each process.

    Job n has byte n for its count, and a double behind all counts for the time.
    """

    def __init__(self, path: Path, jobs: int) -> None:
        self.jobs = jobs
        times = (jobs + 7) // 8 * 8
        with path.open("a+b") as file:
            file.truncate(times + 8 * jobs)
            self._memory = mmap.mmap(file.fileno(), 0)
        view = memoryview(self._memory)
        self._counts = view[:jobs]
        self._times = view[times:].cast("d")

    def hit(self, job: int) -> None:
        """Note the start of a handler."""
        seen = self._counts[job]
        if not seen:
            self._times[job] = time.time()
        if seen < 255:
            self._counts[job] = seen + 1

    def counts(self) -> bytes:
        """Return how often each job ran."""
        return bytes(self._counts)

    def times(self) -> list[float]:
        """Return the time each job ran first; 0 for one that never did."""
        return list(self._times)


class Clock:
    """Times what a client does once it is connected: `with clock:`."""

    def __enter__(self) -> Self:
        self._start, self._cpu = time.perf_counter(), _cpu()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self.cpu = _cpu() - self._cpu


class Pace:
    """Enqueues jobs one by one at a fixed interval and notes when each call returned.

    The clock starts behind the jobs that warm up.
    """

    def __init__(self, jobs: int, interval: float, answered: Path, clock: Clock) -> None:
        self._jobs = jobs
        self._interval = interval
        self._answered = answered
        self._clock = clock
        self._times = array("d")

    def run(self, enqueue: Callable[[int], object]) -> None:
        """Call `enqueue` with each number."""
        for job in range(WARM_UP):
            self._wait(job)
            enqueue(job)
            self._times.append(time.time())
        with self._clock:
            for job in range(WARM_UP, self._jobs):
                self._wait(job)
                enqueue(job)
                self._times.append(time.time())
        self._answered.write_bytes(self._times.tobytes())

    async def arun(self, enqueue: Callable[[int], Awaitable[object]]) -> None:
        """Await `enqueue` with each number."""
        for job in range(WARM_UP):
            self._wait(job)
            await enqueue(job)
            self._times.append(time.time())
        with self._clock:
            for job in range(WARM_UP, self._jobs):
                self._wait(job)
                await enqueue(job)
                self._times.append(time.time())
        self._answered.write_bytes(self._times.tobytes())

    def _wait(self, job: int) -> None:
        if not self._interval:
            return
        if not job:
            self._start = time.time()
        time.sleep(max(0.0, self._start + job * self._interval - time.time()))


def main(
    *,
    setup: Callable[[str], None],
    bulk: Callable[[str, int, bool, Clock], None],
    feed: Callable[[str, Pace], None],
    work: Callable[[str, Ledger, str], None],
) -> None:
    """Run the action of the command line.

    `setup` makes the tables, `bulk` enqueues many jobs, with a key on each if that is asked for,
    `feed` one after the other, `work` runs one worker process until it is told to stop, with
    handlers of the style that is asked for. `bulk` and `feed` answer one line: the seconds they
    took and the CPU of the client.
    """
    parser = argparse.ArgumentParser()
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("setup", "bulk", "feed", "work"):
        actions.add_parser(action).add_argument("url")
    for action in ("bulk", "feed"):
        actions.choices[action].add_argument("jobs", type=int)
    actions.choices["bulk"].add_argument("keys", choices=("keys", "plain"))
    actions.choices["feed"].add_argument("interval", type=float)
    actions.choices["feed"].add_argument("answered", type=Path)
    actions.choices["work"].add_argument("ledger", type=Path)
    actions.choices["work"].add_argument("jobs", type=int)
    actions.choices["work"].add_argument("style", choices=("async", "def", "sleep", "middleware"))
    asked = parser.parse_args()
    clock = Clock()
    match asked.action:
        case "setup":
            setup(asked.url)
        case "bulk":
            bulk(asked.url, asked.jobs, asked.keys == "keys", clock)
        case "feed":
            feed(asked.url, Pace(asked.jobs, asked.interval, asked.answered, clock))
        case "work":
            work(asked.url, Ledger(asked.ledger, asked.jobs), asked.style)
    if asked.action in ("bulk", "feed"):
        print(json.dumps({"seconds": clock.seconds, "cpu": clock.cpu}))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
