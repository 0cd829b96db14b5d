"""A project of Django's on the test's database, in this process."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import django
import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from django.test import override_settings
from psycopg.conninfo import conninfo_to_dict

from tests.django.project import SETTINGS

_TEMPLATE: dict[str, str] = {}
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


@pytest.fixture(scope="session")
def templates() -> Iterator[ExitStack]:
    """Holds the database that those of the tests are copies of."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def django_template(project: None, fresh: Any, template: str, templates: ExitStack) -> str:
    """The name of a database with the tables of the project, made once."""
    if "name" not in _TEMPLATE:
        url = templates.enter_context(fresh(template))
        with use_database(url):
            call_command("migrate", verbosity=0)
            with connection.schema_editor() as editor:
                from tests.django.shop.models import Order

                editor.create_model(Order)
        _TEMPLATE["name"] = str(conninfo_to_dict(url)["dbname"])
    return _TEMPLATE["name"]


@pytest.fixture
def database(fresh: Any, django_template: str) -> Iterator[str]:
    """The address of a fresh database with the tables of the project."""
    with fresh(django_template) as url:
        yield url


@pytest.fixture(autouse=True)
def django_database(project: None, database: str) -> Iterator[None]:
    """The test's database as Django's default."""
    from holdfast.django import app_of

    with use_database(database):
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
    forget_connection()
    try:
        yield
    finally:
        connections.close_all()
        forget_connection()
        connections.settings["default"] = before


def forget_connection() -> None:
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
