"""What happens around a handler, in a thread, on an event loop or in a child process.

try:
    returned = call(job)
except BaseException as error:
    after = finish(job, ending(job, None, error))
else:
    after = finish(job, ending(job, returned))
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import CoroutineType
from typing import Any, Final, cast

from msgspec import Struct, json

from holdfast.arguments import CodedArguments
from holdfast.client import wire
from holdfast.codec import Elsewhere
from holdfast.current import CurrentJob, running
from holdfast.errors import InvalidPayload
from holdfast.leased import FOLLOWED
from holdfast.middleware import Begun, begin, end
from holdfast.outcome import error_kind, error_message, settle_handler
from holdfast.records import Done, Failed, Settlement
from holdfast.records.ids import PARTS, part_of
from holdfast.watch import tracing

log = logging.getLogger("holdfast.worker")


class Acked(Enum):
    """The type of ACKED: success with nothing to store, which is how most jobs end."""

    ACKED = "acked"


ACKED: Final = Acked.ACKED


class Returned(Struct, frozen=True):
    """Success with a result for the jobs that wait for it, as JSON."""

    document: bytes


# None: the database already knows how the job ended.
Ending = Settlement | Acked | Returned | None
# Takes in how a job ended. What it returns is the next job of the same sort, already begun: the
# runner goes on with it, which spares a hop to another thread.
Finish = Callable[[CurrentJob, Ending], CurrentJob | None]


def call(job: CurrentJob) -> Any:
    """Call the function with the arguments of the job, in the context that is current.

    What it returns is awaited by the runner if it is a coroutine.
    """
    running.set(job)
    if job.stopped:
        raise _NotStarted
    if tracing.enabled():
        job.span = tracing.begin(job.lease)
    task = job.task
    try:
        args, kwargs = task.arguments.decode(job.payload_json)
    except InvalidPayload:
        if part_of(job.id) < PARTS:
            job.unread = True
            raise
        # A row of an adopted table: other columns than those it takes do not matter.
        args, kwargs = task.arguments.decode_row(job.payload_json)
    except Elsewhere:
        return _fetch_and_call(job)
    return _call(job, args, kwargs)


async def _fetch_and_call(job: CurrentJob) -> Any:
    arguments = cast("CodedArguments", job.task.arguments)
    try:
        opened = await asyncio.to_thread(arguments.opened, job.payload_json)
        args, kwargs = arguments.decode_opened(opened)
    except InvalidPayload:
        job.unread = True
        raise
    return await _call(job, args, kwargs)


def _call(job: CurrentJob, args: Any, kwargs: Any) -> Any:
    task = job.task
    if task.around:
        begun: Begun = []
        job.around = begun
        for method in task.around:
            begin(method, job, begun)
    if task.wants is not None:
        kwargs |= task.wants.given(job.resources)
    return task.fn(*args, **kwargs)


def ending(job: CurrentJob, returned: Any, raised: BaseException | None = None) -> Ending:
    """Return how to end a job whose handler returned or raised; whatever it raised ends here."""
    if job.around is not None:
        raised = end(job.around, returned, raised)
    if (
        raised is None
        and not (
            job.stopped
            or job.settled
            or job.ticket
            or job.span
            or job._steps
            or job.task.keep_result
        )
        and type(returned) is not CoroutineType
    ):
        # As settle_handler would decide, without creating objects that are not used.
        if not (job.row[FOLLOWED] if job._lease is None else job._lease.followed):
            return ACKED
        with suppress(Exception):  # settle_handler says what is wrong with the result
            return Returned(wire.encoded(job.task.encode_result(returned), "result"))
    settlement: Settlement | None
    if raised is not None and job.settled:
        log.error("handler failed after its ack", exc_info=raised, extra={"job": str(job.id)})
    try:
        settlement = settle_handler(job, returned, raised)
    except Exception as broken:
        # An error in Holdfast; the job must not keep its slot and its lease forever because of it.
        log.exception("no outcome could be decided", extra={"job": str(job.id)})
        settlement = Failed(job.lease, error_kind(broken), error_message(broken))
    if isinstance(settlement, Failed):
        job.raised = raised
    if job.span:
        job.span.end(job, settlement, raised)
    return settlement


def settlement_of(job: CurrentJob, ending: Ending) -> Settlement | None:
    """Return the settlement of an ending."""
    if isinstance(ending, Returned):
        return done_with(job, ending.document)
    return Done(job.lease) if ending is ACKED else ending


def done_with(job: CurrentJob, document: bytes) -> Done:
    """Return the settlement of a job that succeeded with a result, which is JSON."""
    return Done(job.lease, json.decode(document))


class _NotStarted(Exception):  # noqa: N818 - named for what happened
    """The job was stopped before its handler began."""
