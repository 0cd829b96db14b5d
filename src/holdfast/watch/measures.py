"""What workers measure: how long jobs waited, and how long they ran."""

from collections.abc import Iterable, Mapping
from typing import Any

# Spans of time that end at 1, 2, 4, 8 … milliseconds; the last one, from over an hour, has no end.
SPANS = 24


class Measures:
    """Counts of times by queue and kind since they were last taken; not safe to share."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        self._attempts: list[Mapping[str, Any]] = []

    def waited(self, queue: str, kind: str, microseconds: int) -> None:
        """Record how long a job waited from when it was due until it was claimed."""
        self.all_waited(queue, [(kind, microseconds)])

    def all_waited(self, queue: str, jobs: Iterable[tuple[str, int]]) -> None:
        """Record of many jobs of a queue, each with its kind, how many microseconds they waited."""
        last, counts = "", [0]
        for kind, microseconds in jobs:
            if kind != last:  # most are of one kind
                last, counts = kind, self._of(queue, kind)[0]
            span = (microseconds // 1000).bit_length() if microseconds > 0 else 0
            counts[span if span < SPANS else SPANS - 1] += 1

    def ran(self, queue: str, kind: str, seconds: float) -> None:
        """Record how long a handler ran."""
        self.all_ran([(queue, kind, seconds)])

    def all_ran(self, jobs: Iterable[tuple[str, str, float]]) -> None:
        """Record of many jobs, each with its queue and kind, how many seconds they ran."""
        place, last, counts = "", "", [0]
        for queue, kind, seconds in jobs:
            if kind != last or queue != place:
                place, last, counts = queue, kind, self._of(queue, kind)[1]
            span = int(seconds * 1000).bit_length()
            counts[span if span < SPANS else SPANS - 1] += 1

    def ended(self, attempt: Mapping[str, Any]) -> None:
        """Record a successful attempt."""
        self._attempts.append(attempt)

    def take(self) -> dict[str, Any] | None:
        """Return what was recorded since the last call, for the database; None if nothing."""
        times, self._times = self._times, {}
        attempts, self._attempts = self._attempts, []
        if not times and not attempts:
            return None
        told = [
            {"queue": queue, "kind": kind, "pickup": pickup, "run": run}
            for (queue, kind), (pickup, run) in times.items()
        ]
        return {"times": told, "attempts": attempts}

    @property
    def attempts(self) -> int:
        """How many attempts wait to be reported."""
        return len(self._attempts)

    def _of(self, queue: str, kind: str) -> tuple[list[int], list[int]]:
        found = self._times.get((queue, kind))
        if found is None:
            found = self._times[queue, kind] = [0] * SPANS, [0] * SPANS
        return found
