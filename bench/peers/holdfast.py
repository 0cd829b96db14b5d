"""Holdfast itself, in the environment that runs the bench."""

import asyncio
from collections.abc import Iterator

from bench.peers.contract import AT_ONCE, SLEEP, Clock, Ledger, Pace, Queue, main

QUEUE = Queue(
    name="holdfast",
    version="",
    about=f"one worker with {AT_ONCE} slots; bulk: Client.copy, with keys enqueue_many; "
    "single: Client.enqueue",
    remaining="select count(*) from holdfast.job",
    styles=("async", "def", "sleep", "middleware"),
    keys=True,
)
CHUNK = 5_000


class Nothing:
    """A middleware that does nothing."""

    def run(self, job: object) -> Iterator[None]:
        yield


def setup(url: str) -> None:
    """Find the schema in place: every database of the bench is migrated."""


def bulk(url: str, jobs: int, keys: bool, clock: Clock) -> None:
    from holdfast import Client, NewJob

    with Client(url) as client:
        client.queues.list()
        with clock:
            if not keys:
                client.copy(NewJob(kind="noop", payload={"n": n}) for n in range(jobs))
                return
            for start in range(0, jobs, CHUNK):
                client.enqueue_many(
                    NewJob(kind="noop", payload={"n": n}, key=f"job-{n}")
                    for n in range(start, min(jobs, start + CHUNK))
                )


def feed(url: str, pace: Pace) -> None:
    from holdfast import Client

    with Client(url) as client:
        pace.run(lambda n: client.enqueue("noop", {"n": n}))


def work(url: str, ledger: Ledger, style: str) -> None:
    from holdfast import App
    from holdfast.worker import Worker

    app = App(url, middleware=[Nothing()]) if style == "middleware" else App(url)
    hit = ledger.hit

    if style in ("async", "middleware"):

        @app.task(kind="noop")
        async def noop(n: int) -> None:
            hit(n)

    elif style == "sleep":

        @app.task(kind="noop")
        async def noop_that_takes_time(n: int) -> None:
            hit(n)
            await asyncio.sleep(SLEEP)

    else:

        @app.task(kind="noop")
        def noop_in_thread(n: int) -> None:
            hit(n)

    Worker(app, concurrency=AT_ONCE).run()


if __name__ == "__main__":
    main(setup=setup, bulk=bulk, feed=feed, work=work)
