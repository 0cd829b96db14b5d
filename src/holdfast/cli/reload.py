"""Runs a worker again and again: whenever a Python file of the project changes."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, util
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic

from holdfast.worker.process.spawned import (
    KILL_AFTER,
    Signals,
    Spawned,
    belong,
    how_it_ended,
    unblock_stops,
)

# Without watchfiles all files are looked at so often.
EVERY = 0.5


class Reloader:
    """Runs `holdfast` with some arguments; drains and restarts it at each change."""

    def __init__(
        self, arguments: Sequence[str], *, grace: float, say: Callable[[str], None]
    ) -> None:
        self._arguments = list(arguments)
        self._grace = grace
        self._say = say
        self._process: Spawned | None = None
        self._stopping = False
        self._draining = False
        self._kill_at = 0.0

    def run(self) -> int:
        """Run until it exits with success or is stopped; returns its last exit code."""
        with Signals() as signals, Changes(Path.cwd(), signals.ring) as changes:
            self._start()
            while True:
                died = [self._process.died] if self._process else []
                wait([signals.fileno(), *died], self._patience())
                signals.hush()
                if len(signals.caught) > 1:
                    self._end(signal.SIGKILL)
                    os._exit(128 + signals.caught[-1])
                if signals.caught and not self._stopping:
                    self._stopping = True
                    self._drain()
                if (changed := changes.taken()) and not self._stopping:
                    self._say(f"{changed} changed")
                    self._drain()
                if self._draining and monotonic() >= self._kill_at:
                    self._end(signal.SIGKILL)
                if (code := self._code()) is not None:
                    return code

    def _code(self) -> int | None:
        """Return the exit code if that is the end; start again if a change wants it."""
        if self._process:
            if not self._process.is_dead():
                return None
            code = self._process.close()
            self._process = None
            if code == 0 and not self._draining:
                return 0
            if code and not self._draining:
                self._say(f"the worker {how_it_ended(code)}; waiting for a change")
                return None
        if self._stopping:
            return 0
        if self._draining:
            self._start()
        return None

    def _start(self) -> None:
        self._draining = False
        self._process = Spawned(_run, self._arguments)

    def _drain(self) -> None:
        self._draining = True
        self._kill_at = monotonic() + self._grace + KILL_AFTER
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process:
            self._process.kill(number)

    def _patience(self) -> float | None:
        return max(self._kill_at - monotonic(), 0.0) if self._draining else None


class Changes:
    """Notices changes of the Python files under a directory, those of its tools left out."""

    def __init__(self, root: Path, ring: Callable[[], None]) -> None:
        self._root = root
        self._ring = ring
        self._over = threading.Event()
        self._changed: list[Path] = []
        watch = self._watch if util.find_spec("watchfiles") else self._poll
        self._thread = threading.Thread(target=watch, name="holdfast-changes", daemon=True)

    def taken(self) -> str:
        """Return what changed since the last call, in words; or nothing."""
        changed, self._changed = self._changed, []
        return ", ".join(sorted({str(path.relative_to(self._root)) for path in changed})[:3])

    def __enter__(self) -> "Changes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2.0)

    def _watch(self) -> None:
        watchfiles = import_module("watchfiles")
        for changes in watchfiles.watch(
            self._root, watch_filter=watchfiles.PythonFilter(), stop_event=self._over
        ):
            self._note([Path(path) for _, path in changes])

    def _poll(self) -> None:
        seen = dict(_files(self._root))
        while not self._over.wait(EVERY):
            now = dict(_files(self._root))
            if now != seen:
                self._note([path for path in now | seen if now.get(path) != seen.get(path)])
                seen = now

    def _note(self, paths: list[Path]) -> None:
        self._changed += paths
        self._ring()


def _run(parent: int, arguments: list[str]) -> None:
    from holdfast.cli import main

    belong(parent)
    unblock_stops()
    main(arguments, prog_name="holdfast")


def _files(root: Path) -> Iterator[tuple[Path, int]]:
    pending = [root]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        # The packages of a virtual environment are not part of the project.
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in _FOREIGN:
                        pending.append(Path(entry.path))
                elif entry.name.endswith(".py"):
                    yield Path(entry.path), entry.stat().st_mtime_ns
            except OSError:
                continue  # it is being replaced


_FOREIGN = {"__pycache__", "node_modules", "site-packages", "build", "dist"}
