"""Handlers of a cluster's jobs, which write down themselves how each run ended."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import App, current
from holdfast.errors import LeaseLost
from tests.chaos.app import EFFECT, effect
from tests.chaos.witness import note

app = App()


@app.task
async def nap(n: int, seconds: float) -> None:
    """Has its effect elsewhere, as far as anybody knows."""
    with noted("nap", n):
        await asyncio.sleep(seconds)


@app.task
def doze(n: int, seconds: float) -> None:
    """The same in a thread."""
    with noted("doze", n):
        time.sleep(seconds)


@app.task
async def book(n: int, seconds: float) -> None:
    """Has its effect in the transaction that ends the job."""
    with noted("book", n):
        await asyncio.sleep(seconds)
        async with current().transaction() as connection:
            await connection.execute(EFFECT, effect(n))


@app.task
def book_in_thread(n: int, seconds: float) -> None:
    """The same in a thread."""
    with noted("book_in_thread", n):
        time.sleep(seconds)
        with current().transaction() as connection:
            connection.execute(EFFECT, effect(n))


@contextmanager
def noted(kind: str, n: int) -> Iterator[None]:
    """Note the start of a handler and its end: finished, refused, or cut off from the database."""
    job = current()
    note("start", kind, n, job)
    try:
        yield
    except LeaseLost:
        note("refused", kind, n, job)
        raise
    except BaseException:
        note("cut", kind, n, job)
        raise
    note("finish", kind, n, job)
