"""`holdfast node`: the nodes of a Citus cluster, and the address of each."""

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group
from holdfast.cli.session import SOURCES, Session, pass_session


@click.group(cls=Group, examples=["holdfast node list", "holdfast node url --queue mail"])
def node() -> None:
    """See the nodes of a Citus cluster, and how to reach each."""


@node.command("list", examples=["holdfast node list", "holdfast node list --json"])
@pass_session
def list_nodes(session: Session) -> None:
    """List the nodes with the queues that were placed on each, and their jobs and workers.

    Strays are waiting jobs of queues that live on another node: upkeep sends them there.
    """
    from holdfast import nodes

    with session.database() as database:
        found = nodes.nodes(database.url, source=SOURCES[database.origin])
    headings = ("node", "address", "placed", "queued", "running", "dead", "strays", "workers")
    rows = [
        (n.node, n.address, n.placed, n.queued, n.leased, n.dead, n.strays, n.workers)
        for n in found
    ]
    session.answer(
        [one._asdict() for one in found],
        lambda: (
            output.table(headings, [tuple("-" if v is None else v for v in row) for row in rows])
            if found
            else ""
        ),
    )
    for one in found:
        if one.problem:
            session.say(f"node {one.node}: {output.clean(one.problem)}")
    if not found:
        session.say("this database is not in a Citus cluster")


@node.command(
    examples=[
        "HOLDFAST_URL=$(holdfast node url --queue mail) holdfast worker app.py",
        "HOLDFAST_URL=$(holdfast node url 1) holdfast job list",
    ]
)
@click.argument("number", metavar="[NODE]", type=click.IntRange(0), required=False)
@click.option("--queue", metavar="QUEUE", help="the node where this queue lives")
@pass_session
def url(session: Session, number: int | None, queue: str | None) -> None:
    """Print the address of a node, for HOLDFAST_URL.

    It has the user, password and database of the address that was used to ask.
    """
    from holdfast import nodes

    if (number is None) == (queue is None):
        raise click.UsageError("name a node, or a queue with --queue")
    with session.database() as database:
        source = SOURCES[database.origin]
        at = nodes.home(database.url, queue, source=source) if queue is not None else number
        assert at is not None
        found = nodes.address(database.url, at, source=source)
    session.answer({"node": at, "url": found}, lambda: found)
