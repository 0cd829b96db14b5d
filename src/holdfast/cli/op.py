"""`holdfast op`: one verb for many jobs, in the background: look, start, follow, stop, undo."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group, fail
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration
from holdfast.errors import UnknownOperation

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.records import Operation, Preview

VERBS = ("retry", "cancel", "archive", "delete", "move")


@click.group(
    cls=Group,
    examples=[
        "holdfast op start retry 'state:dead kind:send_email' --rate 200",
        "holdfast op list",
    ],
)
def op() -> None:
    """Change many jobs in the background, chunk by chunk.
    A worker, a server or holdfast upkeep does the work.
    """


@op.command(
    short_help="Preview an operation, confirm it, and start it.",
    examples=[
        "holdfast op start retry 'state:dead group:f3a9c001' --limit 10",
        "holdfast op start move 'queue:mail state:queued' --to mail2 --rate 500 --yes",
    ],
)
@click.argument("verb", type=click.Choice(VERBS), metavar="VERB")
@click.argument("filter", nargs=-1, required=True)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="only the newest N")
@click.option("--rate", type=float, metavar="N", help="jobs per second  [unlimited]")
@click.option("--delay", type=duration, metavar="10m", help="retry: start after this time")
@click.option("--to", metavar="QUEUE", help="move: target queue")
@click.option("--reason", help="recorded with the jobs")
@click.option("--preview", is_flag=True, help="only count and show the jobs")
@click.option("--wait", is_flag=True, help="wait until it has ended")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def start(
    session: Session,
    verb: str,
    filter: tuple[str, ...],
    limit: int | None,
    rate: float | None,
    delay: timedelta | None,
    to: str | None,
    reason: str | None,
    preview: bool,
    wait: bool,
    yes: bool,
) -> None:
    """Apply VERB (retry, cancel, archive, delete, move) to all matching jobs."""
    with session.client() as client:
        found = client.operations.preview(
            verb,
            " ".join(filter),
            most=limit,
            reason=reason,
            actor=actor(),
            delay=delay,
            queue=to,
        )
        if preview:
            session.answer(found, lambda: _counted(found))
            return
        session.confirm(
            f"{verb} {_counted(found)}?", count=f"this would {verb} {_counted(found)}", yes=yes
        )
        started = client.operations.start(found.token, rate=rate, actor=actor())
        assert started is not None
        _tell(session, client, started, wait)


@op.command("list", examples=["holdfast op list", "holdfast op list --json"])
@pass_session
def list_operations(session: Session) -> None:
    """List operations, the newest first."""
    with session.client() as client:
        found = client.operations.list()
    rows = [
        (
            one.id,
            one.state,
            one.verb,
            _progress(one),
            output.ago(one.started_at),
            one.actor or "-",
            one.filter,
        )
        for one in found
    ]
    headings = ("id", "state", "verb", "jobs", "started", "by", "filter")
    session.answer(found, lambda: output.table(headings, rows) if rows else "")
    if not rows:
        session.say("no operations")


@op.command(examples=["holdfast op show 31", "holdfast op show 31 --wait"])
@click.argument("id", type=int)
@click.option("--wait", is_flag=True, help="wait until it has ended")
@pass_session
def show(session: Session, id: int, wait: bool) -> None:
    """Show the progress of an operation."""
    with session.client() as client:
        found = _get(client, id)
        if wait:
            found = follow(session, client, found)
    session.answer(found, lambda: _line(found))
    if found.state == "failed":
        fail()


@op.command(examples=["holdfast op cancel 31", "holdfast op cancel 31 --json"])
@click.argument("id", type=int)
@pass_session
def cancel(session: Session, id: int) -> None:
    """Stop an operation after its current chunk; finished work is kept."""
    with session.client() as client:
        _get(client, id)
        found = client.operations.cancel(id, actor=actor())
        assert found is not None
    session.answer(found, lambda: _line(found))
    if found.undoable:
        session.say(f"undo the finished part:  holdfast op undo {id}")
    if found.state != "cancelled":
        fail()


@op.command(examples=["holdfast op undo 31", "holdfast op undo 31 --wait --yes"])
@click.argument("id", type=int)
@click.option("--rate", type=float, metavar="N", help="jobs per second  [unlimited]")
@click.option("--reason", help="recorded with the jobs")
@click.option("--wait", is_flag=True, help="wait until it has ended")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def undo(
    session: Session, id: int, rate: float | None, reason: str | None, wait: bool, yes: bool
) -> None:
    """Undo an operation that has ended, for jobs that have not changed since.
    Retried jobs that have not started are dead again, cancelled jobs that were queued are
    queued again, archived and moved jobs return. Deleted jobs cannot be restored.
    """
    with session.client() as client:
        found = _get(client, id)
        told = (
            f"undo {found.verb} of {output.counted(found.undoable, 'job')} matching {found.filter}"
        )
        if found.undoable:
            session.confirm(f"{told}?", count=f"this would {told}", yes=yes)
        started = client.operations.undo(id, rate=rate, reason=reason, actor=actor())
        assert started is not None
        _tell(session, client, started, wait)


def _tell(session: Session, client: "Client", started: "Operation", wait: bool) -> None:
    last = follow(session, client, started) if wait else started
    session.answer(last, lambda: _line(last))
    if last.state == "running":
        session.say(f"follow it:  holdfast op show {last.id} --wait")


def follow(session: Session, client: "Client", followed: "Operation") -> "Operation":
    """Wait for the end of an operation, and work on it meanwhile: nobody else may be there."""
    told = time.monotonic()
    while followed.state == "running":
        if client.operations.step() is None:
            time.sleep(0.05)
        followed = _get(client, followed.id)
        if time.monotonic() - told > 1:
            told = time.monotonic()
            session.say(_line(followed))
    return followed


def _get(client: "Client", id: int) -> "Operation":
    found = client.operations.get(id)
    if found is None:
        raise UnknownOperation(f"no operation has the id {id}", fix="See them:  holdfast op list")
    return found


def _line(one: "Operation") -> str:
    told = f"operation {one.id}  {one.verb}  {one.state}  {_progress(one)} jobs"
    unchanged = one.seen - one.changed
    told += f", {unchanged} unchanged" if unchanged else ""
    return told + (f": {one.problem}" if one.problem else "")


def _progress(one: "Operation") -> str:
    return f"{one.seen}/{one.total}{'+' if one.capped else ''}"


def _counted(preview: "Preview") -> str:
    more = "more than " if preview.capped else ""
    return f"{more}{output.counted(preview.total, 'job')} matching {preview.selects}"
