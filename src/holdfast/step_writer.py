"""Stores the steps of jobs that run at once together: one statement for all that come meanwhile."""

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from holdfast.errors import Misuse
from holdfast.records import Held, NewStep

if TYPE_CHECKING:
    from holdfast.client import AsyncClient, Client


T = TypeVar("T")
# Bytes of results in one call. PostgreSQL takes 256 MB at most, and refuses all if it is more.
MOST = 8 * 1024 * 1024


class StepWriter:
    """Stores steps of concurrent jobs together: what comes during a call goes with the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Entry] = []
        self._busy = False

    def store(self, client: "Client", lease: Held, done: NewStep) -> tuple[str, str | None]:
        """Store one step and return its outcome; from any thread."""
        entry = _Entry(lease, done)
        with self._lock:
            self._waiting.append(entry)
            leads, self._busy = not self._busy, True
        if not leads:
            entry.turn.acquire()
        if entry.answer is None and entry.error is None:
            self._lead(client)
        return entry.result()

    def _lead(self, client: "Client") -> None:
        with self._lock:
            batch, self._waiting = _some(self._waiting, [one.done for one in self._waiting])
        try:
            _send(client, batch)
        finally:
            with self._lock:
                heir = self._waiting[0] if self._waiting else None
                self._busy = heir is not None
            for entry in batch:
                entry.turn.release()
            if heir:
                heir.turn.release()


def _some(waiting: list[T], steps: Sequence[NewStep]) -> tuple[list[T], list[T]]:
    """Return those that one call takes, and the rest: a statement must not become too long."""
    size = 0
    for nth, step in enumerate(steps):
        size += len(step.result_json)
        if size > MOST and nth:
            return waiting[:nth], waiting[nth:]
    return waiting, []


def _send(client: "Client", batch: Sequence["_Entry"]) -> None:
    try:
        answers = client.steps.store([(one.lease, one.done) for one in batch])
    except Misuse as error:
        if len(batch) == 1:
            batch[0].error = error
            return
        for one in batch:  # one of them is refused, and only that one
            _send(client, [one])
    except BaseException as error:
        for one in batch:
            one.error = error
    else:
        for one, answer in zip(batch, answers, strict=True):
            one.answer = answer


class _Entry:
    __slots__ = ("answer", "done", "error", "lease", "turn")

    def __init__(self, lease: Held, done: NewStep) -> None:
        self.lease = lease
        self.done = done
        self.turn = threading.Lock()
        self.turn.acquire()
        self.answer: tuple[str, str | None] | None = None
        self.error: BaseException | None = None

    def result(self) -> tuple[str, str | None]:
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


class AsyncStepWriter:
    """The same for the handlers of an event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Held, NewStep, asyncio.Future[tuple[str, str | None]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def store(
        self, client: "AsyncClient", lease: Held, done: NewStep
    ) -> tuple[str, str | None]:
        """Store one step and return its outcome."""
        answer: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
        self._waiting.append((lease, done, answer))
        if self._task is None:
            # A task of its own: a handler that is cancelled must not cancel the others' call.
            self._task = asyncio.get_running_loop().create_task(self._work(client))
        return await answer

    async def _work(self, client: "AsyncClient") -> None:
        try:
            while self._waiting:
                batch, self._waiting = _some(self._waiting, [done for _, done, _ in self._waiting])
                await _asend(client, batch)
        finally:
            self._task = None


async def _asend(client: "AsyncClient", batch: Sequence[Any]) -> None:
    try:
        answers = await client.steps.store([(lease, done) for lease, done, _ in batch])
    except Misuse as error:
        if len(batch) > 1:
            for one in batch:
                await _asend(client, [one])
        elif not batch[0][2].done():
            batch[0][2].set_exception(error)
    except BaseException as error:
        for _, _, future in batch:
            if not future.done():
                future.set_exception(error)
    else:
        for (_, _, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def writer_of(client: "Client") -> StepWriter:
    with _LOCK:
        if (writer := _WRITERS.get(client)) is None:
            writer = _WRITERS[client] = StepWriter()
        return writer


def async_writer_of(client: "AsyncClient") -> AsyncStepWriter:
    if (writer := _AWRITERS.get(client)) is None:
        writer = _AWRITERS[client] = AsyncStepWriter()
    return writer


_LOCK = threading.Lock()
_WRITERS: "WeakKeyDictionary[Client, StepWriter]" = WeakKeyDictionary()
_AWRITERS: "WeakKeyDictionary[AsyncClient, AsyncStepWriter]" = WeakKeyDictionary()
