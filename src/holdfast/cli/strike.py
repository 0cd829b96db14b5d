"""`holdfast strike`: rules by which jobs do not run for a while."""

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration, json_value
from holdfast.errors import UnknownStrike

if TYPE_CHECKING:
    from holdfast.records import Strike


@click.group(
    cls=Group,
    examples=[
        """holdfast strike add --kind send_sms --for 1h --reason 'provider is down'""",
        "holdfast strike lift 3",
    ],
)
def strike() -> None:
    """Keep jobs from running, by queue, kind and payload, without a deployment."""


@strike.command(
    short_help="Keep matching jobs from running.",
    examples=[
        "holdfast strike add --kind send_sms --for 1h --reason 'provider is down'",
        """holdfast strike add --queue mail --payload '{"user": 42}' --skip""",
    ],
)
@click.option("-q", "--queue", metavar="Q", help="jobs of this queue")
@click.option("--kind", help="jobs of this kind")
@click.option("--payload", metavar="JSON", help="jobs whose payload contains this object")
@click.option("--skip", is_flag=True, help="cancel the jobs instead of holding them back")
@click.option(
    "--for", "expires", type=duration, metavar="1h", help="lift it automatically after this"
)
@click.option("--reason", help="shown to others")
@pass_session
def add(
    session: Session,
    queue: str | None,
    kind: str | None,
    payload: str | None,
    skip: bool,
    expires: timedelta | None,
    reason: str | None,
) -> None:
    """Keep jobs that match all options from running; running jobs finish."""
    wanted = None if payload is None else json_value(payload)
    with session.client() as client:
        found = client.strikes.add(
            queue=queue,
            kind=kind,
            payload=wanted,
            mode="skip" if skip else "hold",
            reason=reason,
            expires=expires,
            actor=actor(),
        )
    session.answer(found, lambda: _line(found))
    session.say(f"lift it:  holdfast strike lift {found.number}")


@strike.command("list", examples=["holdfast strike list", "holdfast strike list --all --json"])
@click.option("--all", "everything", is_flag=True, help="include strikes that are over")
@pass_session
def list_strikes(session: Session, everything: bool) -> None:
    """List strikes, the newest first."""
    with session.client() as client:
        found = client.strikes.list(all=everything)
    rows = [
        (
            one.number,
            one.mode if one.in_force else "over",
            output.ago(one.created_at),
            output.moment(one.expires_at) if one.expires_at else "-",
            one.held,
            one.actor or "-",
            _rule(one),
            one.reason or "",
        )
        for one in found
    ]
    headings = ("strike", "mode", "age", "until", "held", "by", "jobs", "reason")
    session.answer(found, lambda: output.table(headings, rows) if rows else "")
    if not rows:
        session.say("no active strikes")


@strike.command(examples=["holdfast strike lift 3", "holdfast strike lift 3 --reason 'it is back'"])
@click.argument("number", type=int)
@click.option("--reason", help="recorded with the event")
@pass_session
def lift(session: Session, number: int, reason: str | None) -> None:
    """Lift a strike: its jobs may run again."""
    with session.client() as client:
        found = client.strikes.lift(number, reason=reason, actor=actor())
    if found is None:
        raise UnknownStrike(number)
    session.answer(found, lambda: f"strike {number} is over")


def _line(one: "Strike") -> str:
    until = f" until {output.moment(one.expires_at)}" if one.expires_at else ""
    return f"strike {one.number}: {one.mode} {_rule(one)}{until}"


def _rule(one: "Strike") -> str:
    parts = (
        f"queue {one.queue}" if one.queue else "",
        f"kind {one.kind}" if one.kind else "",
        f"payload {one.payload_json}" if one.payload_json else "",
    )
    return ", ".join(part for part in parts if part)
