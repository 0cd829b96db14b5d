"""`holdfast schedule`: see what comes when, fire it now, pause it, change it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group, fail, nearest
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration, json_value, moment
from holdfast.errors import UnknownSchedule
from holdfast.records import Schedule, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from holdfast.client import Client
    from holdfast.cron import Rule

_SHOWN = 10


@click.group(
    cls=Group,
    examples=[
        "holdfast schedule list",
        "holdfast schedule set nightly kind=report cron='30 5 * * MON-FRI'",
    ],
)
def schedule() -> None:
    """See, set up, run, pause and resume schedules."""


@schedule.command("list", examples=["holdfast schedule list", "holdfast schedule list --json"])
@pass_session
def list_schedules(session: Session) -> None:
    """List schedules with their next slot and the result of their last one."""
    with session.client() as client:
        found = client.schedules.list()
    session.answer(found, lambda: _table(found) if found else "")
    if not found:
        session.say("no schedules yet; create one with  holdfast schedule set")


@schedule.command(
    examples=["holdfast schedule show nightly", "holdfast schedule show nightly --json | jq .next"]
)
@click.argument("name", metavar="SCHEDULE")
@pass_session
def show(session: Session, name: str) -> None:
    """Show a schedule: its rule, its next slots, and its recent ones."""
    with session.client() as client:
        found = _get(client, name)
        last = client.schedules.slots(name, limit=_SHOWN)
        coming = _coming(client, found, 3)
        notes = list(_notes(client, found))
    extra = {"explained": _english(found), "next": coming, "slots": last, "notes": notes}
    session.answer({**output.plain(found), **extra}, lambda: _page(found, coming, last, notes))


@schedule.command(
    examples=["holdfast schedule next nightly", "holdfast schedule next nightly -n 20 --json"]
)
@click.argument("name", metavar="SCHEDULE")
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=10, show_default=True)
@pass_session
def next(session: Session, name: str, count: int) -> None:
    """Show the next slots of a schedule, in its own time zone and in UTC.

    Uses the clock of the database and ignores a pause.
    """
    with session.client() as client:
        found = _get(client, name)
        coming = _coming(client, found, count)
    session.answer(coming, lambda: "\n".join(_in_zone(slot, found.tz) for slot in coming))


@schedule.command(
    examples=["holdfast schedule run nightly", "holdfast schedule run nightly --json"]
)
@click.argument("name", metavar="SCHEDULE")
@pass_session
def run(session: Session, name: str) -> None:
    """Enqueue a schedule's job now, even if paused; its slots do not change."""
    with session.client() as client:
        _get(client, name)
        made = client.schedules.run(name, actor=actor())
    assert made.job is not None
    told = "enqueued" if made.outcome == "run" else "already exists with the same key"
    session.answer(made, lambda: f"{output.short(made.job)}  {told}" if made.job else "")


@schedule.command(
    examples=[
        "holdfast schedule pause nightly",
        "holdfast schedule pause nightly --reason 'month-end close'",
    ]
)
@click.argument("name", metavar="SCHEDULE")
@click.option("--reason", help="shown to others")
@pass_session
def pause(session: Session, name: str, reason: str | None) -> None:
    """Pause a schedule until it is resumed; jobs already enqueued still run."""
    with session.client() as client:
        _get(client, name)
        found = client.schedules.pause(name, reason=reason, actor=actor())
    session.answer(found, lambda: f"{name} paused until resumed")


@schedule.command(
    examples=["holdfast schedule resume nightly", "holdfast schedule resume nightly --json"]
)
@click.argument("name", metavar="SCHEDULE")
@pass_session
def resume(session: Session, name: str) -> None:
    """Resume a schedule from its next slot; slots during the pause are skipped."""
    with session.client() as client:
        was_paused = _get(client, name).paused_at is not None
        found = client.schedules.resume(name, actor=actor())
    session.answer(found, lambda: f"{name} resumed" if was_paused else f"{name} was not paused")


@schedule.command(
    "set",
    examples=[
        "holdfast schedule set nightly kind=report cron='30 5 * * *' tz=Europe/Paris",
        "holdfast schedule set sync every=5m overlap=skip",
    ],
)
@click.argument("name", metavar="SCHEDULE")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@pass_session
def set_schedule(session: Session, name: str, settings: tuple[str, ...]) -> None:
    """Create or change a schedule; code that declares it keeps your change.

    \b
    kind, queue   what it enqueues, and where
    payload       JSON; options: JSON, such as {"priority": 5, "lane": "a"}
    cron, tz      '30 5 * * MON-FRI', Europe/Paris
    every, anchor 5m, 2026-01-01T00:00:00Z: slots from that time on
    missed        skip, once or all: what to do with missed slots
    overlap       queue, skip or cancel: if the last job has not ended
    """
    changes = dict(_setting(text) for text in settings)
    with session.client() as client:
        found = client.schedules.set(name, actor=actor(), **changes)
        coming = _coming(client, found, 1)
    session.answer(
        found,
        lambda: output.block(
            {"schedule": name, "runs": _english(found), "next": _first(coming, found.tz)}
        ),
    )


@schedule.command(
    examples=["holdfast schedule delete nightly", "holdfast schedule delete nightly --yes"]
)
@click.argument("name", metavar="SCHEDULE")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a schedule; its jobs are kept. Code that declares it recreates it."""
    with session.client() as client:
        _get(client, name)
        session.confirm(
            f"delete schedule {name}?", count=f"this would delete schedule {name}", yes=yes
        )
        gone = client.schedules.delete(name, actor=actor())
    session.answer({"name": name, "deleted": gone}, lambda: f"{name} deleted" if gone else "")
    if not gone:
        session.say(f"{name} was already deleted")
        fail()


def _table(found: Sequence[Schedule]) -> str:
    return output.table(
        ("schedule", "state", "runs", "zone", "next", "last", "fired", "skipped", "kind"),
        [
            (
                one.name,
                one.state,
                one.cron or _english(one),
                one.tz if one.cron else "-",
                _in(one.next_at) if one.state == "active" else "-",
                output.ago(one.last_at),
                one.fired,
                one.skipped,
                one.kind + (f"  {one.problem}" if one.problem else ""),
            )
            for one in found
        ],
    )


def _page(found: Schedule, coming: "list[datetime]", last: Sequence[Slot], notes: list[str]) -> str:
    facts = {
        "schedule": found.name,
        "state": _state(found),
        "runs": _english(found),
        "cron": found.cron,
        "zone": found.tz if found.cron else None,
        "anchor": found.anchor and output.moment(found.anchor),
        "kind": found.kind,
        "queue": found.queue,
        "payload": output.stored(found.payload_json) if found.payload_json != "{}" else None,
        "options": found.options_json if found.options_json != "{}" else None,
        "missed": found.missed,
        "overlap": found.overlap,
        "fired": found.fired,
        "skipped": found.skipped or None,
        "problem": found.problem,
        "note": "; ".join(notes) or None,
        "declared": _declared(found),
        "changed": f"{output.moment(found.updated_at)} by {found.updated_by or '-'}",
    }
    page = output.block(facts)
    if coming:
        page += "\n\nnext\n" + "\n".join(_in_zone(slot, found.tz) for slot in coming)
    if last:
        rows = [
            (output.moment(s.slot), s.outcome, output.short(s.job) if s.job else "-") for s in last
        ]
        page += "\n\n" + output.table(("slot", "outcome", "job"), rows)
    return page


def _notes(client: "Client", found: Schedule) -> "Iterator[str]":
    """Say what keeps its jobs from running as they should."""
    if (queue := client.queues.get(found.queue)) and queue.paused_at:
        yield f"queue {found.queue} is paused"
    if (
        found.last_job
        and (job := client.jobs.get(found.last_job))
        and job.state in ("queued", "leased")
    ):
        yield f"job {output.short(job.id)} of its last slot is still {job.state}"


def _state(found: Schedule) -> str:
    if found.paused_at is None:
        return found.state
    said = [f"since {output.moment(found.paused_at)}"]
    said += [f"by {found.paused_by}"] if found.paused_by else []
    said += [f"({found.paused_reason})"] if found.paused_reason else []
    return " ".join([found.state, *said])


def _declared(found: Schedule) -> str | None:
    if found.declared_json is None:
        return None
    return f"by {found.owner or 'code'}" + (", edited later" if found.edited else "")


def _coming(client: "Client", found: Schedule, count: int) -> "list[datetime]":
    from holdfast import cron
    from holdfast.errors import InvalidSchedule

    try:
        return cron.next_slots(_rule(found), client.now(), count)
    except InvalidSchedule:
        return []


def _english(found: Schedule) -> str:
    from holdfast.errors import InvalidSchedule

    try:
        return _rule(found).explain()
    except InvalidSchedule as error:
        return error.what


def _rule(found: Schedule) -> "Rule":
    from holdfast import cron

    return cron.rule(cron=found.cron, every=found.every, anchor=found.anchor, tz=found.tz)


def _in_zone(slot: "datetime", tz: str) -> str:
    if tz == "UTC":
        return slot.strftime("%a %Y-%m-%d %H:%M:%S UTC")
    there = slot.astimezone(ZoneInfo(tz))
    return f"{there:%a %Y-%m-%d %H:%M:%S %Z}  {output.moment(slot)}"


def _first(coming: "list[datetime]", tz: str) -> str | None:
    return _in_zone(coming[0], tz) if coming else None


def _in(at: "datetime | None") -> str:
    if at is None:
        return "-"
    left = output.ahead(at)
    return f"in {output.span(left)}" if left > timedelta() else "due"


def _get(client: "Client", name: str) -> Schedule:
    found = client.schedules.get(name)
    if found is None:
        known = [other.name for other in client.schedules.list()]
        raise UnknownSchedule(
            f"no schedule is named {name!r}{nearest(name, known)}",
            fix="See them:  holdfast schedule list",
        )
    return found


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not KEY=VALUE")
    if key not in _PARSERS:
        known = f"Settings are: {', '.join(_PARSERS)}."
        raise click.UsageError(f"unknown setting {key!r}{nearest(key, _PARSERS)}. {known}")
    if value.lower() == "none":
        return key, None
    try:
        return key, _PARSERS[key](value)
    except click.BadParameter as error:
        raise click.UsageError(f"{key}: {error.message}") from None


def _options(text: str) -> Any:
    import json

    json_value(text, "options")
    return json.loads(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "kind": str,
    "queue": str,
    "payload": json_value,
    "options": _options,
    "cron": str,
    "tz": str,
    "every": duration,
    "anchor": moment,
    "missed": str,
    "overlap": str,
}
