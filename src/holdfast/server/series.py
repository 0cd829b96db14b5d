"""Numbers over time: what this server saw of the counters, every few seconds, for some hours."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.model import Queue

if TYPE_CHECKING:
    from holdfast.server.live import Live

EVERY = 10
KEPT = 3 * 3600 // EVERY
# Queues that are kept one by one, those with most jobs; the sum of all is kept always.
MOST = 200
# No queue has this name.
ALL = ""


class Numbers(NamedTuple):
    """What is kept of a queue, or of all."""

    queued: int
    leased: int
    dead: int
    done: int
    enqueued: int
    oldest: float


Sample = tuple[float, dict[str, Numbers]]
Point = tuple[int, float | None]


class Series:
    """Samples of queues and of their sum, the newest last."""

    def __init__(self, live: "Live") -> None:
        self._live = live
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    async def run(self) -> None:
        """Take a sample now and then, for ever."""
        while True:
            with contextlib.suppress(HoldfastError):
                self._take(await self._live.queues())
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

    def _take(self, queues: Sequence[Queue]) -> None:
        before = self._samples[-1][1] if self._samples else {}
        numbers = {queue.queue: _numbers(queue) for queue in queues}
        kept: dict[str, Numbers] = {ALL: _sum(numbers.values())}
        for name in sorted(numbers, key=lambda name: -numbers[name].enqueued)[:MOST]:
            # Where nothing happens, one record serves all samples.
            same = before.get(name) == numbers[name]
            kept[name] = before[name] if same else numbers[name]
        self._samples.append((time.time(), kept))


def _numbers(queue: Queue) -> Numbers:
    waiting = queue.queued + queue.leased + queue.dead
    return Numbers(
        queue.queued,
        queue.leased,
        queue.dead,
        queue.done,
        waiting + queue.done + queue.cancelled + queue.archived,
        queue.oldest.total_seconds() if queue.oldest else 0.0,
    )


def _sum(numbers: Iterable[Numbers]) -> Numbers:
    found = list(numbers)
    return Numbers(
        sum(one.queued for one in found),
        sum(one.leased for one in found),
        sum(one.dead for one in found),
        sum(one.done for one in found),
        sum(one.enqueued for one in found),
        max((one.oldest for one in found), default=0.0),
    )


def _value(
    metric: str, queues: Sequence[str] | None, before: Sample | None, now: Sample
) -> float | None:
    names = [name for name in (queues or [ALL]) if name in now[1]]
    if metric not in ("done", "enqueued"):
        return float(getattr(_sum(now[1][name] for name in names), metric))
    if before is None or now[0] <= before[0]:
        return None
    grown = sum(
        getattr(now[1][name], metric) - getattr(before[1][name], metric)
        for name in names
        if name in before[1]
    )
    return float(max(grown, 0) / (now[0] - before[0]))
