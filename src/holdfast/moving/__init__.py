"""Moves what waits in another queue of the same database into Holdfast, in one transaction.

A package is a module here: where its rows are, which of them wait, how a row reads as a job or a
schedule, and what that package does to a row that shall not run. All else is the same for all of
them: a row that is moved is taken from the old queue in the transaction that stores its job, so it
runs in one of the two and never in both. What cannot be read stays where it is, and is reported.
"""

from collections.abc import Callable, Mapping
from importlib import import_module

from holdfast.moving.celery_beat import configured
from holdfast.moving.found import Found, Rows, Unreadable
from holdfast.moving.move import Left, Moved, Report, Wishes, move

__all__ = [
    "PACKAGES",
    "Found",
    "Left",
    "Moved",
    "Report",
    "Rows",
    "Unreadable",
    "Wishes",
    "configured",
    "move",
]


def _rows(module: str) -> Callable[[], list[Rows]]:
    def load() -> list[Rows]:
        found: list[Rows] = import_module(f"holdfast.moving.{module}").rows()
        return found

    return load


PACKAGES: Mapping[str, Callable[[], list[Rows]]] = {
    "procrastinate": _rows("procrastinate"),
    "pgqueuer": _rows("pgqueuer"),
    "django-tasks-db": _rows("django_tasks_db"),
    "django-q2": _rows("django_q"),
    "django-celery-beat": _rows("celery_beat"),
    # Its schedules are in code, and its jobs in a broker.
    "celery": list,
}
