"""Asking several at once: the first must answer, the others may not."""

import asyncio
import threading
import time

import pytest

from holdfast.client.asking import Asking, AsyncAsking


def test_threads_answer_fail_or_are_late_each_for_itself() -> None:
    over = threading.Event()

    def late() -> int:
        over.wait(20)
        return 3

    def fails() -> int:
        raise ValueError("no")

    started = time.monotonic()
    first, others = Asking.all(lambda: 1, [lambda: 2, fails, late], 0.3)
    took = time.monotonic() - started
    over.set()

    assert (first, others[0]) == (1, 2)
    assert [type(one) for one in others[1:]] == [ValueError, TimeoutError]
    assert took < 10


def test_tasks_answer_fail_or_are_late_each_for_itself() -> None:
    async def answers() -> int:
        return 2

    async def fails() -> int:
        raise ValueError("no")

    async def late() -> int:
        await asyncio.sleep(20)
        return 3

    async def ask() -> tuple[int, list[int | Exception]]:
        return await AsyncAsking.all(answers, [answers, fails, late], 0.3)

    first, others = asyncio.run(ask())

    assert (first, others[0]) == (2, 2)
    assert [type(one) for one in others[1:]] == [ValueError, TimeoutError]


def test_if_the_first_fails_nothing_goes_on() -> None:
    ended = []

    async def fails() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def late() -> int:
        try:
            await asyncio.sleep(20)
        finally:
            ended.append(1)
        return 3

    async def ask() -> None:
        with pytest.raises(ValueError, match="no"):
            await AsyncAsking.all(fails, [late], 30)
        assert ended == [1]

    asyncio.run(ask())
    with pytest.raises(ZeroDivisionError):
        Asking.all(lambda: 1 // 0, [lambda: 2], 1.0)
