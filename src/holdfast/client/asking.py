"""What asyncio and threads spell differently when several are asked at once: a class for each."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeVar

T = TypeVar("T")


class AsyncAsking:
    """Asks one who must answer, and beside it others who may not."""

    @staticmethod
    async def all(
        first: Callable[[], Awaitable[T]],
        others: Sequence[Callable[[], Awaitable[T]]],
        patience: float,
    ) -> tuple[T, list[T | Exception]]:
        """Return the answer of the first, and what the others answered within `patience`.

        The first is waited for as long as it takes, and its error is raised. An error of another
        one stands in its place, and a TimeoutError for an answer that did not come.
        """
        end = monotonic() + patience
        tasks = [asyncio.ensure_future(call()) for call in others]
        try:
            answer = await first()
            if tasks:
                await asyncio.wait(tasks, timeout=max(end - monotonic(), 0))
        finally:
            for task in tasks:
                task.cancel()
            # Also if the first failed: nothing goes on behind the caller's back.
            found = await asyncio.gather(*tasks, return_exceptions=True)
        return answer, [_told(one) for one in found]


class Asking:
    """Asks one who must answer, and beside it others who may not."""

    @staticmethod
    def all(
        first: Callable[[], T], others: Sequence[Callable[[], T]], patience: float
    ) -> tuple[T, list[T | Exception]]:
        """Return the answer of the first, and what the others answered within `patience`.

        The first is waited for as long as it takes, and its error is raised. An error of another
        one stands in its place, and a TimeoutError for an answer that did not come.
        """
        end = monotonic() + patience
        found: list[T | Exception] = [TimeoutError() for _ in others]

        def ask(place: int, call: Callable[[], T]) -> None:
            try:
                found[place] = call()
            except Exception as error:
                found[place] = error

        # Daemons: a program that has its answer does not wait for a node that stands still.
        threads = [
            threading.Thread(target=ask, args=asked, daemon=True) for asked in enumerate(others)
        ]
        for thread in threads:
            thread.start()
        answer = first()
        for thread in threads:
            thread.join(max(end - monotonic(), 0))
        return answer, list(found)


def _told(answer: T | BaseException) -> T | Exception:
    if isinstance(answer, asyncio.CancelledError):
        return TimeoutError()
    if isinstance(answer, BaseException) and not isinstance(answer, Exception):
        raise answer
    return answer
