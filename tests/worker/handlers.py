"""Handlers for tests of the worker's processes; what they do is told by files."""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import App, current

app = App()

if (reason := os.environ.get("TEST_BROKEN")) and multiprocessing.parent_process():
    raise OSError(reason)


@app.lifespan
@asynccontextmanager
async def opened(app: App) -> AsyncIterator[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    yield {"pid": os.getpid(), "loop": loop}
    if left := os.environ.get("TEST_LEFT"):
        with Path(left).open("a") as file:
            file.write(f"{os.getpid()}\n")


@app.task(process=True, keep_result=True)
def whoami() -> tuple[int, int]:
    return os.getpid(), current().resources["pid"]


@app.task(process=True, keep_result=True)
async def whoami_async() -> bool:
    await asyncio.sleep(0)
    return asyncio.get_running_loop() is current().resources["loop"]


@app.task(process=True, max_attempts=1)
def vanish(how: str, told: str = "") -> None:
    tell(told)
    match how:
        case "exit":
            os._exit(3)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "quietly":
            os._exit(0)
        case "with a fork":
            # The fork has the pipe too, and lives on.
            if os.fork() == 0:
                time.sleep(240)
            os._exit(4)


@app.task(process=True, max_attempts=1, memory=300_000_000, keep_result=True)
def devour(megabytes: int) -> int:
    eaten = [bytearray(1_000_000) for _ in range(megabytes)]
    return len(eaten)


@app.task(process=True)
def wait_for(told: str, released: str, seconds: float = 60.0) -> None:
    """Says that it runs, then waits to be released."""
    tell(told)
    deadline = time.monotonic() + seconds
    while not Path(released).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@app.task(process=True, timeout=0.5, max_attempts=1)
def overrun(told: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    tell(told, child.pid)
    # Neither the interpreter nor a signal handler gets a word in.
    ctypes.PyDLL(None).sleep(60)


@app.task(process=True)
def report(told: str, released: str) -> None:
    job = current()
    for step in range(1000):
        job.progress(step, 1000, "counting")
    job.assert_held()
    wait_for(told, released)


@app.task(process=True, max_attempts=1)
def log_and_die(released: str) -> None:
    logging.getLogger("shop").warning("begun")
    wait_for("", released)
    logging.getLogger("shop").warning("about to die")
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(process=True)
def log_lines(released: str) -> None:
    logging.getLogger("shop").warning("begun")
    wait_for("", released)
    logging.getLogger("shop").warning("over")


@app.task(process=True)
def insert_and_ack(table: str, told: str = "") -> None:
    job = current()
    with job.transaction() as connection:
        connection.execute(f"insert into {table} values ({os.getpid()})")
    tell(told, job.held())


@app.task(process=True)
async def insert_and_ack_async(table: str) -> None:
    async with current().transaction() as connection:
        await connection.execute(f"insert into {table} values ({os.getpid()})")


@app.task(process=True, max_attempts=1)
def in_steps(seen: str) -> None:
    job = current()
    job.step("first", append, seen, "first")
    append(seen, "run")
    append(seen, job.wait_event("go", timeout=60))


@app.task(process=True, max_attempts=1)
async def in_steps_async(seen: str) -> None:
    job = current()
    await job.step("first", append_later, seen, "first")
    append(seen, "run")
    append(seen, await job.await_event("go", timeout=60))


def append(file: str, word: str) -> None:
    with Path(file).open("a") as told:
        told.write(f"{word} ")


async def append_later(file: str, word: str) -> None:
    append(file, word)


@app.task(process=True)
def pass_on(told: str) -> None:
    ticket = current().hand_over(timeout=60)
    tell(told, ticket.id, ticket.token)


@app.task(process=True)
def held_after_freeze(told: str, ended: str) -> None:
    """Tells, each time it looks, whether the lease is held; until it is not."""
    tell(told)
    while current().held():
        time.sleep(0.01)
    tell(ended)
    time.sleep(60)


@app.task(max_attempts=1)
def hold_interpreter(told: str, seconds: int) -> None:
    tell(told)
    # C code that does not let go of the GIL.
    ctypes.PyDLL(None).sleep(seconds)


@app.task
def wait_here(told: str, released: str) -> None:
    wait_for(told, released)


@app.task(keep_result=True)
def here() -> int:
    return os.getpid()


@app.task(process=True)
def hand_to_here() -> None:
    here.enqueue()


def tell(path: str, *facts: object) -> None:
    """Write a file at once, with the number of this process and what there is to say."""
    if path:
        fresh = Path(f"{path}.new")
        fresh.write_text(" ".join(map(str, [os.getpid(), *facts])))
        fresh.rename(path)


def told(path: Path, seconds: float = 50.0) -> list[str]:
    """Wait for what a handler tells in a file; return it."""
    until(path.exists, seconds)
    return path.read_text().split()


def until(condition: Callable[[], bool], seconds: float = 50.0) -> None:
    """Wait until something is so; what it waits for has no event of its own."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children(parent: int) -> list[tuple[int, str]]:
    """Return the children of a process, but for multiprocessing's tracker, which ends by itself."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            above = stat.read_text().rpartition(")")[2].split()[1]
            command = (stat.parent / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if int(above) == parent and "resource_tracker" not in command:
            found.append((int(stat.parent.name), command))
    return found
