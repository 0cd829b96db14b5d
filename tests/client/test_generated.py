"""The synchronous client is what the generator makes of the asynchronous one."""

import inspect
import subprocess
import sys
from pathlib import Path

from holdfast import AsyncClient, Client

GENERATOR = Path(__file__).parents[2] / "tools" / "generate_sync_client.py"


def test_the_generated_client_is_up_to_date() -> None:
    check = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True)

    assert check.returncode == 0, check.stderr


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    def face(client: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in vars(client).items()
            if not name.startswith("_")
        }

    assert face(Client) == face(AsyncClient)


def test_nothing_asynchronous_is_left_in_the_generated_client() -> None:
    assert not [
        name
        for name, method in inspect.getmembers(Client, inspect.isfunction)
        if inspect.iscoroutinefunction(method)
    ]
