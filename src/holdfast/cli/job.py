"""`holdfast job`: enqueue jobs, look at them, change them one by one or by filter."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar, get_args
from uuid import UUID

import click

from holdfast.cli import output
from holdfast.cli.event import event_line
from holdfast.cli.fields import options_of
from holdfast.cli.grammar import Group, fail, nearest
from holdfast.cli.log import ALL, JobLog
from holdfast.cli.selection import Verb, change, find_id, job_table, unknown
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration, headers, json_value, moment
from holdfast.recent import PER_SECOND
from holdfast.records import LABELS, Attempt, Event, Job, NewJob, State, Step
from holdfast.records.ids import PARTS, part_of

if TYPE_CHECKING:
    from holdfast.client import Client

F = TypeVar("F", bound=Callable[..., None])


@click.group(
    cls=Group,
    examples=["holdfast job list state:dead", "holdfast job retry 'state:dead age:<2h' --preview"],
)
def job() -> None:
    """Enqueue, see and change jobs.
    A filter is terms that must all hold: state:dead kind:send* age:<2h
    attempt:>2 error:"Timeout*" payload.user.id:42 -queue:mail
    """


@job.command(
    short_help="Store a job and print its id.",
    seldom=("expires_at", "lease", "tenant", "subject", "if_failed", "workflow", "id"),
    examples=[
        """holdfast job enqueue greet '{"name": "Ada"}' --delay 10m""",
        "holdfast job enqueue import - --queue slow --key daily < order.json",
    ],
)
@click.argument("kind")
@click.argument("payload", required=False, metavar="[JSON|-]")
@options_of(
    NewJob,
    leave_out=("kind", "payload", "headers", "take", "child_of"),
    spelt={"queue": ("-q", "--queue"), "priority": ("-p", "--priority"), "run_at": ("--at",)},
)
@click.option("--header", "header", multiple=True, metavar="NAME=VALUE", help="may be repeated")
@pass_session
def enqueue(
    session: Session, /, kind: str, payload: str | None, header: tuple[str, ...], **options: Any
) -> None:
    """Store a job and print its id; JSON is its payload, - reads it from stdin."""
    if options["delay"] is not None and options["run_at"] is not None:
        raise click.UsageError("--delay and --at exclude each other")
    value = None if payload is None else json_value(payload)
    queue = options["queue"]
    with session.client() as client:
        known = (
            [queue] if client.queues.get(queue) else [found.queue for found in client.queues.list()]
        )
        enqueued = client.enqueue(kind, value, headers=headers(header), **options)
    if not enqueued.created:
        session.say(f"not stored: job {output.short(enqueued.id)} is live and has the same key")
    if enqueued.holder is not None:
        place = f"queue {queue}" if options["lane"] is None else f"lane {options['lane']}"
        session.say(
            f"{place} is busy with job {output.short(enqueued.behind or enqueued.id)}, which "
            f"{enqueued.holder} has held for {output.ago(enqueued.held_since)}: this one waits"
        )
    if queue not in known and queue != "default":
        session.say(f"queue {queue} is new{nearest(queue, known)}")
    session.answer(enqueued, lambda: str(enqueued.id))


@job.command(
    "list", examples=["holdfast job list", """holdfast job list 'state:dead error:"Timeout*"'"""]
)
@click.argument("filter", nargs=-1)
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, metavar="N", help="how many  [50]"
)
@click.option("--before", metavar="ID", help="go on behind this job")
@pass_session
def list_jobs(session: Session, filter: tuple[str, ...], limit: int, before: str | None) -> None:
    """List jobs that match a filter, newest first."""
    with session.client() as client:
        behind = find_id(client, before) if before else None
        jobs = client.jobs.list(" ".join(filter), limit=limit + 1, before=behind)
        kept = _what_is_kept(client, " ".join(filter).split(), jobs)
    shown = jobs[:limit]
    session.answer(shown, lambda: job_table(shown) if shown else "")
    if kept:
        session.say(kept)
    if not shown:
        states = [word for word in filter if word in get_args(State)]
        hint = f"; for those in a state:  holdfast job list state:{states[0]}" if states else ""
        # The filter takes such a word for a text in the error; elsewhere here it sets a value.
        terms = [word for word in filter if re.fullmatch(r"-?[a-z_.]+=[^=]+", word)]
        if terms:
            hint = f"; a term has a colon:  holdfast job list {terms[0].replace('=', ':', 1)}"
        session.say(f"no job matches{hint}")
    if len(jobs) > limit:
        session.say(f"there are more: --before {output.short(shown[-1].id)}, or --limit")


def _what_is_kept(client: "Client", terms: Sequence[str], jobs: Sequence[Job]) -> str | None:
    """Return what a list of done jobs leaves out; None if nothing, or if it is not asked for."""
    said = dict(term.split(":", 1) for term in terms if ":" in term)
    if "done" not in said.get("state", "").split(","):
        return None
    names = said.get("queue", "*").split(",")
    # Rows of adopted tables stay where they are.
    adopted = {job.queue for job in jobs if part_of(job.id) >= PARTS}
    queues = [
        queue
        for queue in client.queues.list()
        if not queue.keep_done
        and queue.queue not in adopted
        and any(fnmatchcase(queue.queue, name) for name in names)
    ]
    if not queues:
        return None
    name = queues[0].queue if len(queues) == 1 else "QUEUE"
    how = f"holdfast queue set {name} keep_done=7d"
    if any(queue.keep_recent for queue in queues):
        return (
            f"of done jobs, a worker keeps at most {PER_SECOND} a second, for a day; "
            f"to keep all:  {how}"
        )
    return f"done jobs are not kept; to keep them:  {how}"


@job.command(
    short_help="Show all that is known of a job.",
    examples=["holdfast job show 1f00ab12", "holdfast job show 1f00ab12 --json | jq .payload"],
)
@click.argument("id")
@pass_session
def show(session: Session, id: str) -> None:
    """Show all that is known of a job: payload, attempts, history, why it waits."""
    with session.client() as client:
        found = _get(client, find_id(client, id))
        attempts = client.jobs.attempts(found.id)
        why = client.jobs.explain(found.id)
        steps = client.steps.list(found.id)
        events = client.activity.list(job=found.id, limit=100).events[::-1]
    document = {
        **output.plain(found),
        "attempts": attempts,
        "steps": steps,
        "events": events,
        "explain": why,
    }
    session.answer(document, lambda: _described(found, attempts, steps, events, why))


@job.command(
    short_help="Show what the handler of a job logs.",
    examples=["holdfast job log 1f00ab12", "holdfast job log 1f00ab12 --follow"],
)
@click.argument("id")
@click.option(
    "-n", "--limit", type=click.IntRange(1, ALL), default=ALL, metavar="N", help="the last N lines"
)
@click.option("-f", "--follow", is_flag=True, help="print new lines until the job has ended")
@pass_session
def log(session: Session, id: str, limit: int, follow: bool) -> None:
    """Show what the handler of a job logs; with --json one document per line.
    With --follow it also says what becomes of the job, and exits with 0 if it is done, else 1.
    """
    with session.client() as client:
        told = JobLog(session, client, find_id(client, id), limit)
        if not follow:
            told.show()
        elif not told.follow():
            fail()


@job.command(examples=["holdfast job explain 1f00ab12", "holdfast job explain 1f00ab12 --json"])
@click.argument("id")
@pass_session
def explain(session: Session, id: str) -> None:
    """Say in one sentence why a job is not running."""
    with session.client() as client:
        found = _get(client, find_id(client, id))
        why = client.jobs.explain(found.id)
    session.answer({"id": found.id, "explain": why}, lambda: output.clean(why))


def _changes_jobs(command: F) -> F:
    options = (
        click.argument("target", nargs=-1, required=True, metavar="ID...|FILTER"),
        click.option("--reason", help="kept with the job"),
        click.option(
            "-n", "--limit", type=click.IntRange(1), metavar="N", help="only the newest N"
        ),
        click.option("--preview", is_flag=True, help="only count and show them"),
        click.option("--yes", is_flag=True, help="do not ask"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@job.command(
    examples=[
        "holdfast job retry 1f00ab12 --reason 'mail server is back'",
        """holdfast job retry 'state:dead error:"Timeout*" age:<2h' --limit 10""",
    ],
)
@_changes_jobs
@click.option("--delay", type=duration, metavar="10m", help="not before this has passed")
@click.option("--fresh", is_flag=True, help="forget their steps: start from nothing")
@pass_session
def retry(
    session: Session,
    /,
    target: Sequence[str],
    reason: str | None,
    delay: timedelta | None,
    fresh: bool,
    **how: Any,
) -> None:
    """Queue ended jobs again, with all their attempts."""
    change(
        session,
        target,
        Verb("retry", "retried", "retry", {"delay": delay, "fresh": fresh or None}),
        lambda client, ids: client.jobs.retry(
            ids, reason=reason, actor=actor(), delay=delay, fresh=fresh
        ),
        reason=reason,
        **how,
    )


@job.command(
    examples=[
        "holdfast job cancel 1f00ab12 --reason 'user left'",
        "holdfast job cancel 'kind:report payload.user:42' --yes",
    ],
)
@_changes_jobs
@pass_session
def cancel(session: Session, /, target: Sequence[str], reason: str | None, **how: Any) -> None:
    """Cancel queued and leased jobs; the worker of a running job is notified."""
    change(
        session,
        target,
        Verb("cancel", "cancelled", "cancel", asks_for_many=True),
        lambda client, ids: client.jobs.cancel(ids, reason=reason, actor=actor()),
        reason=reason,
        **how,
    )


@job.command(
    examples=["holdfast job delete 1f00ab12", "holdfast job delete 'state:dead age:>30d' --yes"]
)
@_changes_jobs
@pass_session
def delete(session: Session, /, target: Sequence[str], reason: str | None, **how: Any) -> None:
    """Delete jobs permanently; cancel leased ones first."""
    change(
        session,
        target,
        Verb("delete", "deleted", "delete", asks_for_one=True),
        lambda client, ids: client.jobs.delete(ids, reason=reason, actor=actor()),
        reason=reason,
        **how,
    )


@job.command(
    examples=[
        """holdfast job edit 1f00ab12 --payload '{"to": "ada@example.org"}'""",
        "holdfast job edit 'kind:report state:queued' --priority 9 --yes",
    ],
)
@_changes_jobs
@click.option("--payload", metavar="JSON|-", help="a new one; - reads stdin")
@click.option("--priority", type=int, metavar="0-9", help="9 goes first")
@click.option("--delay", type=duration, metavar="10m", help="not before this has passed")
@click.option("--at", type=moment, metavar="TIME", help="not before, as in 2030-01-31T06:00:00Z")
@click.option("--max-attempts", type=int, metavar="N", help="then it is dead")
@click.option("--lease", type=duration, metavar="30s", help="how long a worker may be silent")
@click.option("--header", multiple=True, metavar="NAME=VALUE", help="replace them; repeatable")
@pass_session
def edit(
    session: Session,
    /,
    target: Sequence[str],
    reason: str | None,
    payload: str | None,
    delay: timedelta | None,
    at: datetime | None,
    header: tuple[str, ...],
    limit: int | None,
    preview: bool,
    yes: bool,
    **others: Any,
) -> None:
    """Change queued and dead jobs."""
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at exclude each other")
    if delay is not None:
        with session.client() as client:
            at = client.now() + delay
    given = {
        **others,
        "payload": None if payload is None else json_value(payload),
        "run_at": at,
        "headers": headers(header),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("nothing to change: give --payload, --priority, --delay, …")
    change(
        session,
        target,
        Verb("edit", "edited"),
        lambda client, ids: client.jobs.edit(ids, reason=reason, actor=actor(), **changes),
        reason=reason,
        limit=limit,
        preview=preview,
        yes=yes,
    )


@job.command(
    short_help="Move queued and dead jobs to another queue.",
    examples=[
        "holdfast job move 1f00ab12 --to slow",
        "holdfast job move 'queue:mail state:queued kind:report' --to slow --yes",
    ],
)
@_changes_jobs
@click.option("--to", "queue", required=True, metavar="QUEUE", help="the queue to move them to")
@pass_session
def move(
    session: Session, /, target: Sequence[str], reason: str | None, queue: str, **how: Any
) -> None:
    """Move queued and dead jobs to another queue; short ids stay the same."""

    change(
        session,
        target,
        Verb("move", "moved", "move", {"queue": queue}),
        lambda client, ids: client.jobs.move(ids, queue, reason=reason, actor=actor()),
        reason=reason,
        **how,
    )


@job.command(
    examples=[
        "holdfast job archive 1f00ab12 --reason 'known, will not be fixed'",
        "holdfast job archive 'state:dead group:f3a9c001' --yes",
    ],
)
@_changes_jobs
@pass_session
def archive(session: Session, /, target: Sequence[str], reason: str | None, **how: Any) -> None:
    """Put ended jobs away: they are kept, but no longer counted or grouped."""
    change(
        session,
        target,
        Verb("archive", "archived", "archive"),
        lambda client, ids: client.jobs.archive(ids, reason=reason, actor=actor()),
        reason=reason,
        **how,
    )


def _get(client: "Client", id: UUID) -> Job:
    found = client.jobs.get(id)
    if found is None:
        raise unknown(id)
    return found


def _described(
    job: Job,
    attempts: Sequence[Attempt],
    steps: Sequence[Step],
    events: Sequence[Event],
    why: str,
) -> str:
    about = output.block(
        {
            "id": job.id,
            "kind": job.kind,
            "queue": job.queue,
            "state": job.state,
            "why": why,
            "attempt": f"{job.attempt} of {job.max_attempts}{_before(job)}",
            "priority": job.priority,
            "created": f"{output.moment(job.created_at)} ({output.ago(job.created_at)} ago)",
            "due": output.moment(job.run_at),
            "ended": job.ended_at and output.moment(job.ended_at),
            "worker": job.worker,
            "lease until": job.lease_until and output.moment(job.lease_until),
            **{name: getattr(job, name) for name in LABELS},
            "error": job.error,
            "group": job.fingerprint,
            "reason": job.reason,
            "headers": job.headers_json,
            "result": output.stored(job.result_json),
        }
    )
    parts = [about, "payload\n" + _indented(output.pretty(job.payload_json))]
    if steps:
        parts.append("steps\n" + _indented(_steps(steps)))
    if attempts:
        parts.append("attempts\n" + _indented(_attempts(attempts)))
    if attempts and attempts[-1].log:
        told = output.clean(attempts[-1].log, keep="\n").rstrip()
        parts.append(f"log of attempt {attempts[-1].attempt}\n" + _indented(told))
    if attempts and attempts[-1].traceback:
        trace = output.clean(attempts[-1].traceback, keep="\n").rstrip()
        parts.append("last traceback\n" + _indented(trace))
    if events:
        parts.append("history\n" + _indented("\n".join(map(event_line, events))))
    return "\n\n".join(parts)


def _before(job: Job) -> str:
    more = job.total_attempts > job.attempt
    return f" ({job.total_attempts} in all, over its retries)" if more else ""


def _attempts(attempts: Sequence[Attempt]) -> str:
    return output.table(
        ("attempt", "outcome", "ended", "ran", "worker", "host", "version", "error"),
        [
            (
                one.attempt,
                one.outcome,
                output.moment(one.ended_at) if one.ended_at else "-",
                output.span(one.ended_at - one.started_at)
                if one.started_at and one.ended_at
                else "-",
                one.worker or "-",
                one.host or "-",
                one.version or "-",
                ": ".join(part for part in (one.error_kind, one.message) if part),
            )
            for one in attempts
        ],
    )


def _steps(steps: Sequence[Step]) -> str:
    return output.table(
        ("step", "began", "took", "attempt", "result"),
        [
            (
                one.name,
                output.moment(one.began_at),
                "waits" if one.ended_at is None else output.span(one.ended_at - one.began_at),
                one.attempt,
                "timed out" if one.timed_out else (output.stored(one.result_json) or "-")[:100],
            )
            for one in steps
        ],
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
