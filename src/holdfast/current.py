"""The job that a handler is running: its fields, and what the handler can do with its lease."""

import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from time import monotonic
from types import UnionType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

import msgspec

from holdfast.errors import LeaseLost, Misuse
from holdfast.job_transaction import JobTransaction
from holdfast.leased import FOLLOWED, PAYLOAD, lease_of
from holdfast.outcome import Stop, Suspend, seconds
from holdfast.records import Claim, Duration, Lease

if TYPE_CHECKING:
    from typing import Concatenate

    from psycopg import AsyncConnection, Connection

    from holdfast.app import App, Task
    from holdfast.middleware import Begun
    from holdfast.records import NewStep, ReplyLink, Ticket
    from holdfast.steps import Steps
    from holdfast.watch.tracing import AttemptSpan

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("holdfast.job")


def current() -> "CurrentJob":
    """Return the job of the handler that is running; raises Misuse outside of one."""
    try:
        return running.get()
    except LookupError:
        raise Misuse(
            "current() was called outside of a handler",
            fix="Call it in the function of a task while a worker runs it.",
        ) from None


def once(connection: "Connection[Any]", job: "CurrentJob") -> bool:
    """Return whether the output of a job still has to be created, in a connection's transaction.

    False if the output that its adopted table names exists: this is logged as prevented, and the
    handler should return, which ends the job as done. Until the transaction ends, no other worker
    gets True. Raises LeaseLost if another worker has the job.
    """
    return _told(job, job.app.client.on(connection).guard(job.lease))


async def aonce(connection: "AsyncConnection[Any]", job: "CurrentJob") -> bool:
    """Like `once`, for async handlers."""
    return _told(job, await job.app.aclient.on(connection).guard(job.lease))


def _told(job: "CurrentJob", open: bool) -> bool:
    if not open:
        facts = {"job": str(job.id), "queue": job.queue, "kind": job.kind}
        log.warning("Duplicate prevented: %s", job.lease.subject or job.id, extra=facts)
    return open


class Keeps(Protocol):
    """Renews the lease of a job while its handler runs."""

    def renew_soon(self) -> None:
        """Send what the handler reported, together with the renewal."""


class CurrentJob(msgspec.Struct, eq=False):
    """A job while its handler runs, under a lease that its worker renews.

    `deadline` is how long this worker can be certain of the lease, on the monotonic clock: counted
    from before the claim or renewal was sent, and a little less.
    """

    # A Struct: thousands are created per second, and most of their fields do not change.
    task: "Task[..., Any, Any]"
    _keeps: Keeps
    queue: str
    # The fields of the lease, which is created on request.
    claim: Claim | None
    row: Sequence[Any]
    token: bytes
    lease_seconds: float = 0.0
    claimed: float = 0.0
    deadline: float = 0.0
    renew_at: float = 0.0
    run_until: float | None = None
    started: float | None = None
    stopped: Stop | None = None
    finished: bool = False
    # Its handler was abandoned and still runs: a thread cannot be stopped.
    goes_on: bool = False
    settled: bool = False
    cut_by: Exception | None = None
    # Its arguments are not what the function takes.
    unread: bool = False
    # The error of a failed attempt, unless its handler ran in another process.
    raised: BaseException | None = None
    # What its handler logged, if anything.
    log: Any = None
    noted: dict[str, Any] | None = None
    ticket: "Ticket | None" = None
    resources: Any = None
    runner: Any = None
    span: "AttemptSpan | None" = None
    # The middleware around its handler, if the app has any.
    around: "Begun | None" = None
    # Where a child process reads the deadline.
    mirror: Any = None
    # What a sleep or a wait has raised: the handler is to end, and its job to be run again later.
    suspended: Suspend | None = None
    in_transaction: bool = False
    _steps: "Steps | None" = None
    _lease: Lease | None = None

    @property
    def lease(self) -> Lease:
        """The lease under which it runs."""
        if self._lease is None:
            assert self.claim is not None
            self._lease = lease_of(self.row, self.claim)
        return self._lease

    @property
    def payload_json(self) -> str:
        """The payload as it was stored."""
        text: str = self.row[PAYLOAD] if self._lease is None else self._lease.payload_json
        return text

    @property
    def followed(self) -> bool:
        """Whether other jobs may wait for its result."""
        told: bool = self.row[FOLLOWED] if self._lease is None else self._lease.followed
        return told

    @property
    def app(self) -> "App":
        """The app of its task."""
        return self.task.app

    @property
    def id(self) -> UUID:
        """The job's id."""
        return self.lease.id

    @property
    def kind(self) -> str:
        """The job's kind."""
        return self.task.kind

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self.lease.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there may be."""
        return self.lease.max_attempts

    @property
    def last_error(self) -> str | None:
        """The error of the previous attempt; None if there was none."""
        return self.lease.error

    @property
    def payload(self) -> Any:
        """The payload as it was enqueued, decoded at each access."""
        return json.loads(self.task.arguments.opened(self.payload_json))

    @property
    def headers(self) -> dict[str, Any]:
        """The headers it was enqueued with."""
        return self.lease.headers

    def held(self) -> bool:
        """Whether this worker certainly still holds the lease."""
        return monotonic() < self.deadline and self._may_be_held()

    def _may_be_held(self) -> bool:
        """Whether the lease is not known to be lost; its local deadline may have passed."""
        return not self.settled and self.stopped not in _GONE

    def assert_held(self) -> None:
        """Raise LeaseLost unless the lease is certainly held; call it before effects elsewhere.

        It does not call the database: it compares the local deadline with the clock.
        """
        if not self.held():
            raise LeaseLost(
                self.id,
                f"job {self.id} ({self.kind}) is no longer held\n"
                f"The lease is {self.lease_seconds:g} s and was not renewed in time.\n"
                "Raise `lease=`, call job.progress(), or do not block the event loop.",
            )

    def touch(self) -> None:
        """Renew the lease now, instead of at the next third of its length."""
        self.renew_at = 0.0
        self._keeps.renew_soon()

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report progress, which is shown with the job; this also renews the lease.

        Returns at once; reports in quick succession are combined, and the last one counts.
        """
        told = {"done": done, "total": total, "note": note}
        self.noted = {name: value for name, value in told.items() if value is not None}
        self._keeps.renew_soon()

    def transaction(self, result: Any = None) -> JobTransaction:
        """Yield a connection whose transaction includes the ack: `async with` or `with`.

        What is written on it, jobs enqueued on it and the end of this job commit together, or not
        at all: raises LeaseLost if another worker has the job. The handler should return
        after it; nothing it does later is covered.
        """
        return self.app._transaction_of(self, result)

    @overload
    def step(
        self,
        name: str,
        fn: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once for this job: the next attempt gets its stored result.

        The result is stored before it is returned, as JSON, and decoded by the return type of the
        function. Await it if the function is async. A step that raises is not stored. The name is
        used once in a run; in a loop, `f"page-{n}"`. Raises LeaseLost if another worker has the
        job, and StepMisuse if the steps on record are others.
        """
        return self._stepping().step(name, fn, args, kwargs)

    @overload
    def atomic_step(
        self,
        name: str,
        fn: "Callable[Concatenate[AsyncConnection[Any], P], Coroutine[Any, Any, R]]",
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def atomic_step(
        self,
        name: str,
        fn: "Callable[Concatenate[Connection[Any], P], R]",
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    def atomic_step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Like `step`, with a connection as first argument: its writes and result commit together.

        What the function writes on the connection is done exactly once, whatever dies when.
        """
        return self._stepping().atomic_step(name, fn, args, kwargs)

    def sleep(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        name: str = "",
    ) -> None:
        """Give slot and lease back for a time; then the handler runs again, up to here at once.

        Its finished steps answer from the record; no attempt is counted. It raises what ends the
        handler, which `except Exception` does not catch.
        """
        told = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._stepping().sleep(name, None, told)

    async def asleep(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        name: str = "",
    ) -> None:
        """Like `sleep`, for async handlers."""
        told = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        await self._stepping().asleep(name, None, told)

    def sleep_until(self, until: datetime, *, name: str = "") -> None:
        """Like `sleep`, until a time with a time zone."""
        self._stepping().sleep(name, until, None)

    async def asleep_until(self, until: datetime, *, name: str = "") -> None:
        """Like `sleep_until`, for async handlers."""
        await self._stepping().asleep(name, until, None)

    @overload
    def wait_event(
        self,
        event: str,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        type: type[T],
        name: str = "",
    ) -> T: ...
    @overload
    def wait_event(
        self,
        event: str,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        type: UnionType = ...,
        name: str = "",
    ) -> Any: ...
    def wait_event(
        self,
        event: str,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        type: Any = Any,
        name: str = "",
    ) -> Any:
        """Return the payload of an event; until it comes, slot and lease are given back.

        `client.send_event(event, payload, key=key)` sends it, before or after. Raises EventTimeout
        if it has not come after `timeout`; without one it waits for ever. `type` decodes it.
        """
        return self._stepping().wait_event(name, event, key, timeout, type)

    def reply_link(
        self,
        event: str,
        *,
        question: str | None = None,
        expires: Duration | None = None,
        name: str = "",
    ) -> "ReplyLink":
        """Return a link by which somebody without an account answers the wait for this event, once.

        Call it in the step that sends the link, and do not return it from there: results of steps
        are shown to all who may see the job. `name` is that of the wait, if it has one.
        """
        step = name or f"event {event}"
        return self.app.client.replies.link(
            self.id, step, question=question, expires=expires, actor=self.lease.worker
        )

    async def areply_link(
        self,
        event: str,
        *,
        question: str | None = None,
        expires: Duration | None = None,
        name: str = "",
    ) -> "ReplyLink":
        """Like `reply_link`, for async handlers."""
        step = name or f"event {event}"
        return await self.app.aclient.replies.link(
            self.id, step, question=question, expires=expires, actor=self.lease.worker
        )

    @overload
    async def await_event(
        self,
        event: str,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        type: type[T],
        name: str = "",
    ) -> T: ...
    @overload
    async def await_event(
        self,
        event: str,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        type: UnionType = ...,
        name: str = "",
    ) -> Any: ...
    async def await_event(
        self,
        event: str,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        type: Any = Any,
        name: str = "",
    ) -> Any:
        """Like `wait_event`, for async handlers."""
        return await self._stepping().await_event(name, event, key, timeout, type)

    def calls_itself(self) -> bool:
        """Whether the handler itself is running now, and not a task or a thread beside it."""
        import asyncio

        if asyncio._get_running_loop() is not None:
            return asyncio.current_task() is self.runner
        return running.get(None) is self

    def _stepping(self) -> "Steps":
        if self._steps is None:
            from holdfast.steps import Steps  # late: most programs have no steps

            self._steps = Steps(self)
        return self._steps

    def steps_left(self) -> Sequence[str]:
        """Return the steps that the handler has called and that have not ended."""
        return self._steps.book.running() if self._steps else ()

    def steps_to_store(self) -> "list[tuple[Lease, NewStep]]":
        """Return the results of steps inside of `transaction()`, to be stored with it."""
        done = self._steps.pending if self._steps else []
        return [(self.lease, one) for one in done]

    def undo_steps(self) -> None:
        """Forget the steps of a `transaction()` that was rolled back."""
        if self._steps:
            self._steps.undo()

    def hand_over(self, timeout: Duration) -> "Ticket":
        """Pass the lease to an external system, which can settle the job with the ticket.

        Send it the ticket and return: the job stays leased until the ticket is used by SQL, client
        or HTTP; otherwise the attempt fails after `timeout`. If the handler raises afterwards, the
        attempt fails at once.
        """
        self.assert_held()
        self._handed_over(self.app.client.hand_over(self.lease, timeout=timeout), timeout)
        return self._ticket()

    async def ahand_over(self, timeout: Duration) -> "Ticket":
        """Like `hand_over`, for async handlers."""
        self.assert_held()
        ticket = await self.app.aclient.hand_over(self.lease, timeout=timeout)
        self._handed_over(ticket, timeout)
        return self._ticket()

    def _handed_over(self, ticket: "Ticket", timeout: Duration) -> None:
        self.ticket = ticket
        self.deadline = monotonic() + seconds(timeout)

    def _ticket(self) -> "Ticket":
        assert self.ticket is not None
        return self.ticket


_GONE = (Stop.LOST, Stop.FENCED)
running: ContextVar[CurrentJob] = ContextVar("holdfast_current_job")
