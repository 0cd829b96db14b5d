"""An app with middleware whose handlers run in all three ways; what happens is kept as results."""

import asyncio
from collections.abc import Generator, Iterator
from contextvars import ContextVar
from typing import Any

from msgspec.structs import replace

from holdfast import App, Enqueued, NewJob, current
from holdfast.current import CurrentJob
from holdfast.middleware import carry

request_id: ContextVar[str] = ContextVar("request_id")
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
seen: ContextVar[tuple[str, ...]] = ContextVar("seen", default=())
told: list[Any] = []


class Named:
    """Writes down what it sees, with its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def enqueue(self, job: NewJob) -> Generator[NewJob, Enqueued, None]:
        told.append((self.name, "enqueue", job.kind))
        answer = yield replace(job, subject=f"{job.subject or ''}{self.name}")
        told.append((self.name, "enqueued", answer.created))

    def run(self, job: CurrentJob) -> Iterator[None]:
        seen.set((*seen.get(), self.name))
        assert current() is job
        try:
            returned = yield
        except BaseException as error:
            told.append((self.name, "raised", str(error)))
            raise
        told.append((self.name, "returned", returned))


app = App(middleware=[carry(request_id, tenant), Named("outer"), Named("inner")])
Seen = tuple[str, str, tuple[str, ...]]


def what_is_set() -> Seen:
    return request_id.get("none"), tenant.get(), seen.get()


@app.task(keep_result=True)
async def in_loop() -> Seen:
    await asyncio.sleep(0)
    return what_is_set()


@app.task(keep_result=True)
def in_thread() -> Seen:
    return what_is_set()


@app.task(keep_result=True, process=True)
def in_process() -> Seen:
    return what_is_set()


@app.task(keep_result=True, process=True)
async def in_process_loop() -> Seen:
    await asyncio.sleep(0)
    return what_is_set()


@app.task
def enqueues() -> None:
    in_thread.options(key="passed-on").enqueue()
