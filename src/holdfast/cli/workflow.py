"""`holdfast workflow`: jobs that belong together, under a name."""

from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group, fail
from holdfast.cli.op import follow
from holdfast.cli.selection import find_id
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration, new_jobs
from holdfast.errors import Misuse, UnknownWorkflow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from uuid import UUID

    from holdfast.client import Client
    from holdfast.records import JobCounts, Operation, Workflow, WorkflowGroup

GROUPS = 1000
STATES = ("running", "waiting", "done", "failed", "cancelled")


@click.group(
    cls=Group,
    examples=["holdfast workflow list --state waiting", "holdfast workflow show 1f00ab12"],
)
def workflow() -> None:
    """Start, see and change workflows: jobs that belong together."""


@workflow.command(
    short_help="Start a workflow and print its id.",
    examples=[
        """holdfast workflow start w '[{"kind": "a"}, {"kind": "b", "after": [1]}]'""",
        "holdfast workflow start report - --key 2026-11 --deadline 2h < jobs.json",
    ],
)
@click.argument("name")
@click.argument("jobs", required=False, metavar="[JSON|-]")
@click.option("--key", metavar="TEXT", help="at most one live workflow of a name can have it")
@click.option(
    "--deadline", type=duration, metavar="10m", help="cancel what has not ended after this time"
)
@pass_session
def start(
    session: Session, name: str, jobs: str | None, key: str | None, deadline: "timedelta | None"
) -> None:
    """Start a workflow and print its id; JSON is the list of its jobs, - reads it from stdin.
    All of its jobs are stored, or none.
    """
    wanted = [] if jobs is None else new_jobs(jobs)
    with session.client() as client:
        started = client.workflows.start(name, wanted, key=key, deadline=deadline, actor=actor())
    if not started.created:
        found = output.short(started.id)
        session.say(f"not stored: workflow {found} is live and has the same name and key")
    for nth, one in enumerate(started.jobs, 1):
        if one.duplicate_of is not None:
            live = output.short(one.duplicate_of)
            session.say(f"job {nth} not stored: job {live} is live and has the same key")
    session.answer(started, lambda: str(started.id))


@workflow.command(
    "list",
    examples=["holdfast workflow list", "holdfast workflow list --name import --state failed"],
)
@click.option("--name", help="only workflows of this name")
@click.option("--key", help="only workflows with this key")
@click.option("--state", type=click.Choice(STATES), help="only those in this state")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, metavar="N", help="how many  [50]"
)
@pass_session
def list_workflows(
    session: Session, name: str | None, key: str | None, state: str | None, limit: int
) -> None:
    """List workflows, the newest first."""
    with session.client() as client:
        found = client.workflows.list(name=name, key=key, state=state, limit=limit)  # type: ignore[arg-type]
    rows = [
        (
            one.id,
            one.name,
            one.key or "-",
            one.state,
            _done(one.jobs),
            output.ago(one.created_at),
            output.moment(one.deadline) if one.deadline and not one.ended_at else "-",
        )
        for one in found
    ]
    headings = ("id", "name", "key", "state", "done", "started", "deadline")
    session.answer(found, lambda: output.table(headings, rows) if rows else "")
    if not rows:
        session.say("no workflows")


@workflow.command(examples=["holdfast workflow show 1f00ab12", "holdfast workflow show ID --json"])
@click.argument("id")
@pass_session
def show(session: Session, id: str) -> None:
    """Show a workflow and its jobs, in groups of those that follow the same.
    ID is its own, or that of one of its jobs.
    """
    with session.client() as client:
        found = find(client, id)
        groups = client.workflows.groups(found.id, limit=GROUPS + 1)
    shown, more = groups[:GROUPS], len(groups) > GROUPS
    session.answer(
        {"workflow": found, "groups": shown, "more_groups": more}, lambda: _told(found, shown)
    )
    if more:
        session.say("more groups are not shown")


@workflow.command(
    examples=[
        'holdfast workflow cancel 1f00ab12 --reason "wrong file"',
        "holdfast workflow cancel 1f00ab12 --yes",
    ]
)
@click.argument("id")
@click.option("--reason", metavar="TEXT", help="why; recorded in the activity log")
@click.option("-y", "--yes", is_flag=True, help="do not ask for confirmation")
@pass_session
def cancel(session: Session, id: str, reason: str | None, yes: bool) -> None:
    """Cancel a workflow: all its jobs that have not ended.
    It takes no more jobs. Undo it with `holdfast op undo`.
    """
    with session.client() as client:
        found = find(client, id)
        open = found.jobs.waiting + found.jobs.queued + found.jobs.leased
        count = f"{output.counted(open, 'job')} of workflow {found.name}"
        session.confirm(f"cancel {count}?", count=f"this would cancel {count}", yes=yes)
        started = client.workflows.cancel(found.id, reason=reason, actor=actor())
        _follow(session, client, started, "cancelled")


@workflow.command(
    examples=["holdfast workflow retry 1f00ab12", "holdfast workflow retry 1f00ab12 --from JOB"],
)
@click.argument("id")
@click.option("--from", "job", metavar="JOB", help="only this job and those that follow it")
@click.option("--reason", metavar="TEXT", help="why; recorded in the activity log")
@click.option("-y", "--yes", is_flag=True, help="do not ask for confirmation")
@pass_session
def retry(session: Session, id: str, job: str | None, reason: str | None, yes: bool) -> None:
    """Retry a workflow: its dead and cancelled jobs.
    Jobs that are done stay done.
    """
    with session.client() as client:
        found = find(client, id)
        first = find_id(client, job) if job else None
        what = f"the failed jobs of workflow {found.name}"
        what += f", from job {first} on" if first else ""
        session.confirm(f"retry {what}?", count=f"this would retry {what}", yes=yes)
        started = client.workflows.retry(found.id, from_job=first, reason=reason, actor=actor())
        _follow(session, client, started, "retried")


def _follow(session: Session, client: "Client", started: "Operation | None", past: str) -> None:
    assert started is not None
    ended = follow(session, client, started)
    session.answer(ended, lambda: f"{output.counted(ended.changed, 'job')} {past}")
    if ended.problem:
        click.echo(f"operation {ended.id} failed: {ended.problem}", err=True)
    if ended.undoable:
        session.say(f"undo it:  holdfast op undo {ended.id}")
    if ended.state == "failed":
        fail()


def find(client: "Client", text: str) -> "Workflow":
    """Return the workflow that a UUID, or its last digits, stands for."""
    id = _id(client, text)
    found = None if id is None else client.workflows.get(id)
    if found is None:
        raise UnknownWorkflow(text)
    return found


def _id(client: "Client", text: str) -> "UUID | None":
    digits = text.replace("-", "").lower()
    if not digits or not set(digits) <= set("0123456789abcdef") or len(digits) > 32:
        raise Misuse(
            f"{text!r} is not the id of a workflow",
            fix="An id is a UUID, or its last 8 digits or more.",
        )
    if len(digits) < 8:
        raise Misuse(f"id {text!r} is too short", fix="Give its last 8 digits or more.")
    found = client.workflows.find(digits)
    if len(found) > 1:
        raise Misuse(f"several workflows have ids that end in {text}", fix="Give more digits.")
    return found[0] if found else None


def _done(jobs: "JobCounts") -> str:
    told = f"{jobs.done} of {jobs.total}"
    failed = jobs.dead + jobs.cancelled
    return f"{told}, {failed} failed" if failed else told


def _told(one: "Workflow", groups: "Sequence[WorkflowGroup]") -> str:
    facts = [
        ("id", one.id),
        ("state", one.state),
        ("key", one.key),
        (
            "started",
            f"{output.moment(one.created_at)}{f' by {one.created_by}' * bool(one.created_by)}",
        ),
        ("deadline", output.moment(one.deadline) if one.deadline else None),
        ("ended", output.moment(one.ended_at) if one.ended_at else None),
        ("reason", one.reason),
        ("child of", one.parent),
        ("done", _done(one.jobs)),
    ]
    lines = [f"workflow {one.name}", *(f"  {name:<9} {value}" for name, value in facts if value)]
    numbers = {group.group: nth for nth, group in enumerate(groups, 1)}
    rows = [
        (
            nth,
            group.kind,
            group.queue,
            ", ".join(str(numbers.get(before, "…")) for before in group.after) or "-",
            group.jobs.total,
            _states(group.jobs),
            group.job or "",
        )
        for nth, group in enumerate(groups, 1)
    ]
    headings = ("group", "kind", "queue", "after", "jobs", "states", "job")
    return "\n".join([*lines, "", output.table(headings, rows)]) if rows else "\n".join(lines)


def _states(jobs: "JobCounts") -> str:
    named = ("waiting", "queued", "leased", "done", "dead", "cancelled")
    return ", ".join(f"{count} {name}" for name in named if (count := getattr(jobs, name)))
