"""Absurd: tasks with steps; a task waits for others by their results."""

import asyncio
import os
from typing import Any

import psycopg
from absurd_sdk import Absurd, AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.workflows.ledger import STEPS, WIDTH, main, note

URL = os.environ["DATABASE"]
# begin fan
app = AsyncAbsurd(URL, queue_name="parts")
flows = AsyncAbsurd(URL, queue_name="flows")


@app.register_task(name="part")
async def part(params: Any, ctx: Any) -> int:
    note("part", params["n"])
    return int(params["n"])


@flows.register_task(name="fanned")
async def fanned(params: Any, ctx: Any) -> None:
    async def begin() -> int:
        note("begin", params["n"])
        return int(params["n"])

    async def spawn() -> list[str]:
        made = [await app.spawn("part", {"n": first}) for _ in range(WIDTH)]
        return [str(one["task_id"]) for one in made]

    async def last() -> None:
        note("last", results[0])

    first = await ctx.step("begin", begin)
    tasks = await ctx.step("spawn", spawn)
    results = [(await ctx.await_task_result(task, queue_name="parts")).result for task in tasks]
    await ctx.step("last", last)


def fan(count: int) -> None:
    _spawn(flows, "fanned", count)


# end fan
# begin steps
@flows.register_task(name="in_steps")
async def in_steps(params: Any, ctx: Any) -> None:
    for nth in range(STEPS):

        async def effect(n: int = params["n"] * STEPS + nth) -> int:
            note("step", n)
            return n

        await ctx.step(f"step-{nth}", effect)


def steps(count: int) -> None:
    _spawn(flows, "in_steps", count)


# end steps


def _spawn(on: Any, name: str, count: int) -> None:
    async def go() -> None:
        for n in range(count):
            await on.spawn(name, {"n": n})

    asyncio.run(go())


def setup() -> None:
    """Make the tables."""
    with psycopg.connect(URL) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
    for queue in ("flows", "parts"):
        Absurd(URL, queue_name=queue).create_queue(queue)


def work() -> None:
    """Work until killed."""

    async def go() -> None:
        options = {"poll_interval": 0.05, "claim_timeout": 5}
        await asyncio.gather(
            flows.start_worker(concurrency=50, batch_size=50, **options),
            app.start_worker(concurrency=100, batch_size=100, **options),
        )

    asyncio.run(go())


if __name__ == "__main__":
    main(setup=setup, work=work, fan=fan, steps=steps)
