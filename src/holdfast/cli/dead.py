"""`holdfast dead`: what died, grouped by how."""

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group
from holdfast.cli.session import Session, pass_session


@click.group(
    cls=Group,
    examples=["holdfast dead groups", "holdfast job retry 'state:dead group:f3a9c001' --limit 10"],
)
def dead() -> None:
    """See dead jobs by how they failed."""


@dead.command("list", examples=["holdfast dead list", "holdfast dead list kind:send_email -n 10"])
@click.argument("filter", nargs=-1)
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, metavar="N", help="how many  [50]"
)
@pass_session
def list_dead(session: Session, filter: tuple[str, ...], limit: int) -> None:
    """List dead jobs that match a filter, the latest failure first."""
    with session.client() as client:
        found = client.dead.list(" ".join(filter), limit=limit + 1)
    shown = found[:limit]
    rows = [
        (output.short(one.id), one.kind, one.queue, output.ago(one.ended_at), one.error or "-")
        for one in shown
        if one.ended_at
    ]
    headings = ("id", "kind", "queue", "died", "error")
    session.answer(shown, lambda: output.table(headings, rows) if rows else "")
    if not shown:
        session.say("no matching dead jobs" if filter else "no dead jobs")
    if len(found) > limit:
        session.say("there are more; show them with --limit")


@dead.command(
    examples=["holdfast dead groups", "holdfast dead groups --json | jq '.[0].fingerprint'"]
)
@pass_session
def groups(session: Session) -> None:
    """List dead jobs grouped by failure, the largest group first.

    To select the jobs of a group, use the filter state:dead group:ID.
    """
    with session.client() as client:
        found = client.dead.groups()
    rows = [
        (
            one.fingerprint,
            one.jobs,
            one.kind,
            one.queue,
            output.ago(one.first_at),
            output.ago(one.last_at),
            one.error or "-",
        )
        for one in found
    ]
    headings = ("group", "jobs", "kind", "queue", "first", "last", "error")
    session.answer(found, lambda: output.table(headings, rows) if rows else "")
    if rows:
        session.say(f"show:  holdfast job list 'state:dead group:{found[0].fingerprint}'")
        session.say(f"retry: holdfast job retry 'state:dead group:{found[0].fingerprint}'")
    else:
        session.say("no dead jobs")
