"""What an adapter does, and the ledger its handlers write. Standard library only.

An adapter is a module of this package that says what it needs (`REQUIREMENTS`, `REMAINING`,
`RESET`, `ABOUT`) and ends in `main(…)`. It imports its queue inside its functions: the bench reads
the names above in an environment that does not have it.
"""

import argparse
import mmap
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path

# Jobs beyond the measured ones, to warm up a worker that is fed one by one.
WARM_UP = 16


class Ledger:
    """How often and when first each job's handler began: a file that processes share.

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

    def begun(self) -> int:
        """Return how many jobs have run at least once."""
        return self.jobs - bytes(self._counts).count(0)

    def doubled(self) -> int:
        """Return how many jobs have run more than once."""
        counts = bytes(self._counts)
        return self.jobs - counts.count(0) - counts.count(1)

    def times(self) -> list[float]:
        """Return the time each job ran first; 0 for one that never did."""
        return list(self._times)


class Pace:
    """Enqueues jobs one by one at a fixed interval and notes when each call returned."""

    def __init__(self, jobs: int, interval: float, answered: Path) -> None:
        self._jobs = jobs
        self._interval = interval
        self._answered = answered
        self._times = array("d")

    def run(self, enqueue: Callable[[int], object]) -> None:
        """Call `enqueue` with each number."""
        for job in range(self._jobs):
            time.sleep(self._pause(job))
            enqueue(job)
            self._times.append(time.time())
        self._save()

    async def arun(self, enqueue: Callable[[int], Awaitable[object]]) -> None:
        """Await `enqueue` with each number."""
        for job in range(self._jobs):
            time.sleep(self._pause(job))
            await enqueue(job)
            self._times.append(time.time())
        self._save()

    def _pause(self, job: int) -> float:
        if not job:
            self._start = time.time()
        return max(0.0, self._start + job * self._interval - time.time())

    def _save(self) -> None:
        self._answered.write_bytes(self._times.tobytes())


def main(
    *,
    setup: Callable[[str], None],
    fill: Callable[[str, int], None],
    feed: Callable[[str, Pace], None],
    work: Callable[[str, Ledger, str], None],
) -> None:
    """Run the action of the command line.

    `setup` makes the tables, `fill` enqueues many jobs, `feed` one after the other, `work` runs one
    worker process until it is told to stop, with handlers of the style that is asked for.
    """
    parser = argparse.ArgumentParser()
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("setup", "fill", "feed", "work"):
        actions.add_parser(action).add_argument("url")
    for action in ("fill", "feed"):
        actions.choices[action].add_argument("jobs", type=int)
    actions.choices["feed"].add_argument("interval", type=float)
    actions.choices["feed"].add_argument("answered", type=Path)
    actions.choices["work"].add_argument("ledger", type=Path)
    actions.choices["work"].add_argument("jobs", type=int)
    actions.choices["work"].add_argument("style", choices=("async", "def"))
    asked = parser.parse_args()
    match asked.action:
        case "setup":
            setup(asked.url)
        case "fill":
            fill(asked.url, asked.jobs)
        case "feed":
            feed(asked.url, Pace(asked.jobs, asked.interval, asked.answered))
        case "work":
            work(asked.url, Ledger(asked.ledger, asked.jobs), asked.style)
