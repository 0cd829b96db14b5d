"""`holdfast doctor`: is this database fit to hold the queue, and what to type if it is not."""

import os

import click

from holdfast.cli import output
from holdfast.cli.grammar import FAILED, Command
from holdfast.cli.session import SOURCES, Session, pass_session
from holdfast.records import Checkup

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
NOT_MIGRATED = 4


@click.command(
    cls=Command,
    short_help="Check the database and its settings.",
    examples=["holdfast doctor", "holdfast doctor --json | jq '.[] | select(.level != \"ok\")'"],
)
@pass_session
def doctor(session: Session) -> None:
    """Check the connection, pooler, schema, clock, LISTEN, upkeep, autovacuum,
    bloat, forgotten transactions, kinds without workers, and settings.

    Each finding says why it matters and what to type. Exit code 0: no check has failed; 1: at least
    one has; 3: no database; 4: not migrated.
    """
    from holdfast import conninfo
    from holdfast.client import Client
    from holdfast.watch.doctor import examine

    with session.database() as database:
        source = SOURCES[database.origin]
        with Client(
            database.url,
            application_name="holdfast doctor",
            listen_url=os.environ.get(conninfo.LISTEN_VARIABLE),
            source=source,
        ) as client:
            found = []
            for one in examine(client, source=source):
                found.append(one)
                if not session.json:
                    click.echo(_told(one, quiet=session.quiet), nl=False)
    if session.json:
        click.echo(output.json_document(found))
    failed = [one.name for one in found if one.level == "fail"]
    if failed:
        click.get_current_context().exit(NOT_MIGRATED if "schema" in failed else FAILED)


def _told(one: Checkup, *, quiet: bool) -> str:
    if quiet and one.level == "ok":
        return ""
    level = click.style(f"{one.level:4}", fg=_COLOURS[one.level], bold=one.level != "ok")
    lines = [f"{level}  {one.name:13}  {output.clean(one.what)}"]
    if one.level != "ok":
        lines += [f"{'':21}{output.clean(text)}" for text in (one.why, one.fix) if text]
    return "\n".join(lines) + "\n"
