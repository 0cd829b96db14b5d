"""Who in this process waits for the end of which job, and the one connection that hears of it.

A notification is only a hint: who waits polls as well, seldom while it is sure to be notified and
as often as without notifications while it is not.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from uuid import UUID, uuid4

import psycopg

from holdfast import conninfo
from holdfast.jitter import random_between

# How long somebody who waits stays on the database's list, and when it is put there again.
PATIENCE = 60.0
RENEW_EVERY = 30.0
# The connection is closed when nobody has waited for so long.
IDLE = 30.0


class Ends:
    """Wakes whoever waits for a job when that has ended. One for each app, in each process."""

    def __init__(self) -> None:
        # Unique: the database notifies all processes of all ends that somebody waits for.
        self.name = f"wait-{uuid4().hex}"
        self._lock = threading.Lock()
        self._watches: dict[UUID, list[Watch]] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @contextmanager
    def watch(self, id: UUID, wake: Callable[[], None]) -> Iterator["Watch"]:
        """Call `wake`, in another thread, whenever there may be news of a job, during the block."""
        watch = Watch(self, id, wake)
        with self._lock:
            self._watches.setdefault(id, []).append(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._watches[id].remove(watch)
                if not self._watches[id]:
                    del self._watches[id]

    def listen(self, url: str) -> None:
        """Have the connection opened, if there is none."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                # A daemon: a program that ends does not wait for what nobody hears.
                self._thread = threading.Thread(
                    target=self._run, args=[url], name="holdfast ends", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Close the connection."""
        self._stop.set()
        if (thread := self._thread) and thread is not threading.current_thread():
            thread.join()
        self._stop.clear()

    def _run(self, url: str) -> None:
        pause = 0.1
        while not self._has_finished():
            with suppress(psycopg.Error, OSError):
                self._hear(url)
            # What was sent since then is lost.
            for watch in self._all():
                watch.heard_at = None
                watch.wake()
            self._stop.wait(random_between(0, pause))
            pause = min(2 * pause, 5.0)

    def _hear(self, url: str) -> None:
        parameters = conninfo.parameters(url, application_name="holdfast results")
        with psycopg.connect(**parameters) as connection:
            connection.execute("listen holdfast_ended")
            last = monotonic()
            while not self._stop.is_set():
                for notification in connection.notifies(timeout=0.25, stop_after=1):
                    self._tell(notification.payload)
                if self._watches:
                    last = monotonic()
                elif monotonic() - last > IDLE:
                    return

    def _tell(self, payload: str) -> None:
        text, _, waiter = payload.partition("\n")
        if waiter != self.name:
            return
        with self._lock:
            watches = list(self._watches.get(UUID(text), ()))
        for watch in watches:
            watch.heard_at = monotonic()
            watch.wake()

    def _has_finished(self) -> bool:
        with self._lock:
            if self._stop.is_set() or not self._watches:
                self._thread = None
                return True
        return False

    def _all(self) -> "list[Watch]":
        with self._lock:
            return [watch for watches in self._watches.values() for watch in watches]


class Watch:
    """One caller that waits for one job: what it has to ask next.

    It is put on the database's list. The first notification proves that they arrive; if the job
    was not ending after that, its end will be notified.
    """

    __slots__ = ("_asked_at", "_ends", "heard_at", "id", "refused", "sure", "wake")

    def __init__(self, ends: Ends, id: UUID, wake: Callable[[], None]) -> None:
        self.id = id
        self.wake = wake
        self.heard_at: float | None = None
        self.sure = False
        self.refused = False
        self._ends = ends
        self._asked_at: float | None = None

    @property
    def waiter(self) -> str:
        """The name under which this process is on the list."""
        return self._ends.name

    def must_ask(self, url: str) -> bool:
        """Return whether it has to be put on the list now; then the caller does that."""
        if self.refused:
            return False
        self._ends.listen(url)
        now = monotonic()
        if self.heard_at is None:
            self.sure = False
        # Until it is heard of, a few times: the connection may not be open yet.
        wait = RENEW_EVERY if self.heard_at is not None else 1.0
        if self._asked_at is not None and now - self._asked_at < wait:
            return False
        self._asked_at = now
        self.heard_at = None
        self.sure = False
        return True

    def must_look(self) -> bool:
        """Return whether to ask now that it is heard whether the job is about to end."""
        return self.heard_at is not None and not self.sure and not self.refused
