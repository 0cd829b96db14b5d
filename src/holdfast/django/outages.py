"""Whether a task failed because the database of its job went away: then it has not failed."""

import logging
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from time import monotonic
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.utils import timezone

from holdfast.current import CurrentJob

log = logging.getLogger("holdfast.django")

BEGAN: ContextVar[tuple[float, datetime]] = ContextVar("holdfast_django_began")


def note_outage(job: CurrentJob, error: BaseException) -> None:
    """Have a job released, not counted as failed, if its database was away while it ran.

    A lost connection alone is not enough: a task that always loses it would run for ever.
    """
    if error is job.cut_by or not isinstance(error, OperationalError | InterfaceError):
        return
    connection = connections[alias_of(job)]
    # Each connection notes its own errors: that of another database is an ordinary failure.
    if not connection.errors_occurred or (connection.connection and connection.is_usable()):
        return
    with suppress(DatabaseError, InterfaceError):
        connection.close()
    if _was_away(connection, monotonic() - began()[0]):
        job.cut_by = error
        facts = {"job": str(job.id), "queue": job.queue, "kind": job.kind}
        log.warning("the database was away; the job will run again: %s", error, extra=facts)


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
