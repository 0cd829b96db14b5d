"""`holdfast queue`: look at queues, set them up, pause and resume them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group, nearest
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration, on_or_off, size, whole
from holdfast.errors import UnknownQueue
from holdfast.records import Queue, QueueSettings, Success
from holdfast.records.fields import Field, declared
from holdfast.records.queue import BYTES

if TYPE_CHECKING:
    from holdfast.client import Client

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@click.group(
    cls=Group, examples=["holdfast queue list", "holdfast queue set mail limit=4 lease=2m"]
)
def queue() -> None:
    """See, set up, pause and resume queues."""


@queue.command("list", examples=["holdfast queue list", "holdfast queue list --json"])
@pass_session
def list_queues(session: Session) -> None:
    """List queues with their queued, running and dead jobs."""
    with session.client() as client:
        queues = client.queues.list()
        rates = {one.queue: one.rate for one in client.queues.success() if one.kind is None}
    session.answer(queues, lambda: queue_table(queues, rates) if queues else "")
    if not queues:
        session.say("no queues yet; create one with  holdfast job enqueue")


@queue.command(examples=["holdfast queue show mail", "holdfast queue show mail --json | jq .limit"])
@click.argument("name", metavar="QUEUE")
@pass_session
def show(session: Session, name: str) -> None:
    """Show a queue: its settings, and how many jobs of which kind it holds."""
    with session.client() as client:
        found = _get(client, name)
        depths = [d for d in client.queues.depth() if d.queue == name and d.jobs]
        hour, day = (client.queues.success(name, span=span) for span in (HOUR, DAY))
    rows = [(one.kind, one.state, one.jobs) for one in depths]
    rates = _rates(hour, day)
    whole = rates.pop(None, None)
    parts = [output.block(_settings(found) | _success(whole))]
    if rates:
        headings = ("kind", "success of the hour", "of the day")
        parts.append(output.table(headings, [(kind, *both) for kind, both in rates.items()]))
    if rows:
        parts.append(output.table(("kind", "state", "jobs"), rows))
    session.answer(
        {**output.plain(found), "depth": depths, "success": {"hour": hour, "day": day}},
        lambda: "\n\n".join(parts),
    )


@queue.command(examples=["holdfast queue next mail", "holdfast queue next mail -n 5 --json"])
@click.argument("name", metavar="QUEUE")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, metavar="N", help="how many  [50]"
)
@pass_session
def next(session: Session, name: str, limit: int) -> None:
    """List the queued jobs of a queue, in the order in which they will run."""
    from holdfast.cli.selection import job_table

    with session.client() as client:
        _get(client, name)
        found = client.queues.upcoming(name, limit=limit)
    session.answer(found, lambda: job_table(found) if found else "")
    if not found:
        session.say(f"no jobs are waiting in queue {name}")


@queue.command(examples=["holdfast queue place mail 1", "holdfast queue place mail 0"])
@click.argument("name", metavar="QUEUE")
@click.argument("node", metavar="NODE", type=click.IntRange(0))
@pass_session
def place(session: Session, name: str, node: int) -> None:
    """Have a queue live on a node of a Citus cluster.

    New jobs go there at once, waiting ones follow, running ones end where they are.
    """
    from holdfast import nodes
    from holdfast.cli.session import SOURCES

    with session.database() as database:
        source = SOURCES[database.origin]
        nodes.place(database.url, name, node, actor=actor(), source=source)
    session.answer({"queue": name, "node": node}, lambda: "")
    session.say(f"queue {name} lives on node {node}; workers for it connect there")


@queue.command(
    "set",
    examples=[
        "holdfast queue set mail limit=4 lease=2m keep_done=7d",
        "holdfast queue set api rate_limit=100 rate_period=1m limit=none",
    ],
)
@click.argument("name", metavar="QUEUE")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@pass_session
def set_queue(session: Session, name: str, settings: tuple[str, ...]) -> None:
    """Change the settings of a queue; create it if it does not exist.

    \b
    max_attempts  lease  backoff  backoff_cap  payload_limit (1MB)
    keep_done     how long all done jobs are kept; 0: see keep_recent
    keep_recent   off: workers keep no done jobs; on: a few, for a day
    limit         jobs running at once; none removes it
    rate_limit, rate_period   starts per period; none removes them
    fair          on: tenants take turns
    by_kind       on: claims by kind are fast
    lane_limit    jobs running at once in each lane
    lane_on_failure   skip, retry or halt
    fanout        parts it is divided into; jobs are in order within a part only
    activity      off, failures or all;  keep_activity  7d
    archive_dead, archive_done   archive after this time; none: never
    """
    changes = dict(_setting(text) for text in settings)
    with session.client() as client:
        known = [found.queue for found in client.queues.list()]
        found = client.queues.set(name, actor=actor(), **changes)
    if name not in known:
        session.say(f"queue {name} is new{nearest(name, known)}")
    session.answer(found, lambda: output.block({key: _value(found, key) for key in changes}))


@queue.command(
    examples=[
        "holdfast queue pause mail",
        "holdfast queue pause mail --for 10m --reason 'provider is down'",
    ]
)
@click.argument("name", metavar="QUEUE")
@click.option(
    "--for", "pause_for", type=duration, metavar="10m", help="resume automatically after this"
)
@click.option("--reason", help="shown to others")
@pass_session
def pause(session: Session, name: str, pause_for: timedelta | None, reason: str | None) -> None:
    """Pause a queue: no new jobs start; running jobs finish."""
    with session.client() as client:
        _get(client, name)
        until = None if pause_for is None else client.now() + pause_for
        found = client.queues.pause(name, reason=reason, until=until, actor=actor())
    how_long = "until resumed" if until is None else f"until {output.moment(until)}"
    session.answer(found, lambda: f"{name} paused {how_long}")


@queue.command(examples=["holdfast queue resume mail", "holdfast queue resume mail --json"])
@click.argument("name", metavar="QUEUE")
@pass_session
def resume(session: Session, name: str) -> None:
    """Resume a paused queue."""
    with session.client() as client:
        was_paused = _get(client, name).paused_at is not None
        found = client.queues.resume(name, actor=actor())
    session.answer(found, lambda: f"{name} resumed" if was_paused else f"{name} was not paused")


@queue.command(examples=["holdfast queue explain mail", "holdfast queue explain mail --json"])
@click.argument("name", metavar="QUEUE")
@pass_session
def explain(session: Session, name: str) -> None:
    """Explain in one sentence how a queue is doing and what delays it."""
    with session.client() as client:
        _get(client, name)
        why = client.queues.explain(name)
    session.answer({"queue": name, "explain": why}, lambda: output.clean(why))


@queue.command(
    examples=["holdfast queue forecast", "holdfast queue forecast mail --target 10m"],
)
@click.argument("name", metavar="[QUEUE]", required=False)
@click.option(
    "--target", type=duration, metavar="10m", help="how many slots would drain it in this time?"
)
@click.option(
    "--span", type=duration, default="5m", metavar="5m", help="measure the rate over this time"
)
@pass_session
def forecast(session: Session, name: str | None, target: timedelta | None, span: timedelta) -> None:
    """Estimate when queues will be empty, and how many slots that takes."""
    with session.client() as client:
        if name is not None:
            _get(client, name)
        found = client.queues.forecast(name, target=target, span=span)
    session.answer(found, lambda: "\n".join(output.clean(one.sentence) for one in found))
    if not found:
        session.say("no queues yet; create one with  holdfast job enqueue")


def queue_table(queues: Sequence[Queue], rates: Mapping[str, float]) -> str:
    """Render queues as a table of depths, and the share of attempts that ended well."""
    return output.table(
        ("queue", "state", "oldest", "queued", "leased", "limit", "dead", "done", "success"),
        [
            (
                one.queue,
                "paused" if one.paused_at else "active",
                output.span(one.oldest) if one.queued else "-",
                one.queued,
                one.leased,
                "-" if one.limit is None else one.limit,
                one.dead,
                one.done,
                _share(rates.get(one.queue)),
            )
            for one in queues
        ],
    )


def _rates(hour: Sequence[Success], day: Sequence[Success]) -> dict[str | None, tuple[str, str]]:
    shares = [{one.kind: one.rate for one in some} for some in (hour, day)]
    return {one.kind: (_share(shares[0].get(one.kind)), _share(one.rate)) for one in day}


def _success(whole: tuple[str, str] | None) -> dict[str, str | None]:
    told = whole and f"{whole[0]} of the attempts of the last hour, {whole[1]} of the last day"
    return {"success": told}


def _share(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1%}"


def _get(client: "Client", name: str) -> Queue:
    found = client.queues.get(name)
    if found is None:
        known = [other.queue for other in client.queues.list()]
        raise UnknownQueue(name, suggestion=nearest(name, known))
    return found


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not KEY=VALUE")
    if key not in _READERS:
        known = f"Settings are: {', '.join(_READERS)}."
        raise click.UsageError(f"unknown setting {key!r}{nearest(key, _READERS)}. {known}")
    if value.lower() in ("none", "null", ""):
        return key, None
    try:
        return key, _READERS[key](value)
    except click.BadParameter as error:
        raise click.UsageError(f"{key}: {error.message}") from None


def _reader(field: Field) -> Callable[[str], Any]:
    """Return what reads a setting as people type it, by its type; SQL checks the value."""
    if field.limits == BYTES:
        return size
    return {timedelta: duration, bool: on_or_off, int: whole}.get(field.type, str)


_READERS = {field.name: _reader(field) for field in declared(QueueSettings)}


def _settings(found: Queue) -> dict[str, Any]:
    paused = found.paused_at and " ".join(
        [
            f"since {output.moment(found.paused_at)}",
            *([f"until {output.moment(found.paused_until)}"] if found.paused_until else []),
            *([f"by {found.paused_by}"] if found.paused_by else []),
            *([f"({found.paused_reason})"] if found.paused_reason else []),
        ]
    )
    oldest = output.span(found.oldest) if found.queued else None
    settings = {key: _value(found, key) for key in _READERS}
    return {"queue": found.queue, "paused": paused, "oldest": oldest, **settings}


def _value(found: Queue, key: str) -> str:
    value = getattr(found, key)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return output.span(value) if isinstance(value, timedelta) else str(value)
