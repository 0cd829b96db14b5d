"""Where in the caller's own code something was said, for errors that point there."""

import inspect
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any


def caller() -> str:
    """Say where the nearest code outside Holdfast is: its file, line and text."""
    if (frame := outside()) is None:
        return ""
    path, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, line, frame.f_globals).strip()
    return f"{_shown(path)}:{line}   {text}".rstrip()


def module_of_caller() -> str:
    """Return the name of the module that the nearest code outside Holdfast is in.

    That of a program is the name by which others would import it.
    """
    known = {} if (frame := outside()) is None else frame.f_globals
    if (spec := known.get("__spec__")) is not None:
        return str(spec.name).removesuffix(".__main__")
    name = str(known.get("__name__", ""))
    return Path(known.get("__file__", "")).stem if name == "__main__" else name


def declared_at(fn: Callable[..., Any]) -> str:
    """Say where a function is written: " (app.py:7)", or nothing if that is unknown."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f" ({_shown(code.co_filename)}:{code.co_firstlineno})" if code else ""


def outside() -> FrameType | None:
    """Return the nearest frame outside Holdfast."""
    frame: FrameType | None = sys._getframe(1)
    while frame and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_own(path: str) -> bool:
    """Whether a file is one of Holdfast's."""
    return path.startswith(_HERE)


def _shown(path: str) -> str:
    return path.removeprefix(f"{Path.cwd()}{os.sep}")


_HERE = f"{Path(__file__).parent}{os.sep}"
