"""`holdfast anomaly`: detected problems, acknowledgements, and thresholds."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group, nearest
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration, on_or_off
from holdfast.errors import UnknownAnomaly
from holdfast.records import Anomaly

SIGNS = {
    "critical": click.style("✖", fg="red", bold=True),
    "warning": click.style("▲", fg="yellow"),
    "info": click.style("●", fg="cyan"),
}


@click.group(
    cls=Group, examples=["holdfast anomaly list", "holdfast anomaly mute bulk_delete --for 1d"]
)
def anomaly() -> None:
    """List, acknowledge and mute anomalies; set up detectors."""


@anomaly.command("list", examples=["holdfast anomaly list", "holdfast anomaly list --over --json"])
@click.option("--over", is_flag=True, help="resolved ones of the last week")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, metavar="N", help="how many  [50]"
)
@pass_session
def list_anomalies(session: Session, over: bool, limit: int) -> None:
    """List anomalies, the most severe first."""
    with session.client() as client:
        found = client.anomalies.list(over=over, limit=limit)
    session.answer(found, lambda: _table(found) if found else "")
    if not found:
        session.say("no resolved anomalies" if over else "no anomalies")


@anomaly.command(
    examples=["holdfast anomaly show 1f00ab12", "holdfast anomaly show 1f00ab12 --json"]
)
@click.argument("id")
@pass_session
def show(session: Session, id: str) -> None:
    """Show an anomaly: its evidence, when it began, and what to type."""
    with session.client() as client:
        found = client.anomalies.get(id)
    if found is None:
        raise UnknownAnomaly(id)
    session.answer(found, lambda: _described(found))


@anomaly.command(
    examples=["holdfast anomaly ack 1f00ab12", "holdfast anomaly ack 1f00ab12 --note 'on it'"]
)
@click.argument("id")
@click.option("--note", help="shown to others")
@pass_session
def ack(session: Session, id: str, note: str | None) -> None:
    """Acknowledge an anomaly."""
    with session.client() as client:
        found = client.anomalies.ack(id, note=note, actor=actor())
    if found is None:
        raise UnknownAnomaly(id)
    session.answer(found, lambda: f"{id} acknowledged by {found.acked_by}")


@anomaly.command(
    examples=[
        "holdfast anomaly mute late --queue nightly --for 8h",
        "holdfast anomaly mute version_skew --reason 'slow roll-out'",
    ]
)
@click.argument("code")
@click.option("--for", "mute_for", type=duration, metavar="1d", help="unmute after this time")
@click.option("-q", "--queue", metavar="Q", help="for this queue only")
@click.option("--subject", help="for this kind, lane, job or worker only")
@click.option("--reason", help="shown to others")
@pass_session
def mute(
    session: Session,
    code: str,
    mute_for: timedelta | None,
    queue: str | None,
    subject: str | None,
    reason: str | None,
) -> None:
    """Stop notifications of a detector; its anomalies are still listed."""
    with session.client() as client:
        until = None if mute_for is None else client.now() + mute_for
        client.anomalies.mute(
            code, until=until, queue=queue, subject=subject, reason=reason, actor=actor()
        )
    how_long = "until unmuted" if until is None else f"until {output.moment(until)}"
    session.answer({"code": code, "until": until}, lambda: f"{code} muted {how_long}")


@anomaly.command(
    examples=["holdfast anomaly unmute late", "holdfast anomaly unmute late --queue nightly"]
)
@click.argument("code")
@click.option("-q", "--queue", metavar="Q", help="the queue it was muted for")
@click.option("--subject", help="the subject it was muted for")
@pass_session
def unmute(session: Session, code: str, queue: str | None, subject: str | None) -> None:
    """Resume notifications of a detector."""
    with session.client() as client:
        muted = client.anomalies.unmute(code, queue=queue, subject=subject, actor=actor())
    session.answer(
        {"code": code, "unmuted": muted},
        lambda: f"{code} unmuted" if muted else f"{code} was not muted",
    )


@anomaly.command(
    examples=["holdfast anomaly detectors", "holdfast anomaly detectors --json | jq '.[].code'"]
)
@pass_session
def detectors(session: Session) -> None:
    """List detectors, their thresholds, and how their last run went."""
    with session.client() as client:
        found = client.detectors.list()
    session.answer(
        found,
        lambda: output.table(
            ("code", "severity", "state", "thresholds", "looks for"),
            [
                (
                    one.code,
                    one.severity or "-",
                    "failing" if one.problem else "on" if one.enabled else "off",
                    " ".join(f"{key}={value}" for key, value in one.thresholds.items()) or "-",
                    one.problem or one.about or "your own",
                )
                for one in found
            ],
        ),
    )


@anomaly.command(
    "set",
    examples=[
        "holdfast anomaly set late seconds=60 --queue mail",
        "holdfast anomaly set flash_job enabled=on seconds=0.2",
    ],
)
@click.argument("code")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("-q", "--queue", metavar="Q", help="for this queue only")
@pass_session
def set_detector(session: Session, code: str, settings: tuple[str, ...], queue: str | None) -> None:
    """Change the thresholds of a detector; none restores the default."""
    changes = dict(_setting(text) for text in settings)
    with session.client() as client:
        found = client.detectors.set(code, queue=queue, actor=actor(), **changes)
    shown = found.queues.get(queue, {}) if queue else {"enabled": found.enabled, **found.thresholds}
    session.answer(found, lambda: output.block(shown))


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not KEY=VALUE")
    if value.lower() in ("none", "null", ""):
        return key, None
    try:
        return key, on_or_off(value) if key == "enabled" else float(value)
    except click.BadParameter as error:
        raise click.UsageError(f"{key}: {error.message}") from None
    except ValueError:
        hint = nearest(key, ["enabled"])
        raise click.UsageError(f"{key}: {value!r} is not a number{hint}") from None


def _table(found: Sequence[Anomaly]) -> str:
    return output.table(
        ("id", "severity", "code", "for", "state", "what"),
        [
            (
                one.id,
                one.severity,
                one.code,
                output.span((one.resolved_at or datetime.now(UTC)) - one.since),
                _state(one),
                one.title,
            )
            for one in found
        ],
    )


def _state(one: Anomaly) -> str:
    if one.resolved_at:
        return "over"
    if one.muted:
        return "muted"
    return f"acknowledged by {one.acked_by or 'unknown'}" if one.acked_at else "open"


def _described(one: Anomaly) -> str:
    about = output.block(
        {
            "id": one.id,
            "what": one.title,
            "severity": one.severity,
            "code": one.code,
            "queue": one.queue,
            "subject": one.subject or None,
            "state": _state(one),
            "detail": one.detail,
            "since": f"{output.moment(one.since)} ({output.ago(one.since)} ago)",
            "raised": output.moment(one.raised_at),
            "seen": output.moment(one.seen_at),
            "over": one.resolved_at and output.moment(one.resolved_at),
            "came back": f"{one.times - 1} times" if one.times > 1 else None,
            "note": one.note,
            "type": one.suggestion,
        }
    )
    evidence = output.pretty(one.evidence_json)
    return f"{about}\n\nevidence\n" + "\n".join(f"  {line}" for line in evidence.splitlines())
