"""`holdfast adopt`, `unadopt`, `adopted` and `link`: tables of the application as queues."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import output
from holdfast.cli.grammar import Command
from holdfast.cli.session import SOURCES, Session, actor, pass_session
from holdfast.cli.values import duration
from holdfast.errors import CannotAdopt

if TYPE_CHECKING:
    from holdfast.adopt import Choices, Plan

STATES = ("queued", "leased", "done", "dead", "cancelled")


@click.command(
    cls=Command,
    short_help="Use one of your tables as a queue.",
    examples=[
        "holdfast adopt jobs --output reports.job_id --plan",
        "holdfast adopt shop.orders --map queued=new --map done=shipped --yes",
    ],
)
@click.argument("table")
@click.option(
    "--map", "mapped", multiple=True, metavar="STATE=VALUE", help="map a status to a state"
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="MEANING=COLUMN",
    help="which column to use; or =none",
)
@click.option(
    "--existing", type=click.Choice(STATES), metavar="STATE", help="state of existing rows"
)
@click.option("--order", metavar="COLUMNS", help="order of the jobs")
@click.option("--output", "made", metavar="TABLE.COLUMN", help="where the output of a row is")
@click.option("--done-when", metavar="SQL", help="the same as a condition on the row `job`")
@click.option("--stuck-after", type=duration, metavar="10m", help="requeue rows other code left")
@click.option(
    "--on-success",
    type=click.Choice(["keep", "delete"]),
    metavar="keep|delete",
    help="what to do with done rows",
)
@click.option("--unique-live", is_flag=True, help="let unique constraints apply to live rows only")
@click.option(
    "--where-column",
    "filters",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="only these rows are jobs",
)
@click.option("--queue", metavar="NAME", help="queue name  [the table's]")
@click.option("--kind", metavar="NAME", help="kind of its jobs  [the queue's name]")
@click.option("--payload", metavar="COLUMNS", help="what handlers get  [the whole row]")
@click.option("--refresh", is_flag=True, help="adapt to a changed table")
@click.option("--plan", "only_plan", is_flag=True, help="print the SQL, change nothing")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def adopt(
    session: Session, /, table: str, only_plan: bool, refresh: bool, yes: bool, **given: Any
) -> None:
    """Use a table as a queue: its rows are the jobs and stay where they are.

    If it fails, run it again. MEANING: status, started_at, lane...
    """
    from holdfast import adopt as adoption

    with session.database() as database:
        url, source = database.url, SOURCES[database.origin]
        if refresh:
            renewed = adoption.refresh(url, table, source=source)
            session.answer(
                {"table": renewed.relation, "queue": renewed.queue},
                lambda: f"{renewed.relation} is refreshed as queue {renewed.queue}",
            )
            return
        choices = _choices(given)
        try:
            plan = adoption.plan(url, table, choices, source=source)
        except CannotAdopt as problem:
            if "--existing" not in problem.fix or not sys.stdin.isatty():
                raise
            session.say(problem.what)
            existing = click.prompt("state of existing rows", type=click.Choice(STATES), err=True)
            choices = replace(choices, existing=existing)
            plan = adoption.plan(url, table, choices, source=source)
        if plan.unknown and sys.stdin.isatty() and not yes:
            choices = _asked(plan, choices)
            plan = adoption.plan(url, table, choices, source=source)
        if only_plan:
            session.answer(_document(plan), lambda: plan.sql)
            return
        for warning in plan.warnings:
            session.say(f"note: {warning}")
        left = [step for step in plan.steps if step.name not in plan.done]
        session.say(_summary(plan))
        session.confirm(
            f"adopt {plan.relation} as queue {plan.queue}?",
            count=f"{len(left)} steps on {plan.relation}",
            yes=yes or not left,
        )
        adoption.adopt(url, plan, actor=actor(), source=source, told=session.say)
        session.answer(_document(plan), lambda: f"{plan.relation} is queue {plan.queue}")


@click.command(
    cls=Command,
    short_help="Undo the adoption of a table.",
    examples=["holdfast unadopt jobs", "holdfast unadopt shop.orders --force --yes"],
)
@click.argument("table")
@click.option("--force", is_flag=True, help="requeue rows that workers hold")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def unadopt(session: Session, table: str, force: bool, yes: bool) -> None:
    """Undo an adoption: remove its columns, indexes, triggers and constraints.

    Rows keep their status.
    """
    from holdfast import adopt as adoption

    session.confirm(f"unadopt {table}?", count=f"this would unadopt {table}", yes=yes)
    with session.database() as database:
        plan = adoption.unadopt(
            database.url, table, force=force, source=SOURCES[database.origin], told=session.say
        )
    session.answer(
        {"table": plan.relation, "queue": plan.queue},
        lambda: f"{plan.relation} is as it was before",
    )


@click.command(
    cls=Command,
    short_help="See adopted tables and what other code does to them.",
    examples=["holdfast adopted", "holdfast adopted jobs --reconcile --dry-run"],
)
@click.argument("table", required=False)
@click.option("--reconcile", is_flag=True, help="settle abandoned rows by their output")
@click.option("--dry-run", is_flag=True, help="only show what it would do")
@pass_session
def adopted(session: Session, table: str | None, reconcile: bool, dry_run: bool) -> None:
    """List adopted tables or, for one, what other code did to its rows."""
    from holdfast import adopt as adoption

    with session.database() as database:
        url, source = database.url, SOURCES[database.origin]
        if table is None:
            rows = adoption.adopted(url, source=source)
            headings: tuple[str, ...] = (
                "table",
                "queue",
                "live",
                "queued",
                "leased",
                "done",
                "dead",
            )
        elif reconcile:
            rows = adoption.reconcile(url, table, dry_run=dry_run, source=source)
            headings = ("subject", "worker", "since", "output", "verdict")
        else:
            rows = adoption.report(url, table, source=source)
            headings = ("who", "what", "jobs", "sample")
    session.answer(
        rows,
        lambda: (
            output.table(headings, [[_cell(row[name]) for name in headings] for row in rows])
            if rows
            else ""
        ),
    )
    if not rows:
        session.say("nothing to report" if table else "no adopted tables")


@click.command(
    cls=Command,
    short_help="Delete queued jobs when their row is deleted.",
    examples=["holdfast link orders", "holdfast link shop.orders --remove"],
)
@click.argument("table")
@click.option("--prefix", metavar="TEXT", help="prefix of subjects  [TABLE:]")
@click.option("--remove", is_flag=True, help="remove the link")
@pass_session
def link(session: Session, table: str, prefix: str | None, remove: bool) -> None:
    """Delete queued jobs when the row they belong to is deleted.

    A job names its row by its subject, such as orders:42.
    """
    from holdfast import adopt as adoption

    with session.database() as database:
        url, source = database.url, SOURCES[database.origin]
        if remove:
            adoption.unlink(url, table, source=source)
            session.answer({"table": table, "linked": False}, lambda: f"{table} is not linked")
            return
        form = adoption.link(url, table, prefix=prefix, source=source)
    session.answer(
        {"table": table, "linked": True, "subject": form},
        lambda: f"jobs with the subject {form} are deleted with their row",
    )


def _choices(given: dict[str, Any]) -> "Choices":
    from holdfast.adopt import Choices

    states: dict[str, list[str]] = {}
    for state, values in _pairs(given["mapped"], "--map"):
        states.setdefault(state, []).extend(values.split(","))
    columns = dict(_pairs(given["columns"], "--column"))
    stuck: timedelta | None = given["stuck_after"]
    return Choices(
        queue=given["queue"],
        kind=given["kind"],
        status=columns.pop("status", None),
        order=given["order"],
        states=states,
        columns=columns,
        payload=[name.strip() for name in (given["payload"] or "").split(",") if name.strip()],
        existing=given["existing"],
        output=given["made"],
        done_when=given["done_when"],
        stuck_after=stuck,
        on_success=given["on_success"],
        unique_live=given["unique_live"],
        where=dict(_pairs(given["filters"], "--where-column")),
    )


def _pairs(texts: Iterable[str], option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise click.UsageError(f"{option} {text!r} is not NAME=VALUE")
        pairs.append((name, value))
    return pairs


def _asked(plan: "Plan", choices: "Choices") -> "Choices":
    states = {state: list(values) for state, values in choices.states.items()}
    for value, rows in plan.unknown.items():
        answer = click.prompt(
            f"status {value!r} ({rows} rows) is",
            type=click.Choice([*STATES, "nothing"]),
            default="nothing",
            err=True,
        )
        if answer != "nothing":
            states.setdefault(answer, list(plan.spec["states"].get(answer, []))).append(value)
    return replace(choices, states=states)


def _summary(plan: "Plan") -> str:
    states = ", ".join(
        f"{state}: {' or '.join(values)}" for state, values in plan.spec["states"].items() if values
    )
    columns = ", ".join(f"{meaning}: {name}" for meaning, name in plan.spec["columns"].items())
    rows = ", ".join(f"{rows} {state}" for state, rows in plan.existing.items())
    return output.block(
        {
            "table": plan.relation,
            "queue": plan.queue,
            "status": f"{plan.spec['status']} ({states})",
            "columns": columns,
            "rows now": rows or None,
            "done when": plan.spec.get("done_when"),
            "on success": "rows are deleted" if "on_success" in plan.spec else None,
            "only rows": " and ".join(
                f"{one['column']} = {one['value']}" for one in plan.spec.get("where", [])
            )
            or None,
        }
    )


def _document(plan: "Plan") -> dict[str, Any]:
    return {
        "table": plan.relation,
        "queue": plan.queue,
        "spec": plan.spec,
        "existing": plan.existing,
        "warnings": plan.warnings,
        "steps": [{"name": s.name, "do": s.do, "undo": s.undo} for s in plan.steps],
        "sql": plan.sql,
    }


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return output.moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else value
