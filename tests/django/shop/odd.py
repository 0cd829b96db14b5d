"""Tasks that end in odd ways, for what Django asks of every backend."""

from typing import Any

from holdfast.django.tasks_api import TaskContext, task


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
def returns(value: Any) -> Any:
    """Return a value of Python that is not the same in JSON."""
    shapes = {"tuple": (1, (2,)), "bytes": b"abc", "nothing": None, "nested": {"a": [{"b": (1,)}]}}
    return shapes[value]


@task(max_attempts=1)
def returns_odd(what: str) -> Any:
    return {"set": {1}, "nan": float("nan"), "nul": "\0", "bytes": b"\xff", "half": "\ud800"}[what]


@task(max_attempts=1)
def raises_complex() -> None:
    raise ValueError(ValueError("This task failed"))


@task(max_attempts=1)
def exits() -> None:
    raise SystemExit("no more")


@task(max_attempts=1)
async def aexits() -> None:
    raise SystemExit("no more")


@task(max_attempts=1)
def raises_local() -> None:
    class InnerError(Exception):
        pass

    raise InnerError("from inside")


@task(max_attempts=1)
def raises_unspeakable() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    raise SilentError


@task(takes_context=True, priority=7, queue_name="mail")
def describes_itself(context: TaskContext, n: int) -> list[Any]:
    result = context.task_result
    return [
        result.status,
        result.args,
        result.task.priority,
        result.task.queue_name,
        result.attempts,
        result.is_finished,
        result.task.func is describes_itself.func,
    ]
