# ruff: noqa: N818 - what a handler raises is named for what it asks for
"""The outcome of a job once its handler has ended. Pure: it uses neither a clock nor a database.

`decide` turns what a handler returned or raised into a settlement, and `settle_handler` adds what
else is known of the job: that it was stopped, acked or handed over meanwhile. A handler steers by
raising `Retry`, `Release` or `Cancel`; anything else it raises is a failed attempt, and the policy
of its task says when the next one comes.
"""

import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from types import CoroutineType, TracebackType
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from holdfast import records
from holdfast.callsite import is_own
from holdfast.errors import InvalidPayload, InvalidResult, LeaseLost, StepMisuse
from holdfast.records import Duration, Lease, Settlement, Ticket

# Limits of a message and of a traceback, in bytes.
LONGEST_MESSAGE = 10_000
LONGEST_TRACEBACK = 100_000


class Retry(Exception):
    """Raised by a handler to be tried again: after `in_` seconds, else when its policy says.

    It counts as a failed attempt, so a job that always raises it dies in the end.
    """

    def __init__(self, in_: Duration | None = None, reason: str = "") -> None:
        super().__init__(in_, reason)
        self.in_ = in_
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler requested another attempt"


class Release(Exception):
    """Raised by a handler to release its job; the attempt does not count."""

    def __init__(self, in_: Duration | None = None) -> None:
        super().__init__(in_)
        self.in_ = in_

    def __str__(self) -> str:
        return "the handler released the job"


class Cancel(Exception):
    """Raised by a handler to end its job as cancelled: there is nothing left to do."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler cancelled its job"


class Suspend(BaseException):
    """Raised in a handler by a sleep or a wait: its job is given back, and run again later.

    Not an Exception: a handler that catches those must let it pass.
    """

    def __init__(
        self,
        name: str,
        nth: int = 0,
        until: datetime | None = None,
        delay: Duration | None = None,
        event: str | None = None,
        key: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, nth, until, delay, event, key, schema)

    def __str__(self) -> str:
        return f"the job is suspended at {self.args[0]!r}: let this pass"


class Never(Enum):
    """The type of NEVER, in a policy by exception: dead at once, whatever attempts are left."""

    NEVER = "never"


NEVER: Final = Never.NEVER


@dataclass(frozen=True, slots=True)
class Fixed:
    """Try again after the same time every time; `jitter` spreads it by that share of itself."""

    delay: Duration
    jitter: float = 0.0

    def after(self, attempt: int, rng: random.Random) -> float:
        """Return how many seconds to wait after the attempt with this number."""
        return seconds(self.delay) * (1 + rng.uniform(-self.jitter, self.jitter))


@dataclass(frozen=True, slots=True)
class Exponential:
    """Try again after a time between zero and a bound that grows with each attempt to its cap.

    Full jitter: jobs that failed together do not come back together.
    """

    first: Duration = 1.0
    factor: float = 2.0
    cap: Duration = 3600.0

    def after(self, attempt: int, rng: random.Random) -> float:
        """Return how many seconds to wait after the attempt with this number."""
        cap = seconds(self.cap)
        try:
            bound = min(seconds(self.first) * self.factor ** (attempt - 1), cap)
        except OverflowError:
            bound = cap
        return rng.uniform(0, bound)


Delay: TypeAlias = Duration | Fixed | Exponential
Chooses: TypeAlias = Callable[[int, BaseException], Duration | None]
# None is the backoff of the queue. By exception, the nearest class of its ancestry counts.
Policy: TypeAlias = (
    Delay | Chooses | Mapping[type[BaseException], Delay | Chooses | Never | None] | None
)


@dataclass(slots=True)
class RetryBudget:
    """Limits retries to a share of a kind's work, so that an outage does not cause a flood.

    Every first attempt that ends earns `ratio` of a retry, at most `reserve` of them are saved,
    and every retry spends one. Out of budget a retry waits `cap`; it never dies of that.
    """

    ratio: float = 0.2
    reserve: float = 10.0
    cap: Duration = 3600.0
    saved: float = field(init=False)

    def __post_init__(self) -> None:
        self.saved = self.reserve

    def charge(self, settlement: Settlement) -> Settlement:
        """Return the settlement as the budget allows it; called once for each, in any order."""
        lease = settlement.lease
        if not isinstance(lease, Lease):
            return settlement
        if lease.attempt == 1:
            self.saved = min(self.saved + self.ratio, self.reserve)
        if not isinstance(settlement, records.Failed) or settlement.final:
            return settlement
        if lease.attempt >= lease.max_attempts:
            return settlement
        if self.saved >= 1:
            self.saved -= 1
            return settlement
        return replace(settlement, delay=max(seconds(settlement.delay or 0), seconds(self.cap)))


class Stop(Enum):
    """Why a handler is stopped before it has ended."""

    LOST = "this worker no longer holds its lease"
    FENCED = "its lease could not be renewed in time"
    DEADLINE = "it ran longer than its timeout"
    SHUTDOWN = "the worker shuts down"


class Killed(Exception):
    """The error that a retry policy gets when the process of a handler died."""


class TaskOf(Protocol):
    """What settling a job needs to know about its task."""

    timeout: float | None
    retry: Policy
    keep_result: bool

    @property
    def arguments(self) -> Any:
        """What its function takes; `shape` is a fingerprint of that."""

    def encode_result(self, returned: Any) -> Any:
        """Return a result as the database keeps it; raises InvalidResult if it cannot be kept."""


class Attempted(Protocol):
    """What settling a job needs to know about it: `CurrentJob` has more."""

    stopped: Stop | None
    settled: bool
    ticket: Ticket | None
    cut_by: Exception | None
    suspended: Suspend | None
    unread: bool

    @property
    def lease(self) -> Lease:
        """The lease under which it ran."""

    @property
    def id(self) -> UUID:
        """The job's id."""

    def steps_left(self) -> Sequence[str]:
        """The steps that its handler has called and that have not ended."""

    @property
    def task(self) -> TaskOf:
        """The task whose handler was called."""


def settle_handler(
    job: Attempted, returned: Any = None, raised: BaseException | None = None
) -> Settlement | None:
    """Return how to end a job whose handler returned or raised; None if it has ended already."""
    if job.settled:
        return None
    if job.stopped:
        return settle_stopped(job)
    if job.ticket and raised is None:
        return None
    if isinstance(raised, LeaseLost) and raised.id == job.id:
        return records.Released(job.lease)
    if job.suspended is not None:
        if is_suspended(raised):
            return records.Suspended(job.lease, *job.suspended.args)
        if raised is None:
            raised = StepMisuse(_WENT_ON, fix=_LET_PASS)
    if raised is None and (left := job.steps_left()):
        told = ", ".join(map(repr, left))
        raised = StepMisuse(f"the handler returned before its steps have ended: {told}", fix=_AWAIT)
    if raised is not None and raised is job.cut_by:
        # Nothing is wrong with the job: an outage does not count as an attempt.
        return records.Released(job.lease, _RNG.uniform(1, 5))
    task = job.task
    if job.unread and isinstance(raised, InvalidPayload):
        # Another worker may know these arguments, or one that is deployed later.
        return records.Released(
            job.lease, unread=records.Unread(task.arguments.shape, _why(raised))
        )
    if raised is None and (task.keep_result or job.lease.followed):
        try:
            returned = task.encode_result(returned)
        except Exception as error:
            raised = error
    settlement = decide(
        job.lease, returned=returned, raised=raised, retry=task.retry, keep_result=task.keep_result
    )
    return _under_ticket(job, settlement)


def is_suspended(raised: BaseException | None) -> bool:
    """Whether a handler was stopped by a sleep or a wait and by nothing else.

    A group of tasks wraps what one of them raised.
    """
    if isinstance(raised, BaseExceptionGroup):
        return all(map(is_suspended, raised.exceptions))
    return isinstance(raised, Suspend)


def settle_stopped(job: Attempted) -> Settlement | None:
    """Return how to end a job whose handler was stopped; None if it is ended elsewhere."""
    match job.stopped:
        case Stop.DEADLINE:
            return records.Failed(job.lease, "TimedOut", f"timed out after {job.task.timeout:g} s")
        case Stop.SHUTDOWN | Stop.FENCED:
            return records.Released(job.lease)
        case _:
            return None


def settle_killed(job: Attempted, how: str) -> Settlement:
    """Return how to end a job whose process died; `how` says of what."""
    settlement = decide(job.lease, raised=Killed(how), retry=job.task.retry)
    if isinstance(settlement, records.Failed):
        settlement = replace(settlement, traceback=None)
    return _under_ticket(job, settlement)


def decide(
    lease: Lease,
    *,
    returned: Any = None,
    raised: BaseException | None = None,
    retry: Policy = None,
    keep_result: bool = False,
    rng: random.Random | None = None,
) -> Settlement:
    """Return how to end a lease after its handler returned or raised.

    `returned` is what the database shall keep, already something JSON can say. Whatever else a
    handler raises by itself is a failure, a cancellation too: given back, it would run for ever.
    """
    if raised is None and isinstance(returned, CoroutineType):
        returned.close()
        return replace(_failed(lease, TypeError(_NOT_AWAITED)), final=True)
    if raised is None:
        wanted = keep_result or lease.followed
        return records.Done(lease, returned, keep=keep_result) if wanted else records.Done(lease)
    match raised:
        case Release():
            return records.Released(lease, raised.in_)
        case Cancel():
            return records.Cancelled(lease, printable(str(raised), LONGEST_MESSAGE))
        case InvalidPayload() | InvalidResult():
            # Another attempt would fail in the same way, or repeat the work unnecessarily.
            return replace(_failed(lease, raised), final=True)
        case Retry() if raised.in_ is not None:
            return replace(_failed(lease, raised), delay=raised.in_)
    failed = _failed(lease, raised)
    try:
        delay = _delay(retry, lease.attempt, raised, rng or _RNG)
    except Exception as error:
        # A failing policy must not hide the handler's error.
        told = f"{failed.traceback}\nThe retry policy itself failed:\n{told_traceback(error)}"
        return replace(failed, traceback=printable(told, LONGEST_TRACEBACK))
    if delay is NEVER:
        return replace(failed, final=True)
    return replace(failed, delay=delay)


def is_final(job: Attempted, raised: BaseException) -> bool:
    """Whether the job of a handler that raised this will be dead, as far as its policy knows."""
    settlement = decide(job.lease, raised=raised, retry=job.task.retry)
    if not isinstance(settlement, records.Failed):
        return False
    return settlement.final or job.lease.attempt >= job.lease.max_attempts


def check_policy(policy: Any) -> None:
    """Raise TypeError if something is not a policy."""
    if not isinstance(policy, Mapping):
        if not _is_choice(policy) or policy is NEVER:
            raise TypeError(f"{policy!r} is not a retry policy")
        return
    for kind, choice in policy.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"{kind!r} is not an exception class to retry by")
        if not _is_choice(choice):
            raise TypeError(f"{choice!r} is not a retry policy for {kind.__name__}")


def seconds(duration: Duration) -> float:
    """Return a duration as seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def error_kind(error: BaseException) -> str:
    """Name the class of an error as its reader knows it: `ValueError`, `shop.mail.Bounced`."""
    kind = type(error)
    known = kind.__module__ in ("builtins", "__main__") or kind.__module__.startswith("holdfast.")
    name = kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"
    return printable(name, LONGEST_MESSAGE)


def error_message(error: BaseException) -> str:
    """Return an error's message, even if its str() fails."""
    try:
        told = str(error)
    except Exception as broken:
        told = f"<str() of the error failed: {error_kind(broken)}>"
    return printable(told, LONGEST_MESSAGE)


def told_traceback(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, without the frames of Holdfast."""
    try:
        told = traceback.TracebackException.from_exception(error, compact=True)
        _cut_own_frames(told)
        text = "".join(told.format())
    except Exception as broken:
        text = f"<the traceback cannot be formatted: {error_kind(broken)}>"
    return printable(text, LONGEST_TRACEBACK)


def without_own_frames(
    error: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an error for a log record, whose traceback begins where Holdfast's frames end."""
    trace = error.__traceback__
    while trace and is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return type(error), error, trace or error.__traceback__


def printable(text: str, longest: int) -> str:
    """Make any text one that PostgreSQL can store, with its middle left out if it is too long."""
    safe = text.replace("\0", "\\0").encode("utf-8", "backslashreplace")
    if len(safe) <= longest:
        return safe.decode()
    mark = f"\n… {len(safe) - longest} bytes left out …\n"
    room = longest - len(mark.encode())
    # The end of a traceback is the error, its beginning how one gets there.
    head, tail = safe[: room // 3], safe[-(room - room // 3) :]
    return f"{head.decode(errors='ignore')}{mark}{tail.decode(errors='ignore')}"


def _why(error: InvalidPayload) -> str:
    return printable(f"{error.what.partition(': ')[2] or error.what}. {error.fix}", LONGEST_MESSAGE)


def _under_ticket(job: Attempted, settlement: Settlement) -> Settlement:
    return replace(settlement, lease=(job.id, job.ticket.token)) if job.ticket else settlement


def _failed(lease: Lease, error: BaseException) -> records.Failed:
    return records.Failed(lease, error_kind(error), error_message(error), told_traceback(error))


def _delay(
    policy: Policy, attempt: int, error: BaseException, rng: random.Random
) -> Duration | Never | None:
    chosen: Delay | Chooses | Never | None
    if isinstance(policy, Mapping):
        chosen = next((policy[kind] for kind in type(error).__mro__ if kind in policy), None)
    else:
        chosen = policy
    match chosen:
        case None | Never() | timedelta() | int() | float():
            delay: Duration | Never | None = chosen
        case Fixed() | Exponential():
            delay = chosen.after(attempt, rng)
        case _:
            delay = NEVER if (told := chosen(attempt, error)) is None else told
    if delay is None or delay is NEVER:
        return delay
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float):
        raise TypeError(f"a retry policy must return seconds or None, not {delay!r}")
    if not 0 <= seconds(delay) < float("inf"):
        raise ValueError(f"a retry delay must be 0 or more seconds, not {delay}")
    return delay


def _is_choice(choice: object) -> bool:
    if isinstance(choice, bool | type):
        return False
    if isinstance(choice, timedelta | int | float):
        return 0 <= seconds(choice) < float("inf")
    return choice is None or isinstance(choice, Never | Fixed | Exponential) or callable(choice)


def _cut_own_frames(told: traceback.TracebackException) -> None:
    pending = [told]
    while pending:
        part = pending.pop()
        theirs = [frame for frame in part.stack if not is_own(frame.filename)]
        # If all frames are Holdfast's, the error is ours, and the frames are needed.
        if theirs:
            part.stack = traceback.StackSummary.from_list(theirs)
        pending += [link for link in (part.__cause__, part.__context__) if link]
        pending += part.exceptions or ()


_WENT_ON = "the handler returned although its job sleeps or waits: it caught what stops it"
_AWAIT = "Await them:  await job.step(…)  in an async handler."
_LET_PASS = "Catch Exception, not BaseException; or raise again what you caught."
_NOT_AWAITED = "the function returned a coroutine that is never awaited: declare it with async def"
# Without a state of its own: forked children would all draw the same numbers.
_RNG = random.SystemRandom()
