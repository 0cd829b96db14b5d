"""What a worker shows: one line for each event, for people, for a log, or for a program."""

import logging
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal

from holdfast.watch import logs

Style = Literal["lines", "log", "json", "records", "none"]

# How many lines are shown per second; the rest is counted.
MOST_LINES = 40


@dataclass(frozen=True, slots=True)
class Screen:
    """How events are shown: `lines` for a terminal, `log` without those of single jobs, `json`.

    `records` are those of a log as JSON, and with them all that handlers and libraries log.
    """

    style: Style
    quiet: bool = False
    colour: bool = False

    @classmethod
    def default(cls) -> "Screen":
        """Return the right form for this process: none if the program set up its own logging."""
        if logging.getLogger("holdfast.worker").hasHandlers():
            return cls("none")
        if os.environ.get(logs.FORMAT_VARIABLE) == "json":
            return cls("records")
        terminal = sys.stderr is not None and sys.stderr.isatty()
        return cls.on(terminal=terminal)

    @classmethod
    def on(cls, *, terminal: bool, quiet: bool = False) -> "Screen":
        """Return the right form for a terminal, or a log."""
        if not terminal:
            return cls("log", quiet)
        return cls("lines", quiet, colour=not os.environ.get("NO_COLOR"))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the events of this process during the block, and in no other form."""
        global _shown
        if self.style == "none":
            yield
            return
        if self.style == "records":
            before_this, _shown = _shown, self
            try:
                with logs.json_lines(logging.WARNING if self.quiet else logging.INFO):
                    yield
            finally:
                _shown = before_this
            return
        handler = _Json() if self.style == "json" else _Lines(self)
        everything, worker = logging.getLogger("holdfast"), logging.getLogger("holdfast.worker")
        before = everything.handlers, everything.level, everything.propagate, worker.level
        everything.handlers, everything.propagate = [handler], False
        everything.setLevel(logging.WARNING if self.quiet else logging.INFO)
        # Records of single jobs are created only if they are shown.
        each_job = self.style != "log" and not self.quiet
        worker.setLevel(logging.DEBUG if each_job else logging.NOTSET)
        try:
            yield
        finally:
            handler.close()
            everything.handlers, everything.level, everything.propagate, level = before
            worker.setLevel(level)


def for_children() -> Screen | None:
    """Return how child processes should show what their handlers log, if they should."""
    return _shown


class _Json(logging.Handler):
    """One JSON object for each event, on stdout."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logs.JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        _write(sys.stdout, self.format(record))


class _Lines(logging.Handler):
    """A line for each event, on stderr; above a readable rate, only their number."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen
        self._second = 0.0
        self._lines = 0
        self._skipped: Counter[str] = Counter()
        self._counting = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.DEBUG or self._has_room():
            _write(sys.stderr, self._text(record))
        else:
            self._skip(record.getMessage())

    def close(self) -> None:
        self._tell_skipped()
        super().close()

    def _has_room(self) -> bool:
        now = monotonic()
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        self._lines += 1
        return self._lines <= MOST_LINES

    def _skip(self, word: str) -> None:
        with self._counting:
            if not self._skipped:
                timer = threading.Timer(1.0, self._tell_skipped)
                timer.daemon = True
                timer.start()
            self._skipped[word] += 1

    def _tell_skipped(self) -> None:
        with self._counting:
            skipped, self._skipped = self._skipped, Counter()
        if told := ", ".join(f"{count} {word}" for word, count in skipped.items()):
            _write(sys.stderr, f"{datetime.now():%H:%M:%S}  … and {told}")

    def _text(self, record: logging.LogRecord) -> str:
        message, facts = record.getMessage(), logs.facts(record)
        match message:
            case "starting":
                return "holdfast {version}  {server}  schema {schema}".format(**facts)
            case "worker started":
                return _introduction(**facts)
        if self._screen.style == "log":
            at = datetime.fromtimestamp(record.created, UTC)
            told = f"{at:%Y-%m-%dT%H:%M:%SZ}  {record.levelname}  {message}"
        elif "job" in facts:
            return self._job(record, message, facts)
        else:
            told = f"{datetime.fromtimestamp(record.created):%H:%M:%S}  {message}"
        trace = _trace(record, facts)
        named = [f"{name}={_clean(_plain(value))}" for name, value in facts.items()]
        return "\n".join(["  ".join([told, *named]), *trace])

    def _job(self, record: logging.LogRecord, message: str, facts: dict[str, Any]) -> str:
        word = _WORDS.get(message, message)
        trace = _trace(record, facts)
        attempt = f"attempt {facts.get('attempt')}/{facts.get('max_attempts', '?')}"
        if word == "leased":
            note = attempt
        elif "seconds" in facts:
            note = _duration(facts["seconds"])
        elif "error" in facts:
            note = f"{attempt}  {facts['error'].partition(chr(10))[0]}"
        else:
            note = str(facts.get("detail", ""))
        shown = f"{word:8}"
        if self._screen.colour and (colour := _COLOURS.get(word)):
            shown = f"\x1b[{colour}m{word}\x1b[0m" + " " * (8 - len(word))
        clock = f"{datetime.fromtimestamp(record.created):%H:%M:%S}"
        id = facts["job"][-8:]
        line = f"{clock}  {_clean(facts.get('kind', ''))}  {id}  {shown}  {_clean(note)}".rstrip()
        return "\n".join([line, *(f"    {each}".rstrip() for each in trace)])


def _introduction(
    *, worker: str, queues: dict[str, int], kinds: list[str], connections: int
) -> str:
    some = ", ".join(kinds[:6]) + (f" and {len(kinds) - 6} more" if len(kinds) > 6 else "")
    names, slots = ", ".join(queues), sum(queues.values())
    most = f"connections: up to {connections}"
    return f"worker     {worker}  queues: {names}  slots: {slots}  {most}  kinds: {some}"


def _trace(record: logging.LogRecord, facts: dict[str, Any]) -> list[str]:
    """Take the traceback out of the facts, or format the record's; its lines, without control."""
    text = facts.pop("traceback", None)
    if record.exc_info:
        text = logging.Formatter().formatException(record.exc_info)
    return [_clean(line) for line in text.splitlines()] if text else []


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _clean(text: str) -> str:
    # Output of a job must not control the terminal.
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)


def _write(stream: Any, line: str) -> None:
    # One call for each line: other processes write to the same terminal.
    with suppress(OSError, ValueError):
        stream.write(f"{line}\n")
        stream.flush()


_shown: Screen | None = None
_WORDS = {"attempt failed": "failed", "job died": "dead", "lease lost": "lost"}
_COLOURS = {"leased": 36, "done": 32, "failed": 33, "dead": 31, "lost": 31}
