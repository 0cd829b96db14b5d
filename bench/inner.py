"""What the worker itself does for a job, without a database: rows in memory in, acks out.

`python -m bench.inner none|one` prints the CPU of its thread per job, in microseconds: the lowest
tenth of many turns, which a busy machine disturbs little. Started by the part `middleware`, in the
tree that is to be measured.
"""

import asyncio
import struct
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from holdfast import App, leased
from holdfast.client import raw
from holdfast.client.sync.drain import Exchanged
from holdfast.worker.asyncs import AsyncRunner
from holdfast.worker.loop import JobLoop
from holdfast.worker.queue_slots import QueueSlots
from holdfast.worker.settling import Counts, Ended

SLOTS, AHEAD = 100, 400
TURNS = 200


class Nothing:
    """A middleware that does nothing."""

    def run(self, job: object) -> Iterator[None]:
        yield


def main(middleware: str) -> None:
    """Claim, run and settle the same jobs again and again."""
    url = "postgresql:///none"
    app = App(url, middleware=[Nothing()]) if middleware == "one" else App(url)

    @app.task(kind="noop")
    async def noop(n: int) -> None:
        pass

    rows = [_row(n) for n in range(SLOTS + AHEAD)]

    def exchange(_: Any, __: Any, settlements: Any, claims: Any, **more: Any) -> Exchanged:
        return Exchanged({}, [], [rows for _ in claims])

    client: Any = SimpleNamespace(drain=SimpleNamespace(exchange=exchange))
    slots = QueueSlots("default", SLOTS, ["noop"], ahead=AHEAD)
    loop = asyncio.new_event_loop()
    jobs = JobLoop(
        app,
        client,
        [slots],
        worker="bench",
        counts=Counts(),
        lease=None,
        poll=lambda: 1.0,
        stopping=threading.Event(),
    )
    jobs._runners = {"async": AsyncRunner(loop, jobs.finish)}
    jobs.claiming.rate = lambda: None  # type: ignore[method-assign]  # always so many ahead

    async def until_ended() -> None:
        while slots.running:
            await asyncio.sleep(0)

    spent = []
    for _ in range(TURNS):
        began = time.thread_time()
        jobs._exchange(Ended(), jobs.claiming.next())
        loop.run_until_complete(until_ended())
        ended = jobs.settling.take()
        assert len(ended.acked) == len(rows), ended
        jobs._settle(ended)
        spent.append((time.thread_time() - began) / len(rows) * 1e6)
    print(sorted(spent)[TURNS // 10])


def _row(n: int) -> tuple[Any, ...]:
    row: list[Any] = [None] * (raw.COLUMNS.count(",") + 1)
    row[leased.ID] = uuid4().bytes
    row[leased.KIND] = "noop"
    row[leased.PAYLOAD] = f'{{"n": {n}}}'
    for nth in leased._TIMES:
        row[nth] = 10**15
    row[leased.LEASE_UNTIL] = 10**15 + 60_000_000
    row[leased.LENGTH] = struct.pack("!qii", 30_000_000, 0, 0)
    return tuple(row)


if __name__ == "__main__":
    main(sys.argv[1])
