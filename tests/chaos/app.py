"""Handlers that suffer; what they do is written by themselves to the witness."""

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from holdfast import App, current
from holdfast.errors import LeaseLost
from tests.chaos.witness import note

# Exists while the outside system that `depend` needs is up.
DEPENDENCY = Path(os.environ.get("CHAOS_DEPENDENCY", "/nonexistent"))
EFFECT = "insert into chaos.effect (n, job, token, attempt, worker) values (%s, %s, %s, %s, %s)"

app = App()


@app.task
async def nap(n: int, seconds: float = 0.0, again: float | None = None) -> None:
    job = current()
    note("start", "nap", n, job)
    await asyncio.sleep(seconds if again is None or job.attempt == 1 else again)
    note("finish", "nap", n, job)


@app.task
def doze(n: int, seconds: float = 0.0) -> None:
    job = current()
    note("start", "doze", n, job)
    time.sleep(seconds)
    note("finish", "doze", n, job)


@app.task
async def book(n: int, seconds: float = 0.0, again: float | None = None) -> None:
    """Writes its effect and its ack in one transaction, after a while."""
    job = current()
    note("start", "book", n, job)
    await asyncio.sleep(seconds if again is None or job.attempt == 1 else again)
    try:
        async with job.transaction() as connection:
            await connection.execute(EFFECT, effect(n))
    except LeaseLost:
        note("refused", "book", n, job)
        raise
    note("finish", "book", n, job)


@app.task
def book_in_thread(n: int, seconds: float = 0.0) -> None:
    job = current()
    note("start", "book_in_thread", n, job)
    time.sleep(seconds)
    try:
        with job.transaction() as connection:
            connection.execute(EFFECT, effect(n))
    except LeaseLost:
        note("refused", "book_in_thread", n, job)
        raise
    note("finish", "book_in_thread", n, job)


@app.task
async def book_slowly(n: int, seconds: float) -> None:
    """Works inside its transaction."""
    job = current()
    note("start", "book_slowly", n, job)
    async with job.transaction() as connection:
        await connection.execute(EFFECT, effect(n))
        await asyncio.sleep(seconds)
    note("finish", "book_slowly", n, job)


@app.task
def book_slowly_in_thread(n: int, seconds: float) -> None:
    job = current()
    note("start", "book_slowly_in_thread", n, job)
    with job.transaction() as connection:
        connection.execute(EFFECT, effect(n))
        time.sleep(seconds)
    note("finish", "book_slowly_in_thread", n, job)


@app.task(queue="lanes", lane="one")
async def step(n: int, seconds: float = 0.0) -> None:
    """One of a lane: what it does is fenced, and so is the order."""
    job = current()
    note("start", "step", n, job)
    await asyncio.sleep(seconds)
    async with job.transaction() as connection:
        await connection.execute(EFFECT, effect(n))
    note("finish", "step", n, job)


@app.task(max_attempts=1000, retry=0)
async def in_steps(n: int, seconds: float = 0.0) -> None:
    """Five steps, each with an effect of its own, and a sleep without a lease in the middle."""
    job = current()
    for nth in range(5):
        await job.atomic_step(f"effect-{nth}", _effect_of, n * 10 + nth)
        await asyncio.sleep(seconds)
        if nth == 2:
            await job.asleep(seconds=0.1)


async def _effect_of(connection: AsyncConnection[Any], n: int) -> int:
    await connection.execute(EFFECT, effect(n))
    return n


@app.task
async def opens(n: int, seconds: float = 0.0) -> int:
    """The first of a workflow: every part of it gets what this returns."""
    return await _booked(n, n, seconds)


@app.task
async def part(n: int, opened: int, seconds: float = 0.0) -> int:
    """One of many side by side; plain, so that ends of many are told in one call."""
    job = current()
    note("start", "part", n, job)
    await asyncio.sleep(seconds)
    return opened + n


@app.task
async def part_booked(n: int, opened: int, seconds: float = 0.0) -> int:
    """One of many side by side, with an effect of its own."""
    return await _booked(n, opened + n, seconds)


@app.task
async def closes(n: int, parts: list[int], wanted: list[int], seconds: float = 0.0) -> int:
    """The last of a workflow: it has its effect only if it was given what all others returned."""
    if parts != wanted:
        raise ValueError(f"{n} was given {parts} and not {wanted}")
    return await _booked(n, n, seconds)


async def _booked(n: int, result: int, seconds: float) -> int:
    job = current()
    note("start", job.kind, n, job)
    await asyncio.sleep(seconds)
    async with job.transaction(result=result) as connection:
        await connection.execute(EFFECT, effect(n))
    note("finish", job.kind, n, job)
    return result


@app.task
async def block(n: int, seconds: float) -> None:
    """Stops the event loop of everybody else on it."""
    job = current()
    note("start", "block", n, job)
    time.sleep(seconds)
    note("finish", "block", n, job)


@app.task
async def fail(n: int) -> None:
    note("start", "fail", n, current())
    raise ValueError(f"{n} is not to my liking")


@app.task
def clutch(n: int, seconds: float) -> None:
    """Holds the interpreter's lock in C code, and with it every thread of its worker."""
    job = current()
    note("start", "clutch", n, job)
    hold_interpreter(seconds)
    note("finish", "clutch", n, job)


@app.task
async def depend(n: int, seconds: float = 0.0) -> None:
    """Fails while the outside system is down."""
    job = current()
    note("start", "depend", n, job)
    await asyncio.sleep(seconds)
    if not DEPENDENCY.exists():
        note("fail", "depend", n, job)
        raise ConnectionError("the outside system is down")
    note("finish", "depend", n, job)


def hold_interpreter(seconds: float) -> None:
    """Match a catastrophic pattern; each further letter takes twice as long."""
    text = "a" * 18
    started = time.monotonic()
    while (left := seconds - (time.monotonic() - started)) > 0:
        before = time.monotonic()
        re.match(r"(a+)+$", text + "!")
        # One match as long as possible, but not longer than what is left.
        if (time.monotonic() - before) * 2 < left:
            text += "a"


def effect(n: int) -> list[object]:
    """Return the row that tells of the job that is running."""
    job = current()
    return [n, job.id, job.lease.token, job.attempt, job.lease.worker]
