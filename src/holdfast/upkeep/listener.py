"""Receives notifications: LISTEN on its own connection, with a check that they arrive.

A notification is only a hint. Callers poll as well, and more often while notifications do not
arrive.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import psycopg
from psycopg import sql

from holdfast import conninfo
from holdfast.client import Client
from holdfast.errors import HoldfastError
from holdfast.jitter import random_between

log = logging.getLogger("holdfast")

CHANNEL = "holdfast"
# How long a notification to itself may take before the connection counts as broken.
TEST_PATIENCE = 5.0
# Poolers and firewalls drop notifications silently, so the test is repeated.
TEST_EVERY = 300.0
# The longest pause before it connects again: within a second after an outage it listens again.
LONGEST_PAUSE = 0.8
# How many sessions of a pooler are tried to find the one that listens.
POOLED_SESSIONS = 20


class Listener:
    """Calls `heard` with the name of a queue that has work for this worker.

    An empty name means: look at your leases. `up` is true while notifications arrive, which is
    tested by sending one to itself: a pooler accepts LISTEN and delivers nothing. While it is,
    `ear` proves it to the database; it is another one after each reconnect. `changed` is called
    when it has changed: what was asked for before may be answered to nobody.
    """

    def __init__(
        self,
        client: Client,
        *,
        worker: str,
        heard: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.ear: int | None = None
        self._client = client
        self._worker = worker
        self._heard = heard
        self._changed = changed
        self._told = False
        self._doubted = threading.Event()
        self._echo = threading.Event()

    @property
    def up(self) -> bool:
        """Whether notifications arrive."""
        return self.ear is not None

    def run(self, stop: threading.Event) -> None:
        """Listen until `stop`, and connect again whenever the connection is lost."""
        pause = 0.1
        while not stop.is_set():
            # The client logs outages; here they only mean polling.
            with suppress(psycopg.Error, HoldfastError, OSError):
                self._listen(stop)
            if self.up:
                pause = 0.1
            self._trust(None)
            stop.wait(random_between(0, pause))
            pause = min(2 * pause, LONGEST_PAUSE)

    def doubt(self) -> None:
        """Assume that notifications do not arrive until the next test; called after an outage."""
        self._doubted.set()

    def catch_up(self, patience: float) -> None:
        """Wait until all notifications sent before this call have arrived."""
        self._echo.clear()
        if self.up:
            self._client.workers.ping(self._worker)
            self._echo.wait(patience)

    def _listen(self, stop: threading.Event) -> None:
        arguments = conninfo.parameters(
            self._client.listen_url, application_name="holdfast listener"
        )
        with psycopg.connect(**arguments) as connection, _listening(connection):
            ear: int | None = None
            tested, answered = 0.0, True
            while not stop.is_set():
                now = monotonic()
                if self._doubted.is_set():
                    self._doubted.clear()
                    self._trust(None)
                    tested, answered = 0.0, True
                if now - tested > (TEST_EVERY if self.up else TEST_PATIENCE):
                    if not answered:
                        # If it worked before, the connection failed: connect again.
                        if ear is None:
                            self._deaf()
                            stop.wait(TEST_EVERY / 10)
                        return
                    tested, answered = now, False
                    self._client.workers.ping(self._worker)
                for notification in connection.notifies(timeout=0.25, stop_after=1):
                    queue, _, worker = notification.payload.partition("\n")
                    if worker == self._worker:
                        answered = True
                        if not queue:
                            self._echo.set()
                        self._heard(queue)
                if answered and not self.up:
                    # Only where they arrive: through a pooler the lock would be left behind.
                    if ear is None:
                        [ear] = connection.execute("select holdfast.hear()").fetchone() or [None]
                    self._hears(ear)

    def _hears(self, ear: int | None) -> None:
        if self._told:
            log.warning("notifications arrive again")
            self._told = False
        self._trust(ear)

    def _trust(self, ear: int | None) -> None:
        if ear != self.ear:
            self.ear = ear
            self._changed()

    def _deaf(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "HF500 notifications do not arrive on this connection, polling instead: "
                "give %s a direct one if there is a pooler in between",
                conninfo.LISTEN_VARIABLE,
            )


@contextmanager
def _listening(connection: psycopg.Connection) -> Iterator[None]:
    """Listen during the block, and leave no session of a pooler listening for nobody."""
    with connection.transaction():
        session = _session(connection)
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))
    try:
        yield
    finally:
        for _ in range(0 if session == connection.info.backend_pid else POOLED_SESSIONS):
            with connection.transaction():
                if _session(connection) == session:
                    connection.execute("unlisten *")
                    break


def _session(connection: psycopg.Connection) -> int:
    [pid] = connection.execute("select pg_backend_pid()").fetchone() or [0]
    return int(pid)
