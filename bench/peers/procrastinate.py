"""procrastinate with many slots, finished jobs deleted."""

import asyncio
from collections.abc import Callable
from typing import Any

from bench.peers.contract import AT_ONCE, SLEEP, Clock, Ledger, Pace, Queue, main

VERSION = "3.10.0"
CHUNK = 5_000
SLOTS = 30
QUEUE = Queue(
    name="procrastinate",
    version=VERSION,
    about=f"{SLOTS} jobs at once ({AT_ONCE} for those of 10 ms), a pool of 20, finished jobs "
    f"deleted, notified; bulk: batch_defer_async in chunks of {CHUNK:,}; single: defer_async",
    remaining="select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
    requirements=(f"procrastinate=={VERSION}", "psycopg[binary,pool]==3.3.8"),
    share=0.02,
)


def setup(url: str) -> None:
    async def go() -> None:
        app, _ = _app(url, 1)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    asyncio.run(go())


def bulk(url: str, jobs: int, keys: bool, clock: Clock) -> None:
    async def go() -> None:
        app, noop = _app(url, 4)
        async with app.open_async():
            with clock:
                for start in range(0, jobs, CHUNK):
                    some = range(start, min(jobs, start + CHUNK))
                    await noop.batch_defer_async(*({"n": n} for n in some))

    asyncio.run(go())


def feed(url: str, pace: Pace) -> None:
    async def go() -> None:
        app, noop = _app(url, 1)
        async with app.open_async():
            await pace.arun(lambda n: noop.defer_async(n=n))

    asyncio.run(go())


def work(url: str, ledger: Ledger, style: str) -> None:
    sleeps = style == "sleep"

    async def go() -> None:
        app, _ = _app(url, 20, ledger.hit, SLEEP if sleeps else 0)
        slots = AT_ONCE if sleeps else SLOTS
        async with app.open_async():
            await app.run_worker_async(queues=["jobs"], concurrency=slots, delete_jobs="always")

    asyncio.run(go())


def _app(
    url: str, pool: int, hit: Callable[[int], None] = lambda n: None, seconds: float = 0
) -> tuple[Any, Any]:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url, min_size=pool, max_size=pool))

    @app.task(name="noop", queue="jobs")
    async def noop(n: int) -> None:
        hit(n)
        if seconds:
            await asyncio.sleep(seconds)

    return app, noop


if __name__ == "__main__":
    main(setup=setup, bulk=bulk, feed=feed, work=work)
