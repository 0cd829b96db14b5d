"""Database connections that work, around every job that runs in a thread or a process."""

from collections.abc import Iterator
from time import monotonic

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
        close_old_connections()
        try:
            yield
        except BaseException as error:
            note_outage(job, error)
            raise
        finally:
            close_old_connections()


def close_old_connections() -> None:
    """Close this thread's connections as Django does, and let none be used before it is tested.

    Whatever CONN_HEALTH_CHECKS says: the server may have been restarted while a worker was idle.
    """
    for connection in connections.all(initialized_only=True):
        connection.health_check_enabled = True
        connection.close_if_unusable_or_obsolete()
