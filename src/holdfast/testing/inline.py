"""Inline mode: a job runs as soon as it is enqueued, before the call that stores it returns."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.client import AsyncClient, Client

R = TypeVar("R")


@contextmanager
def inline(
    drain: Callable[[], Any],
    adrain: Callable[[], Awaitable[Any]],
    has_committed: Callable[[Any], bool],
) -> Iterator[None]:
    """Drain after each enqueue on a door whose jobs can run, because they are committed."""
    real, areal = Client.enqueue_many, AsyncClient.enqueue_many

    def enqueue_many(self: Client, *args: Any, **kwargs: Any) -> Any:
        answers = real(self, *args, **kwargs)
        if has_committed(self._door):
            # It blocks the event loop, if there is one, as the enqueue itself does.
            off_loop(drain)
        return answers

    async def aenqueue_many(self: AsyncClient, *args: Any, **kwargs: Any) -> Any:
        answers = await areal(self, *args, **kwargs)
        if has_committed(self._door):
            await adrain()
        return answers

    setattr(Client, "enqueue_many", enqueue_many)  # noqa: B010 - mypy refuses to assign a method
    setattr(AsyncClient, "enqueue_many", aenqueue_many)  # noqa: B010
    try:
        yield
    finally:
        setattr(Client, "enqueue_many", real)  # noqa: B010
        setattr(AsyncClient, "enqueue_many", areal)  # noqa: B010


def off_loop(work: Callable[[], R]) -> R:
    """Call a function that runs an event loop of its own; in a thread if one is running here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    answers: list[R] = []
    errors: list[BaseException] = []

    def apart() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=apart, name="holdfast-off-loop")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]
