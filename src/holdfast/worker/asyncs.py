"""Runs `async def` handlers on the worker's event loop."""

import asyncio
import threading
from collections import deque
from contextvars import copy_context
from typing import Any

from holdfast.current import CurrentJob
from holdfast.outcome import Stop, settle_stopped
from holdfast.worker.handlers import Attempt, Finish

# A handler that swallows its cancellation is left behind after this long.
STUBBORN = 5.0


class AsyncRunner:
    """One asyncio task for each job, in a context of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, finish: Finish) -> None:
        self.resources: Any = None
        self._loop = loop
        self._finish = finish
        self._thread = threading.get_ident()
        self._context = copy_context()
        self._arrived: deque[CurrentJob] = deque()
        self._called = False

    def start(self, job: CurrentJob) -> None:
        """Start the handler on the loop."""
        if threading.get_ident() == self._thread:
            self._begin(job)
            return
        # One call of the loop for all that arrive together.
        self._arrived.append(job)
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._begin_arrived)

    def stop(self, job: CurrentJob) -> None:
        """Cancel the handler's task."""
        self._loop.call_soon_threadsafe(self._cancel, job)

    def _begin_arrived(self) -> None:
        self._called = False  # before the deque is emptied: whoever comes later calls again
        while self._arrived:
            self._begin(self._arrived.popleft())

    def _begin(self, job: CurrentJob) -> None:
        job.resources = self.resources
        job.runner = self._loop.create_task(self._run(job), context=self._context.copy())

    async def _run(self, job: CurrentJob) -> None:
        with Attempt(job) as attempt:
            attempt.returned = await attempt.call()
        self._finish(job, attempt.settlement)

    def _cancel(self, job: CurrentJob) -> None:
        # One that has not begun sees for itself that it is to stop.
        if job.finished or not job.runner:
            return
        job.runner.cancel()
        patience = 1.0 if job.stopped is Stop.SHUTDOWN else STUBBORN
        self._loop.call_later(patience, self._abandon, job)

    def _abandon(self, job: CurrentJob) -> None:
        if not job.finished:
            job.goes_on = True
            self._finish(job, settle_stopped(job))
