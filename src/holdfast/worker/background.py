"""A worker inside another program, such as a web server."""

import asyncio
import logging
import threading
from typing import Any, Self

from holdfast.app import App
from holdfast.worker import Worker

log = logging.getLogger("holdfast.worker")


def start_processor(app: App, **settings: Any) -> "Processor":
    """Run a worker in a thread of this process; call it when the program starts.

    Takes the arguments of `Worker`. The thread has its own event loop, so that a busy program does
    not delay handlers. Signals are left to the program: call `stop` before it exits; otherwise
    other workers take over the running jobs when their leases expire.
    """
    return Processor(Worker(app, **settings))


class Processor:
    """A worker in a thread; a context manager that stops it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.failure: BaseException | None = None
        # A program that exits without stopping it does not wait: its leases expire.
        self._thread = threading.Thread(target=self._run, name="holdfast-processor", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it is running; if it ended without `stop`, `failure` has the reason."""
        return self._thread.is_alive()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop claiming and wait for the end: handlers have the worker's grace period.

        Returns whether it has ended within `timeout`.
        """
        self.worker.stop()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _work(self) -> None:
        try:
            await self.worker.run_async()
        finally:
            await self.worker.app.aclient.close()  # that of this thread's loop

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self.failure = error
            log.critical("processor failed", exc_info=error, extra={"worker": self.worker.id})
