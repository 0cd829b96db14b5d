"""One run of a command: which database it talks to, and how it answers."""

import getpass
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import output
from holdfast.errors import Refused, SchemaError

if TYPE_CHECKING:
    from holdfast.client import ClusterClient
    from holdfast.embedded import Database

# Where an address came from, as errors say it.
SOURCES = {
    "argument": "--url",
    "HOLDFAST_URL": "HOLDFAST_URL in the environment",
    "embedded": "the embedded server",
}


@dataclass
class Session:
    """The common options and what follows from them. Data goes to stdout, talk to stderr."""

    url: str | None = None
    json: bool = False
    quiet: bool = False

    # Drivers are imported where they are needed: `--help` must not wait for them.

    @contextmanager
    def database(self) -> Iterator["Database"]:
        """Find the database, and print a note if it is the embedded one."""
        from holdfast import embedded

        with embedded.resolve(self.url) as database:
            if database.server:
                self.say(f"using {database.server}; --url or HOLDFAST_URL name another")
            yield database

    @contextmanager
    def client(self) -> Iterator["ClusterClient"]:
        """Find the database and speak to it; in a Citus cluster, to all of its nodes.

        Afterwards the nodes are named that did not answer: what they have was not shown.
        """
        with self.database() as database, connect(database) as client:
            try:
                yield client
            finally:
                for one in client.cluster.silent():
                    told = f"node {one.node} ({one.address}) does not answer, its jobs are missing"
                    click.echo(f"{told}: {output.clean(one.problem or '')}", err=True)

    def answer(self, document: Any, text: Callable[[], str]) -> None:
        """Print the answer, as a JSON document or for people."""
        rendered = output.json_document(document) if self.json else text()
        if rendered:
            click.echo(rendered)

    def say(self, text: str) -> None:
        """Print a message that is not data."""
        if not self.quiet:
            click.echo(text, err=True)

    def confirm(self, question: str, *, count: str, yes: bool) -> None:
        """Ask for confirmation; raise Refused if the user declines or cannot be asked."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise Refused(
                f"{count}, nothing was changed",
                fix="Add --yes to do it, or --preview to look first.",
            )
        if not click.confirm(question, err=True):
            raise Refused("nothing was changed")


@contextmanager
def connect(database: "Database") -> Iterator["ClusterClient"]:
    """Make a client, which connects when first used."""
    from holdfast import schema
    from holdfast.client import Client, ClusterClient

    source = SOURCES[database.origin]
    name = "holdfast cli"
    home = Client(database.url, application_name=name, source=source)
    with ClusterClient(home, application_name=name) as client:
        try:
            yield client
        except SchemaError as error:
            # A missing view or function is the symptom; which schema is there is the cause.
            raise schema.status(database.url, source=source).problem or error from error


pass_session = click.make_pass_decorator(Session, ensure=True)


def actor() -> str:
    """Return the user who runs the command, for the activity log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "holdfast cli"
