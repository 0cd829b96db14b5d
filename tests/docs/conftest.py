"""Marks that tests of the documentation carry."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "proves(*ids): the checklist items that a test proves")
