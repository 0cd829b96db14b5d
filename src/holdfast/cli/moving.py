"""`holdfast import`: move what waits in another queue into Holdfast."""

from typing import TYPE_CHECKING

import click

from holdfast.cli import locate, output
from holdfast.cli.grammar import Command, fail, nearest
from holdfast.cli.session import SOURCES, Session, pass_session

if TYPE_CHECKING:
    from holdfast.moving import Report


def renamed(value: str) -> tuple[str, str]:
    """Read the old name of a task and its kind: shop.tasks.mail=mail."""
    old, equals, new = value.partition("=")
    if not (old and equals and new):
        raise click.BadParameter(f"{value!r} should look like shop.tasks.mail=mail")
    return old, new


@click.command(
    "import",
    cls=Command,
    short_help="Move waiting jobs from another queue into Holdfast.",
    examples=[
        "holdfast import procrastinate --app shop.jobs:app --dry-run",
        "holdfast import procrastinate --map shop.tasks.mail=mail --queue mail",
    ],
)
@click.argument("package", metavar="PACKAGE")
@click.option("--dry-run", is_flag=True, help="report only; nothing is changed")
@click.option("--app", metavar="APP", help="check the jobs against the tasks of this app")
@click.option(
    "--map", "kinds", type=renamed, multiple=True, metavar="OLD=KIND", help="the kind of a task"
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="only from this queue")
@click.option("--into", metavar="NAME", help="into this queue  [the same name]")
@click.option("--schema", metavar="NAME", help="where the old tables are  [search_path]")
@click.option("--django", is_flag=True, help="the tasks will be those of Django")
@click.option("--config", metavar="MODULE:NAME", help="the app of celery with a beat_schedule")
@pass_session
def import_jobs(
    session: Session,
    package: str,
    dry_run: bool,
    app: str | None,
    kinds: tuple[tuple[str, str], ...],
    queues: tuple[str, ...],
    into: str | None,
    schema: str | None,
    django: bool,
    config: str | None,
) -> None:
    """Move what waits in PACKAGE into Holdfast: procrastinate, pgqueuer,
    django-tasks-db, django-q2, django-celery-beat, celery. It is one
    transaction. What cannot be moved stays; then it exits with 1.
    """
    from holdfast import moving

    if package not in moving.PACKAGES:
        near = nearest(package, moving.PACKAGES)
        known = ", ".join(moving.PACKAGES)
        raise click.UsageError(f"{package!r} cannot be imported{near}; it should be one of {known}")
    found = locate.named(app) if app else None
    if (package == "celery") != bool(config):
        raise click.UsageError(
            "celery has its schedules in code; name its app:  "
            "holdfast import celery --config shop.celery:app"
        )
    wishes = moving.Wishes(found, dict(kinds), queues, into, schema, django)
    tables = moving.PACKAGES[package]()
    configured = moving.configured(locate.attribute(config)) if config else ()
    with session.database() as database:
        report = moving.move(
            database.url,
            package,
            tables,
            wishes,
            configured=configured,
            dry_run=dry_run,
            source=SOURCES[database.origin],
        )
    session.answer(report, lambda: _told(report))
    session.say(_summary(report))
    if report.left:
        fail()


def _told(report: "Report") -> str:
    parts = []
    if report.moved:
        rows = [
            (one.jobs, one.later, one.schedules, one.duplicates, one.queue, one.kind)
            for one in report.moved
        ]
        headings = ("jobs", "later", "schedules", "duplicates", "queue", "kind")
        parts.append(output.table(headings, rows))
    if report.left:
        left = [(one.rows, one.kind, one.example, one.why) for one in report.left]
        parts.append(output.table(("left", "kind", "such as", "because"), left))
    return "\n\n".join(parts)


def _summary(report: "Report") -> str:
    jobs = sum(one.jobs for one in report.moved)
    schedules = sum(one.schedules for one in report.moved)
    verb = "would be moved" if report.dry_run else "moved"
    lines = [
        f"{output.counted(jobs, 'job')} and {output.counted(schedules, 'schedule')} {verb} from "
        f"{report.package}" + ("; nothing was changed" if report.dry_run else "")
    ]
    if report.left:
        left = sum(one.rows for one in report.left)
        lines.append(f"{output.counted(left, 'row')} {'stays' if left == 1 else 'stay'} there")
    if running := sum(report.running.values()):
        kinds = ", ".join(report.running)
        lines.append(f"{output.counted(running, 'job')} running there will finish there: {kinds}")
    return "\n".join([*lines, *(f"note: {note}" for note in report.notes)])
