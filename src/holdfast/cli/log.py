"""What the handler of a job logs, printed while it runs."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast.cli import output
from holdfast.cli.selection import unknown
from holdfast.cli.session import Session
from holdfast.errors import Unavailable
from holdfast.records import Attempt, Job, Line, Receipt

if TYPE_CHECKING:
    from holdfast.client import Client

EVERY = 0.5
# As many as are stored.
ALL = 1000


class JobLog:
    """Prints the log of one job: lines on stdout, and what becomes of the job on stderr."""

    def __init__(self, session: Session, client: "Client", id: UUID, newest: int = ALL) -> None:
        self._session = session
        self._client = client
        self._id = id
        self._newest = newest
        self._last = 0
        # Attempts whose lines were stored while they ran, and attempts that are printed.
        self._sent: set[int] = set()
        self._told: set[tuple[int, datetime | None]] = set()
        self._place: tuple[str, int] | None = None
        self._progress: dict[str, Any] = {}

    def show(self) -> None:
        """Print what is there."""
        self._look(first=True)
        if not (self._last or self._told):
            self._session.say("no lines are stored; jobs that run for less than a second have none")

    def follow(self) -> bool:
        """Print what is there and what comes until the job has ended; whether it is done."""
        state = self._look(first=True)
        while state in ("queued", "leased"):
            time.sleep(EVERY)
            try:
                state = self._look()
            except Unavailable:
                continue  # the client has said so, and says when the database is back
        return state == "done"

    def _look(self, *, first: bool = False) -> str:
        """Print what is new, and return the state of the job."""
        # Asked before the lines: those of a job that has ended are then complete.
        job = self._client.jobs.get(self._id)
        receipt = None if job else self._client.jobs.receipt(self._id)
        newest = self._newest if first else ALL
        lines = self._client.jobs.lines(self._id, after=self._last, newest=newest)
        if first and not (job or receipt or lines):
            raise unknown(self._id)
        for line in lines:
            self._tell_line(line)
        place = (job.state, job.attempt) if job else None
        if first or place != self._place:
            self._place = place
            self._tell_attempts(self._client.jobs.attempts(self._id))
            self._tell_state(job, receipt)
        if job:
            self._tell_progress(job)
            return job.state
        return _end_of(receipt)

    def _tell_line(self, line: Line) -> None:
        self._last = line.nth
        self._sent.add(line.attempt)
        click.echo(output.json_line(line) if self._session.json else output.clean(line.text))

    def _tell_attempts(self, attempts: Sequence[Attempt]) -> None:
        for one in attempts:
            if (one.attempt, one.ended_at) in self._told:
                continue
            self._told.add((one.attempt, one.ended_at))
            # What a short attempt logged is stored with it alone.
            for text in (one.log or "").splitlines() if one.attempt not in self._sent else ():
                about = {"nth": None, "attempt": one.attempt, "at": one.ended_at, "text": text}
                click.echo(output.json_line(about) if self._session.json else output.clean(text))
            error = ": ".join(part for part in (one.error_kind, one.message) if part)
            told = f"attempt {one.attempt} {one.outcome}"
            self._session.say(output.clean(f"{told}: {error}" if error else told))

    def _tell_state(self, job: Job | None, receipt: Receipt | None) -> None:
        if job is None:
            state = _end_of(receipt)
            by = f" by {receipt.worker}" if receipt and state == "done" else ""
            told = f"{state}{by}" if state == "done" else "gone: the job was deleted"
        elif job.state == "queued":
            told = self._client.jobs.explain(self._id)
        elif job.state == "leased":
            told = f"attempt {job.attempt} of {job.max_attempts} runs at {job.worker}"
        else:
            why = job.error if job.state == "dead" else job.reason
            told = f"{job.state}: {why}" if why else job.state
        self._session.say(output.clean(told))

    def _tell_progress(self, job: Job) -> None:
        if not job.progress or job.progress == self._progress:
            return
        self._progress = job.progress
        if self._session.json:
            click.echo(output.json_line({"progress": job.progress}))
            return
        done, total, note = (job.progress.get(name) for name in ("done", "total", "note"))
        share = "" if done is None else f"{done:g}" + ("" if total is None else f" of {total:g}")
        told = "  ".join(part for part in (share, note) if part)
        self._session.say(output.clean(f"progress {told}"))


def _end_of(receipt: Receipt | None) -> str:
    return "done" if receipt is not None and receipt.outcome == "acked" else "gone"
