"""The words of Relay for ours: a message is a job, its type is the kind."""

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
# The events of the log as Relay calls them; one that it does not have keeps its name.
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
    """Return what Relay calls an event; a last failure is two things."""
    action = ACTIONS.get(event, event)
    return [action, "dlq"] if event in ("nacked", "reaped") and state == "dead" else [action]
