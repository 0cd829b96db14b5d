"""The job in the log context of structlog."""

from collections.abc import Iterable, Iterator

from structlog.contextvars import bind_contextvars, get_contextvars

from holdfast.current import CurrentJob
from holdfast.middleware import with_headers
from holdfast.records import NewJob

_HEADER = "log"


class Structlog:
    """Binds the fields of a job in its handler, and what the job carries."""

    def __init__(self, carry: Iterable[str] = ()) -> None:
        self._carry = frozenset([carry] if isinstance(carry, str) else carry)

    def enqueue(self, job: NewJob) -> Iterator[NewJob]:
        """Put what is to be carried into the headers."""
        bound = get_contextvars() if self._carry else {}
        carried = {name: bound[name] for name in sorted(self._carry & bound.keys())}
        yield with_headers(job, {_HEADER: carried}) if carried else job

    def run(self, job: CurrentJob) -> Iterator[None]:
        """Bind the job. Its context ends with it, so there is nothing to unbind."""
        carried = job.headers.get(_HEADER) if self._carry else None
        if isinstance(carried, dict):
            bind_contextvars(**{k: v for k, v in carried.items() if k in self._carry})
        bind_contextvars(job=str(job.id), kind=job.kind, queue=job.queue, attempt=job.attempt)
        yield
