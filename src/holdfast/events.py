"""Hears that there is work: LISTEN on a connection of its own, and knows when it is deaf.

A notification is only ever a hint. Whoever waits for one polls as well, and more often while this
says that it hears nothing.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic

import psycopg
from psycopg import sql

from holdfast import conninfo
from holdfast.client import Client
from holdfast.errors import HoldfastError
from holdfast.jitter import uniform

log = logging.getLogger("holdfast")

CHANNEL = "holdfast"
# How long a notification to oneself may take before the connection counts as deaf.
TEST_PATIENCE = 5.0
# Poolers and firewalls drop silently: the test is repeated.
TEST_EVERY = 300.0


class Listener:
    """Calls `heard` with the name of a queue that has work for this worker.

    An empty name means: look at your leases. `up` is true while notifications arrive, which is
    tested by sending one to itself: a pooler accepts LISTEN and delivers nothing.
    """

    def __init__(self, client: Client, *, worker: str, heard: Callable[[str], None]) -> None:
        self.up = False
        self._client = client
        self._worker = worker
        self._heard = heard
        self._told = False

    def run(self, stop: threading.Event) -> None:
        """Listen until told to stop, connecting again for ever."""
        pause = 0.1
        while not stop.is_set():
            try:
                self._listen(stop)
                pause = 0.1
            except (psycopg.Error, HoldfastError, OSError):
                pass  # the client tells of outages; here they only mean polling
            self.up = False
            stop.wait(uniform(0, pause))
            pause = min(2 * pause, 10.0)

    def _listen(self, stop: threading.Event) -> None:
        arguments = conninfo.parameters(
            self._client.listen_url, application_name="holdfast listener"
        )
        with psycopg.connect(**arguments) as connection:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))
            tested, answered = 0.0, True
            while not stop.is_set():
                now = monotonic()
                if now - tested > (TEST_EVERY if self.up else TEST_PATIENCE):
                    if not answered:
                        self._deaf()
                        stop.wait(TEST_EVERY / 10)
                        return
                    tested, answered = now, False
                    self._client.ping(self._worker)
                for notification in connection.notifies(timeout=0.25, stop_after=1):
                    queue, _, worker = notification.payload.partition("\n")
                    if worker == self._worker:
                        answered = True
                        self._hears()
                        self._heard(queue)

    def _hears(self) -> None:
        if self._told:
            log.warning("notifications arrive again")
        self.up, self._told = True, False

    def _deaf(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "HF500 notifications do not arrive on this connection, polling instead: "
                "give %s a direct one if there is a pooler in between",
                conninfo.LISTEN_VARIABLE,
            )
