"""The schema in Django's databases: with `manage.py migrate`, in tests, after upgrades."""

from collections.abc import Callable
from contextvars import ContextVar

from django.db import connections

from holdfast import schema
from holdfast.client import client_on
from holdfast.django.database import address
from holdfast.django.tasks_api import own_backends

flushes: ContextVar[bool] = ContextVar("flushes", default=False)
"""Whether `manage.py flush` is under way, which deletes all data, as after each test."""


def is_wanted_in(database: str) -> bool:
    """Whether a database is one of those that backends use."""
    if connections[database].vendor != "postgresql":
        return False
    used = {backend.database for backend in own_backends()} or {"default"}
    return database in used


def bring_up_to_date(database: str, say: Callable[[str], object] | None = None) -> list[str]:
    """Install or upgrade the schema in a database that backends use; returns what was applied."""
    if not is_wanted_in(database):
        return []
    applied = schema.migrate(address(database), source=f"DATABASES[{database!r}]")
    if applied and say:
        say(f"  Holdfast's schema is up to date: {len(applied)} steps applied.")
    return applied


def forget_jobs(database: str) -> None:
    """Delete all jobs of a database that backends use."""
    if not is_wanted_in(database):
        return
    client = client_on(connections[database])
    while ids := client.jobs.find(limit=1000):
        client.jobs.cancel(ids, reason="all data is deleted")
        if not any(one.changed for one in client.jobs.delete(ids)):
            return


def status(database: str) -> schema.Status:
    """Return what is installed in a database, and what is pending."""
    return schema.status(address(database), source=f"DATABASES[{database!r}]")
