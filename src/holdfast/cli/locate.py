"""Finds an app by its name: `shop.jobs:app`, `shop.jobs`, `path/to/jobs.py:app`."""

import pkgutil
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.grammar import nearest
from holdfast.errors import AppBroken, AppNotFound

if TYPE_CHECKING:
    from holdfast.app import App

# Where `holdfast dev` looks by default.
USUAL = ("app.py", "main.py", "tasks.py", "jobs.py", "worker.py")


def named(text: str) -> "App":
    """Import the app that was named; raises AppNotFound, or AppBroken if its module fails."""
    from holdfast.app import App

    place, colon, attribute = text.partition(":")
    path = place.endswith(".py") or "/" in place
    module = _imported(_module_of(Path(place)) if path else place)
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if colon:
        return _attribute(module, place, attribute, apps)
    if not apps:
        raise AppNotFound(f"{place} contains no app", fix="Create one there:  app = holdfast.App()")
    # One app under several names is still one.
    if len({id(app) for app in apps.values()}) > 1:
        raise AppNotFound(
            f"{place} contains several apps: {', '.join(apps)}",
            fix=f"Say which:  {shlex.quote(f'{place}:{next(iter(apps))}')}",
        )
    return next(iter(apps.values()))


def attribute(text: str) -> Any:
    """Import what `module:name` names, whatever it is."""
    place, colon, name = text.partition(":")
    module = _imported(place)
    if not colon or not hasattr(module, name):
        near = nearest(name, vars(module)) if colon else ""
        raise AppNotFound(f"{text} does not name something in a module{near}")
    return getattr(module, name)


def also_import(modules: tuple[str, ...]) -> None:
    """Import modules for what they declare."""
    for module in modules:
        _imported(module)


def usual() -> str:
    """Return the file of this directory that probably has the app."""
    for name in USUAL:
        with suppress(OSError, UnicodeDecodeError):
            if "App(" in Path(name).read_text("utf-8"):
                return name
    raise AppNotFound(
        f"no app found in {', '.join(USUAL)} of {Path.cwd()}",
        fix="Name it:  holdfast dev path/to/file.py     or  holdfast dev module:app",
    )


def _attribute(module: ModuleType, place: str, name: str, apps: dict[str, "App"]) -> "App":
    if name in apps:
        return apps[name]
    if hasattr(module, name):
        found = type(getattr(module, name)).__name__
        raise AppNotFound(
            f"{place}:{name} is not an App; its type is {found}",
            fix=f"Did you mean  {shlex.quote(f'{place}:{next(iter(apps))}')}" if apps else "",
        )
    known = f"Its apps are: {', '.join(apps)}." if apps else "It contains no app."
    raise AppNotFound(f"{place} has no {name!r}{nearest(name, vars(module))}", fix=known)


def _module_of(path: Path) -> str:
    """Make a file importable by a name, and return the name."""
    if not path.is_file():
        near = nearest(path.stem, [one.stem for one in path.parent.glob("*.py")])
        raise AppNotFound(
            f"file not found: {path}{near}", fix=f"Looked in {path.parent.resolve()}."
        )
    file = path.resolve()
    parts, root = [file.stem], file.parent
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    _look_in(root)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str) -> ModuleType:
    from holdfast.outcome import error_kind, error_message, told_traceback
    from holdfast.worker.process.source import importing

    _look_in(Path.cwd())
    try:
        # Not import_module, whose own frames would be in the traceback.
        with importing():
            __import__(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise _missing(name, error.name) from None
        failure: Exception = error
    except Exception as error:
        failure = error
    else:
        return sys.modules[name]
    # It is an error in the user's code: its location is most useful.
    click.echo(told_traceback(failure), err=True)
    raise AppBroken(
        f"{name} cannot be imported: {error_kind(failure)}: {error_message(failure)}"
    ) from failure


def _missing(name: str, part: str) -> AppNotFound:
    parent, _, last = part.rpartition(".")
    if not parent:
        where, beside = [sys.path[0]], " and in the installed packages"
    else:
        # A module that is not a package contains no modules.
        where, beside = list(getattr(sys.modules[parent], "__path__", ())), ""
    near = nearest(last, [one.name for one in pkgutil.iter_modules(where)])
    missing = "" if part == name else f": {part!r} does not exist"
    looked = f"Looked in {', '.join(where)}{beside}." if where else f"{parent} is not a package."
    return AppNotFound(
        f"no module named {name!r}{missing}{near}",
        why=looked,
        fix="Run it in the directory of the module, or name the file:  path/to/file.py",
    )


def _look_in(directory: Path) -> None:
    # As `python -m` does; a program in a bin directory looks there instead.
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
