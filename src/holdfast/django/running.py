"""Runs a task of Django's as the handler of a job: signals, context, database connections."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from holdfast.client import client_on
from holdfast.current import CurrentJob, current
from holdfast.django.database import DjangoApp
from holdfast.django.outages import began, note_outage
from holdfast.django.results import as_enqueued, errors_of, kept, new_result, path_of, said_of
from holdfast.django.task import DECLARED
from holdfast.django.tasks_api import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from holdfast.errors import InvalidResult
from holdfast.outcome import decide, error_kind, told_traceback
from holdfast.records import Attempt, Failed
from holdfast.task import Task as HoldfastsTask
from holdfast.task import TaskSettings

log = logging.getLogger("holdfast.django")


class CallTask(HoldfastsTask[..., Any, Any]):
    """A task of Django's, as a worker knows it: its payload has `args` and `kwargs`."""


def declare(app: DjangoApp, task: Task, backend: str) -> None:
    """Let the workers of an app run a task."""
    known = _known.get((backend, task.module_path))
    if known is not None and known.func is task.func:
        return  # the same with other options, for one call
    declared = [one for (_, path), one in _known.items() if path == task.module_path]
    if task.module_path in app.tasks and any(one.func is task.func for one in declared):
        # On another backend of this database, for one call: it runs as it was declared.
        _known[backend, task.module_path] = task
        return
    settings = {name: getattr(task, name) for name in DECLARED if hasattr(task, name)}
    settings.setdefault("keep_result", True)
    settings |= {"kind": task.module_path, "queue": task.queue_name}
    made = CallTask(app, _handler(task, backend), cast("TaskSettings", settings))
    app._add(made)
    for kind in (made.kind, *made.aliases):
        _known[backend, kind] = task


def task_of(kind: str, backend: str) -> Task | None:
    """Return the task of a kind, whose module may have to be imported; None if there is none."""
    for look in (lambda: None, lambda: import_string(kind), _import_all):
        with suppress(ImportError):
            look()
        if found := _known.get((backend, kind)) or next(
            (task for (_, path), task in _known.items() if path == kind), None
        ):
            return found
    return None


def _import_all() -> None:
    """Import all tasks: one of them may have had the path before, and have it as an alias."""
    import_module("holdfast.django.site")


def _handler(task: Task, backend: str) -> Callable[..., Any]:
    handler: Callable[..., Any]
    if iscoroutinefunction(task.func):

        async def arun(args: list[Any], kwargs: dict[str, Any]) -> Any:
            async with _own_thread():
                call = _Call(task, backend, current(), args, kwargs)
                return await call.arun()

        handler = arun
    else:

        def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
            return _Call(task, backend, current(), args, kwargs).run()

        handler = run
    # Known as the function it calls, of which there is one for each kind.
    handler.__doc__, handler.__qualname__ = task.func.__doc__, task.module_path
    return handler


class _Call:
    """One attempt at a call of a task."""

    def __init__(
        self, task: Task, backend: str, job: CurrentJob, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self._task = task
        self._backend = backend
        self._sender = type(task_backends[backend])
        self._alias = task_backends[backend].database
        self._job = job
        self._started_at = began()[1]
        self._result = new_result(task, backend, args, kwargs)

    def run(self) -> Any:
        try:
            self._begin(self._attempts())
            task_started.send_robust(self._sender, task_result=self._result)
            returned = self._task.call(*self._arguments, **self._result.kwargs)
            value = self._succeed(returned)
            task_finished.send_robust(self._sender, task_result=self._result)
            return value
        except BaseException as error:
            note_outage(self._job, error)
            if self._fail(error):
                task_finished.send_robust(self._sender, task_result=self._result)
            raise

    async def arun(self) -> Any:
        try:
            self._begin(await sync_to_async(self._attempts)())
            await task_started.asend_robust(self._sender, task_result=self._result)
            returned = await self._task.acall(*self._arguments, **self._result.kwargs)
            value = self._succeed(returned)
            await task_finished.asend_robust(self._sender, task_result=self._result)
            return value
        except BaseException as error:
            await sync_to_async(note_outage)(self._job, error)
            if self._fail(error):
                await task_finished.asend_robust(self._sender, task_result=self._result)
            raise

    def _attempts(self) -> Sequence[Attempt]:
        """Return the failed attempts; on Django's connection, which is needed anyway."""
        if self._job.attempt == 1:
            return ()
        return client_on(connections[self._alias]).jobs.attempts(self._job.id)

    @property
    def _arguments(self) -> list[Any]:
        context = [TaskContext(task_result=self._result)] if self._task.takes_context else []
        return [*context, *self._result.args]

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        """Fill in the result of a call that begins now; `attempts` are those that failed."""
        lease = self._job.lease
        failed = [one for one in attempts if one.outcome != "done"]
        before = failed[max(len(failed) - lease.attempt + 1, 0) :]  # not of an earlier life
        unknown = [""] * (lease.attempt - 1 - len(before))
        starts = [one.started_at for one in before if one.started_at]
        said = said_of(lease.headers)
        backend = said.get("backend", self._backend)
        _set(
            self._result,
            task=as_enqueued(self._task, backend, lease.queue, said),
            backend=backend,
            id=str(lease.id),
            status=TaskResultStatus.RUNNING,
            enqueued_at=said.get("enqueued_at", lease.created_at),
            started_at=starts[0] if starts else self._started_at,
            last_attempted_at=self._started_at,
            errors=errors_of(before),
            worker_ids=[*unknown, *(one.worker or "" for one in before), lease.worker],
        )

    def _succeed(self, returned: Any) -> Any:
        try:
            value = normalize_json(returned)
        except (TypeError, ValueError) as error:
            raise InvalidResult(
                f"{self._task.module_path} returned what JSON cannot hold: {error}",
                fix="Return numbers, texts, lists and dicts, or nothing.",
            ) from error
        _set(self._result, _return_value=value)
        self._end(TaskResultStatus.SUCCESSFUL)
        return kept(value, self._started_at)

    def _fail(self, error: BaseException) -> bool:
        """Note an error; returns whether the job ends with it."""
        job = self._job
        if job.settled or job.stopped or job.ticket or error is job.cut_by:
            return False
        ending = decide(job.lease, raised=error, retry=job.task.retry)
        last = job.attempt >= job.lease.max_attempts
        over = isinstance(ending, Failed) and (ending.final or last)
        if over:
            self._result.errors.append(
                TaskError(
                    exception_class_path=path_of(error_kind(error)), traceback=told_traceback(error)
                )
            )
            self._end(TaskResultStatus.FAILED)
        return over

    def _end(self, status: TaskResultStatus) -> None:
        _set(self._result, status=status, finished_at=timezone.now())


@asynccontextmanager
async def _own_thread() -> AsyncIterator[None]:
    """Give what an async task does with the ORM a thread and connections, as requests have."""
    async with ThreadSensitiveContext():
        try:
            yield
        finally:
            await sync_to_async(connections.close_all)()


def _set(result: TaskResult, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # as Django does: others cannot change it


_known: dict[tuple[str, str], Task] = {}
