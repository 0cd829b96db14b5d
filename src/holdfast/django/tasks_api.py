"""Django's Tasks: `django.tasks` of Django 6, or the package `django-tasks` before.

Everything else imports these names from here and need not know which of them it is.
"""

from typing import Any

import django
from django.core.exceptions import ImproperlyConfigured

if django.VERSION >= (6, 0):
    from django.tasks import default_task_backend, task, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    try:
        from django_tasks import default_task_backend, task, task_backends
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Django {django.__version__} has no Tasks of its own. Run:  pip install django-tasks",
            name=error.name,
        ) from error
    from django_tasks import exceptions
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    # Later versions of the package call it what Django does.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "normalize_json",
    "own_backends",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]


def own_backends() -> list[Any]:
    """Return the backends in TASKS that are Holdfast's."""
    from holdfast.django.backend import HoldfastBackend

    found = []
    for alias in task_backends:
        try:
            backend = task_backends[alias]
        except ImproperlyConfigured:
            continue  # another one, of which Django's checks will tell
        if isinstance(backend, HoldfastBackend):
            found.append(backend)
    return found
