"""What happens around a handler, in a thread, on an event loop or in a child process.

with Attempt(job) as attempt:
    attempt.returned = attempt.call()
finish(job, attempt.settlement)
"""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from holdfast.current import CurrentJob, running
from holdfast.outcome import error_kind, error_message, settle_handler
from holdfast.records import Failed, Settlement
from holdfast.watch import tracing

log = logging.getLogger("holdfast.worker")

Finish = Callable[[CurrentJob, Settlement | None], None]


class Attempt:
    """One run of a handler. Whatever it raises ends here, in the `settlement` of its job."""

    __slots__ = ("job", "raised", "returned", "settlement")

    def __init__(self, job: CurrentJob) -> None:
        self.job = job
        self.returned: Any = None
        self.raised: BaseException | None = None
        self.settlement: Settlement | None = None

    def call(self) -> Any:
        """Call the function with the arguments of the job, in the context that is current.

        What it returns is awaited by the runner if it is a coroutine.
        """
        job = self.job
        running.set(job)
        if job.stopped:
            raise _NotStarted
        job.span = tracing.begin(job.lease)
        args, kwargs = job.task.arguments.decode(job.lease.payload_json)
        return job.task.fn(*args, **kwargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        job, self.raised = self.job, error
        if error is not None and job.settled:
            log.error("handler failed after its ack", exc_info=error, extra={"job": str(job.id)})
        try:
            self.settlement = settle_handler(job, self.returned, error)
        except Exception as broken:
            # A fault of ours; the job must not keep its slot and its lease for ever because of it.
            log.exception("no outcome could be decided", extra={"job": str(job.id)})
            self.settlement = Failed(job.lease, error_kind(broken), error_message(broken))
        if job.span:
            job.span.end(job, self.settlement, error)
        return True


class _NotStarted(Exception):  # noqa: N818 - named for what happened
    """The job was stopped before its handler began."""
