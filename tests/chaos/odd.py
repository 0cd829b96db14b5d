"""Handlers that end in ways nobody expects; each must cost its own job only."""

import asyncio
import sys
from typing import Any

from holdfast import App, current
from tests.chaos.witness import note

app = App()


class UnspeakableError(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def bad_policy(attempt: int, error: BaseException) -> float:
    raise RuntimeError("the policy itself is broken")


@app.task
async def fine(n: int, seconds: float = 0.0) -> None:
    job = current()
    note("start", "fine", n, job)
    await asyncio.sleep(seconds)
    note("finish", "fine", n, job)


@app.task
async def unspeakable(n: int) -> None:
    raise UnspeakableError


@app.task
def unspeakable_in_thread(n: int) -> None:
    raise UnspeakableError


@app.task
async def leave(n: int) -> None:
    sys.exit(7)


@app.task
def leave_in_thread(n: int) -> None:
    sys.exit(7)


@app.task
async def interrupt(n: int) -> None:
    raise KeyboardInterrupt


@app.task
async def cancel_itself(n: int) -> None:
    raise asyncio.CancelledError


@app.task(retry=bad_policy)
async def policy(n: int) -> None:
    raise ValueError("to be retried by a policy that fails")


@app.task
async def zero_byte(n: int) -> None:
    raise ValueError("a \0 in the middle")


@app.task
async def half_character(n: int) -> None:
    raise ValueError("half a character: \ud800")


@app.task
async def loud(n: int) -> None:
    raise ValueError("x" * 50_000_000)


@app.task(keep_result=True)
async def strange_result(n: int) -> Any:
    return object()


@app.task(keep_result=True)
async def zero_result(n: int) -> Any:
    return "a \0 in the middle"


@app.task(keep_result=True)
async def half_result(n: int) -> Any:
    return "half a character: \ud800"


@app.task(keep_result=True)
async def not_a_number(n: int) -> Any:
    return float("nan")


@app.task
async def odd_progress(n: int) -> None:
    """Says how far it is in words that cannot be stored, and goes on."""
    job = current()
    job.progress(float("nan"), note="a \0 and half a character \ud800")
    await asyncio.sleep(3)


@app.task
async def stubborn(n: int) -> None:
    """Does not let itself be cancelled."""
    note("start", "stubborn", n, current())
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("cancelled", "stubborn", n, current())
