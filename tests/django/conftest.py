"""A project of Django's on the test's database, in this process."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import django
import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.db import connection, connections
from django.test import override_settings
from psycopg.conninfo import conninfo_to_dict

from tests.django.project import SETTINGS

Drain = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def project() -> Iterator[None]:
    """Settings as a project has them, whoever else has set Django up in this process."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}})
        django.setup()
    settings.SECRET_KEY = "not a secret"
    with override_settings(**SETTINGS):
        yield


@pytest.fixture(autouse=True)
def django_database(project: None, database: str) -> Iterator[None]:
    """The test's database as Django's default."""
    from holdfast.django import app_of

    with use_database(database):
        with connection.schema_editor() as editor:
            from tests.django.shop.models import Order

            editor.create_model(Order)
        yield
        app_of().close()


@contextmanager
def use_database(url: str) -> Iterator[None]:
    """Use a database as Django's default."""
    before = connections.settings["default"]
    of = conninfo_to_dict(url)
    connections.settings["default"] = {
        **before,
        "ENGINE": "django.db.backends.postgresql",
        "NAME": of.pop("dbname"),
        "OPTIONS": of,
    }
    connections.close_all()
    _forget_connection()
    try:
        yield
    finally:
        connections.close_all()
        _forget_connection()
        connections.settings["default"] = before


def _forget_connection() -> None:
    """Have Django make its connection anew, as its settings say now."""
    with suppress(AttributeError):
        del connections["default"]


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine with a thread of its own for the ORM, as Django does for a request."""

    async def run() -> Any:
        async with ThreadSensitiveContext():
            try:
                return await work
            finally:
                await sync_to_async(connections.close_all)()

    return asyncio.run(run())


@pytest.fixture
def drain() -> Drain:
    """Runs a worker here until nothing is left to do; returns it."""

    def run(**options: Any) -> Any:
        from holdfast.django import app_of
        from holdfast.worker import Worker

        worker = Worker(app_of(), until_idle=True, **options)
        worker.run()
        return worker

    return run
