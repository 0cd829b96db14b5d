"""Runs `def` handlers in threads."""

import threading
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from holdfast.current import CurrentJob
from holdfast.outcome import settle_stopped
from holdfast.worker.handlers import Ending, Finish, call, ending


class ThreadRunner:
    """Threads that run jobs; about as many as there were ever jobs at once.

    A thread cannot be stopped. If its job runs too long, the thread is abandoned: another thread
    takes its place, and it ends when its handler does.
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
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._threads += 1
                name = f"holdfast-handler-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(job)

    def stop(self, job: CurrentJob) -> None:
        """Abandon the job; the handler can check `job.assert_held()`, but cannot be interrupted."""
        job.goes_on = True
        if after := self._finish(job, settle_stopped(job)):
            self.start(after)

    def close(self) -> None:
        """Let idle threads end."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        while job := self._jobs.get():
            # A thread that is awake goes on with the next job: to wake another for it costs more
            # than most handlers do.
            after: CurrentJob | None = job
            while after:
                job, after.resources = after, self.resources
                ended = copy_context().run(_run, job)
                if job.finished:
                    self._finish(job, ended)
                    return  # it was abandoned, and another thread has taken its place
                after = self._finish(job, ended)
            with self._lock:
                self._idle += 1


def _run(job: CurrentJob) -> Ending:
    try:
        returned = call(job)
    except BaseException as error:
        return ending(job, None, error)
    return ending(job, returned)
