"""How many jobs may still be claimed, by all processes of a worker together."""

import threading
from typing import Any

from holdfast.worker.process.spawned import SPAWN


class Allowance:
    """A number of jobs. A request is reserved until its result is known."""

    def __init__(self, jobs: int, sharers: int = 1) -> None:
        self._jobs = jobs
        self._sharer = 0
        # Claimed by all, then what each process has reserved.
        self._counts: Any = [0, 0]
        self._lock: Any = threading.Lock()
        if sharers > 1:
            self._counts = SPAWN.RawArray("q", 1 + sharers)
            self._lock = SPAWN.Lock()

    def join(self, sharer: int) -> None:
        """Be the one that this process uses; what another of that number set aside is free."""
        self._sharer = sharer
        with self._lock:
            self._counts[1 + sharer] = 0

    def ask(self, jobs: int) -> int:
        """Reserve up to that many and return how many."""
        with self._lock:
            granted = max(min(jobs, self.left()), 0)
            self._counts[1 + self._sharer] += granted
        return granted

    def claimed(self, jobs: int) -> None:
        """Record that this many have been claimed; their reservation still has to be freed."""
        with self._lock:
            self._counts[0] += jobs

    def give_back(self, jobs: int) -> None:
        """Free a reservation, once its result is known."""
        with self._lock:
            self._counts[1 + self._sharer] -= jobs

    def left(self) -> int:
        """Return how many are neither claimed nor reserved."""
        left: int = self._jobs - sum(self._counts)
        return left

    def used_up(self) -> bool:
        """Whether all of them have been claimed."""
        used: int = self._counts[0]
        return used >= self._jobs
