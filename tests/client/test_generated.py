"""The synchronous client is what the generator makes of the asynchronous one."""

import inspect
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import get_type_hints

import pytest

from holdfast import AsyncClient, Client

GENERATOR = Path(__file__).parents[2] / "tools" / "generate_sync_client.py"


def nouns(client: type) -> dict[str, type]:
    """The nouns of a client, `jobs` and the others, and the client itself."""
    found = {
        name: get_type_hints(noun.func)["return"]
        for owner in reversed(client.__mro__)
        for name, noun in vars(owner).items()
        if isinstance(noun, cached_property)
    }
    return {"client": client, **found}


def face(noun: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(method).parameters)
        for name, method in vars(noun).items()
        if not name.startswith("_") and callable(method)
    }


def test_the_generated_client_is_up_to_date() -> None:
    check = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True)

    assert check.returncode == 0, check.stderr


def test_both_clients_have_the_same_nouns() -> None:
    assert list(nouns(Client)) == list(nouns(AsyncClient))
    assert len(nouns(Client)) > 10


@pytest.mark.parametrize("noun", nouns(AsyncClient))
def test_both_clients_have_the_same_methods_with_the_same_parameters(noun: str) -> None:
    written = face(nouns(AsyncClient)[noun])

    assert written
    assert face(nouns(Client)[noun]) == written


@pytest.mark.parametrize("noun", nouns(AsyncClient))
def test_nothing_asynchronous_is_left_in_the_generated_client(noun: str) -> None:
    assert not [
        name
        for name, method in inspect.getmembers(nouns(Client)[noun], inspect.isfunction)
        if inspect.iscoroutinefunction(method)
    ]
