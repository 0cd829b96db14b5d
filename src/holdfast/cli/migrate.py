"""`holdfast migrate`: install the schema, upgrade it, or say what that would do."""

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group
from holdfast.cli.session import SOURCES, Session, pass_session


@click.group(
    cls=Group,
    invoke_without_command=True,
    examples=["holdfast migrate --plan", "holdfast migrate --sql | psql shop"],
)
@click.option("--plan", "mode", flag_value="plan", help="show what would be applied")
@click.option("--sql", "mode", flag_value="sql", help="print the script for an empty database")
@click.option("--shard", "mode", flag_value="shard", help="also on all nodes of a Citus cluster")
@click.option("--check", "mode", flag_value="check", help="exit 4 unless it is up to date")
@pass_session
@click.pass_context
def migrate(ctx: click.Context, session: Session, mode: str | None) -> None:
    """Install the schema, or upgrade it to this version.

    It is one transaction and does nothing if the schema is up to date. Several
    processes may run it at once, while workers run.
    """
    if ctx.invoked_subcommand:
        if mode:
            raise click.UsageError(f"--{mode} cannot be used with {ctx.invoked_subcommand}")
        return
    if mode == "sql":
        _print_script(session)
        return
    from holdfast import nodes, schema

    with session.database() as database:
        url, source = database.url, SOURCES[database.origin]
        if mode == "check":
            schema.check(url, source=source)
        if mode == "shard":
            _shard(session, url, source)
            return
        before = schema.status(url, source=source)
        if mode is None and before.pending:
            everywhere = nodes.is_sharded(url, source=source)
            applied = (nodes.shard if everywhere else schema.migrate)(url, source=source)
            session.answer(
                {"database": before.database, "version": before.needed, "applied": applied},
                lambda: "\n".join(f"applied {name}" for name in applied),
            )
            session.say(f'database "{before.database}" has holdfast schema {before.needed}')
            return
    session.answer(
        {"database": before.database, "version": before.found, "pending": before.pending},
        lambda: "\n".join(before.pending),
    )
    if not before.pending:
        session.say(f'database "{before.database}" is up to date (schema {before.found})')


@migrate.command(examples=["holdfast migrate status", "holdfast migrate status --json"])
@pass_session
def status(session: Session) -> None:
    """Show what is installed, what is pending and what is wrong."""
    from holdfast import schema

    with session.database() as database:
        found = schema.status(database.url, source=SOURCES[database.origin])
    document = output.plain(found) | {"problem": found.problem and str(found.problem)}
    rows = [
        (one.version or "-", one.name, f"applied {output.moment(one.applied_at)}", one.release)
        for one in found.applied
        if one.name not in found.pending
    ]
    rows += [("-", name, "pending", "") for name in found.pending]
    session.answer(
        document,
        lambda: (
            output.block(
                {"database": found.database, "found": found.found or "none", "needed": found.needed}
            )
            + "\n\n"
            + output.table(("version", "name", "state", "release"), rows)
        ),
    )
    if found.problem:
        session.say(str(found.problem))


def _shard(session: Session, url: str, source: str) -> None:
    from holdfast import nodes

    applied = nodes.shard(url, source=source)
    found = nodes.nodes(url, source=source)
    session.answer(
        {"nodes": [one._asdict() for one in found], "applied": applied},
        lambda: "\n".join(f"applied {name}" for name in applied),
    )
    session.say(f"Holdfast is on {len(found)} nodes; place a queue on one:  holdfast queue place")


def _print_script(session: Session) -> None:
    from holdfast import schema

    script = schema.sql()
    session.answer({"sql": script}, lambda: script)
