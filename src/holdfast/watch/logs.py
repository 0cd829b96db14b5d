"""Log records with fields that name the job, the same everywhere.

`JobFields` adds to every record made in a handler which job runs there; `JsonFormatter` writes a
record with all of its facts as one line of JSON. Both are ordinary parts of `logging`.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TextIO

from holdfast.current import CurrentJob, running
from holdfast.watch import tracing

__all__ = ["FORMAT_VARIABLE", "JobFields", "JsonFormatter", "facts", "fields_of", "json_lines"]

FORMAT_VARIABLE = "HOLDFAST_LOG_FORMAT"


class JobFields(logging.Filter):
    """Adds `job`, `kind`, `queue`, `attempt`, `max_attempts`, `worker`, `trace_id` and `span_id`.

    For a handler of `logging`, because filters of loggers do not see records of child loggers.
    Fields of the record itself take precedence; outside of a job nothing is added.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = running.get(None)
        # A record about another job names it.
        if job and getattr(record, "job", None) in (None, str(job.id)):
            for name, value in (fields_of(job) | tracing.ids()).items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: `at`, `level`, `logger`, `event`, then its facts."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **facts(record),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str, ensure_ascii=False)


def facts(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record besides its message: from `extra`, or from a filter."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def fields_of(job: CurrentJob) -> dict[str, Any]:
    """Return the fields of every record about a job."""
    lease = job.lease
    told = {
        "job": str(lease.id),
        "kind": lease.kind,
        "queue": lease.queue,
        "attempt": lease.attempt,
        "max_attempts": lease.max_attempts,
        "worker": lease.worker,
    }
    if job.span is not None:
        return told | job.span.ids
    return told | tracing.ids_in(lease.headers) if lease.headers_json else told


@contextmanager
def json_lines(level: int = logging.INFO, stream: TextIO | None = None) -> Iterator[None]:
    """Write every record of this process as JSON, and in no other form, during the block."""
    handler = _Lines(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(JobFields())
    root = logging.getLogger()
    handlers, before = root.handlers, root.level
    root.handlers = [handler]
    root.setLevel(min(level, before))
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(before)


class _Lines(logging.StreamHandler[TextIO]):
    def emit(self, record: logging.LogRecord) -> None:
        # One call for each line: other processes write to the same place.
        with suppress(OSError, ValueError):
            self.stream.write(f"{self.format(record)}\n")
            self.stream.flush()


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
