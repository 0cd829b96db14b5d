"""When a worker process is to be replaced by a fresh one: after some jobs, or by its memory."""

import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import Misuse
from holdfast.jitter import random_between

# What a process of a fleet says of itself, in a number that it shares with the fleet.
STARTING, WORKING, WORN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Wear:
    """The limits of one process; None is no limit."""

    jobs: int | None = None
    rss: int | None = None

    @classmethod
    def read(cls, jobs: int | None, rss: int | None, options: dict[str, object]) -> "Wear | None":
        """Return the limits, if any; raises Misuse if they make no sense."""
        if jobs is None and rss is None:
            return None
        for name, value in (("recycle_jobs", jobs), ("recycle_rss", rss)):
            if value is not None and value < 1:
                raise Misuse(f"{name} must be at least 1 (got {value})")
        for other in ("until_idle", "max_jobs"):
            if options.get(other):
                raise Misuse(
                    f"a worker that is replaced by a fresh one does not end by itself: {other}",
                    fix=f"Leave out recycle_jobs and recycle_rss, or {other}.",
                )
        return cls(jobs, rss)

    def __str__(self) -> str:
        given = ("recycle_jobs", self.jobs), ("recycle_rss", self.rss)
        return ", ".join(f"{name}={value}" for name, value in given if value is not None)

    def soon(self) -> "Wear":
        """Return the limits of one process, a little lower: not all are replaced at once."""
        return Wear(self.jobs and max(int(self.jobs * random_between(0.9, 1.0)), 1), self.rss)

    def is_reached(self, jobs: int) -> bool:
        """Whether this process has run enough jobs, or has too much memory."""
        return bool(self.jobs and jobs >= self.jobs) or bool(self.rss and memory() >= self.rss)


def memory() -> int:
    """Return the resident memory of this process in bytes; its peak where only that is known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _page() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


_PAGE = _page()
