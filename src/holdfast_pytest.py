"""The fixtures of Holdfast's test kit. Holdfast itself is imported when a test uses one of them.

A module of its own: to import anything of the package takes longer than a small test suite.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.testing import Kit
    from holdfast.testing.databases import Databases


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting that names a server."""
    parser.addini(
        "holdfast_test_url",
        "Address of a PostgreSQL on which tests may create databases; by default"
        " HOLDFAST_TEST_URL, else an embedded server that lives as long as the run",
        default="",
    )


@pytest.fixture(scope="session")
def holdfast_server(pytestconfig: pytest.Config) -> str | None:
    """Address of the PostgreSQL on which the databases of tests are created.

    None is an embedded one. Override it if your server is started by a fixture.
    """
    return pytestconfig.getini("holdfast_test_url") or None


@pytest.fixture(scope="session")
def _holdfast_databases(holdfast_server: str | None) -> "Iterator[Databases]":
    from holdfast.testing import databases

    made = databases.shared(holdfast_server)
    yield made
    made.close()


@pytest.fixture(scope="session")
def holdfast_template(_holdfast_databases: "Databases") -> str:
    """Address of the database that each test gets a copy of; Holdfast is installed in it."""
    return _holdfast_databases.template()


@pytest.fixture(scope="session")
def holdfast_schema(holdfast_template: str) -> None:
    """Override it to add what all tests need to the template: your tables, your migrations."""


@pytest.fixture(scope="session")
def _holdfast_sealed(
    _holdfast_databases: "Databases", holdfast_template: str, holdfast_schema: None
) -> str:
    _holdfast_databases.seal(holdfast_template)
    return holdfast_template


@pytest.fixture
def holdfast(_holdfast_databases: "Databases", _holdfast_sealed: str) -> "Iterator[Kit]":
    """A database for this test alone, with ways to look at its jobs and to run them."""
    from holdfast.testing import Kit

    with _holdfast_databases.copy(_holdfast_sealed) as url, Kit(url, _holdfast_databases) as kit:
        yield kit
