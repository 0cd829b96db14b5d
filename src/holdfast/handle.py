"""A caller's handle of a job: its state, its result, and a way to cancel it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast import synonyms
from holdfast.client import AsyncClient, AsyncClusterClient, Client, ClusterClient
from holdfast.errors import (
    HoldfastError,
    JobCancelled,
    JobFailed,
    ResultNotKept,
    ResultTimeout,
    ResultUnreadable,
)
from holdfast.jitter import random_between
from holdfast.outcome import seconds
from holdfast.records import Change, Duration, Enqueued, Job, State

if TYPE_CHECKING:
    from holdfast.task import Task

R = TypeVar("R")

# Most jobs that somebody waits for have ended by then, and need no notification.
SOON = 0.05
# How often it polls while it is sure to be notified.
LOOK_EVERY = 5.0


class Handle(Generic[R]):
    """A job that was enqueued, or the live job that it duplicates.

    `created` is false for a duplicate, and `duplicate_of` is that job. `behind` is the job that
    this one waits for, in its lane or its limited queue, if any; if that job is running, `holder`
    is its worker, since `held_since`.
    """

    __slots__ = (
        "_on_conn",
        "behind",
        "created",
        "duplicate_of",
        "held_since",
        "holder",
        "id",
        "task",
    )

    def __init__(self, task: "Task[..., R, Any]", enqueued: Enqueued, *, on_conn: bool) -> None:
        self.task = task
        self.id = enqueued.id
        self.created = enqueued.created
        self.duplicate_of = enqueued.duplicate_of
        self.behind = enqueued.behind
        self.holder = enqueued.holder
        self.held_since = enqueued.held_since
        self._on_conn = on_conn

    if not TYPE_CHECKING:  # a type checker refuses what is not there by itself

        def __getattr__(self, name: str) -> Any:
            told = f"{type(self).__name__!r} object has no attribute {name!r}"
            if ours := synonyms.HANDLE.get(name):
                told += f": write  handle.{ours}"
            raise AttributeError(told, name=name, obj=self)

    def __repr__(self) -> str:
        return f"Handle({self.task.kind}, {self.id}, created={self.created})"

    def state(self) -> State | None:
        """Return its state; None if it was done and not kept, or deleted."""
        client = self.task.app.client
        with _everywhere(client) as nodes:
            job = client.jobs.get(self.id) or nodes.jobs.get(self.id)
        return job.state if job else None

    async def astate(self) -> State | None:
        """Return its state, as `state` does."""
        client = self.task.app.aclient
        async with _aeverywhere(client) as nodes:
            job = await client.jobs.get(self.id) or await nodes.jobs.get(self.id)
        return job.state if job else None

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job to end and return what its handler returned.

        Raises JobFailed, JobCancelled, ResultNotKept, or ResultTimeout, which is a TimeoutError.
        """
        client = self.task.app.client
        wait = _Wait(self, timeout)
        bell = threading.Event()
        with self.task.app.ends.watch(self.id, bell.set) as watch, _everywhere(client) as nodes:
            while not wait.has_ended(client.jobs.get(self.id) or nodes.jobs.get(self.id)):
                if wait.is_long():
                    try:
                        if watch.must_ask(client.listen_url):
                            client.jobs.await_end([self.id], waiter=watch.waiter)
                        elif watch.must_look():
                            watch.sure = bool(client.jobs.not_ending([self.id]))
                    except HoldfastError:
                        watch.refused = True
                bell.wait(wait.pause(sure=watch.sure))
                bell.clear()
        return wait.result()

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait for the job to end and return what its handler returned, as `result` does."""
        client = self.task.app.aclient
        wait = _Wait(self, timeout)
        bell = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(bell.set)

        with self.task.app.ends.watch(self.id, wake) as watch:
            async with _aeverywhere(client) as nodes:
                while not wait.has_ended(
                    await client.jobs.get(self.id) or await nodes.jobs.get(self.id)
                ):
                    if wait.is_long():
                        try:
                            if watch.must_ask(client.listen_url):
                                await client.jobs.await_end([self.id], waiter=watch.waiter)
                            elif watch.must_look():
                                watch.sure = bool(await client.jobs.not_ending([self.id]))
                        except HoldfastError:
                            watch.refused = True
                    pause = wait.pause(sure=watch.sure)  # raises a TimeoutError of its own
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await bell.wait()
                    bell.clear()
        return wait.result()

    def cancel(self, reason: str | None = None) -> bool:
        """Cancel the job, running or not; returns whether that was still possible."""
        client = self.task.app.client
        with _everywhere(client) as nodes:
            return any(
                _changed(one.jobs.cancel([self.id], reason=reason)) for one in (client, nodes)
            )

    async def acancel(self, reason: str | None = None) -> bool:
        """Cancel the job, as `cancel` does."""
        client = self.task.app.aclient
        async with _aeverywhere(client) as nodes:
            return _changed(await client.jobs.cancel([self.id], reason=reason)) or _changed(
                await nodes.jobs.cancel([self.id], reason=reason)
            )


class _Wait(Generic[R]):
    """Waits for one job to end: polls often at first, then less often.

    If it takes longer, the end is notified, and it polls seldom.
    """

    def __init__(self, handle: Handle[R], timeout: Duration | None) -> None:
        self._handle = handle
        self._timeout = None if timeout is None else seconds(timeout)
        self._started = time.monotonic()
        self._pause = 0.01
        self._seen = False
        self._job: Job | None = None

    def has_ended(self, job: Job | None) -> bool:
        self._job = job
        if job is None:
            # In an open transaction the job is not visible yet; once done, it is kept.
            hidden = self._handle._on_conn and self._handle.task.keep_result and not self._seen
            return not hidden
        self._seen = True
        return job.state not in ("queued", "leased")

    def is_long(self) -> bool:
        return time.monotonic() - self._started > SOON

    def pause(self, *, sure: bool) -> float:
        if sure:
            pause = LOOK_EVERY * random_between(0.5, 1.0)
        else:
            pause = self._pause * random_between(0.5, 1.0)
            self._pause = min(self._pause * 1.5, 1.0)
        if self._timeout is None:
            return pause
        left = self._started + self._timeout - time.monotonic()
        if left <= 0:
            raise ResultTimeout(
                self._handle.id,
                f"job {self._handle.id} ({self._handle.task.kind}) has not ended "
                f"within {self._timeout:g} s",
                fix=f"See why:  holdfast job show {self._handle.id}",
            )
        return min(pause, left)

    def result(self) -> R:
        handle, job = self._handle, self._job
        kind = handle.task.kind
        if job and job.state == "cancelled":
            raise JobCancelled(handle.id, kind, job.reason or "")
        # An archived job ended with an error, or with a result.
        if job and (job.state == "dead" or (job.error and job.result_json is None)):
            raise JobFailed(handle.id, kind, job.error or "", attempts=job.attempt)
        if job is None or not handle.task.keep_result:
            raise ResultNotKept(
                handle.id,
                f"job {handle.id} ({kind}) has ended and its result "
                + ("is not kept any more" if handle.task.keep_result else "was not kept"),
                fix="" if handle.task.keep_result else "Declare the task with  keep_result=True",
            )
        try:
            return handle.task.decode_result(job.result_json)
        except msgspec.DecodeError as error:
            raise ResultUnreadable(
                handle.id,
                f"the result of job {handle.id} is not what {kind} returns: {error}",
                why="The function changed since the job was done.",
            ) from None


@contextmanager
def _everywhere(client: Client) -> Iterator[ClusterClient]:
    # In a Citus cluster a job may be on another node than where it was enqueued. The nodes are
    # looked up only for a job that is not here.
    nodes = ClusterClient(client)
    try:
        yield nodes
    finally:
        nodes.cluster.close()


@asynccontextmanager
async def _aeverywhere(client: AsyncClient) -> AsyncIterator[AsyncClusterClient]:
    nodes = AsyncClusterClient(client)
    try:
        yield nodes
    finally:
        await nodes.cluster.close()


def _changed(changes: Sequence[Change]) -> bool:
    return any(change.changed for change in changes)
