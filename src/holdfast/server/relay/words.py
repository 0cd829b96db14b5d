"""The words of Relay for ours: a message is a job, its type is the kind."""

from typing import Any

from holdfast.records import Event

# A message need not have a type; a job has a kind.
UNTYPED = "message"
STATUSES = {
    "queued": "queued",
    "leased": "processing",
    "done": "acknowledged",
    "dead": "dead",
    "archived": "archived",
    "cancelled": "cancelled",
}
# Our events in their words; what they have none for keeps its own.
ACTIONS = {
    "enqueued": "enqueue",
    "claimed": "dequeue",
    "acked": "ack",
    "nacked": "nack",
    "failed": "nack",
    "retried": "requeue",
    "released": "requeue",
    "expired": "timeout",
    "reaped": "timeout",
    "died": "dlq",
    "moved": "move",
    "deleted": "delete",
    "touched": "touch",
}


def type_of(kind: str | None) -> str | None:
    """Return a kind as a type."""
    return None if kind == UNTYPED else kind


def actions_of(event: str, state: str | None) -> list[str]:
    """Return what the other dialect calls an event: of a last failure, two things."""
    action = ACTIONS.get(event, event)
    return [action, "dlq"] if event in ("nacked", "reaped") and state == "dead" else [action]


def messages_of(event: Event) -> list[dict[str, Any]]:
    """Return an event of the log as a stream of the other dialect tells it."""
    about: dict[str, Any] = {
        "id": event.job,
        "type": type_of(event.kind),
        "queue": event.queue,
        "status": None if event.state is None else STATUSES[event.state],
        "at": event.at,
        "event_id": str(event.seq),
    }
    if event.job is None:
        about["count"] = event.jobs
    if event.worker is not None:
        about["consumer_id"] = event.worker
    if event.attempt is not None:
        about["attempt_count"] = event.attempt
    if event.event in ("nacked", "reaped"):
        about["last_error"] = event.reason
    return [{"type": one, "payload": about} for one in actions_of(event.event, event.state)]
