"""A task of Django's with the options that Holdfast has beyond Django's own."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from inspect import Parameter, signature
from typing import Any

from holdfast import synonyms
from holdfast.django.tasks_api import InvalidTask, Task
from holdfast.errors import HoldfastError
from holdfast.outcome import Policy
from holdfast.records import Duration
from holdfast.records.job import OnConflict

# A key or a lane may be chosen by the arguments of the call.
Chosen = str | Callable[..., str | None] | None

DECLARED = ("aliases", "timeout", "retry", "retry_budget", "keep_result", "process", "memory")
OF_JOBS = (
    "expires",
    "expires_at",
    "max_attempts",
    "lease",
    "key",
    "on_conflict",
    "lane",
    "tenant",
    "subject",
    "headers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldfastTask(Task):
    """What `@task` makes for HoldfastBackend: `@task(max_attempts=5, timeout=60)`.

    `using` changes the options of one call: `send.using(key="order-42").enqueue(42)`.
    """

    # How all calls of it run. Aliases are paths that it had before, for jobs that have them.
    aliases: Sequence[str] = ()
    timeout: Duration | None = None
    retry: Policy = None
    retry_budget: float | None = None
    keep_result: bool = True
    process: bool = False
    memory: int | None = None
    # What a job has, unless `using` says otherwise.
    expires: Duration | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    lease: Duration | None = None
    key: Chosen = None
    on_conflict: OnConflict | None = None
    lane: Chosen = None
    tenant: Chosen = None
    subject: Chosen = None
    headers: Mapping[str, Any] | None = None

    def __new__(cls, *_: Any, **given: Any) -> "HoldfastTask":
        """Refuse an option that is not one, before the dataclass does so without a hint."""
        for name in given.keys() - {field.name for field in fields(cls)}:
            known = [*_USED, *DECLARED]
            raise InvalidTask(
                f"@task: unknown option `{name}`{_meant(name, known)}. "
                f"{_elsewhere(name) or 'Options are: ' + ', '.join(known) + '.'}"
            )
        return object.__new__(cls)

    @property
    def kind(self) -> str:
        """The kind of its jobs: its path."""
        return str(self.module_path)

    @property
    def arguments(self) -> "CallArguments":
        """What it takes, for the assertions of the test kit."""
        return CallArguments(self)

    def using(self, **changes: Any) -> "HoldfastTask":
        """Return the task with other options for the calls made with it; None changes nothing."""
        for name in changes:
            if name in DECLARED:
                raise InvalidTask(
                    f"{self.name}.using({name}=…): {name} is the same for all calls. "
                    f"Declare it:  @task({name}=…)"
                )
            if name not in _USED:
                raise InvalidTask(
                    f"{self.name}.using: unknown option `{name}`{_meant(name, _USED)}. "
                    f"Options are: {', '.join(_USED)}."
                )
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **given)

    def __getattr__(self, name: str) -> Any:
        told = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in synonyms.ENQUEUE:
            told += f": {self.name}.enqueue(…) stores a job"
        raise AttributeError(told, name=name, obj=self)


class CallArguments:
    """What the function of a task takes; a stored call has it as `args` and `kwargs`."""

    def __init__(self, task: Task) -> None:
        taken = list(signature(task.func).parameters.values())
        self._parameters = taken[1:] if task.takes_context else taken

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [one.name for one in self._parameters if one.kind not in _OPEN]

    @property
    def defaults(self) -> dict[str, Any]:
        """What calls have that do not give them."""
        return {
            one.name: one.default for one in self._parameters if one.default is not Parameter.empty
        }

    def takes(self, name: str) -> bool:
        """Whether a call may have an argument of this name."""
        return name in self.names or any(
            one.kind is Parameter.VAR_KEYWORD for one in self._parameters
        )

    def opened(self, payload_json: str) -> str:
        """Return the arguments of a stored call by name, as JSON."""
        stored = json.loads(payload_json)
        return json.dumps(
            {**dict(zip(self.names, stored["args"], strict=False)), **stored["kwargs"]}
        )


def check_arguments(
    task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], *, verb: str = "enqueue"
) -> None:
    """Raise TypeError, as a call would, if the function of a task does not take arguments."""
    context = (None,) if task.takes_context else ()
    try:
        signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        options = [name for name in kwargs if synonyms.OPTIONS.get(name, name) in _SAID]
        hint = f" For an option of the job:  {task.name}.using(…).enqueue(…)" if options else ""
        raise TypeError(f"{task.name}.{verb}: {error}.{hint}") from None


def options_of(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the job of a call; a task of another backend has none."""
    given = {name: getattr(task, name, None) for name in OF_JOBS}
    chosen = {
        name: value(*args, **kwargs) if callable(value) else value for name, value in given.items()
    }
    return {name: value for name, value in chosen.items() if value is not None}


def refused(error: HoldfastError) -> Exception:
    """Return Django's error for a declaration that Holdfast refuses."""
    said: Exception = InvalidTask(str(error))
    return said


def _elsewhere(name: str) -> str:
    if synonyms.OPTIONS.get(name, name) in _DJANGOS:
        return ""
    return synonyms.elsewhere(name).replace("app.queue", "app_of().queue").replace("@app.", "@")


def _meant(name: str, known: Sequence[str]) -> str:
    if _elsewhere(name):
        return ""
    ours = synonyms.OPTIONS.get(name, name)
    near = _DJANGOS.get(ours) or synonyms.meant(name, known)
    return f" (did you mean `{near}`?)" if near else ""


_OPEN = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
# What Django calls what we have.
_DJANGOS = {"delay": "run_after", "run_at": "run_after", "queue": "queue_name"}
_USED = (
    *(field.name for field in fields(Task) if field.name not in ("func", "takes_context")),
    *OF_JOBS,
)
# What somebody may have meant who gave it as an argument.
_SAID = {*_USED, "delay", "run_at"}
