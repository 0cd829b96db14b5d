"""Where a child process imports the app of its parent from."""

import multiprocessing
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from holdfast.app import App, Task
from holdfast.errors import AppNotFound, Misuse

# What multiprocessing calls the script of its parent: it runs it again, but not as `__main__`.
_MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True, slots=True)
class AppSource:
    """An attribute of a module, the modules that declare its tasks, and the database it uses."""

    module: str
    name: str
    imports: tuple[str, ...]
    kinds: tuple[str, ...]
    url: str

    def app(self) -> App:
        """Import the app, and see that it is what it was where it was found."""
        with importing():
            # First of all: it may set up what the modules that declare tasks need.
            module = sys.modules["__main__"] if self.module in _MAIN else import_module(self.module)
            for name in self.imports:
                import_module(name)
        app: App = getattr(module, self.name)
        # Code may be replaced under a fleet: a kind that was renamed is there by its alias.
        if missing := [kind for kind in self.kinds if kind not in app.handlers]:
            raise AppNotFound(
                f"{self.module}:{self.name} has no task {missing[0]!r} in a fresh process",
                fix="Declare tasks while modules are imported, not later.",
            )
        app.use(self.url)
        return app


@contextmanager
def importing() -> Iterator[None]:
    """Import the modules that declare an app; none of them may run it."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_while_importing() -> None:
    """Raise Misuse if this is called by a module that is being imported to be run."""
    # multiprocessing marks a process so while it runs the script of its parent again.
    rerun = getattr(multiprocessing.current_process(), "_inheriting", False)
    if rerun or _importing.get():
        raise Misuse(
            "app.run() is called while its module is imported, and would call itself again",
            fix='Write it under  if __name__ == "__main__":',
        )


def find_source(app: App) -> AppSource:
    """Return where a new process can import an app; raises AppNotFound if it cannot."""
    found = (
        [app.home]
        if app.home
        else [
            (module.__name__, name)
            for module in _modules()
            for name, value in vars(module).items()
            if value is app
        ]
    )
    if not found:
        raise AppNotFound(
            "the app is not in a module, where a fresh process could import it",
            fix="Assign it to a name of a module:  app = holdfast.App()",
        )
    # A script is run again in any case; a module it took the app from is the better known place.
    module, name = min(found, key=lambda one: one[0] in _MAIN)
    return AppSource(module, name, tuple(_declaring(app)), tuple(app.tasks), app.url)


def _declaring(app: App) -> list[str]:
    tasks = list(app.tasks.values())
    declaring = {task.fn.__module__: None for task in tasks}
    # A function of elsewhere may be made a task by a module of its own.
    elsewhere = [task for task in tasks if not _holds(sys.modules.get(task.fn.__module__), task)]
    for module in _modules() if elsewhere else ():
        if any(_holds(module, task) for task in elsewhere):
            declaring[module.__name__] = None
    return [name for name in declaring if name not in _MAIN]


def _holds(module: ModuleType | None, task: "Task[..., object, object]") -> bool:
    return module is not None and any(value is task for value in vars(module).values())


def _modules() -> Iterable[ModuleType]:
    # Anything can be put there.
    known: list[Any] = list(sys.modules.values())
    return [module for module in known if isinstance(module, ModuleType)]


_importing: ContextVar[bool] = ContextVar("holdfast_importing", default=False)
