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


@dead.command(
    examples=["holdfast dead groups", "holdfast dead groups --json | jq '.[0].fingerprint'"]
)
@pass_session
def groups(session: Session) -> None:
    """List groups of dead jobs that failed alike, the largest first.

    Jobs of a group are those with state:dead group:ID.
    """
    with session.client() as client:
        found = client.dead_groups()
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
        session.say(f"look:  holdfast job list 'state:dead group:{found[0].fingerprint}'")
        session.say(f"retry: holdfast job retry 'state:dead group:{found[0].fingerprint}'")
    else:
        session.say("no job is dead")
