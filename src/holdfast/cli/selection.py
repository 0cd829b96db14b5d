"""The jobs a command means: by id, or all that match a filter, counted before anything happens."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import click

from holdfast.cli import output
from holdfast.cli.grammar import fail
from holdfast.cli.session import Session
from holdfast.errors import HoldfastError, InvalidFilter, Misuse, UnknownJob
from holdfast.records import Change, Job

if TYPE_CHECKING:
    from holdfast.client import Client

_PAGE = 1000
_SAMPLE = 5
_ID = re.compile(r"[0-9a-f-]+", re.IGNORECASE)
_UUID = re.compile(r"\w{8}-\w{4}-\w{4}-\w{4}-\w+")
_STATE = re.compile(r"(?:^|\s)-?state:")


@dataclass(frozen=True, slots=True)
class Verb:
    """A change to jobs; `states` are those it is meant for when a filter names none."""

    name: str
    past: str
    states: str
    asks_for_one: bool = False
    asks_for_many: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """Jobs found before the change: later ones are not touched by it."""

    ids: list[UUID]
    filter: str | None

    @property
    def count(self) -> str:
        """How many, in words."""
        if self.filter is None:
            return output.counted(len(self.ids), "job")
        return f"{output.counted(len(self.ids), 'job')} matching {self.filter}"


def find_id(client: "Client", text: str) -> UUID:
    """Return the id that a full UUID, or its last 8 digits or more, stands for."""
    digits = text.replace("-", "")
    if not _ID.fullmatch(text) or len(digits) > 32:
        raise Misuse(
            f"{text!r} is not the id of a job", fix="An id is a UUID, or its last 8 digits or more."
        )
    if len(digits) == 32:
        return UUID(digits)
    if len(digits) < 8:
        raise Misuse(f"id {text!r} is too short", fix="Give its last 8 digits or more.")
    found = client.jobs.find(f"id:{text.lower()}", limit=_SAMPLE + 1)
    if not found:
        raise unknown(text)
    if len(found) > 1:
        raise Misuse(
            f"id {text!r} is ambiguous: several jobs end in it",
            why="\n".join(map(str, found[:_SAMPLE])),
            fix="Give more digits, or the whole id.",
        )
    return found[0]


def unknown(id: UUID | str) -> UnknownJob:
    """Make the error that no job has an id, with what may have become of it."""
    error = UnknownJob(id)
    error.why = "It never existed, or it is done and its queue does not keep done jobs."
    error.fix = "Look for it:  holdfast job list"
    return error


def change(
    session: Session,
    targets: Sequence[str],
    verb: Verb,
    apply: Callable[["Client", list[UUID]], Sequence[Change]],
    *,
    limit: int | None,
    preview: bool,
    yes: bool,
) -> None:
    """Find the jobs, show and ask where it matters, change them, and say what became of each."""
    with session.client() as client:
        chosen = _select(client, targets, verb, limit)
        if preview:
            _show(session, client, chosen)
            return
        if not chosen.ids:
            session.say(f"nothing to {verb.name}: {chosen.count}")
            session.answer([], str)
            return
        many = len(chosen.ids) > 1
        if chosen.filter is not None or verb.asks_for_one or (many and verb.asks_for_many):
            session.confirm(
                f"{verb.name} {chosen.count}?",
                count=f"this would {verb.name} {chosen.count}",
                yes=yes,
            )
        changes = list(_batches(session, client, chosen.ids, verb, apply))
    _report(session, changes, verb, named=chosen.filter is None)


def job_table(jobs: Sequence[Job]) -> str:
    """Render jobs as a table with what one wants to know next of each."""
    headings = ("id", "kind", "queue", "state", "attempt", "age", "note")
    return output.table(
        headings,
        [
            (
                output.short(job.id),
                job.kind,
                job.queue,
                job.state,
                f"{job.attempt}/{job.max_attempts}"
                + (f" ({job.total_attempts})" if job.total_attempts > job.attempt else ""),
                output.ago(job.created_at),
                _note(job),
            )
            for job in jobs
        ],
    )


def _select(client: "Client", targets: Sequence[str], verb: Verb, limit: int | None) -> Selection:
    ids = [text for text in targets if _ID.fullmatch(text) or _UUID.fullmatch(text)]
    if len(ids) == len(targets):
        found = list(dict.fromkeys(find_id(client, text) for text in ids))
        return Selection(found[:limit], None)
    filter = " ".join(targets).strip()
    if ids:
        raise Misuse(f"{filter!r} mixes ids and a filter", fix="Give either ids or one filter.")
    if not filter:
        raise InvalidFilter("an empty filter means every job", fix="Name them, as in age:>0s")
    # Alone first: a mistake in it is reported as it was typed.
    if not client.jobs.find(filter, limit=1):
        return Selection([], filter)
    if not _STATE.search(filter):
        filter = f"{filter} state:{verb.states}"
    return Selection(list(_all(client, filter, limit)), filter)


def _all(client: "Client", filter: str, limit: int | None) -> Iterator[UUID]:
    before: UUID | None = None
    left = limit
    while left is None or left > 0:
        page = client.jobs.find(
            filter, limit=_PAGE if left is None else min(left, _PAGE), before=before
        )
        yield from page
        if len(page) < _PAGE:
            return
        before = page[-1]
        left = None if left is None else left - len(page)


def _show(session: Session, client: "Client", chosen: Selection) -> None:
    ids = chosen.ids[:_SAMPLE]
    if session.json:
        session.answer({"count": len(chosen.ids), "filter": chosen.filter, "sample": ids}, str)
        return
    click.echo(chosen.count)
    if jobs := [job for id in ids if (job := client.jobs.get(id))]:
        click.echo(job_table(jobs))
    if len(chosen.ids) > len(ids):
        click.echo(f"… and {len(chosen.ids) - len(ids)} more")


def _batches(
    session: Session,
    client: "Client",
    ids: list[UUID],
    verb: Verb,
    apply: Callable[["Client", list[UUID]], Sequence[Change]],
) -> Iterator[Change]:
    started, told = time.monotonic(), 0
    for start in range(0, len(ids), _PAGE):
        try:
            yield from apply(client, ids[start : start + _PAGE])
        except (HoldfastError, KeyboardInterrupt):
            if start:
                session.say(f"stopped after {start} of {len(ids)} jobs")
            raise
        done = min(start + _PAGE, len(ids))
        percent = 100 * done // len(ids)
        if time.monotonic() - started > 1 and percent >= told + 10:
            told = percent
            session.say(f"{percent:3} %  {done} of {len(ids)} jobs")


def _report(session: Session, changes: list[Change], verb: Verb, *, named: bool) -> None:
    changed = [change for change in changes if change.changed]
    refused = [change for change in changes if not change.changed]
    if named:
        session.answer(
            changes, lambda: "\n".join(f"{output.short(c.id)}  {verb.past}" for c in changed)
        )
    else:
        session.answer(changes, lambda: f"{output.counted(len(changed), 'job')} {verb.past}")
    why = Counter(c.detail for c in refused)
    for detail, count in why.most_common(_SAMPLE):
        click.echo(f"unchanged: {detail}" + (f" ({count} times)" if count > 1 else ""), err=True)
    if len(why) > _SAMPLE:
        click.echo(f"… and {len(why) - _SAMPLE} more unchanged", err=True)
    if refused and (named or not changed):
        fail()


def _note(job: Job) -> str:
    if job.state == "leased" and job.lease_until:
        left = output.ahead(job.lease_until)
        until = f"for {output.span(left)}" if left.total_seconds() > 0 else "lease expired"
        return f"{job.worker} {until}"
    due = output.ahead(job.run_at)
    if job.state == "queued" and due.total_seconds() > 0:
        return f"due in {output.span(due)}" + (f": {job.error}" if job.error else "")
    return job.error or job.reason or ""
