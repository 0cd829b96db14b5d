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
# Settings of a task elsewhere.
SETTINGS = {
    "autoretry_for": "retry",
    "default_retry_delay": "retry",
    "ignore_result": "keep_result",
    "name": "kind",
    "retry_backoff": "retry",
    "retry_delay": "retry",
    "soft_time_limit": "timeout",
    "task_name": "kind",
    "time_limit": "timeout",
}
# What is a setting of a task elsewhere and here is something else, and what that is.
ELSEWHERE = {
    "acks_late": "Leave it out: a job always ends after its function has.",
    "bind": "Leave it out: holdfast.current() is the running job.",
    "concurrency": 'Limit its queue:  app.queue("…", limit=4)',
    "cron": 'Schedule it:  @app.schedule("30 5 * * *") above @app.task',
    "crontab": 'Schedule it:  @app.schedule("30 5 * * *") above @app.task',
    "delay": "Say it with a call:  task.options(delay=…).enqueue(…)",
    "rate_limit": 'Limit its queue:  app.queue("…", rate_limit=10, rate_period=60)',
    "run_at": "Say it with a call:  task.options(run_at=…).enqueue(…)",
    "schedule": 'Schedule it:  @app.schedule("30 5 * * *") above @app.task',
}


def elsewhere(name: str) -> str:
    """Return where a setting goes that is not one of a task; empty if that is not known."""
    return ELSEWHERE.get(OPTIONS.get(name, name), "")


def meant(name: str, known: Iterable[str]) -> str:
    """Return the known option that a name most likely stands for; empty if there is none."""
    options = list(known)
    for same in (OPTIONS.get(name, name), SETTINGS.get(name)):
        if same in options:
            return same
    return next(iter(get_close_matches(name, options, n=1)), "")
