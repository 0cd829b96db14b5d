"""The console of Windows, by a stand-in for its calls: there is no Windows here."""

from typing import Any

import pytest

from holdfast.cli.console import _mode_set, sequences_obeyed

AS_IT_WAS, OBEYS = 0x0003, 0x0007


class Kernel:
    """Answers as kernel32 does: a console with a mode, an old one, or no console at all."""

    def __init__(self, *, console: bool = True, old: bool = False) -> None:
        self.mode = AS_IT_WAS
        self._console, self._old = console, old
        self.GetStdHandle = Handles()

    def GetConsoleMode(self, handle: Any, mode: Any) -> int:  # noqa: N802 - named by Windows
        assert handle.value == Handles.STDOUT
        if self._console:
            mode._obj.value = self.mode
        return int(self._console)

    def SetConsoleMode(self, handle: Any, mode: int) -> int:  # noqa: N802 - named by Windows
        assert handle.value == Handles.STDOUT
        if self._old and mode != AS_IT_WAS:
            return 0
        self.mode = mode
        return 1


class Handles:
    """GetStdHandle, whose type of result is set as ctypes wants it."""

    STDOUT = 2**40

    restype: Any = int

    def __call__(self, number: int) -> int:
        assert number == -11
        return self.STDOUT


def test_a_console_obeys_sequences_while_it_is_asked_to_and_is_left_as_it_was() -> None:
    kernel = Kernel()

    with _mode_set(kernel) as obeys:
        assert (obeys, kernel.mode) == (True, OBEYS)

    assert kernel.mode == AS_IT_WAS


@pytest.mark.parametrize("kernel", [Kernel(old=True), Kernel(console=False)])
def test_a_console_that_cannot_obey_says_so(kernel: Kernel) -> None:
    with _mode_set(kernel) as obeys:
        assert not obeys

    assert kernel.mode == AS_IT_WAS


def test_any_other_terminal_obeys() -> None:
    with sequences_obeyed() as obeys:
        assert obeys
