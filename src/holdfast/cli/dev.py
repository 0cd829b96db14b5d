"""`holdfast dev`: a database and a worker that reloads, in one terminal."""

from datetime import timedelta

import click

from holdfast.cli import locate
from holdfast.cli.grammar import Command
from holdfast.cli.session import SOURCES, Session, pass_session
from holdfast.cli.worker import work


@click.command(
    cls=Command,
    short_help="A database and a worker that reloads, in one terminal.",
    examples=["holdfast dev", "holdfast dev shop/jobs.py"],
)
@click.argument("app", required=False)
@pass_session
def dev(session: Session, app: str | None) -> None:
    """Run a database and a worker that starts anew when a Python file changes.

    APP is a module (shop.jobs:app) or a file; else app.py, main.py, tasks.py,
    jobs.py or worker.py of this directory. The embedded database is made and
    migrated by itself; yours has to have the schema.
    """
    from holdfast import schema

    named = app or locate.usual()
    # Held here, the embedded server outlives each reload of the worker.
    with session.database() as database:
        if database.server:
            schema.migrate(database.url)
        else:
            schema.check(database.url, source=SOURCES[database.origin])
        work(session, named, imports=(), reload=True, grace=timedelta(seconds=5))
