# mypy: disable-error-code="valid-type"
# Types that are made of records are variables to mypy.
"""What the routes of Relay answer, field by field."""

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from holdfast.records.fields import Moment, says
from holdfast.server.http.answers import Operation, RefusedItem

Status = Literal["queued", "processing", "acknowledged", "dead", "archived", "cancelled"]


class EnqueuedMessage(Struct, kw_only=True):
    """The message is stored."""

    id: UUID
    type: str | None
    queue: str
    priority: int
    status: Literal["queued"]


class StoredMessage(Struct, kw_only=True):
    """One message of a batch that is stored."""

    id: UUID
    status: Literal["queued"]


class StoredMessages(Struct, kw_only=True):
    """What became of each message."""

    created: int
    skipped: int
    messages: list[StoredMessage]
    errors: list[RefusedItem]


class LockedMessage(Struct, kw_only=True):
    """A message that a consumer holds."""

    id: UUID
    type: str | None
    payload: Any
    queue: str
    priority: int
    status: Literal["processing"]
    attempt_count: int
    max_attempts: int
    lock_token: str
    locked_until: Moment
    consumer_id: str
    created_at: Moment
    dequeued_at: Moment
    acknowledged_at: None
    ack_timeout_seconds: float
    last_error: Annotated[str | None, says("how the attempt before this one failed")]


class LockedMessages(Struct, kw_only=True):
    """The messages; the list is empty if none is ready."""

    messages: list[LockedMessage]
    count: int


class MessageSettled(Struct, kw_only=True):
    """The lock is ended; `status` is that of the message."""

    id: UUID
    status: Status
    already: Annotated[bool | UnsetType, says("this token ended the lock before")] = UNSET
    attempt_count: int | UnsetType = UNSET
    run_at: Moment | UnsetType = UNSET
    group: str | UnsetType = UNSET


class MessageResult(Struct, kw_only=True):
    """What became of one message of many."""

    id: str | None
    success: bool
    status: str | UnsetType | None = UNSET
    code: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    new_id: UUID | UnsetType = UNSET


class AcknowledgedMessages(Struct, kw_only=True):
    """What became of each message."""

    succeeded: int
    failed: int
    results: list[MessageResult]


class RejectedMessages(Struct, kw_only=True):
    """What became of each message, and where they went."""

    succeeded: int
    failed: int
    requeued: int
    movedToDlq: int  # noqa: N815 - Relay's word
    results: list[MessageResult]


class DeletedMessages(Struct, kw_only=True):
    """What became of each message."""

    deleted: int
    failed: int
    results: list[MessageResult]


class MessageTouched(Struct, kw_only=True):
    """How long the lock lasts now. `extended_by` is 0 if it already lasted longer."""

    id: UUID
    lease_until: Moment
    locked_until: Moment
    new_timeout_at: Moment
    extended_by: float
    extended: bool
    detail: str | UnsetType = UNSET


class ListedMessage(Struct, kw_only=True):
    """A message of a list. A large payload is null; its beginning is in `payload_preview`."""

    id: UUID
    type: str | None
    payload: Any
    queue: str
    priority: int
    status: Status
    attempt_count: int
    max_attempts: int
    ack_timeout_seconds: float
    locked_until: Moment | None
    consumer_id: str | None
    created_at: Moment
    dequeued_at: None
    acknowledged_at: Moment | None
    last_error: str | None
    payload_preview: str | UnsetType = UNSET
    payload_size: int | UnsetType = UNSET


class MessageCounts(Struct, kw_only=True):
    """How many messages have each status."""

    queued: int
    processing: int
    acknowledged: int
    dead: int
    archived: int
    messages: Annotated[
        dict[str, list[ListedMessage]] | UnsetType, says("the newest of each state, if requested")
    ] = UNSET


class QueueCounts(Struct, kw_only=True):
    """How many messages of a queue have each status."""

    queue: str
    queued: int
    processing: int
    acknowledged: int
    dead: int
    archived: int
    cancelled: int
    oldest_seconds: float | None


class QueueMetrics(Struct, kw_only=True):
    """The counts of each queue."""

    queues: list[QueueCounts]


class QueueConfig(Struct, kw_only=True):
    """Defaults and limits."""

    ack_timeout_seconds: float
    max_attempts: int
    max_priority_levels: int
    max_batch_size: int
    max_dequeue_count: int
    max_timeout_seconds: float
    body_limit: int
    queue_types: list[str]
    states: list[str]


class ListedMessages(Struct, kw_only=True):
    """A page of messages; `next_cursor` is null on the last one."""

    messages: list[ListedMessage]
    next_cursor: str | None


class ExportedMessages(Struct, kw_only=True):
    """Messages with their whole payloads; `next_cursor` continues behind them."""

    state: str
    exported_at: Moment
    messages: list[ListedMessage]
    next_cursor: str | None


class Pagination(Struct, kw_only=True):
    """Which page this is, of how many."""

    page: int
    limit: int
    total: Annotated[int, says("how many match, up to 10,000")]
    totalPages: int  # noqa: N815 - Relay's word
    capped: Annotated[bool, says("there may be more than `total`")]


class MessagePage(Struct, kw_only=True):
    """A page of messages of one state."""

    messages: list[ListedMessage]
    pagination: Pagination
    next_cursor: str | None
    sorted: Annotated[int | UnsetType, says("how many of the newest were sorted")] = UNSET
    sorted_all: Annotated[bool | UnsetType, says("whether these are all")] = UNSET


class CarriedOut(Struct, kw_only=True):
    """How many messages were deleted, cleared or moved."""

    deleted: int | UnsetType = UNSET
    cleared: int | UnsetType = UNSET
    moved: int | UnsetType = UNSET
    failed: int | UnsetType = UNSET
    results: list[MessageResult] | UnsetType = UNSET
    operation: Operation | UnsetType = UNSET


class MessageChanged(Struct, kw_only=True):
    """The message is changed."""

    id: UUID
    status: Status | None


class MessageDeleted(Struct, kw_only=True):
    """The message is deleted."""

    id: UUID
    deleted: bool


class Activity(Struct, kw_only=True):
    """One thing that happened."""

    timestamp: Moment
    action: str
    message_id: str | None
    type: str | None
    queue: str | None
    consumer_id: str | None
    actor: str | None
    reason: str | None
    details: dict[str, Any] | None


class Activities(Struct, kw_only=True):
    """What happened, the newest first."""

    activities: list[Activity]
    next_cursor: str | None


class MessageActivities(Struct, kw_only=True):
    """What happened to a message, the oldest first."""

    message_id: UUID
    status: Status
    activities: list[Activity]


class Consumer(Struct, kw_only=True):
    """A consumer, and how much it has done."""

    consumer_id: str
    total_dequeued: int
    total_acknowledged: int
    total_failed: int
    last_seen_at: Moment
    last_dequeue_at: Moment | None
    last_ack_at: Moment | None
    alive: bool
    queues: list[str]


class Consumers(Struct, kw_only=True):
    """The consumers."""

    consumers: list[Consumer]


class ActivityCleared(Struct, kw_only=True):
    """Nothing was cleared."""

    cleared: int
    detail: str


class MessageQueue(Struct, kw_only=True):
    """A queue."""

    name: str
    type: Literal["standard", "partitioned"]
    ack_timeout_seconds: float
    max_attempts: int
    paused: bool
    message_count: int
    queued: int
    processing: int
    acknowledged: int
    dead: int
    archived: int
    cancelled: int
    detail: str | UnsetType = UNSET


class MessageQueues(Struct, kw_only=True):
    """The queues."""

    queues: list[MessageQueue]
