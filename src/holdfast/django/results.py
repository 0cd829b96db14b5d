"""What Django knows of a task's call, `TaskResult`, from what Holdfast knows of its job."""

import builtins
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from holdfast import errors
from holdfast.django.tasks_api import Task, TaskError, TaskResult, TaskResultStatus
from holdfast.records import Attempt, Job

# The header that has what a job itself does not: Django's own words for it.
HEADER = "django"


def headers(
    task: Task, backend: str, enqueued_at: datetime, more: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the headers of a job: what `result_of` needs to know of the task."""
    # The job has the database's time, which `enqueue` does not return: the result that it returns
    # has to equal the one that is looked up.
    said: dict[str, Any] = {"backend": backend, "enqueued_at": enqueued_at.isoformat()}
    if task.priority:
        said["priority"] = int(task.priority)
    if task.run_after is not None:
        said["run_after"] = task.run_after.isoformat()
    return {**(more or {}), HEADER: said}


def is_of_django(job: Job) -> bool:
    """Whether a job is a call of one of Django's tasks."""
    match job.payload:
        case {"args": list(), "kwargs": dict(), **more}:
            return not more
    return False


def said_of(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the header of Django says; nothing of what another program may have put there."""
    said = headers.get(HEADER)
    found: dict[str, Any] = said if isinstance(said, dict) else {}
    sorts = {"backend": str, "priority": int, "run_after": str, "enqueued_at": str}
    kept = {name: found[name] for name, sort in sorts.items() if type(found.get(name)) is sort}
    for name in ("run_after", "enqueued_at"):
        time = kept.pop(name, "")
        with suppress(ValueError):
            kept[name] = datetime.fromisoformat(time)
    return kept


def kept(returned: Any, started_at: datetime) -> dict[str, Any]:
    """Return what is kept of a call that succeeded; no job of Holdfast says when it began."""
    return {"return_value": returned, "started_at": started_at.isoformat()}


def new_result(task: Task, backend: str, args: Any, kwargs: Any, **known: Any) -> TaskResult:
    """Return the result of a call; raises TypeError if its arguments cannot be JSON."""
    usual: dict[str, Any] = {
        "id": "",
        "status": TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return TaskResult(task=task, backend=backend, args=args, kwargs=kwargs, **{**usual, **known})


def result_of(
    task: Task, job: Job, attempts: Sequence[Attempt], claimed_at: datetime | None
) -> TaskResult:
    """Return the result of a job; `claimed_at` is when a running one was claimed."""
    said = said_of(job.headers)
    status = _status(job)
    done = status == TaskResultStatus.SUCCESSFUL
    returned = job.result if isinstance(job.result, dict) else {}
    starts = [one.started_at for one in attempts if one.started_at and one.outcome != "done"]
    if done and (began := parse_datetime(str(returned.get("started_at", "")))):
        starts.append(began)
    elif claimed_at:
        starts.append(claimed_at)
    workers = [one.worker or "" for one in attempts if one.outcome != "done"]
    if job.worker and (done or status == TaskResultStatus.RUNNING):
        workers.append(job.worker)
    backend = said.get("backend", task.backend)
    result = new_result(
        as_enqueued(task, backend, job.queue, said),
        backend,
        **job.payload,
        id=str(job.id),
        status=status,
        enqueued_at=said.get("enqueued_at", job.created_at),
        started_at=starts[0] if starts else None,
        last_attempted_at=starts[-1] if starts else None,
        finished_at=job.ended_at,
        errors=[*errors_of(attempts), *_cancelled(job)],
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", returned.get("return_value"))
    return result


def as_enqueued(task: Task, backend: str, queue: str, said: Mapping[str, Any]) -> Task:
    """Return a task with the options that a call of it was enqueued with."""
    changes = {
        "backend": backend,
        "queue_name": queue,
        "priority": said.get("priority", 0),
        "run_after": said.get("run_after"),
    }
    # Not checked again: the settings may have changed since, or the job was moved.
    changed = object.__new__(type(task))
    for field in fields(task):
        value = changes.get(field.name, getattr(task, field.name))
        object.__setattr__(changed, field.name, value)
    return changed


def errors_of(attempts: Sequence[Attempt]) -> list[TaskError]:
    """Return the errors of failed attempts, oldest first."""
    return [
        TaskError(
            exception_class_path=path_of(one.error_kind or ""),
            traceback=one.traceback or f"{one.error_kind}: {one.message}\n",
        )
        for one in attempts
        if one.error_kind
    ]


def _cancelled(job: Job) -> list[TaskError]:
    if job.state != "cancelled":
        return []
    path = f"{errors.__name__}.{errors.JobCancelled.__name__}"
    return [TaskError(exception_class_path=path, traceback=f"cancelled: {job.reason or ''}\n")]


def _status(job: Job) -> TaskResultStatus:
    match job.state:
        case "queued":
            return TaskResultStatus.READY
        case "leased":
            return TaskResultStatus.RUNNING
        case "done":
            return TaskResultStatus.SUCCESSFUL
        case "archived" if not job.error:
            return TaskResultStatus.SUCCESSFUL
    return TaskResultStatus.FAILED


def path_of(kind: str) -> str:
    """Return where an exception can be imported from; jobs name those of Python without it."""
    if "." in kind:
        return kind
    if kind in _OURS:
        return _OURS[kind]
    for module in (builtins, errors):
        if isinstance(getattr(module, kind, None), type):
            return f"{module.__name__}.{kind}"
    return "builtins.Exception"


# How an attempt may end without an exception that anybody raised.
_OURS = {
    "InvalidResult": "builtins.TypeError",  # as Django's own backends say
    "Killed": "holdfast.outcome.Killed",
    "TimedOut": "builtins.TimeoutError",
}
