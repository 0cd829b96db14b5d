"""The right to run a job for a while, and how it ends."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, Self
from uuid import UUID, uuid4

from msgspec import field

from holdfast.errors import LeaseLost, UnknownJob
from holdfast.records.fields import Duration
from holdfast.records.job import Given
from holdfast.records.record import Record, decoded_object


class Lease(Given, frozen=True):
    """The right of one worker to run one job until `lease_until`, proven by `token`.

    `lease` is the job's own length, if it has one. `length` is how long this lease is, and for how
    long a touch renews it. `error` is the error of the previous attempt. `followed`: other jobs may
    wait for its result.
    """

    lease_until: datetime
    lease: timedelta | None
    length: timedelta
    error: str | None
    followed: bool
    token: UUID
    queue: str
    worker: str


class Ticket(Record, frozen=True):
    """Proves a lease that was handed over: with it, an external system acks or nacks the job."""

    id: UUID
    token: UUID
    lease_until: datetime


class Claim(Record, frozen=True):
    """What a worker requests: up to `limit` jobs of one queue, with a new token."""

    queue: str
    worker: str
    limit: int = 1
    lease: Duration | None = None
    kinds: Sequence[str] | None = None
    token: UUID = field(default_factory=uuid4)


class Doubtful(Record, frozen=True):
    """A job whose worker disappeared, but whose work may be done."""

    id: UUID
    token: UUID
    queue: str
    kind: str
    payload_json: str
    headers_json: str | None
    subject: str | None
    key: str | None
    attempt: int
    worker: str

    @property
    def payload(self) -> Any:
        """The payload, decoded anew at each access."""
        return json.loads(self.payload_json)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, decoded anew at each access."""
        return decoded_object(self.headers_json)


# A lease, or only its proof: (id, token).
Held = Lease | Ticket | Doubtful | tuple[UUID, UUID]


class Done(Record, frozen=True):
    """End a lease with success; `keep` puts the job into the history even if its queue does not.

    `recent` keeps it for a day, if its queue keeps recent jobs.
    """

    verb: ClassVar = "ack"
    lease: Held
    result: Any = None
    keep: bool = False
    recent: bool = False


class Failed(Record, frozen=True):
    """End a lease with failure: the job is retried after `delay`, or dies; with `final` it dies."""

    verb: ClassVar = "nack"
    lease: Held
    error_kind: str | None = None
    message: str | None = None
    traceback: str | None = None
    delay: Duration | None = None
    final: bool = False
    log: str | None = None


class Unread(Record, frozen=True):
    """Why a worker could not read the arguments of a job, and by which declaration of its kind."""

    shape: str
    problem: str


class Released(Record, frozen=True):
    """Return a job without running it: the attempt does not count.

    With `unread` it is meant for another worker, and the database decides how long it waits.
    """

    verb: ClassVar = "release"
    lease: Held
    delay: Duration | None = None
    unread: Unread | None = None


class Cancelled(Record, frozen=True):
    """End a lease, and with it its job, as cancelled: there is nothing left to do."""

    verb: ClassVar = "cancel"
    lease: Held
    reason: str | None = None


class Suspended(Record, frozen=True):
    """Give a lease back until the job has slept, or has received an event: no attempt counts.

    It sleeps `until` a time or for `delay`; it waits that long at most for its `event`, whose
    payload `schema` describes to those who may send it.
    """

    verb: ClassVar = "suspend"
    lease: Held
    name: str
    nth: int = 0
    until: datetime | None = None
    delay: Duration | None = None
    event: str | None = None
    key: str | None = None
    schema: Mapping[str, Any] | None = None


Settlement = Done | Failed | Released | Cancelled | Suspended


class Settled(Record, frozen=True):
    """The outcome for one lease.

    `already` means that this call is a repeat. `lost` means that another worker got the job, or
    that it ended before: treat all work under this lease as not done.
    """

    id: UUID
    outcome: Literal["done", "queued", "dead", "cancelled", "leased", "already", "lost", "unknown"]
    detail: str | None = None
    lease_until: datetime | None = None

    @property
    def held(self) -> bool:
        """Whether the caller still held the lease."""
        return self.outcome not in ("lost", "unknown")

    def raise_if_lost(self) -> Self:
        """Return itself if the lease was held; raise LeaseLost or UnknownJob if it was not."""
        if self.outcome == "lost":
            raise LeaseLost(self.id, self.detail or "")
        if self.outcome == "unknown":
            raise UnknownJob(self.id)
        return self


class Reaped(Record, frozen=True):
    """A job that was reclaimed because its lease expired."""

    id: UUID
    queue: str
    kind: str
    worker: str
    outcome: Literal["queued", "dead"]
