"""Oban for Python, the open edition."""

import asyncio
from collections.abc import Callable
from typing import Any

from bench.peers.contract import AT_ONCE, SLEEP, Clock, Ledger, Pace, Queue, main

VERSION = "0.7.0"
CHUNK = 1_000
QUEUE = Queue(
    name="oban",
    version=VERSION,
    about=f"open edition, Python 3.12; a queue of {AT_ONCE}, a pool of 10; bulk: enqueue_many in "
    f"chunks of {CHUNK:,}; single: enqueue",
    remaining="select count(*) from oban_jobs where state in "
    "('available', 'executing', 'scheduled', 'retryable', 'suspended')",
    requirements=(f"oban=={VERSION}", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"),
    python=(3, 12),
    share=0.2,
)


def setup(url: str) -> None:
    async def go() -> None:
        from oban import Oban
        from oban.schema import install

        pool = await Oban.create_pool(url)
        await install(pool)
        await pool.close()

    asyncio.run(go())


def bulk(url: str, jobs: int, keys: bool, clock: Clock) -> None:
    async def go() -> None:
        noop = _declared(lambda n: None)
        async with await _opened(url) as oban:
            with clock:
                for start in range(0, jobs, CHUNK):
                    some = range(start, min(jobs, start + CHUNK))
                    await oban.enqueue_many(noop.new({"n": n}) for n in some)

    asyncio.run(go())


def feed(url: str, pace: Pace) -> None:
    async def go() -> None:
        noop = _declared(lambda n: None)
        async with await _opened(url) as oban:
            await pace.arun(lambda n: oban.enqueue(noop.new({"n": n})))

    asyncio.run(go())


def work(url: str, ledger: Ledger, style: str) -> None:
    async def go() -> None:
        _declared(ledger.hit, SLEEP if style == "sleep" else 0)
        async with await _opened(url, queues={"jobs": AT_ONCE}):
            await asyncio.Event().wait()

    asyncio.run(go())


async def _opened(url: str, **options: Any) -> Any:
    from oban import Oban

    return Oban(pool=await Oban.create_pool(url, min_size=1, max_size=10), **options)


def _declared(hit: Callable[[int], None], seconds: float = 0) -> Any:
    from oban import worker

    @worker(queue="jobs")
    class Noop:
        async def process(self, job: Any) -> None:
            hit(job.args["n"])
            if seconds:
                await asyncio.sleep(seconds)

    return Noop


if __name__ == "__main__":
    main(setup=setup, bulk=bulk, feed=feed, work=work)
