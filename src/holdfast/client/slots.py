"""What asyncio and threads spell differently: one class for each, with the same face."""

import asyncio
import queue
from typing import Generic, TypeVar

T = TypeVar("T")


class AsyncSlots(Generic[T]):
    """A fixed number of places, each empty or holding something to be used by one at a time."""

    def __init__(self, size: int) -> None:
        self._places: asyncio.LifoQueue[T | None] = asyncio.LifoQueue()
        for _ in range(size):
            self._places.put_nowait(None)

    async def take(self, timeout: float) -> T | None:
        """Take a place, the most recently used first; raise TimeoutError if none gets free."""
        if not self._places.empty():
            return self._places.get_nowait()
        return await asyncio.wait_for(self._places.get(), timeout)

    def put(self, content: T | None) -> None:
        """Give a place back."""
        self._places.put_nowait(content)

    def clear(self) -> list[T]:
        """Empty the places that nobody uses; return what they held."""
        taken = [self._places.get_nowait() for _ in range(self._places.qsize())]
        for _ in taken:
            self._places.put_nowait(None)
        return [content for content in taken if content is not None]


class Slots(Generic[T]):
    """A fixed number of places, each empty or holding something to be used by one at a time."""

    def __init__(self, size: int) -> None:
        self._places: queue.LifoQueue[T | None] = queue.LifoQueue()
        for _ in range(size):
            self._places.put_nowait(None)

    def take(self, timeout: float) -> T | None:
        """Take a place, the most recently used first; raise TimeoutError if none gets free."""
        try:
            return self._places.get(timeout=max(timeout, 0))
        except queue.Empty:
            raise TimeoutError from None

    def put(self, content: T | None) -> None:
        """Give a place back."""
        self._places.put_nowait(content)

    def clear(self) -> list[T]:
        """Empty the places that nobody uses; return what they held."""
        taken: list[T | None] = []
        try:
            while True:
                taken.append(self._places.get_nowait())
        except queue.Empty:
            for _ in taken:
                self._places.put_nowait(None)
        return [content for content in taken if content is not None]
