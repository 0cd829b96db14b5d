"""What other queues call what we have, so that a refusal can say what to type."""

from collections.abc import Iterable
from difflib import get_close_matches

# Methods of a task elsewhere. Each of them stores a job that calls the function.
ENQUEUE = {
    "apply_async",
    "async_task",
    "defer",
    "defer_async",
    "delay",
    "kiq",
    "push",
    "schedule",
    "send",
    "send_with_options",
    "submit",
}
OPTIONS = {
    "conn": "conn",
    "connection": "conn",
    "countdown": "delay",
    "delay_seconds": "delay",
    "eta": "run_at",
    "execute_after": "run_at",
    "idempotency_key": "key",
    "job_id": "id",
    "lock": "lane",
    "max_retries": "max_attempts",
    "queue_name": "queue",
    "queueing_lock": "key",
    "retries": "max_attempts",
    "run_after": "run_at",
    "schedule_at": "run_at",
    "schedule_in": "delay",
    "session": "conn",
    "singleton_key": "key",
    "task_id": "id",
    "unique_key": "key",
}


def meant(name: str, known: Iterable[str]) -> str:
    """Return the known option that a name most likely stands for; empty if there is none."""
    options = list(known)
    if (same := OPTIONS.get(name, name)) in options:
        return same
    return next(iter(get_close_matches(name, options, n=1)), "")
