"""Holdfast: the same two programs as its peers have."""

import os

from bench.workflows.ledger import STEPS, WIDTH, main, note
from holdfast import App, current
from holdfast.flow import group

# begin fan
app = App(os.environ["DATABASE"])


@app.task(lease=5)
def begin(n: int) -> int:
    note("begin", n)
    return n


@app.task(lease=5)
def part(n: int) -> int:
    note("part", n)
    return n


@app.task(lease=5)
def last(parts: list[int]) -> None:
    note("last", parts[0])


def fan(count: int) -> None:
    for n in range(count):
        first = begin.call(n)
        group(*(first.then(part) for _ in range(WIDTH))).then(last).enqueue()


# end fan
# begin steps
@app.task(lease=5)
async def in_steps(n: int) -> None:
    for nth in range(STEPS):
        await current().step(f"step-{nth}", effect, n * STEPS + nth)


async def effect(n: int) -> int:
    note("step", n)
    return n


def steps(count: int) -> None:
    app.enqueue_many(in_steps.call(n) for n in range(count))


# end steps


def setup() -> None:
    """Do nothing: the bench's database has the schema."""


def work() -> None:
    """Work until killed."""
    app.run(concurrency=200)


if __name__ == "__main__":
    main(setup=setup, work=work, fan=fan, steps=steps)
