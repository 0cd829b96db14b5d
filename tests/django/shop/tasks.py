"""Tasks of a shop, as an app of Django's declares them."""

from typing import Any

from holdfast import current
from holdfast.django.tasks_api import TaskContext, task
from tests.django.shop.models import Order


@task
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@task
async def aadd(a: int, b: int) -> int:
    return a + b


@task(takes_context=True)
def attempt(context: TaskContext, *numbers: int) -> list[Any]:
    return [context.attempt, context.task_result.id, *numbers]


@task(max_attempts=1)
def fail() -> None:
    raise ValueError("the card was refused")


@task(takes_context=True, max_attempts=3, retry=0)
def fail_twice(context: TaskContext) -> list[int]:
    if current().attempt < 3:
        raise KeyError("not yet")
    return [current().attempt, context.attempt]


@task(max_attempts=1)
def unfit() -> object:
    return object()


@task
def store(number: int) -> None:
    Order.objects.create(number=number)


@task
async def astore(number: int) -> int:
    await Order.objects.acreate(number=number)
    return await Order.objects.acount()


class BouncedError(Exception):
    """The mail came back."""


@task(retry=3600)
def retry_later() -> None:
    raise BouncedError("try later")


@task(takes_context=True)
def look_at_itself(context: TaskContext) -> list[Any]:
    seen = look_at_itself.get_result(context.task_result.id)
    return [str(seen.status), seen.started_at and str(seen.started_at), seen.worker_ids]


@task(key=lambda number: f"invoice-{number}", lane="invoices", max_attempts=7)
def invoice(number: int) -> None: ...


def plain() -> None:
    """A function that is not a task."""
