"""Failed attempts and runs in Sentry."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import sentry_sdk
from sentry_sdk.scope import add_global_event_processor

from holdfast.current import CurrentJob
from holdfast.errors import LeaseLost
from holdfast.middleware import with_headers
from holdfast.outcome import Cancel, Release, Retry, Suspend, is_final
from holdfast.records import NewJob

# What a handler raises to steer, and what tells it that its work is another worker's now.
_NOT_ERRORS = (Cancel, LeaseLost, Release, Retry, Suspend)
_REPORTED = "__holdfast_reported__"


class Sentry:
    """A span where a job is enqueued, a transaction of the same trace where it runs."""

    def enqueue(self, job: NewJob) -> Iterator[NewJob]:
        """Carry the trace in the headers."""
        span = sentry_sdk.start_span(
            op="queue.publish", name=job.kind, origin="auto.queue.holdfast"
        )
        with span:
            span.set_data("messaging.destination.name", job.queue)
            trace = {
                "sentry-trace": sentry_sdk.get_traceparent(),
                "baggage": sentry_sdk.get_baggage(),
            }
            yield with_headers(job, {name: value for name, value in trace.items() if value})

    def run(self, job: CurrentJob) -> Iterator[None]:
        """Run it in a scope and a transaction of its own; report what it raises."""
        headers = job.headers
        raised: BaseException | None = None
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            for name, value in {"kind": job.kind, "queue": job.queue}.items():
                scope.set_tag(f"holdfast.{name}", value)
            scope.set_context("holdfast", _facts(job))
            transaction = sentry_sdk.continue_trace(
                # Whoever enqueues over HTTP may put anything there; Sentry reads texts only.
                {k: v for k in ("sentry-trace", "baggage") if isinstance(v := headers.get(k), str)},
                op="queue.process",
                name=job.kind,
                source="task",
                origin="auto.queue.holdfast",
            )
            with sentry_sdk.start_transaction(transaction) as span:
                span.set_data("messaging.message.id", str(job.id))
                span.set_data("messaging.destination.name", job.queue)
                span.set_data("messaging.message.retry.count", job.attempt - 1)
                span.set_status("ok")
                try:
                    yield
                except BaseException as error:
                    # It goes on behind this: an error that a middleware catches still counts.
                    raised = error
                if raised is not None:
                    self._tell(job, raised, span)

    def _tell(self, job: CurrentJob, raised: BaseException, span: Any) -> None:
        if isinstance(raised, _NOT_ERRORS) or job.stopped or raised is job.cut_by:
            span.set_status("cancelled")
            return
        span.set_status("internal_error")
        level = "error" if is_final(job, raised) else "warning"
        sentry_sdk.capture_exception(raised, level=level)
        with suppress(AttributeError):
            setattr(raised, _REPORTED, True)


def _facts(job: CurrentJob) -> dict[str, Any]:
    return {
        "job": str(job.id),
        "kind": job.kind,
        "queue": job.queue,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
    }


def _without_repeats(event: Any, hint: Any) -> Any:
    """Drop the log record that a job died: the error of its last attempt was reported already."""
    record = hint.get("log_record")
    if record is None or not record.name.startswith("holdfast") or record.msg != "job died":
        return event
    error = record.exc_info[1] if record.exc_info else None
    # The error of a process is reported there, and here only its text is known.
    reported = getattr(error, _REPORTED, False) or hasattr(record, "traceback")
    return None if reported else event


add_global_event_processor(_without_repeats)
