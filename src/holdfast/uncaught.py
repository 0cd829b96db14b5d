"""How a program ends with an error of Holdfast: what is wrong, what to do, and an exit code.

The command line ends this way with every such error. A program that calls `app.run()` ends this way
if it does not catch what that raises.
"""

import os
import sys
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from holdfast.errors import HoldfastError


def report(message: str, error: BaseException) -> None:
    """Print the message of an error, with its traceback only if HOLDFAST_DEBUG is set."""
    import click

    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exception(error)
    code, space, rest = message.partition(" ")
    click.echo(click.style(code, fg="red", bold=True) + space + rest, err=True)


@contextmanager
def reported_at_the_end() -> Iterator[None]:
    """Have an error of Holdfast that leaves the block and then the program reported, and exit.

    Whoever calls may still catch it. A program with an exception hook of its own keeps that, and so
    does an interactive session.
    """
    try:
        yield
    except HoldfastError as error:
        if sys.excepthook is sys.__excepthook__ and not _is_interactive():
            sys.excepthook = _report_and_exit
        _ENDS_IT.add(error)
        raise


def _report_and_exit(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not isinstance(error, HoldfastError) or error not in _ENDS_IT:
        sys.__excepthook__(kind, error, trace)
        return
    report(str(error), error)
    raise SystemExit(error.exit_code)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


# Those that were raised to the caller; one that was caught is not kept alive.
_ENDS_IT: "weakref.WeakSet[HoldfastError]" = weakref.WeakSet()
