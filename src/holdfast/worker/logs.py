"""What handlers log, kept with the attempt that logged it."""

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


class Log:
    """The lines of one attempt, of which the middle is left out if there are too many."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._room, self._size, self._dropped = HEAD, 0, 0

    def add(self, line: str) -> None:
        """Add a line; may be called by several threads of a handler."""
        line = line[: TAIL - 1]
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
