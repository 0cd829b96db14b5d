"""`holdfast event`: the activity log: what happened, and who did it."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group
from holdfast.cli.selection import find_id
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration, json_value
from holdfast.records import Event, EventPage

if TYPE_CHECKING:
    from holdfast.client import Client

F = TypeVar("F", bound=Callable[..., None])

EVERY = 0.5
PAGE = 1000
# Events get their place before they are committed: a place so far back may still be filled.
LOOK_BACK = 1000


@click.group(
    cls=Group,
    examples=["holdfast event tail --follow", "holdfast event export --since 1d > activity.ndjson"],
)
def event() -> None:
    """See what happened to jobs, and what users did.
    The queue's setting decides what is recorded: activity=off, failures or all.
    """


def _chooses(command: F) -> F:
    options = (
        click.option(
            "-q", "--queue", multiple=True, metavar="Q", help="only this queue; repeatable"
        ),
        click.option("--kind", help="only jobs of this kind"),
        click.option("--event", "name", metavar="NAME", help="such as nacked, retried, paused"),
        click.option("--actor", help="only actions of this user"),
        click.option("--worker", help="only jobs run by this worker"),
        click.option("--job", metavar="ID", help="the history of one job"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@event.command(
    examples=["holdfast event tail --event nacked -n 20", "holdfast event tail -q mail --follow"]
)
@_chooses
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, metavar="N", help="how many  [50]"
)
@click.option("-f", "--follow", is_flag=True, help="print new events until stopped")
@pass_session
def tail(session: Session, /, limit: int, follow: bool, **chosen: Any) -> None:
    """Show the last events, the newest last; with --json one document per line."""
    with session.client() as client:
        wanted = _wanted(client, **chosen)
        events = _newest(client, wanted, limit)
        for one in reversed(events):
            _tell(session, one)
        if not events:
            session.say("no matching events")
        if follow:
            for one in _followed(client, wanted, [one.seq for one in events]):
                _tell(session, one)


@event.command(
    examples=[
        "holdfast event export > all.ndjson",
        "holdfast event export --since 2h --job 1f00ab12",
    ]
)
@_chooses
@click.option("--since", type=duration, metavar="1d", help="not older than this")
@pass_session
def export(session: Session, /, since: timedelta | None, **chosen: Any) -> None:
    """Print all events as JSON, one per line, the oldest first."""
    with session.client() as client:
        wanted = _wanted(client, **chosen)
        if since is not None:
            wanted["since"] = client.now() - since
        after = 0
        while True:
            page = client.activity.list(after=after, limit=PAGE, **wanted)
            for one in page.events:
                click.echo(output.json_line(one))
            if page.searched_to is None and len(page.events) < PAGE:
                return
            after = page.searched_to or page.events[-1].seq


@event.command(
    examples=[
        "holdfast event send approved --key 42",
        """holdfast event send approved '{"by": "Ada"}' --key 42""",
    ]
)
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--key", help="of what it tells; the job waits for the same")
@click.option("--keep", type=duration, metavar="7d", help="how long, if no job waits  [7d]")
@click.option("--everyone", is_flag=True, help="for all jobs that wait now; it is not kept")
@pass_session
def send(
    session: Session,
    /,
    name: str,
    payload: str | None,
    key: str | None,
    keep: timedelta | None,
    everyone: bool,
) -> None:
    """Send an event to the job that has waited longest for it.
    If no job waits, it is kept, and the first that waits takes it.
    """
    with session.client() as client:
        client.send_event(
            name,
            None if payload is None else json_value(payload),
            key=key,
            keep=timedelta(days=7) if keep is None else keep,
            everyone=everyone,
            sender=actor(),
        )
    session.answer({"sent": name}, lambda: f"sent {output.clean(name)}")


def event_line(one: Event) -> str:
    """Describe one event in one line."""
    whom = output.short(one.job) if one.job else _counted(one)
    place = " ".join(part for part in (one.kind, one.queue and f"in {one.queue}") if part)
    who = one.actor or one.worker
    rest = [
        f"attempt {one.attempt}" if one.attempt else "",
        f"-> {one.state}" if one.state and one.state not in one.event else "",
        f"by {who}" if who else "",
        one.reason or "",
    ]
    told = "  ".join(part for part in (one.event.ljust(10), whom, place, *rest) if part)
    return f"{output.moment(one.at)}  {output.clean(told)}"


def _counted(one: Event) -> str:
    if one.jobs:
        return output.counted(one.jobs, "job")
    told = {name: value for name, value in one.detail.items() if isinstance(value, str | int)}
    return " ".join(f"{name}={value}" for name, value in told.items())


def _wanted(
    client: "Client",
    queue: Sequence[str],
    kind: str | None,
    name: str | None,
    actor: str | None,
    worker: str | None,
    job: str | None,
) -> dict[str, Any]:
    return {
        "queues": [*queue] or None,
        "kind": kind,
        "event": name,
        "actor": actor,
        "worker": worker,
        "job": find_id(client, job) if job else None,
    }


def _newest(client: "Client", wanted: dict[str, Any], limit: int) -> list[Event]:
    events: list[Event] = []
    before: int | None = None
    while len(events) < limit:
        page: EventPage = client.activity.list(limit=limit - len(events), before=before, **wanted)
        events += page.events
        if page.searched_to is None:
            break
        before = page.searched_to
    return events


def _followed(client: "Client", wanted: dict[str, Any], seen: Sequence[int]) -> Iterator[Event]:
    told = set(seen)
    top = max(told, default=0)
    if not top:
        newest = client.activity.list(limit=1)
        top = newest.events[0].seq if newest.events else 0
        told = set(range(top - LOOK_BACK, top + 1))
    while True:
        page = client.activity.list(after=max(top - LOOK_BACK, 0), limit=LOOK_BACK + PAGE, **wanted)
        fresh = [one for one in page.events if one.seq not in told]
        yield from fresh
        told.update(one.seq for one in fresh)
        top = max([top, *told, page.searched_to or 0])
        told = {seq for seq in told if seq >= top - LOOK_BACK}
        if not fresh:
            time.sleep(EVERY)


def _tell(session: Session, one: Event) -> None:
    click.echo(output.json_line(one) if session.json else event_line(one))
