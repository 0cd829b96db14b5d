"""Handlers that do harm, each in a process of its own, and one that suffers among them."""

import ctypes
import os
import signal
import time

from holdfast import App, current
from holdfast.errors import LeaseLost
from tests.chaos.app import EFFECT, effect, hold_interpreter
from tests.chaos.witness import note

app = App()


@app.task(process=True)
def toil(n: int, seconds: float = 0.0) -> None:
    job = current()
    note("start", "toil", n, job)
    time.sleep(seconds)
    note("finish", "toil", n, job)


@app.task(process=True)
def book_in_process(n: int, seconds: float = 0.0) -> None:
    """Writes its effect and its ack in one transaction, after a while."""
    job = current()
    note("start", "book_in_process", n, job)
    time.sleep(seconds)
    try:
        with job.transaction() as connection:
            connection.execute(EFFECT, effect(n))
    except LeaseLost:
        note("refused", "book_in_process", n, job)
        raise
    note("finish", "book_in_process", n, job)


@app.task(process=True)
def hog(n: int, seconds: float) -> None:
    """Holds the interpreter's lock in C code, as a bad regular expression does."""
    job = current()
    note("start", "hog", n, job)
    hold_interpreter(seconds)
    note("finish", "hog", n, job)


@app.task(process=True)
def vanish(n: int) -> None:
    note("start", "vanish", n, current())
    os._exit(3)


@app.task(process=True)
def die(n: int, sig: int = signal.SIGKILL) -> None:
    note("start", "die", n, current())
    os.kill(os.getpid(), sig)
    time.sleep(10)


@app.task(process=True, memory=300_000_000)
def leak(n: int) -> None:
    note("start", "leak", n, current())
    kept = []
    while True:
        kept.append(b"x" * 10_000_000)


@app.task(process=True)
def crash(n: int) -> None:
    note("start", "crash", n, current())
    ctypes.string_at(0)
