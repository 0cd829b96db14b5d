"""What handlers log: kept with the attempt that logged it, and shown while that runs."""

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.current import running
from holdfast.outcome import printable

# Of a long log the beginning and the end are kept.
HEAD, TAIL = 2_000, 6_000
LONGEST = 10_000
# Of what has not been shown yet the newest lines wait, each up to this many characters.
MOST_WAITING = 100
LINE = 1000


class Log:
    """The lines of one attempt, of which the middle is left out if there are too many."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._room, self._size, self._dropped = HEAD, 0, 0
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        # How many lines there were, and up to which they are shown.
        self._lines, self._shown = 0, 0
        self._lock = threading.Lock()
        # When lines were last shown, on the monotonic clock; None before.
        self.shown_at: float | None = None

    def __bool__(self) -> bool:
        return self._lines > 0

    def add(self, record: str) -> None:
        """Add a record, which may have several lines; from any thread."""
        lines = _cut(record, MOST_WAITING * LINE).split("\n")
        with self._lock:
            self._keep(record)
            self._lines += len(lines)
            self._waiting.extend(_cut(line, LINE) for line in lines[-MOST_WAITING:])

    def unshown(self, most: int = MOST_WAITING) -> tuple[int, list[str]]:
        """Return the newest lines that are not shown yet, and the number of the first of them.

        If there were more, the first line says how many.
        """
        with self._lock:
            waiting = min(self._lines - self._shown, len(self._waiting), most)
            lines = [*self._waiting][len(self._waiting) - waiting :]
            first = self._lines - waiting + 1
            left_out = first - 1 - self._shown
            if left_out:
                told = "1 line" if left_out == 1 else f"{left_out} lines"
                return first - 1, [f"… {told} left out …", *lines]
            return first, lines

    def shown(self, last: int) -> None:
        """Record that the lines up to a number are shown."""
        with self._lock:
            self._shown = max(self._shown, last)

    def _keep(self, line: str) -> None:
        line = _cut(line, TAIL - 1)
        if self._room > 0:
            self._room -= len(line) + 1
            self._head.append(line)
            return
        self._tail.append(line)
        self._size += len(line) + 1
        while self._size > TAIL:
            self._size -= len(self._tail.popleft()) + 1
            self._dropped += 1

    def text(self) -> str:
        """Return what is left, as PostgreSQL can store it."""
        left_out = [f"… {self._dropped} lines left out …"] if self._dropped else []
        return printable("\n".join([*self._head, *left_out, *self._tail]), LONGEST)


def _cut(text: str, longest: int) -> str:
    """Shorten a text, and show that: a server looks there for the half of a redacted value."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


@contextmanager
def capture_logs() -> Iterator[None]:
    """Keep what handlers log while inside, of as many workers as there are in this process."""
    root = logging.getLogger()
    with _lock:
        _users.append(None)
        if len(_users) == 1:
            root.addHandler(_handler)
    try:
        yield
    finally:
        with _lock:
            _users.pop()
            if not _users:
                root.removeHandler(_handler)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # With a handler at the root, even this one, Python no longer prints warnings of a program
        # that has none of its own, such as a site under uvicorn: a failed job would be silent.
        last_resort = logging.lastResort
        if last_resort and record.levelno >= last_resort.level and not _has_handler(record.name):
            last_resort.handle(record)
        if (job := running.get(None)) is None:
            return
        try:
            if job.log is None:
                job.log = Log()
            job.log.add(self.format(record))
        except Exception:
            self.handleError(record)


def _has_handler(name: str) -> bool:
    """Whether records of a logger reach a handler besides the one here."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(one is not _handler for one in logger.handlers):
            return True
        logger = logger.parent
    return False


_lock = threading.Lock()
_users: list[None] = []
_handler = _Handler()
_handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
