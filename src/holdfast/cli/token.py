"""`holdfast token`: secrets to call the server with."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group, nearest
from holdfast.cli.serve import words
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration
from holdfast.errors import UnknownToken
from holdfast.records import ROLES

if TYPE_CHECKING:
    from holdfast.records import ApiToken, Scope

SCOPES = ("read", "produce", "consume", "operate", "admin")


@click.group(
    cls=Group,
    examples=["holdfast token create --scope consume --queue mail", "holdfast token list"],
)
def token() -> None:
    """Create, list and revoke tokens for the HTTP API."""


@token.command(
    examples=[
        "holdfast token create --scope produce,consume --queue mail --expires 90d",
        "TOKEN=$(holdfast token create --role viewer --quiet)",
    ],
)
@click.option("--scope", "scopes", type=words, metavar="A,B", help=", ".join(SCOPES))
@click.option("--role", type=click.Choice([*ROLES]), metavar="ROLE", help=f"or {', '.join(ROLES)}")
@click.option("--queue", "queues", type=words, metavar="A,B", help="only for these queues  [all]")
@click.option("--expires", type=duration, metavar="90d", help="valid for this long  [forever]")
@click.option("--name", metavar="NAME", help="display name  [its scopes]")
@pass_session
def create(
    session: Session,
    scopes: Sequence["Scope"],
    role: str | None,
    queues: Sequence[str],
    expires: timedelta | None,
    name: str | None,
) -> None:
    """Create a token and print its secret once; only a hash is stored."""
    if bool(scopes) == bool(role):
        raise click.UsageError("give either --scope or --role")
    if role:
        scopes = sorted(ROLES[role])
    with session.client() as client:
        made = client.tokens.create(
            name or role or ",".join(scopes),
            scopes,
            queues=queues or None,
            expires=expires,
            actor=actor(),
        )
    session.answer({**output.plain(made.token), "secret": made.secret}, lambda: made.secret)
    session.say(f"token {made.token.id} ({made.token.name}); the secret is not shown again")


@token.command("list", examples=["holdfast token list", "holdfast token list --json"])
@pass_session
def list_tokens(session: Session) -> None:
    """List tokens, the newest first, without their secrets."""
    with session.client() as client:
        found = client.tokens.list()
    session.answer(found, lambda: _table(found) if found else "")
    if not found:
        session.say("no tokens yet; create one with  holdfast token create")


@token.command(
    examples=["holdfast token revoke 3f2c91d0a4b7", "holdfast token revoke 3f2c91d0a4b7 --json"]
)
@click.argument("id", metavar="ID")
@pass_session
def revoke(session: Session, id: str) -> None:
    """Revoke a token; servers refuse it within seconds."""
    with session.client() as client:
        if not client.tokens.revoke(id, actor=actor()):
            known = [one.id for one in client.tokens.list()]
            raise UnknownToken(
                f"no token has the id {id!r}{nearest(id, known)}",
                fix="See them:  holdfast token list",
            )
    session.answer({"id": id, "revoked": True}, lambda: f"{id} revoked")


def _table(tokens: "Sequence[ApiToken]") -> str:
    return output.table(
        ("id", "state", "scopes", "queues", "made", "used", "expires", "name"),
        [
            (
                one.id,
                _state(one),
                ",".join(one.scopes),
                ",".join(one.queues) if one.queues else "all",
                output.ago(one.created_at),
                output.ago(one.used_at),
                _left(one),
                one.name,
            )
            for one in tokens
        ],
    )


def _state(token: "ApiToken") -> str:
    if token.revoked_at:
        return "revoked"
    if token.expires_at and output.ahead(token.expires_at) <= timedelta():
        return "expired"
    return "valid"


def _left(token: "ApiToken") -> str:
    return f"in {output.span(output.ahead(token.expires_at))}" if token.expires_at else "never"
