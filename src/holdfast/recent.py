"""How many of the jobs that are done a program has kept for a day: a few a second."""

from collections.abc import Callable
from time import monotonic

PER_SECOND = 5
# After a pause, so that all jobs of a quiet program are kept, also those that come together.
BURST = 100


class Recent:
    """Says how many done jobs are kept, so that a person finds what has just run.

    It is asked once for each call that ends jobs, however many. It has no lock: threads that ask at
    the same moment may have a few more kept.
    """

    __slots__ = ("_asked_at", "_clock", "_left")

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._asked_at = clock()

    def take(self, jobs: int) -> int:
        """Return how many of these jobs are kept."""
        now = self._clock()
        left = min(self._left + (now - self._asked_at) * PER_SECOND, BURST)
        # Of many jobs a second's worth at once: a call that keeps any runs a statement more.
        granted = min(jobs, int(left)) if left >= min(jobs, PER_SECOND) else 0
        self._left, self._asked_at = left - granted, now
        return granted
