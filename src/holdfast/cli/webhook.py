"""`holdfast webhook`: where anomalies are sent by HTTP."""

import secrets

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group, unseen
from holdfast.cli.session import Session, actor, pass_session


@click.group(
    cls=Group,
    examples=[
        "holdfast webhook set ops https://example.org/hook --severity critical",
        "holdfast webhook list",
    ],
)
def webhook() -> None:
    """Send anomalies to webhooks."""


@webhook.command("list", examples=["holdfast webhook list", "holdfast webhook list --json"])
@pass_session
def list_webhooks(session: Session) -> None:
    """List webhooks and what they receive."""
    with session.client() as client:
        found = client.webhooks.list()
    session.answer(
        found,
        lambda: (
            output.table(
                ("name", "severity", "codes", "queues", "url"),
                [
                    (
                        one.name,
                        one.severity,
                        ",".join(one.codes) if one.codes else "all",
                        ",".join(one.queues) if one.queues else "all",
                        one.url,
                    )
                    for one in found
                ],
            )
            if found
            else ""
        ),
    )
    if not found:
        session.say("no webhooks yet; add one with  holdfast webhook set NAME URL")


@webhook.command(
    "set",
    examples=[
        "holdfast webhook set ops https://example.org/hook",
        "holdfast webhook set ops https://example.org/hook --code job_died --queue mail",
    ],
)
@click.argument("name")
@click.argument("address", metavar="URL")
@click.option(
    "--severity",
    type=click.Choice(["info", "warning", "critical"]),
    default="warning",
    metavar="WHAT",
    help="this and worse: info, warning or critical  [warning]",
)
@click.option("--code", "codes", multiple=True, metavar="CODE", help="only this code; repeatable")
@click.option(
    "-q", "--queue", "queues", multiple=True, metavar="Q", help="only this queue; repeatable"
)
@click.option(
    "--secret",
    type=unseen,
    envvar="HOLDFAST_WEBHOOK_SECRET",
    metavar="@FILE",
    help="signing secret; - reads standard input  [generated]",
)
@pass_session
def set_webhook(
    session: Session,
    name: str,
    address: str,
    severity: str,
    codes: tuple[str, ...],
    queues: tuple[str, ...],
    secret: str | None,
) -> None:
    """Send anomalies to an address, or change an existing webhook.

    Requests are signed according to Standard Webhooks. Give the secret in a file,
    on standard input or in HOLDFAST_WEBHOOK_SECRET: other users of this machine
    can read the command line. Without one, a secret is generated and shown once.
    """
    with session.client() as client:
        known = any(one.name == name for one in client.webhooks.list())
        made = secrets.token_hex(32) if secret is None and not known else None
        signed = secret or made
        found = client.webhooks.set(
            name,
            url=address,
            severity=severity,
            codes=list(codes) or None,
            queues=list(queues) or None,
            actor=actor(),
            **({"secret": signed} if signed else {}),
        )
    document = {**output.plain(found), **({"secret": made} if made else {})}
    session.answer(document, lambda: made or f"{name} changed")
    if made:
        session.say("this is the signing secret; it is not shown again")


@webhook.command(examples=["holdfast webhook delete ops", "holdfast webhook delete ops --json"])
@click.argument("name")
@pass_session
def delete(session: Session, name: str) -> None:
    """Delete a webhook."""
    with session.client() as client:
        found = client.webhooks.delete(name, actor=actor())
    session.answer(
        {"name": name, "deleted": found},
        lambda: f"{name} deleted" if found else f"no webhook is named {name}",
    )
