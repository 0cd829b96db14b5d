"""pgqueuer as its own benchmark runs it: several consumers on one event loop, large batches."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from bench.peers.contract import Ledger, Pace, main

REQUIREMENTS = ("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")
REMAINING = "select count(*) from pgqueuer"
RESET = "truncate pgqueuer, pgqueuer_log, pgqueuer_statistics"
# The fastest of 1 to 8 consumers and batches of 50 to 1,000 on two cores.
CONSUMERS = 3
BATCH = 100
ABOUT = (
    f"pgqueuer 1.6.0: asyncpg, uvloop, {CONSUMERS} consumers in one process with a connection "
    f"each, batches of {BATCH}, durable tables, its own autovacuum settings"
)


def setup(url: str) -> None:
    async def go() -> None:
        queries = await _queries(url)
        await queries.install()
        await queries.optimize_autovacuum()

    _run(go())


def fill(url: str, jobs: int) -> None:
    async def go() -> None:
        queries = await _queries(url)
        for start in range(0, jobs, 5000):
            some = range(start, min(jobs, start + 5000))
            await queries.enqueue(
                ["noop"] * len(some), [_payload(n) for n in some], [0] * len(some)
            )

    _run(go())


def feed(url: str, pace: Pace) -> None:
    async def go() -> None:
        queries = await _queries(url)
        await pace.arun(lambda n: queries.enqueue("noop", _payload(n), 0))

    _run(go())


def work(url: str, ledger: Ledger, style: str) -> None:
    assert style == "async", "pgqueuer runs async handlers only"

    async def consumer() -> None:
        from pgqueuer import PgQueuer

        queuer = PgQueuer((await _queries(url)).driver)

        @queuer.entrypoint("noop")
        async def noop(job: Any) -> None:
            ledger.hit(json.loads(job.payload)["n"])

        await queuer.run(batch_size=BATCH)

    async def go() -> None:
        await asyncio.gather(*(consumer() for _ in range(CONSUMERS)))

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
    main(setup=setup, fill=fill, feed=feed, work=work)
