"""Holdfast itself, in the environment that runs the bench."""

from bench.peers.contract import Ledger, Pace, main

REQUIREMENTS = ()
REMAINING = "select count(*) from holdfast.job"
RESET = ""
CONCURRENCY = 100
ABOUT = f"holdfast: one process with {CONCURRENCY} slots"


def setup(url: str) -> None:
    """Find the schema in place: every database of the bench is migrated."""


def fill(url: str, jobs: int) -> None:
    from holdfast import Client
    from holdfast.records import NewJob

    with Client(url) as client:
        client.copy(NewJob(kind="noop", payload={"n": n}) for n in range(jobs))


def feed(url: str, pace: Pace) -> None:
    from holdfast import Client

    with Client(url) as client:
        pace.run(lambda n: client.enqueue("noop", {"n": n}))


def work(url: str, ledger: Ledger, style: str) -> None:
    from holdfast import App
    from holdfast.worker import Worker

    app = App(url)
    hit = ledger.hit

    if style == "async":

        @app.task
        async def noop(n: int) -> None:
            hit(n)

    else:

        @app.task(kind="noop")
        def noop_in_thread(n: int) -> None:
            hit(n)

    Worker(app, concurrency=CONCURRENCY).run()


if __name__ == "__main__":
    main(setup=setup, fill=fill, feed=feed, work=work)
