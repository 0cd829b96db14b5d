"""Runs `def` handlers in threads."""

import threading
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from holdfast.current import CurrentJob
from holdfast.outcome import settle_stopped
from holdfast.records import Settlement
from holdfast.worker.handlers import Attempt, Finish


class ThreadRunner:
    """Threads that take jobs as they come, as many as there were ever jobs at once.

    A thread cannot be stopped. One whose job has run too long is left behind: its job is given up,
    another thread takes its place, and it ends when its handler does.
    """

    def __init__(self, finish: Finish) -> None:
        self.resources: Any = None
        self._finish = finish
        self._jobs: SimpleQueue[CurrentJob | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def start(self, job: CurrentJob) -> None:
        """Hand the job to a thread."""
        job.resources = self.resources
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._threads += 1
                name = f"holdfast-handler-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(job)

    def stop(self, job: CurrentJob) -> None:
        """Give the job up; the handler may ask `job.assert_held()`, and cannot be interrupted."""
        job.goes_on = True
        self._finish(job, settle_stopped(job))

    def close(self) -> None:
        """Let idle threads end."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        while job := self._jobs.get():
            settlement = copy_context().run(_run, job)
            with self._lock:
                left_behind = job.finished
                if not left_behind:
                    # Before finish, which may start the next job: this thread is free for it.
                    self._idle += 1
            self._finish(job, settlement)
            if left_behind:
                return  # another thread has taken its place


def _run(job: CurrentJob) -> Settlement | None:
    with Attempt(job) as attempt:
        attempt.returned = attempt.call()
    return attempt.settlement
