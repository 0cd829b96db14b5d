"""`holdfast upkeep`: upkeep and schedules without a Holdfast worker."""

import os
import socket
import threading
from contextlib import suppress
from datetime import timedelta

import click

from holdfast.cli import output
from holdfast.cli.grammar import Command
from holdfast.cli.session import Session, pass_session
from holdfast.cli.values import duration


@click.command(
    cls=Command,
    short_help="Reclaim expired leases, make due jobs ready, fire schedules.",
    examples=["holdfast upkeep", "* * * * *  holdfast upkeep --once --quiet"],
)
@click.option("--once", is_flag=True, help="one turn, for cron")
@click.option("--every", type=duration, default="1s", metavar="1s", help="pause between turns")
@pass_session
def upkeep(session: Session, once: bool, every: timedelta) -> None:
    """Reclaim expired leases, make due jobs ready, fire schedules, drop old history.

    Workers do this themselves; without one, run this until Ctrl-C. If several run, one works
    and the others wait to take over.
    """
    from holdfast.upkeep.loop import Upkeep

    with session.client() as client:
        holder = f"upkeep {socket.gethostname()} {os.getpid()}"
        keeper = Upkeep(client, holder=holder, every=every.total_seconds())
        if once:
            done = keeper.turn()
            session.answer(done, lambda: output.block(done))
            return
        session.say("upkeep until Ctrl-C")
        with suppress(KeyboardInterrupt):
            keeper.run(threading.Event(), lambda done: _tell(session, done))


def _tell(session: Session, done: dict[str, int]) -> None:
    if session.json:
        click.echo(output.json_line(done))
    elif any(done.values()):
        click.echo(", ".join(f"{name} {count}" for name, count in done.items() if count))
