"""The kit under test, on the server of this run, with a table as an application would have one."""

import weakref

import psycopg
import pytest

from holdfast import app
from tests.conftest import Postgres


@pytest.fixture(autouse=True)
def no_other_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the apps that tests of other files left behind in this process."""
    monkeypatch.setattr(app, "_APPS", weakref.WeakSet())


@pytest.fixture(scope="session")
def holdfast_server(postgres: Postgres) -> str:
    return postgres.url


@pytest.fixture(scope="session")
def holdfast_schema(holdfast_template: str) -> None:
    with psycopg.connect(holdfast_template) as conn:
        conn.execute("create table payment (order_id int not null)")
