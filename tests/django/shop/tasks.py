"""Tasks of a shop, as an app of Django's declares them."""

from contextlib import nullcontext
from time import sleep
from typing import Any

import psycopg
from django.db import connection, connections, transaction
from psycopg.conninfo import make_conninfo

from holdfast import current
from holdfast.django import schedule
from holdfast.django.database import address
from holdfast.django.tasks_api import TaskContext, task
from tests.django.shop.models import Order


@task
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@schedule("0 7 * * *", tz="Europe/Paris", kwargs={"b": 2}, args=[1])
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


@task(
    key=lambda number: f"invoice-{number}",
    lane="invoices",
    max_attempts=7,
    aliases=["shop.old.invoice"],
)
def invoice(number: int) -> None: ...


def plain() -> None:
    """A function that is not a task."""


@task
def ship(number: int, lose: bool = False, fail_after: bool = False, inside: bool = False) -> None:
    job = current()
    outer = transaction.atomic() if inside else nullcontext()
    with outer, job.transaction(f"shipped {number}"):
        Order.objects.create(number=number)
        if lose:
            job.app.client.jobs.cancel([job.id])  # on a connection of its own
        if fail_after:
            transaction.on_commit(fail.func)


@task(max_attempts=1)
async def aship() -> None:
    async with current().transaction():
        pass


@task
def store_and_cut(number: int) -> None:
    """Store an order; then the server ends the connection, as when it is restarted."""
    Order.objects.create(number=number)
    if number == 2:
        connections.close_all()  # this thread ends, too
        return
    with psycopg.connect(address("default"), autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(%s, 10000)", [connection.connection.info.backend_pid]
        )


@task
def lose_database() -> None:
    """Lose the connection while the database lets nobody in."""
    other = make_conninfo(address("default"), dbname="postgres")
    name = connections.settings["default"]["NAME"]
    Order.objects.count()
    with psycopg.connect(other, autocommit=True) as admin:
        admin.execute("update pg_database set datallowconn = false where datname = %s", [name])
        admin.execute(
            "select pg_terminate_backend(%s, 10000)", [connection.connection.info.backend_pid]
        )
    Order.objects.count()


@task(max_attempts=1)
def lose_connection() -> None:
    with transaction.atomic():
        Order.objects.create(number=1)
        with connection.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(pg_backend_pid())")


@task
def order(number: int) -> None:
    """Store an order and a job in one transaction; the first attempt does not come to its end."""
    with transaction.atomic():
        Order.objects.create(number=number)
        add.enqueue(number)
        if current().attempt == 1:
            with psycopg.connect(address("default"), autocommit=True) as other:
                other.execute("insert into inside values (1)")
            sleep(120)


@task(max_attempts=1)
def ask_elsewhere() -> None:
    """Use this database, and another that cannot be reached."""
    Order.objects.count()
    Order.objects.using("elsewhere").count()
