"""How many jobs may still be claimed, by all processes of a worker together."""

import threading
from typing import Any

from holdfast.worker.process.spawned import SPAWN


class Allowance:
    """A number of jobs. What is asked for is set aside until it is known what came of it."""

    def __init__(self, jobs: int, sharers: int = 1) -> None:
        self._jobs = jobs
        self._sharer = 0
        # Claimed by all, then what each sharer has set aside.
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
        """Set up to that many aside and return how many they are."""
        with self._lock:
            granted = max(min(jobs, self.left()), 0)
            self._counts[1 + self._sharer] += granted
        return granted

    def claimed(self, jobs: int) -> None:
        """Note that so many have been claimed; what was set aside for them is still to be freed."""
        with self._lock:
            self._counts[0] += jobs

    def give_back(self, jobs: int) -> None:
        """Free what was set aside, once it is known what came of it."""
        with self._lock:
            self._counts[1 + self._sharer] -= jobs

    def left(self) -> int:
        """Return how many nobody has claimed or set aside."""
        left: int = self._jobs - sum(self._counts)
        return left

    def used_up(self) -> bool:
        """Whether all of them have been claimed."""
        used: int = self._counts[0]
        return used >= self._jobs
