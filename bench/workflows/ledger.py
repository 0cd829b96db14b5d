"""What the programs share: a file to which each effect adds a line, whatever dies then."""

import os
import sys
from collections.abc import Callable

WIDTH = 100
STEPS = 5


def note(what: str, n: int) -> None:
    """Have an effect: add a line to the file that LEDGER names."""
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{what} {n}\n".encode())
    os.close(file)


def main(**roles: Callable[..., None]) -> None:
    """Play a role: `python -m bench.workflows.NAME ROLE [NUMBER]`."""
    role, *numbers = sys.argv[1:]
    roles[role](*map(int, numbers))
