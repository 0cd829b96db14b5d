"""`holdfast dev`: a database, the dashboard and a worker that reloads, in one terminal."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import click

from holdfast.cli import locate
from holdfast.cli.grammar import Command
from holdfast.cli.serve import PORT
from holdfast.cli.session import SOURCES, Session, pass_session
from holdfast.cli.worker import work


@click.command(
    cls=Command,
    short_help="Run a database, the dashboard and a worker that reloads.",
    examples=["holdfast dev", "holdfast dev shop/jobs.py"],
)
@click.argument("app", required=False)
@click.option("--port", type=int, metavar="N", help=f"of the dashboard  [{PORT}, or a free one]")
@pass_session
def dev(session: Session, app: str | None, port: int | None) -> None:
    """Run a database, the dashboard and a worker that restarts when a file changes.

    APP is a module (shop.jobs:app) or a file; the default is app.py, main.py,
    tasks.py, jobs.py or worker.py in this directory. The embedded database is
    created and migrated automatically; your own must already have the schema.
    """
    from holdfast import schema

    named = app or locate.usual()
    # Held here, the embedded server outlives each reload of the worker.
    with session.database() as database:
        if database.server:
            schema.migrate(database.url)
        else:
            schema.check(database.url, source=SOURCES[database.origin])
        with _dashboard(session, database.url, port):
            work(session, named, imports=(), reload=True, grace=timedelta(seconds=5))


@contextmanager
def _dashboard(session: Session, url: str, port: int | None) -> Iterator[None]:
    try:
        from holdfast.server import Server, serve
    except ImportError:
        session.say("no dashboard: pip install 'holdfast[server]'")
        yield
        return
    with serve.beside(Server(url), port=_free(PORT) if port is None else port) as address:
        session.say(f"dashboard  {address}")
        yield


def _free(port: int) -> int:
    with socket.socket() as probe:
        return 0 if probe.connect_ex(("127.0.0.1", port)) == 0 else port
