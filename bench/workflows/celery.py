"""Celery with Redis: a chord behind a task. It has no durable steps."""

import os

from celery import Celery, chord

from bench.workflows.ledger import WIDTH, main, note

URL = os.environ["REDIS"]
# begin fan
app = Celery("bench", broker=URL, backend=URL)
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.broker_transport_options = {"visibility_timeout": 5}


@app.task(name="begin")
def begin(n: int) -> None:
    note("begin", n)
    chord([part.s(n) for _ in range(WIDTH)])(last.s())


@app.task(name="part")
def part(n: int) -> int:
    note("part", n)
    return n


@app.task(name="last")
def last(parts: list[int]) -> None:
    note("last", parts[0])


def fan(count: int) -> None:
    for n in range(count):
        begin.delay(n)


# end fan


def setup() -> None:
    """Do nothing."""


def work() -> None:
    """Work until killed."""
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    app.worker_main(["worker", "--pool=prefork", "--concurrency=2", *quiet])


if __name__ == "__main__":
    main(setup=setup, work=work, fan=fan)
