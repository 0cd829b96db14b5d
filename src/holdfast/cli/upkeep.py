"""`holdfast upkeep`: housekeeping for whoever runs no worker of ours."""

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import click

from holdfast.cli import output
from holdfast.cli.grammar import Command
from holdfast.cli.session import Session, pass_session
from holdfast.cli.values import duration
from holdfast.errors import Unavailable, UnknownOutcome


@click.command(
    cls=Command,
    short_help="Take back expired leases, let due jobs in, drop old history.",
    examples=["holdfast upkeep", "* * * * *  holdfast upkeep --once --quiet"],
)
@click.option("--once", is_flag=True, help="one turn, for cron")
@click.option("--every", type=duration, default="1s", metavar="1s", help="pause between turns")
@pass_session
def upkeep(session: Session, once: bool, every: timedelta) -> None:
    """Take back expired leases, let due jobs in, fold counters, drop old history.

    Workers do it as they go; without one, run this until Ctrl-C.
    """
    with session.client() as client:
        if once:
            done = client.upkeep()
            session.answer(done, lambda: output.block(done))
            return
        session.say("upkeep until Ctrl-C")
        with suppress(KeyboardInterrupt):
            while True:
                # Outages are said once, by the client; the next turn does what this one could not.
                with suppress(Unavailable, UnknownOutcome):
                    _tell(session, client.upkeep())
                time.sleep(every.total_seconds())


def _tell(session: Session, done: dict[str, Any]) -> None:
    if session.json:
        click.echo(output.json_line(done))
    elif any(done.values()):
        click.echo(", ".join(f"{name} {count}" for name, count in done.items() if count))
