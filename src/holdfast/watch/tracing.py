"""Spans of OpenTelemetry: one where jobs are enqueued, and one for each attempt, linked to it.

The context of the first is in the headers of its jobs, in W3C format. Names follow the conventions
for messaging. Until the program sets up a tracer provider, this costs only a dictionary lookup: it
imports nothing that the program has not imported itself.
"""

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol
from uuid import UUID

from msgspec.structs import replace

from holdfast.records import (
    Cancelled,
    Done,
    Failed,
    Lease,
    NewJob,
    Released,
    Settlement,
    Suspended,
    Ticket,
)

log = logging.getLogger("holdfast")

TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


class Ran(Protocol):
    """What the span of an attempt needs at its end: the job, after its handler."""

    settled: bool
    ticket: Ticket | None


def enqueueing(
    jobs: Sequence[NewJob], ids: Sequence[UUID], workflow: tuple[UUID, str] | None = None
) -> AbstractContextManager[Sequence[NewJob]]:
    """Enqueue jobs inside a span; yields the same jobs, with its context in their headers.

    `workflow` is the id and name of one that they start: every attempt of its jobs is linked to
    this span, which names it.
    """
    if (tracer := _tracer()) is None:
        return nullcontext(jobs)
    about = {}
    if workflow is not None:
        about = {"holdfast.workflow.id": str(workflow[0]), "holdfast.workflow.name": workflow[1]}
    return _enqueueing(tracer, jobs, ids, about)


def copying(jobs: Iterable[NewJob]) -> AbstractContextManager[Iterable[NewJob]]:
    """Like `enqueueing`, for jobs of an iterator that is consumed while they are stored."""
    if (tracer := _tracer()) is None:
        return nullcontext(jobs)
    return _copying(tracer, jobs)


def enabled() -> bool:
    """Whether the program has set up a tracer provider."""
    # Asked for every job: most programs end here.
    return "opentelemetry.trace" in sys.modules and _tracer() is not None


def begin(lease: Lease) -> "AttemptSpan | None":
    """Start the span of an attempt: what the handler does in this context belongs to it.

    It starts a trace and is linked to the span that enqueued the job: an attempt may start days
    later, and there may be several. None if tracing is not set up.
    """
    if (tracer := _tracer()) is None:
        return None
    try:
        return AttemptSpan(tracer, lease)
    except Exception:
        # Errors in the program's tracing must not stop its jobs.
        log.exception("a span could not be started", extra={"job": str(lease.id)})
        return None


def ids() -> dict[str, str]:
    """Return `trace_id` and `span_id` of the span that is current, if there is one."""
    if _tracer() is None:
        return {}
    return _ids(sys.modules["opentelemetry.trace"].get_current_span())


def ids_in(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return `trace_id` and `span_id` of the span that enqueued a job, from its headers."""
    told = headers.get("traceparent")
    if isinstance(told, str) and (found := TRACEPARENT.fullmatch(told)):
        return {"trace_id": found[1], "span_id": found[2]}
    return {}


class AttemptSpan:
    """The span of one attempt, from the start of its handler to what was decided about it."""

    def __init__(self, tracer: Any, lease: Lease) -> None:
        from opentelemetry import context, propagate, trace

        headers = lease.headers if lease.headers_json else {}
        told = propagate.extract({k: v for k, v in headers.items() if isinstance(v, str)})
        enqueued = trace.get_current_span(told).get_span_context()
        # The handler gets the baggage; the span is only linked.
        fresh = trace.set_span_in_context(trace.INVALID_SPAN, told)
        self._span = tracer.start_span(
            f"process {lease.queue}",
            context=fresh,
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(enqueued)] if enqueued.is_valid else None,
            attributes={
                **_about("process", "process"),
                "messaging.destination.name": lease.queue,
                "messaging.message.id": str(lease.id),
                "messaging.client.id": lease.worker,
                "holdfast.job.kind": lease.kind,
                "holdfast.job.attempt": lease.attempt,
                "holdfast.job.max_attempts": lease.max_attempts,
            },
        )
        self.ids = _ids(self._span)
        # Never detached: every handler runs in a copy of the context that ends with it.
        context.attach(trace.set_span_in_context(self._span, fresh))

    def end(self, job: Ran, settlement: Settlement | None, raised: BaseException | None) -> None:
        """End the span with what was decided: only a failed attempt is an error."""
        try:
            self._end(job, settlement, raised)
        except Exception:
            log.exception("a span could not be ended")

    def _end(self, job: Ran, settlement: Settlement | None, raised: BaseException | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        span = self._span
        span.set_attribute("holdfast.job.outcome", outcome(job, settlement))
        if isinstance(settlement, Failed):
            span.set_attribute("error.type", settlement.error_kind or "_OTHER")
            span.set_status(Status(StatusCode.ERROR, settlement.message))
            if raised is not None:
                span.record_exception(raised)
        span.end()


def outcome(job: Ran, settlement: Settlement | None) -> str:
    """Name how an attempt ended, as far as the worker knows before the database has replied."""
    match settlement:
        case Done():
            return "done"
        case Failed():
            return "failed"
        case Released():
            return "released"
        case Cancelled():
            return "cancelled"
        case Suspended():
            return "suspended"
    if job.settled:
        return "done"
    return "handed_over" if job.ticket else "lost"


@contextmanager
def _enqueueing(
    tracer: Any, jobs: Sequence[NewJob], ids: Sequence[UUID], about: dict[str, Any]
) -> Iterator[Sequence[NewJob]]:
    queues, kinds = {job.queue for job in jobs}, {job.kind for job in jobs}
    if len(queues) == 1:
        about["messaging.destination.name"] = jobs[0].queue
    if len(kinds) == 1:
        about["holdfast.job.kind"] = jobs[0].kind
    if len(jobs) == 1:
        about["messaging.message.id"] = str(ids[0])
    else:
        about["messaging.batch.message_count"] = len(jobs)
    with _producing(tracer, jobs[0].queue if len(queues) == 1 else "", about) as carried:
        yield [_carrying(job, carried) for job in jobs]


@contextmanager
def _copying(tracer: Any, jobs: Iterable[NewJob]) -> Iterator[Iterable[NewJob]]:
    with _producing(tracer, "", {}) as carried:
        yield (_carrying(job, carried) for job in jobs)


@contextmanager
def _producing(tracer: Any, queue: str, about: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    from opentelemetry import propagate, trace

    with tracer.start_as_current_span(
        f"enqueue {queue}".rstrip(),
        kind=trace.SpanKind.PRODUCER,
        attributes={**_about("enqueue", "send"), **about},
    ):
        carried: dict[str, str] = {}
        propagate.inject(carried)
        yield carried


def _carrying(job: NewJob, carried: Mapping[str, str]) -> NewJob:
    # A context that the caller gave to the job is kept.
    if not carried or (job.headers is not None and "traceparent" in job.headers):
        return job
    return replace(job, headers={**(job.headers or {}), **carried})


def _ids(span: Any) -> dict[str, str]:
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _about(name: str, type: str) -> dict[str, str]:
    return {
        "messaging.system": "holdfast",
        "messaging.operation.name": name,
        "messaging.operation.type": type,
    }


def _tracer() -> Any:
    trace = sys.modules.get("opentelemetry.trace")
    # Another thread may be importing it right now.
    if trace is None or not hasattr(trace, "get_tracer_provider"):
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    global _known
    if _known[0] is not provider:
        from holdfast import __version__

        _known = provider, provider.get_tracer("holdfast", __version__)
    return _known[1]


_known: tuple[Any, Any] = (None, None)
