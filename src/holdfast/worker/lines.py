"""Sends what handlers log while their jobs run, so that it can be followed."""

import logging
import threading
from collections.abc import Collection, Iterable, Sequence

import psycopg

from holdfast.client import Client
from holdfast.current import CurrentJob
from holdfast.errors import HoldfastError
from holdfast.worker.logs import MOST_WAITING

log = logging.getLogger("holdfast.worker")

# The lines of a job are sent as seldom as this, and those of a shorter job never: it costs the
# database nothing.
EVERY = 1.0
# How many lines one call sends; many jobs share them.
MOST = 1000
LEAST_EACH = 10


class Lines:
    """The lines of the jobs of one worker: a call for all of them, never one for each line."""

    def __init__(self) -> None:
        # The jobs of which lines were sent, and which may have more when they end.
        self.jobs: set[CurrentJob] = set()
        self._lock = threading.Lock()
        self._fails = False

    def send_due(self, client: Client, held: Collection[CurrentJob], now: float) -> None:
        """Send the lines of jobs that have waited for long enough."""
        with self._lock:
            self.jobs.intersection_update(held)
            self._send(client, [job for job in held if _is_due(job, now)])

    def send_rest(self, client: Client, ended: Iterable[CurrentJob]) -> None:
        """Send the last lines of jobs that are about to be settled, if others were sent before."""
        with self._lock:
            jobs = [job for job in ended if job in self.jobs]
            if self._send(client, jobs):
                self.jobs.difference_update(jobs)

    def _send(self, client: Client, jobs: Sequence[CurrentJob]) -> bool:
        most = max(MOST // max(len(jobs), 1), LEAST_EACH)
        sent = [(job, *job.log.unshown(min(most, MOST_WAITING))) for job in jobs]
        sent = [one for one in sent if one[2]]
        if not sent:
            return True
        try:
            outcomes = client.log(
                [job.lease for job, _, _ in sent],
                [lines for _, _, lines in sent],
                firsts=[first for _, first, _ in sent],
            )
        except (HoldfastError, psycopg.Error) as error:
            # The newest lines are sent the next time; a log must not disturb what it is about.
            if not self._fails:
                log.warning("lines of jobs cannot be stored", extra={"reason": str(error)})
            self._fails = True
            return False
        self._fails = False
        for (job, first, lines), outcome in zip(sent, outcomes, strict=True):
            if outcome != "busy":
                job.log.shown(first + len(lines) - 1)
            self.jobs.add(job)
        return True


def _is_due(job: CurrentJob, now: float) -> bool:
    if not job.log or job.started is None or job.finished or job.ticket or job.settled:
        return False
    since = job.started if job.log.shown_at is None else job.log.shown_at
    if now - since < EVERY:
        return False
    job.log.shown_at = now
    return True
