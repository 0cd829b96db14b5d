"""`holdfast lane`: lanes, which jobs hold them, and why they are blocked."""

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group
from holdfast.cli.session import Session, pass_session


@click.group(
    cls=Group, examples=["holdfast lane list", "holdfast lane explain pricing customer-42"]
)
def lane() -> None:
    """See lanes and why they wait."""


@lane.command("list", examples=["holdfast lane list", "holdfast lane list --json"])
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, metavar="N", help="how many  [50]"
)
@pass_session
def list_lanes(session: Session, limit: int) -> None:
    """List lanes that are in use or have settings, the longest waiting first."""
    with session.client() as client:
        lanes = client.lanes.list(limit=limit)
    session.answer(
        lanes,
        lambda: (
            output.table(
                ("queue", "lane", "state", "running", "waiting", "oldest", "holder"),
                [
                    (
                        one.queue,
                        one.lane,
                        "halted" if one.halted_by else "busy" if one.running else "free",
                        f"{one.running}/{one.limit}",
                        one.waiting,
                        output.span(one.oldest),
                        f"{output.short(one.job)} on {one.worker}" if one.job else "-",
                    )
                    for one in lanes
                ],
            )
            if lanes
            else ""
        ),
    )
    if not lanes:
        session.say("no lanes")


@lane.command(
    examples=[
        "holdfast lane explain pricing customer-42",
        "holdfast lane explain pricing customer-42 --json",
    ]
)
@click.argument("queue")
@click.argument("name", metavar="LANE")
@pass_session
def explain(session: Session, queue: str, name: str) -> None:
    """Explain in one sentence which job holds a lane and which is next."""
    with session.client() as client:
        why = client.lanes.explain(queue, name)
    session.answer({"queue": queue, "lane": name, "explain": why}, lambda: output.clean(why))
