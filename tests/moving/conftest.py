"""Moves into Holdfast what the package of a test has stored in the test's database."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import App, Client, moving
from tests.cli.conftest import Run, environment, holdfast, run

__all__ = ["Move", "Run", "environment", "holdfast", "run"]

Move = Callable[..., moving.Report]


@pytest.fixture
def move(database: str) -> Move:
    def move(package: str, *, dry_run: bool = False, **wishes: Any) -> moving.Report:
        tables = moving.PACKAGES[package]()
        return moving.move(database, package, tables, moving.Wishes(**wishes), dry_run=dry_run)

    return move


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def shop(database: str) -> Iterator[App]:
    """An app with the task that the tests move jobs of."""
    with App(database) as app:

        @app.task(kind="mail", max_attempts=5)
        def mail(to: str, subject: str = "") -> None: ...

        yield app
