"""`holdfast top`: what happens now, in the terminal."""

import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import output
from holdfast.cli.anomaly import SIGNS
from holdfast.cli.console import sequences_obeyed
from holdfast.cli.grammar import Command
from holdfast.cli.session import Session, pass_session
from holdfast.cli.values import duration
from holdfast.records import Anomaly, Forecast, Queue, WorkerRow

if TYPE_CHECKING:
    from holdfast.client import Client

_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_MOST = 5


@click.command(
    cls=Command,
    short_help="Watch queues, workers and anomalies.",
    examples=["holdfast top", "holdfast top --once | head"],
)
@click.option("--every", type=duration, default="2s", metavar="2s", help="refresh interval")
@click.option("--once", is_flag=True, help="print once and exit")
@pass_session
def top(session: Session, every: timedelta, once: bool) -> None:
    """Watch queues, workers and anomalies until Ctrl-C; when piped, print once."""
    with session.client() as client:
        if session.json:
            click.echo(output.json_document(_look(client)))
        elif once or not sys.stdout.isatty():
            click.echo(_frame(**_look(client)))
        else:
            with sequences_obeyed() as obeyed:
                if obeyed:
                    _watch(client, every.total_seconds())
                else:
                    click.echo(_frame(**_look(client)))


def _watch(client: "Client", every: float) -> None:
    _control(_OTHER_SCREEN)
    try:
        with suppress(KeyboardInterrupt):
            while True:
                frame = _frame(**_look(client))
                _control(_HOME_AND_CLEAR)
                click.echo(frame)
                time.sleep(every)
    finally:
        _control(_OWN_SCREEN)


def _control(sequence: str) -> None:
    sys.stdout.write(sequence)  # echo would leave it out where there is no colour
    sys.stdout.flush()


def _look(client: "Client") -> dict[str, Any]:
    return {
        "queues": client.queues.list(),
        "forecasts": client.queues.forecast(span=60.0),
        "workers": [worker for worker in client.workers.list() if worker.alive],
        "anomalies": [one for one in client.anomalies.list() if not one.muted],
    }


def _frame(
    queues: list[Queue],
    forecasts: list[Forecast],
    workers: list[WorkerRow],
    anomalies: list[Anomaly],
) -> str:
    parts = [_head(queues, workers), *_troubles(anomalies)]
    parts.append(_queues(queues, {one.queue: one for one in forecasts}) if queues else "no queue")
    if workers:
        parts.append(_workers(workers))
    return "\n\n".join(parts)


def _head(queues: list[Queue], workers: list[WorkerRow]) -> str:
    slots, busy = sum(one.slots for one in workers), sum(one.busy for one in workers)
    waiting, leased = sum(one.queued for one in queues), sum(one.leased for one in queues)
    return (
        f"{datetime.now(UTC):%H:%M:%S} UTC   {waiting} waiting   {leased} leased   "
        f"{sum(one.dead for one in queues)} dead   {output.counted(len(workers), 'worker')}, "
        f"{busy} of {slots} slots busy"
    )


def _troubles(anomalies: list[Anomaly]) -> list[str]:
    if not anomalies:
        return []
    lines = [f"{SIGNS[one.severity]} {output.clean(one.title)}" for one in anomalies[:_MOST]]
    if len(anomalies) > _MOST:
        lines.append(f"  and {len(anomalies) - _MOST} more: holdfast anomaly list")
    return ["\n".join(lines)]


def _queues(queues: list[Queue], forecasts: dict[str, Forecast]) -> str:
    rows = []
    busiest_first = sorted(queues, key=lambda q: (-(q.queued + q.leased), q.queue))
    for one in busiest_first:
        ahead = forecasts.get(one.queue)
        rows.append(
            (
                one.queue,
                "paused" if one.paused_at else "active",
                output.span(one.oldest) if one.queued else "-",
                one.queued,
                f"{one.leased}/{one.limit}" if one.limit is not None else str(one.leased),
                _rate(ahead.arriving if ahead else None),
                _rate(ahead.finishing if ahead else None),
                _drained(one, ahead),
                one.dead,
            )
        )
    return output.table(
        ("queue", "state", "oldest", "waiting", "leased", "in/s", "out/s", "drained", "dead"), rows
    )


def _workers(workers: list[WorkerRow]) -> str:
    return output.table(
        ("worker", "host", "busy", "acked", "failed", "lost", "queues"),
        [
            (
                one.worker,
                one.host or "-",
                f"{one.busy}/{one.slots}" if one.slots else "-",
                one.acked,
                one.failed,
                one.lost,
                ",".join(one.queues),
            )
            for one in workers
        ],
    )


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else f"{per_second:.1f}"


def _drained(queue: Queue, ahead: Forecast | None) -> str:
    if not queue.queued or ahead is None or ahead.finishing is None:
        return "-"
    if ahead.drained_at is None:
        return "never"
    return f"in {output.span(output.ahead(ahead.drained_at))}"
