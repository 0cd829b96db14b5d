"""The console of Windows, which obeys control sequences only if a program asks it to."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STDOUT = -11
_VIRTUAL_TERMINAL = 0x0004


@contextmanager
def sequences_obeyed() -> Iterator[bool]:
    """Have control sequences obeyed during the block; yields whether the terminal does."""
    if sys.platform == "win32":
        from ctypes import windll

        with _mode_set(windll.kernel32) as obeys:
            yield obeys
    else:
        yield True


@contextmanager
def _mode_set(kernel: Any) -> Iterator[bool]:
    """Ask the console by its own calls, and leave it afterwards as it was."""
    from ctypes import byref, c_ulong, c_void_p

    # As a plain number a handle would be cut to 32 bits.
    kernel.GetStdHandle.restype = c_void_p
    console, mode = c_void_p(kernel.GetStdHandle(_STDOUT)), c_ulong()
    if not kernel.GetConsoleMode(console, byref(mode)):
        yield False
        return
    before = mode.value
    obeys = bool(kernel.SetConsoleMode(console, before | _VIRTUAL_TERMINAL))
    try:
        yield obeys
    finally:
        kernel.SetConsoleMode(console, before)
