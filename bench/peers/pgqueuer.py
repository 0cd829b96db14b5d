"""pgqueuer as its own benchmark runs it: several consumers on one event loop, large batches."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from bench.peers.contract import AT_ONCE, SLEEP, Clock, Ledger, Pace, Queue, main

VERSION = "1.6.0"
# The fastest of 1 to 8 consumers and batches of 50 to 1,000 on two cores.
CONSUMERS = 3
BATCH = 100
CHUNK = 5_000
QUEUE = Queue(
    name="pgqueuer",
    version=VERSION,
    about=f"asyncpg, uvloop, {CONSUMERS} consumers in one process with a connection each, batches "
    f"of {BATCH}, durable tables, its own autovacuum settings; bulk: Queries.enqueue in chunks of "
    f"{CHUNK:,}",
    remaining="select count(*) from pgqueuer",
    requirements=(f"pgqueuer[asyncpg]=={VERSION}", "asyncpg==0.32.0", "uvloop==0.23.0"),
    keys=True,
)


def setup(url: str) -> None:
    async def go() -> None:
        queries = await _queries(url)
        await queries.install()
        await queries.optimize_autovacuum()

    _run(go())


def bulk(url: str, jobs: int, keys: bool, clock: Clock) -> None:
    async def go() -> None:
        queries = await _queries(url)
        with clock:
            for start in range(0, jobs, CHUNK):
                some = range(start, min(jobs, start + CHUNK))
                more = {"dedupe_key": [f"job-{n}" for n in some]} if keys else {}
                await queries.enqueue(
                    ["noop"] * len(some), [_payload(n) for n in some], [0] * len(some), **more
                )

    _run(go())


def feed(url: str, pace: Pace) -> None:
    async def go() -> None:
        queries = await _queries(url)
        await pace.arun(lambda n: queries.enqueue("noop", _payload(n), 0))

    _run(go())


def work(url: str, ledger: Ledger, style: str) -> None:
    # What sleeps runs 100 at once in all, as everywhere; it demands two batches' room for that.
    sleeps = style == "sleep"
    consumers = 1 if sleeps else CONSUMERS

    async def consumer() -> None:
        from pgqueuer import PgQueuer

        queuer = PgQueuer((await _queries(url)).driver)

        @queuer.entrypoint("noop")
        async def noop(job: Any) -> None:
            ledger.hit(json.loads(job.payload)["n"])
            if sleeps:
                await asyncio.sleep(SLEEP)

        if sleeps:
            await queuer.run(batch_size=AT_ONCE // 2, max_concurrent_tasks=AT_ONCE)
        else:
            await queuer.run(batch_size=BATCH)

    async def go() -> None:
        await asyncio.gather(*(consumer() for _ in range(consumers)))

    _run(go())


async def _queries(url: str) -> Any:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    return Queries(AsyncpgDriver(await asyncpg.connect(url)))


def _payload(n: int) -> bytes:
    return json.dumps({"n": n}).encode()


def _run(going: Coroutine[Any, Any, None]) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(going)


if __name__ == "__main__":
    main(setup=setup, bulk=bulk, feed=feed, work=work)
