"""The backend for Django's Tasks: what is enqueued is a job of Holdfast."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.db import connections
from django.utils import timezone

from holdfast.client import Client, client_on
from holdfast.django.database import app_of
from holdfast.django.priorities import priority_of_job
from holdfast.django.results import headers, is_of_django, new_result, result_of
from holdfast.django.running import declare, task_of
from holdfast.django.task import OF_JOBS, HoldfastTask, check_arguments, options_of, refused
from holdfast.django.tasks_api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from holdfast.errors import InvalidJob, NotMigrated
from holdfast.errors import InvalidTask as RefusedTask
from holdfast.records import NewJob
from holdfast.task import Call, no_options, store

# What OPTIONS may have besides the database: the usual options of its tasks.
_OPTIONS = ("database", "max_attempts", "lease", "modules")
# The code of a payload that PostgreSQL cannot store as JSON; Django's errors for it are Python's.
_NOT_JSON = "HF204"


class HoldfastBackend(BaseTaskBackend):
    """Enqueues on Django's own connection: a job commits with `atomic()`, or not at all."""

    task_class = HoldfastTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", "default")

    @property
    def client(self) -> Client:
        """The client on Django's connection of this thread."""
        return client_on(connections[self.database])

    def validate_task(self, task: Task) -> None:
        """Check a task as Django does, and declare it to the workers of its database."""
        super().validate_task(task)
        given = {name: getattr(task, name, None) for name in OF_JOBS}
        for no in no_options({name: value for name, value in given.items() if value is not None}):
            raise InvalidTask(f"{task.name}: {no.what}. {no.fix}".rstrip())
        try:
            declare(app_of(self.database), task, self.alias)
        except RefusedTask as error:
            raise refused(error) from error

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Store a call of a task, in the transaction that Django is in."""
        self.validate_task(task)
        if task.func.__module__ == "__main__":
            raise InvalidTask(
                f"{task.name} is declared in the program that runs, where no worker can import it. "
                "Declare it in a module."
            )
        check_arguments(task, args, kwargs)
        made = new_result(task, self.alias, args, kwargs, enqueued_at=timezone.now())
        job = self._job(task, made)
        try:
            app = app_of(self.database)
            [enqueued] = store(self.client, [Call(app.tasks[job.kind], job)])
        except NotMigrated as error:
            error.fix = "Run:  python manage.py migrate"
            raise
        except InvalidJob as error:
            if error.code != _NOT_JSON:
                raise
            raise ValueError(str(error)) from error
        object.__setattr__(made, "id", str(enqueued.id))
        if enqueued.created:
            task_enqueued.send(type(self), task_result=made)
        return made

    def get_result(self, result_id: str) -> TaskResult:
        """Return what is known of a call."""
        try:
            id = UUID(str(result_id))
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        client = self.client
        job = client.jobs.get(id)
        if job is None or not is_of_django(job):
            raise TaskResultDoesNotExist(result_id)
        task = task_of(job.kind, self.alias)
        if task is None:
            raise TaskResultDoesNotExist(f"{result_id}, because there is no task {job.kind}")
        receipt = client.jobs.receipt(job.id) if job.state == "leased" else None
        claimed_at = receipt.claimed_at if receipt else None
        return result_of(task, job, client.jobs.attempts(job.id), claimed_at)

    def check(self, **kwargs: Any) -> Iterable[CheckMessage]:
        """Say what is wrong with the settings."""
        yield from super().check(**kwargs)
        where = f"TASKS[{self.alias!r}]"
        if not apps.is_installed("holdfast.django"):
            hint = "Add it, so that migrate installs the schema."
            yield Error(
                f"{where}: 'holdfast.django' is not in INSTALLED_APPS", hint, id="holdfast.E001"
            )
        if self.database not in connections:
            hint = f"DATABASES has: {', '.join(connections)}."
            yield Error(
                f"{where}: there is no database {self.database!r}", hint, id="holdfast.E002"
            )
        elif (vendor := connections[self.database].vendor) != "postgresql":
            yield Error(
                f"{where}: DATABASES[{self.database!r}] is {vendor}, and Holdfast lives in "
                "PostgreSQL",
                "Name one of PostgreSQL:  'OPTIONS': {'database': '…'}",
                id="holdfast.E003",
            )
        if unknown := self.options.keys() - set(_OPTIONS):
            hint = f"They are: {', '.join(_OPTIONS)}."
            yield Error(f"{where}: unknown option {min(unknown)!r}", hint, id="holdfast.E004")

    def _job(self, task: Task, made: TaskResult) -> NewJob:
        args, kwargs = made.args, made.kwargs
        usual = {
            name: self.options[name]
            for name in ("max_attempts", "lease")
            if self.options.get(name) is not None
        }
        options = {**usual, **options_of(task, args, kwargs)}
        options["headers"] = headers(task, self.alias, made.enqueued_at, options.get("headers"))
        after = task.run_after
        if after is not None and timezone.is_naive(after):
            after = timezone.make_aware(after)
        return NewJob(
            kind=task.module_path,
            payload={"args": args, "kwargs": kwargs},
            queue=task.queue_name,
            priority=priority_of_job(task.priority),
            run_at=after,
            **options,
        )
