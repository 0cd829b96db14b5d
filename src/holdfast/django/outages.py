"""Whether a task failed because the database of its job went away: then it has not failed."""

import logging
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from time import monotonic
from traceback import walk_tb
from typing import Any

import psycopg
from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.db.utils import DatabaseErrorWrapper
from django.utils import timezone

from holdfast.client.statement import was_cut
from holdfast.current import CurrentJob

log = logging.getLogger("holdfast.django")

BEGAN: ContextVar[tuple[float, datetime]] = ContextVar("holdfast_django_began")


def note_outage(job: CurrentJob, error: BaseException) -> None:
    """Have a job released, not counted as failed, if its database was away while it ran.

    A lost connection alone is not enough: a task that always loses it would run for ever.
    """
    if error is job.cut_by or not isinstance(error, OperationalError | InterfaceError):
        return
    cause, connection = error.__cause__, connections[alias_of(job)]
    if not isinstance(cause, psycopg.Error) or not was_cut(cause):
        return
    # That of another database is an ordinary failure.
    if _raised_by(error) is not connection or connection.in_atomic_block:
        return
    with suppress(DatabaseError, InterfaceError):
        connection.close()
    if _was_away(connection, monotonic() - began()[0]):
        job.cut_by = error
        facts = {"job": str(job.id), "queue": job.queue, "kind": job.kind}
        log.warning("the database was away; the job will run again: %s", error, extra=facts)


def _raised_by(error: BaseException) -> Any:
    """Return the connection of Django's that an error comes from."""
    for frame, _ in walk_tb(error.__traceback__):
        wrapper = frame.f_locals.get("self")
        if isinstance(wrapper, DatabaseErrorWrapper):
            return wrapper.wrapper
    return None


def began() -> tuple[float, datetime]:
    """Return when the handler that is running was begun: by the monotonic clock, and by the day."""
    return BEGAN.get((monotonic(), timezone.now()))


def alias_of(job: CurrentJob) -> str:
    """Return which of Django's databases a job is in."""
    alias: str = getattr(job.app, "alias", "default")
    return alias


def _was_away(connection: Any, seconds: float) -> bool:
    """Whether the server cannot be reached now, or was started within so many seconds."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("select extract(epoch from now() - pg_postmaster_start_time())")
            [up] = cursor.fetchone()
    except (OperationalError, InterfaceError):
        return True
    return float(up) < seconds + 1
