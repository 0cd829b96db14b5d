"""Numbers over time: what this server saw of the counters, every few seconds, for some hours."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.model import Queue

if TYPE_CHECKING:
    from holdfast.server.live import Live

EVERY = 10
KEPT = 3 * 3600 // EVERY

Sample = tuple[float, dict[str, Queue]]
Point = tuple[int, float | None]


class Series:
    """Samples of all queues, the newest last."""

    def __init__(self, live: "Live") -> None:
        self._live = live
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    async def run(self) -> None:
        """Take a sample now and then, for ever."""
        while True:
            with contextlib.suppress(HoldfastError):
                self._samples.append((time.time(), {q.queue: q for q in await self._live.queues()}))
            await asyncio.sleep(EVERY - time.time() % EVERY)

    def points(
        self, metric: str, queues: Sequence[str] | None, since: float, step: int
    ) -> list[Point]:
        """Return (unix time, value), a value per step: an average, or a rate per second."""
        cells: dict[int, list[float]] = {}
        before: Sample | None = None
        for sample in self._samples:
            at = sample[0]
            value = _value(metric, queues, before, sample)
            before = sample
            if value is not None and at >= since:
                cells.setdefault(int(at // step) * step, []).append(value)
        return [(at, sum(values) / len(values)) for at, values in sorted(cells.items())]


def _value(
    metric: str, queues: Sequence[str] | None, before: Sample | None, now: Sample
) -> float | None:
    if metric == "oldest":
        ages = [one.oldest.total_seconds() for one in _of(queues, now) if one.oldest is not None]
        return max(ages, default=0.0)
    if metric in ("done", "enqueued"):
        if before is None or now[0] <= before[0]:
            return None
        grown = _count(metric, queues, now) - _count(metric, queues, before)
        return max(grown, 0) / (now[0] - before[0])
    return float(_count(metric, queues, now))


def _count(metric: str, queues: Sequence[str] | None, sample: Sample) -> int:
    if metric == "enqueued":
        return sum(
            one.queued + one.leased + one.dead + one.done + one.cancelled + one.archived
            for one in _of(queues, sample)
        )
    return sum(int(getattr(one, metric)) for one in _of(queues, sample))


def _of(queues: Sequence[str] | None, sample: Sample) -> list[Queue]:
    return [one for name, one in sample[1].items() if queues is None or name in queues]
