"""Runs `async def` handlers on the worker's event loop."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any

from holdfast.current import CurrentJob
from holdfast.outcome import Stop, settle_stopped
from holdfast.worker.handlers import Ending, Finish, call, ending

# A handler that ignores its cancellation is abandoned after this long.
STUBBORN = 5.0
# How many handlers that never wait run in one step of the event loop before others get a turn.
TURN = 50


class AsyncRunner:
    """Runs each job in a context of its own, and in an asyncio task of its own once it waits.

    A handler that never waits needs no task for itself: a task and its turn on the event loop cost
    several times what the rest of such a job does. So one task begins jobs one after the other,
    until one of them waits: from then on the task is that job's alone, and another one goes on
    with the rest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, finish: Finish) -> None:
        self.resources: Any = None
        self._loop = loop
        self._finish = finish
        self._context = copy_context()
        self._arrived: deque[CurrentJob] = deque()
        # Whether the loop was called to look at what has arrived; and the tasks that will begin it.
        self._called = False
        self._coming = 0

    def start(self, job: CurrentJob) -> None:
        """Start the handler on the loop; from any thread."""
        self._arrived.append(job)
        # One call of the loop for all that arrive together.
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._look)

    def stop(self, job: CurrentJob) -> None:
        """Cancel the handler's task."""
        self._loop.call_soon_threadsafe(self._cancel, job)

    def _look(self) -> None:
        self._called = False  # before looking: later arrivals call again
        self._go_on(1)

    def _go_on(self, tasks: int) -> None:
        """Have so many tasks, or as many as are needed, begin what has arrived."""
        for _ in range(min(tasks, len(self._arrived)) - self._coming):
            self._coming += 1
            # Kept by the job that waits in it; without one it is over when this step is.
            self._task = self._loop.create_task(self._run_arrived(), context=self._context.copy())

    async def _run_arrived(self) -> None:
        self._coming -= 1
        task = asyncio.current_task()
        assert task is not None
        arrived, resources, finish = self._arrived, self.resources, self._finish
        try:
            # One of many tasks takes one job: together they would take the turns of others.
            for _ in range(1 if self._coming else TURN):
                if not arrived:
                    break
                job = arrived.popleft()
                job.resources, job.runner = resources, task
                steps, context = _steps(job), self._context.copy()
                try:
                    awaited = context.run(steps.send, None)
                except StopIteration as end:
                    after = finish(job, end.value)
                    if after:
                        arrived.append(after)
                    if task.cancelling():
                        break  # the handler cancelled its own task; this does not affect other jobs
                    continue
                # Where one waits, others will: each gets its task now, not one after the other.
                self._go_on(len(arrived))
                after = finish(job, await _Rest(steps, context, awaited))
                if after:
                    arrived.append(after)
                break
        finally:
            self._go_on(1)

    def _cancel(self, job: CurrentJob) -> None:
        # A job that has not started checks this itself.
        if job.finished or not job.runner:
            return
        job.runner.cancel()
        patience = 1.0 if job.stopped is Stop.SHUTDOWN else STUBBORN
        self._loop.call_later(patience, self._abandon, job)

    def _abandon(self, job: CurrentJob) -> None:
        if not job.finished:
            job.goes_on = True
            if after := self._finish(job, settle_stopped(job)):
                self.start(after)


class _Rest:
    """Awaits the rest of a started coroutine, each step in its original context."""

    def __init__(self, steps: Coroutine[Any, Any, Ending], context: Context, awaited: Any) -> None:
        self._steps = steps
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Ending]:
        steps, run, awaited = self._steps, self._context.run, self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except BaseException as error:
                    awaited = run(steps.throw, error)
                else:
                    awaited = run(steps.send, sent)
        except StopIteration as end:
            ended: Ending = end.value
            return ended


async def _steps(job: CurrentJob) -> Ending:
    try:
        returned = await call(job)
    except BaseException as error:
        return ending(job, None, error)
    return ending(job, returned)
