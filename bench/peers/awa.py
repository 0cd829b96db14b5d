"""awa: a Rust core under a Python client."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.peers.contract import AT_ONCE, SLEEP, Clock, Ledger, Pace, Queue, main

VERSION = "0.6.9"
QUEUE = Queue(
    name="awa",
    version=VERSION,
    about="256 workers, 512 a claim (100 and 100 for jobs of 10 ms), its poll of 200 ms; bulk: "
    "enqueue_many_copy, one call; single: insert; a drain ends with the last handler's start, "
    "because its own count of unfinished jobs takes minutes",
    remaining="select 0",
    requirements=(f"awa-pg=={VERSION}",),
    share=0.4,
)


@dataclass
class Noop:
    n: int


def setup(url: str) -> None:
    async def go() -> None:
        client = _client(url)
        await client.migrate()
        # Refuses to copy until a first worker has set up the queue's storage.
        _declare(client, lambda n: None)
        await client.start([("jobs", 1)])
        await client.shutdown()

    asyncio.run(go())


def bulk(url: str, jobs: int, keys: bool, clock: Clock) -> None:
    async def go() -> None:
        client = _client(url)
        with clock:
            await client.enqueue_many_copy([Noop(n) for n in range(jobs)], queue="jobs")

    asyncio.run(go())


def feed(url: str, pace: Pace) -> None:
    async def go() -> None:
        client = _client(url)
        await pace.arun(lambda n: client.insert(Noop(n), queue="jobs"))

    asyncio.run(go())


def work(url: str, ledger: Ledger, style: str) -> None:
    sleeps = style == "sleep"
    at_once, batch = (AT_ONCE, AT_ONCE) if sleeps else (256, 512)

    async def go() -> None:
        client = _client(url)
        _declare(client, ledger.hit, SLEEP if sleeps else 0)
        await client.start([{"name": "jobs", "max_workers": at_once, "claim_batch_size": batch}])
        await asyncio.Event().wait()

    asyncio.run(go())


def _client(url: str) -> Any:
    from awa import AsyncClient

    # Its driver wants a host in front of the slash, and then takes the one behind it.
    return AsyncClient(url.replace("@/", "@localhost/"), max_connections=20)


def _declare(client: Any, hit: Callable[[int], None], seconds: float = 0) -> None:
    @client.task(Noop, queue="jobs")
    async def noop(job: Any) -> None:
        hit(job.args.n)
        if seconds:
            await asyncio.sleep(seconds)


if __name__ == "__main__":
    main(setup=setup, bulk=bulk, feed=feed, work=work)
