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
# Methods that return a call without storing a job, and those that return a task with options.
CALL = {"message", "s", "si", "signature", "subtask"}
WITH_OPTIONS = {"configure", "set", "using", "with_options"}
# What a handle has elsewhere.
HANDLE = {
    "abort": "cancel()",
    "failed": "state()",
    "get": "result(timeout=…)",
    "get_status": "state()",
    "get_result": "result(timeout=…)",
    "is_finished": "state()",
    "ready": "state()",
    "return_value": "result(timeout=…)",
    "revoke": "cancel()",
    "status": "state()",
    "successful": "state()",
    "wait": "result(timeout=…)",
}
# What an app has elsewhere.
APP = {
    "add_periodic_task": '@app.schedule("30 5 * * *") above @app.task',
    "beat_schedule": '@app.schedule("30 5 * * *") above @app.task',
    "conf": "settings of a queue are declared by app.queue(…), those of a task by @app.task(…)",
    "config_from_object": "settings are arguments:  App(url, …), @app.task(…), app.queue(…)",
    "configure_task": 'app.client.enqueue("kind", {…}) stores a job by its name',
    "cron": '@app.schedule("30 5 * * *") above @app.task',
    "delay": "task.enqueue(…) stores a job",
    "enqueue": "task.enqueue(…) stores a job",
    "periodic": '@app.schedule("30 5 * * *") above @app.task',
    "periodic_task": '@app.schedule("30 5 * * *") above @app.task',
    "run_worker": "app.run() is a worker",
    "run_worker_async": "await Worker(app).run_async() is a worker",
    "send_task": 'app.client.enqueue("kind", {…}) stores a job by its name',
    "start": "app.run() is a worker",
    "worker": "app.run() is a worker",
    "worker_main": "app.run() is a worker",
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
# Options of a worker elsewhere.
WORKER = {
    "burst": "until_idle",
    "max_tasks_per_child": "recycle_jobs",
    "num_workers": "processes",
    "poll_interval": "poll",
    "pool_size": "concurrency",
    "shutdown_timeout": "grace",
    "slots": "concurrency",
    "threads": "concurrency",
    "wait": "until_idle",
    "workers": "processes",
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


def method(kind: str, name: str) -> str:
    """Return how to write a method that tasks have elsewhere; empty if that is not known."""
    for words, told in (
        (ENQUEUE, f"{kind}.enqueue(…) stores a job"),
        (CALL, f"{kind}.call(…) is a call that is not stored"),
        (WITH_OPTIONS, f"{kind}.options(…).enqueue(…) stores a job with options"),
    ):
        if name in words:
            return told
    return ""


def of_app(name: str) -> str:
    """Return what to write for an attribute that apps have elsewhere; empty if not known."""
    return APP.get(name, "")


def elsewhere(name: str) -> str:
    """Return where a setting goes that is not one of a task; empty if that is not known."""
    return ELSEWHERE.get(OPTIONS.get(name, name), "")


def meant(name: str, known: Iterable[str]) -> str:
    """Return the known option that a name most likely stands for; empty if there is none."""
    options = list(known)
    for same in (OPTIONS.get(name, name), SETTINGS.get(name), WORKER.get(name)):
        if same in options:
            return same
    return next(iter(get_close_matches(name, options, n=1)), "")
