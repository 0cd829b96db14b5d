"""Schedules of Django's tasks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from holdfast.django.database import app_of
from holdfast.django.task import HoldfastTask, check_arguments
from holdfast.errors import InvalidTask

AnyTask = TypeVar("AnyTask")


def schedule(
    cron: str | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **rule: Any,
) -> Callable[[AnyTask], AnyTask]:
    """Enqueue a task on a schedule: `@schedule("30 5 * * *", tz="Europe/Paris")` above `@task`.

    `args` and `kwargs` are those of the call; the rest is that of `App.schedule`. A worker
    stores it.
    """

    def declare(task: AnyTask) -> AnyTask:
        if not isinstance(task, HoldfastTask):
            raise InvalidTask(
                f"{task!r} is scheduled but is not a task of HoldfastBackend",
                fix="Write @schedule above @task.",
            )
        django_task = cast("Any", task)
        check_arguments(django_task, args, kwargs or {}, verb="schedule")
        app = app_of(django_task.get_backend().database)
        payload = {"args": list(args), "kwargs": dict(kwargs or {})}
        app.schedule(cron, payload=payload, **rule)(app.tasks[django_task.module_path])
        return task

    return declare
