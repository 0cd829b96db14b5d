"""Inline mode: a job runs as soon as it is enqueued, before the call that stores it returns."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.client import AsyncClient, Client
from holdfast.client.aio.pool import AsyncPool
from holdfast.client.sync.pool import Pool


@contextmanager
def inline(drain: Callable[[], Any], adrain: Callable[[], Awaitable[Any]]) -> Iterator[None]:
    """Drain after each enqueue of any client that is not bound to a transaction."""
    real, areal = Client.enqueue_many, AsyncClient.enqueue_many

    def enqueue_many(self: Client, *args: Any, **kwargs: Any) -> Any:
        answers = real(self, *args, **kwargs)
        if isinstance(self._door, Pool):
            _drain_here(drain)
        return answers

    async def aenqueue_many(self: AsyncClient, *args: Any, **kwargs: Any) -> Any:
        answers = await areal(self, *args, **kwargs)
        if isinstance(self._door, AsyncPool):
            await adrain()
        return answers

    setattr(Client, "enqueue_many", enqueue_many)  # noqa: B010 - mypy refuses to assign a method
    setattr(AsyncClient, "enqueue_many", aenqueue_many)  # noqa: B010
    try:
        yield
    finally:
        setattr(Client, "enqueue_many", real)  # noqa: B010
        setattr(AsyncClient, "enqueue_many", areal)  # noqa: B010


def _drain_here(drain: Callable[[], Any]) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        drain()
        return
    # A synchronous enqueue on an event loop blocks it anyway; handlers need a loop that is free.
    errors: list[BaseException] = []

    def work() -> None:
        try:
            drain()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="holdfast-inline")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
