"""Binds `current()` in a test, so that a task that uses it can be called as a function."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NoReturn
from uuid import uuid4

from msgspec.structs import replace

from holdfast.app import Task
from holdfast.client import Client
from holdfast.current import CurrentJob, running
from holdfast.errors import Misuse
from holdfast.records import Lease, defaults
from holdfast.task import Enqueuer
from holdfast.testing.draining import leased
from holdfast.worker.handlers import ending, settlement_of

_WORKER = "test"


@contextmanager
def job(
    task: Task[..., Any, Any],
    *args: Any,
    attempt: int = 1,
    max_attempts: int = defaults.MAX_ATTEMPTS,
    last_error: str | None = None,
    resources: Any = None,
    **kwargs: Any,
) -> Iterator[CurrentJob]:
    """Bind `current()` to a job that is not stored, for a test without a database.

    Its arguments are those of the task; `attempt`, `last_error` and `resources` are what the
    handler sees. It is held, and its progress is in `noted`. A transaction needs a stored job.
    """
    now = datetime.now(UTC)
    new = task.call(*args, **kwargs).job if args or kwargs else None
    if new and task.codec:
        new = replace(new, payload=task.codec.payload(new.payload))
    lease = Lease(
        id=uuid4(),
        kind=task.kind,
        payload_json=new.payload.decode() if new else "{}",
        priority=0,
        attempt=attempt,
        max_attempts=max_attempts,
        run_at=now,
        created_at=now,
        key=None,
        lane=None,
        tenant=None,
        subject=None,
        headers_json=None,
        lease_until=now + timedelta(hours=1),
        lease=None,
        length=timedelta(hours=1),
        error=last_error,
        followed=False,
        token=uuid4(),
        queue=task.queue,
        worker=_WORKER,
    )
    keeps = _NothingToKeep()
    bound = _Unsaved(task, keeps, task.queue, None, (), lease.token.bytes, 3600.0, _lease=lease)
    bound.claimed = bound.started = monotonic()
    bound.deadline = monotonic() + 3600.0
    bound.resources = resources
    with _current(bound):
        yield bound


@contextmanager
def stored_job(
    client: Client, task: Enqueuer[..., Any], args: Any, kwargs: Any, resources: Any
) -> Iterator[CurrentJob]:
    """Bind `current()` to a new job that is leased; it is settled as the block ends."""
    handle = task.enqueue(*args, **kwargs)
    of = handle.task
    bound = leased(of, _claimed(client, of, handle.id), client)
    bound.resources = resources
    try:
        with _current(bound):
            yield bound
    except BaseException as error:
        _settle(client, bound, error)
        raise
    _settle(client, bound, None)


@contextmanager
def _current(bound: CurrentJob) -> Iterator[None]:
    token = running.set(bound)
    try:
        yield
    finally:
        running.reset(token)


def _claimed(client: Client, task: Task[..., Any, Any], id: Any) -> Lease:
    """Lease one job, and leave others of its kind as they were."""
    queue = next((one.queue for one in [client.jobs.get(id)] if one), task.queue)
    others: list[Lease] = []
    try:
        while leases := client.claim(queue, worker=_WORKER, kinds=[task.kind]):
            if leases[0].id == id:
                return leases[0]
            others += leases
    finally:
        client.release(others)
    raise Misuse(
        f"the job of {task.kind} cannot run now: {client.jobs.explain(id)}",
        fix="Give it no delay, and a queue and a lane that are free.",
    )


def _settle(client: Client, bound: CurrentJob, raised: BaseException | None) -> None:
    settlement = settlement_of(bound, ending(bound, None, raised))
    if settlement is not None:
        client.settle([settlement])


class _NothingToKeep:
    def renew_soon(self) -> None:
        pass


class _Unsaved(CurrentJob):
    """A job that no database knows."""

    def transaction(self, result: Any = None) -> NoReturn:
        raise _not_stored("transaction()")

    def hand_over(self, timeout: Any) -> NoReturn:
        raise _not_stored("hand_over()")

    async def ahand_over(self, timeout: Any) -> NoReturn:
        raise _not_stored("ahand_over()")


def _not_stored(what: str) -> Misuse:
    return Misuse(
        f"current().{what} needs a job that is stored",
        fix="Use the fixture:  with holdfast.job(task, …):",
    )
