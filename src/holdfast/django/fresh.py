"""Database connections that work, around every job that runs in a thread or a process."""

from collections.abc import Collection, Iterator
from time import monotonic
from typing import Any

from django.db import connections
from django.utils import timezone

from holdfast.current import CurrentJob
from holdfast.django.outages import BEGAN, note_outage


class FreshConnections:
    """The middleware of an app in Django: what Django does before and after a request."""

    def run(self, job: CurrentJob) -> Iterator[None]:
        """Close connections that are too old or broken; an async handler has others."""
        BEGAN.set((monotonic(), timezone.now()))
        if job.task.runs == "async":
            yield
            return
        # A test's own transaction, in which the kit runs the job: it is neither old nor the job's.
        kept = [one for one in connections.all(initialized_only=True) if one.in_atomic_block]
        close_old_connections(kept)
        try:
            yield
        except BaseException as error:
            note_outage(job, error)
            raise
        finally:
            close_old_connections(kept)


def close_old_connections(kept: Collection[Any] = ()) -> None:
    """Close this thread's connections as Django does, and let none be used before it is tested.

    Whatever CONN_HEALTH_CHECKS says: the server may have been restarted while a worker was idle.
    """
    for connection in connections.all(initialized_only=True):
        if connection in kept:
            continue
        connection.health_check_enabled = True
        connection.close_if_unusable_or_obsolete()
