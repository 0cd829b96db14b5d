"""`holdfast bench`: how fast this database carries the queue, and what would help."""

import os
from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.grammar import Command
from holdfast.cli.session import SOURCES, Session, pass_session

if TYPE_CHECKING:
    from holdfast.watch.speed import Report


@click.command(
    cls=Command,
    short_help="Measure how fast this database carries the queue.",
    examples=["holdfast bench", "holdfast bench --seconds 3 --json | jq .advice"],
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 600),
    default=10.0,
    metavar="N",
    help="how long to measure (10)",
)
@pass_session
def bench(session: Session, seconds: float) -> None:
    """Measure round trips, commits, enqueue, drain and pick-up, and say what
    would make them faster.

    Jobs are stored and claimed in transactions that are rolled back: nobody
    else sees them, and nothing is left behind. Other programs share the disk
    and the processors meanwhile, so it costs them some speed.
    """
    from holdfast import conninfo, schema
    from holdfast.client import Client
    from holdfast.watch import speed

    with session.database() as database:
        source = SOURCES[database.origin]
        if problem := schema.status(database.url, source=source).problem:
            raise problem
        with Client(
            database.url,
            application_name="holdfast bench",
            listen_url=os.environ.get(conninfo.LISTEN_VARIABLE),
            source=source,
        ) as client:
            session.say(f"measuring for {seconds:g} s; nothing is left behind")
            for one in speed.measure(client, seconds=seconds):
                if isinstance(one, speed.Report):
                    _conclude(session, one)
                elif not session.json:
                    click.echo(f"{one.name:15}{_number(one.value):>9} {one.unit:7} {one.about}")


def _conclude(session: Session, report: "Report") -> None:
    if session.json:
        click.echo(output.json_document(report))
        return
    for advice in report.advice:
        click.echo(f"\n{click.style(advice.what, fg='yellow', bold=True)}")
        click.echo(f"  {advice.why}\n  {advice.fix}")
    if not report.advice:
        session.say("\nNothing stands out. `holdfast doctor` looks at the rest.")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
