"""The jobs a command means: a few by id, changed at once, or all that match a filter.

What a filter selects is changed by an operation, as by `holdfast op`: it is counted before anything
happens, can be stopped and undone, and shows in `holdfast op list`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast.cli import output
from holdfast.cli.grammar import fail
from holdfast.cli.op import follow
from holdfast.cli.session import Session, actor
from holdfast.errors import InvalidFilter, Misuse, UnknownJob
from holdfast.records import Change, Job, Preview

if TYPE_CHECKING:
    from holdfast.client import Client

_PAGE = 1000
_SAMPLE = 5
_ID = re.compile(r"[0-9a-f-]+", re.IGNORECASE)
_UUID = re.compile(r"\w{8}-\w{4}-\w{4}-\w{4}-\w+")
_STATE = re.compile(r"(?:^|\s)-?state:")


Apply = Callable[["Client", list[UUID]], Sequence[Change]]


@dataclass(frozen=True, slots=True)
class Verb:
    """A change to jobs, and what it is called as an operation; `edit` is not one."""

    name: str
    past: str
    operation: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    asks_for_one: bool = False
    asks_for_many: bool = False


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
    apply: Apply,
    *,
    reason: str | None,
    limit: int | None,
    preview: bool,
    yes: bool,
) -> None:
    """Find the jobs, show and ask where it matters, change them, and report what changed."""
    with session.client() as client:
        named = [text for text in targets if _ID.fullmatch(text) or _UUID.fullmatch(text)]
        filter = " ".join(targets).strip()
        if named and len(named) < len(targets):
            raise Misuse(f"{filter!r} mixes ids and a filter", fix="Give either ids or one filter.")
        if named:
            ids = list(dict.fromkeys(find_id(client, text) for text in named))[:limit]
            _change_ids(session, client, ids, "", verb, apply, preview=preview, yes=yes)
        elif not filter:
            raise InvalidFilter(
                "an empty filter means every job", fix="To select every job, write age:>0s"
            )
        elif not verb.operation:
            ids, filter = _editable(client, filter, limit)
            _change_ids(session, client, ids, filter, verb, apply, preview=preview, yes=yes)
        else:
            found = client.operations.preview(
                verb.operation, filter, most=limit, reason=reason, actor=actor(), **verb.arguments
            )
            _operate(session, client, found, verb, apply, preview=preview, yes=yes)


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


def _operate(
    session: Session,
    client: "Client",
    found: Preview,
    verb: Verb,
    apply: Apply,
    *,
    preview: bool,
    yes: bool,
) -> None:
    """Change what a filter selects by an operation, and stay until it has ended."""
    more = "more than " if found.capped else ""
    count = f"{more}{output.counted(found.total, 'job')} matching {found.selects}"
    if preview:
        _show(session, client, found.sample, found.total, count, found.selects)
        return
    if not found.total:
        session.say(f"nothing to {verb.name}: {count}")
        session.answer(None, str)
        return
    session.confirm(f"{verb.name} {count}?", count=f"this would {verb.name} {count}", yes=yes)
    started = client.operations.start(found.token, actor=actor())
    assert started is not None
    try:
        ended = follow(session, client, started)
    except KeyboardInterrupt:
        stopped = client.operations.cancel(started.id, actor=actor()) or started
        session.say(f"stopped after {stopped.seen} of {stopped.total} jobs")
        _offer_undo(session, stopped.id, stopped.undoable)
        raise
    session.answer(ended, lambda: f"{output.counted(ended.changed, 'job')} {verb.past}")
    if ended.changed < ended.seen:
        _tell_unchanged(_why_unchanged(client, found, apply), ended.seen - ended.changed)
    if ended.problem:
        click.echo(f"operation {ended.id} failed: {ended.problem}", err=True)
    _offer_undo(session, ended.id, ended.undoable)
    if ended.state == "failed" or not ended.changed:
        fail()


def _offer_undo(session: Session, id: int, undoable: int) -> None:
    if undoable:
        session.say(f"undo it:  holdfast op undo {id}")


def _why_unchanged(client: "Client", found: Preview, apply: Apply) -> list[str]:
    """Ask again for jobs of the sample that still match: one by one they are refused with why."""
    left = set(client.jobs.find(found.selects, limit=_PAGE)) & set(found.sample)
    return [one.detail or "" for one in apply(client, list(left)) if not one.changed]


def _tell_unchanged(reasons: Sequence[str], count: int) -> None:
    for reason, times in Counter(reasons).most_common(_SAMPLE):
        click.echo(f"unchanged: {reason}" + (f" ({times} times)" if times > 1 else ""), err=True)
    if count > len(reasons):
        told = f"… and {count - len(reasons)} more unchanged" if reasons else f"unchanged: {count}"
        click.echo(told, err=True)


def _editable(client: "Client", filter: str, limit: int | None) -> tuple[list[UUID], str]:
    # Alone first: a mistake in it is reported as it was typed.
    if not client.jobs.find(filter, limit=1):
        return [], filter
    if not _STATE.search(filter):
        filter = f"{filter} state:queued,dead"
    return list(_all(client, filter, limit)), filter


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


def _change_ids(
    session: Session,
    client: "Client",
    ids: list[UUID],
    filter: str,
    verb: Verb,
    apply: Apply,
    *,
    preview: bool,
    yes: bool,
) -> None:
    """Change jobs by their ids, now."""
    count = output.counted(len(ids), "job") + (f" matching {filter}" if filter else "")
    if preview:
        _show(session, client, ids[:_SAMPLE], len(ids), count, filter or None)
        return
    if not ids:
        session.say(f"nothing to {verb.name}: {count}")
        session.answer([], str)
        return
    if filter or verb.asks_for_one or (len(ids) > 1 and verb.asks_for_many):
        session.confirm(f"{verb.name} {count}?", count=f"this would {verb.name} {count}", yes=yes)
    changes: list[Change] = []
    for start in range(0, len(ids), _PAGE):
        changes += apply(client, ids[start : start + _PAGE])
    _report(session, changes, verb, named=not filter)


def _show(
    session: Session,
    client: "Client",
    sample: Sequence[UUID],
    total: int,
    count: str,
    filter: str | None,
) -> None:
    if session.json:
        session.answer({"count": total, "filter": filter, "sample": sample}, str)
        return
    click.echo(count)
    if jobs := [job for id in sample if (job := client.jobs.get(id))]:
        click.echo(job_table(jobs))
    if total > len(sample):
        click.echo(f"… and {total - len(sample)} more")


def _report(session: Session, changes: list[Change], verb: Verb, *, named: bool) -> None:
    changed = [change for change in changes if change.changed]
    refused = [change for change in changes if not change.changed]
    if named:
        session.answer(
            changes, lambda: "\n".join(f"{output.short(c.id)}  {verb.past}" for c in changed)
        )
    else:
        session.answer(changes, lambda: f"{output.counted(len(changed), 'job')} {verb.past}")
    _tell_unchanged([one.detail or "" for one in refused], len(refused))
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
