"""What columns and values of a table are taken to mean, and what is added where it has none."""

import re
from collections.abc import Mapping

STATES = ("queued", "leased", "done", "dead", "cancelled")

KEY_TYPES = {"smallint", "integer", "bigint", "uuid", "text", "character varying", "character"}
_INTEGER = "smallint|integer|bigint"
_TEXT = "text|character varying"
MEANINGS = {
    "token": "uuid",
    "lease_until": "timestamp with time zone",
    "worker": _TEXT,
    "attempt": _INTEGER,
    "max_attempts": _INTEGER,
    "max_retries": _INTEGER,
    "run_at": "timestamp with time zone",
    "error": _TEXT,
    "reason": _TEXT,
    "started_at": "timestamp",
    "ended_at": "timestamp",
    "failed_at": "timestamp",
    "created_at": "timestamp",
    "priority": _INTEGER,
    "lane": "any",
    "tenant": "any",
    "kind": "any",
}
ADDED = {
    "token": "uuid",
    "lease_until": "timestamp with time zone",
    "worker": "text",
    "attempt": "integer",
    "run_at": "timestamp with time zone",
    "error": "text",
    "reason": "text",
    "at": "timestamp with time zone",
}
CHANGED = (*ADDED, "started_at", "ended_at", "failed_at")
WRITTEN = (*CHANGED, "max_attempts", "max_retries")
# Some states have none.
EMPTIED = (
    "token",
    "lease_until",
    "worker",
    "run_at",
    "error",
    "started_at",
    "ended_at",
    "failed_at",
)
GUESSES: dict[str, tuple[str, ...]] = {
    "status": ("status", "state"),
    "attempt": ("attempts", "attempt", "attempt_count", "retry_count", "tries"),
    "max_attempts": ("max_attempts",),
    "max_retries": ("max_retries", "maxRetries"),
    "error": ("error", "error_message", "last_error", "errorMessage"),
    "started_at": ("started_at", "processing_started_at", "startedAt"),
    "ended_at": ("completed_at", "finished_at", "processed_at", "ended_at", "completedAt"),
    "failed_at": ("failed_at", "failedAt"),
    "created_at": ("queued_at", "created_at", "inserted_at", "createdAt"),
    "priority": ("priority",),
}
VALUES = {
    "queued": {"queued", "pending", "new", "waiting", "ready", "open", "todo", "scheduled"},
    "leased": {"started", "processing", "running", "in_progress", "active", "leased", "working"},
    "done": {"completed", "complete", "done", "finished", "success", "succeeded", "processed"},
    "dead": {"failed", "error", "dead", "errored", "failure"},
    "cancelled": {"cancelled", "canceled", "aborted"},
}
# What is written where a table has no word of its own.
WORDS = {
    "queued": "queued",
    "leased": "started",
    "done": "completed",
    "dead": "failed",
    "cancelled": "cancelled",
}


def written(columns: Mapping[str, str]) -> list[str]:
    """Return the columns that the queue writes."""
    return [columns[meaning] for meaning in CHANGED if meaning in columns]


def constant(default: str | None) -> str | None:
    """The text that a default is, if it is one."""
    found = re.fullmatch(r"'((?:[^']|'')*)'(?:::.*)?", default or "")
    return found[1].replace("''", "'") if found else None


def means(state: str, value: str) -> bool:
    """Tell whether a value is a usual word for a state."""
    return value.lower().replace("-", "_").replace(" ", "_") in VALUES[state]


def fits(meaning: str, type: str) -> bool:
    """Tell whether a column of this type can have that meaning."""
    wanted = MEANINGS[meaning]
    return wanted == "any" or any(type.startswith(one) for one in wanted.split("|"))
