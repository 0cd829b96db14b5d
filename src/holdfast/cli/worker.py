"""`holdfast worker`: run the jobs of an app, list workers, stop one."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import locate, output
from holdfast.cli.grammar import Group, log_format, nearest
from holdfast.cli.session import Session, actor, pass_session
from holdfast.cli.values import duration, size, whole
from holdfast.errors import UnknownWorker

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.records import WorkerRow
    from holdfast.worker.screen import Screen

SLOTS = 8


class AppOrCommand(Group):
    """A group whose first word is one of its commands, or else the app to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = self.make_parser(ctx).parse_args(list(args))[1]
        if words and words[0] in self.commands:
            return super().parse_args(ctx, args)
        # Options may follow the app.
        ctx.allow_interspersed_args = True
        return click.Command.parse_args(self, ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "APP"]


def queues(value: str) -> dict[str, int]:
    """Read queues and how many jobs of each run at once: mail:8,axiom:1."""
    chosen = {}
    for part in value.split(","):
        name, colon, slots = part.strip().rpartition(":")
        if not colon:
            name, slots = slots, str(SLOTS)
        if not name or not slots.isdecimal() or int(slots) < 1:
            raise click.BadParameter(f"{part!r} is not a queue and a number, such as mail:8")
        chosen[name] = int(slots)
    return chosen


def words(value: str) -> list[str]:
    """Read names with commas between them."""
    return [word for part in value.split(",") if (word := part.strip())]


def positive(value: str) -> int:
    """Read a whole number above zero."""
    if (number := whole(value)) < 1:
        raise click.BadParameter(f"{number} is not above zero")
    return number


def above_zero(value: str) -> timedelta:
    """Read a duration above zero."""
    if (length := duration(value)) <= timedelta():
        raise click.BadParameter(f"{value!r} is not above zero")
    return length


@click.group(
    cls=AppOrCommand,
    context_settings={"auto_envvar_prefix": "HOLDFAST_WORKER"},
    invoke_without_command=True,
    short_help="Run the jobs of an app; see and stop workers.",
    seldom=("kinds", "max_jobs", "recycle_jobs", "recycle_rss", "imports", "lease"),
    examples=["holdfast worker shop.jobs:app -q mail:8,axiom:1", "holdfast worker app.py --reload"],
)
@click.option("-q", "--queues", type=queues, metavar="mail:8,axiom:1", help="slots per queue")
@click.option("--kinds", type=words, metavar="A,B", help="only these kinds of jobs")
@click.option("--processes", type=positive, default="1", metavar="N", help="ordinary workers (1)")
@click.option("--until-idle", is_flag=True, help="exit when no jobs are left, for cron")
@click.option("--max-jobs", type=positive, metavar="N", help="exit after that many jobs")
@click.option("--recycle-jobs", type=positive, metavar="N", help="a fresh process after N jobs")
@click.option("--recycle-rss", type=size, metavar="1GB", help="a fresh process above that memory")
@click.option("--grace", type=duration, metavar="25s", help="time to finish when stopped")
@click.option("--lease", type=duration, metavar="30s", help="length of leases  [the queue's]")
@click.option("--timeout", type=above_zero, metavar="60s", hidden=True)
@click.option("--poll", type=above_zero, metavar="3.5s", hidden=True)
@click.option("--metrics", metavar="[HOST:]PORT", help="serve metrics to Prometheus")
@click.option("--health", metavar="[HOST:]PORT", help="answer /livez and /readyz")
@click.option("--import", "imports", multiple=True, metavar="MODULE", help="import this as well")
@click.option("--reload", is_flag=True, help="restart when a Python file changes")
@log_format
@pass_session
@click.pass_context
def worker(ctx: click.Context, session: Session, /, **options: Any) -> None:
    """Run the jobs of APP: a module (shop.jobs:app) or a file (app.py).

    A process opens up to 10 connections and one more for each slot.
    """
    if ctx.invoked_subcommand:
        return
    if len(ctx.args) != 1:
        ctx.fail("name one APP, as in  holdfast worker shop.jobs:app")
    work(session, ctx.args[0], **options)


@worker.command("list", examples=["holdfast worker list", "holdfast worker list --json"])
@pass_session
def list_workers(session: Session) -> None:
    """List the workers of the last day, the most recently seen first."""
    with session.client() as client:
        found = client.workers.list()
    session.answer(found, lambda: _table(found) if found else "")
    if not found:
        session.say("no workers in the last day; start one with  holdfast worker APP")


@worker.command(examples=["holdfast worker stop ada-3f2c91d0", "holdfast worker stop 91d0"])
@click.argument("id", metavar="ID")
@pass_session
def stop(session: Session, id: str) -> None:
    """Ask a worker to finish its jobs and exit; the end of its ID is enough."""
    with session.client() as client:
        found = _get(client, id)
        client.workers.stop(found.worker, actor=actor())
    session.answer(
        {"worker": found.worker, "alive": found.alive},
        lambda: f"{found.worker} will stop" if found.alive else f"{found.worker} is not running",
    )


def work(
    session: Session,
    app: str,
    *,
    imports: tuple[str, ...],
    reload: bool,
    log_format: str = "text",
    **options: Any,
) -> None:
    """Run the workers of an app until they are stopped."""
    if reload:
        _work_reloading(session, app, imports, {**options, "log_format": log_format})
        return
    found = locate.named(app)
    locate.also_import(imports)
    if session.url:
        found.use(session.url)
    from holdfast.worker import fleet

    wanted = {name: value for name, value in options.items() if value is not None}
    fleet.run(found, screen=_screen(session, log_format), **wanted)


def _work_reloading(
    session: Session, app: str, imports: tuple[str, ...], options: dict[str, Any]
) -> None:
    from holdfast.cli.reload import Reloader
    from holdfast.worker.worker import GRACE

    wanted: timedelta | None = options["grace"]
    grace = GRACE if wanted is None else wanted.total_seconds()
    reloader = Reloader(_typed(session, app, imports, options), grace=grace, say=session.say)
    click.get_current_context().exit(reloader.run())


def _typed(
    session: Session, app: str, imports: tuple[str, ...], options: dict[str, Any]
) -> list[str]:
    """Return the arguments that say the same on a command line, without --reload."""
    typed = ["worker", app]
    typed += [f"--url={session.url}"] if session.url else []
    typed += ["--json"] if session.json else []
    typed += ["--quiet"] if session.quiet else []
    typed += [f"--import={module}" for module in imports]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            typed.append(option)
        elif value not in (None, False):
            typed.append(f"{option}={_word(value)}")
    return typed


def _word(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():f}s"
    if isinstance(value, dict):
        return ",".join(f"{name}:{slots}" for name, slots in value.items())
    return ",".join(value) if isinstance(value, list) else str(value)


def _screen(session: Session, log_format: str) -> "Screen":
    from holdfast.worker.screen import Screen

    if session.json:
        return Screen("json")
    if log_format == "json":
        return Screen("records", session.quiet)
    return Screen.on(terminal=sys.stderr.isatty(), quiet=session.quiet)


def _table(workers: "Sequence[WorkerRow]") -> str:
    return output.table(
        ("worker", "state", "seen", "started", "slots", "busy", "done", "failed", "pid", "queues"),
        [
            (
                one.worker,
                _state(one),
                output.ago(one.seen_at),
                output.ago(one.started_at),
                one.slots,
                one.busy,
                one.acked,
                one.failed,
                one.pid or 0,
                ", ".join(one.queues),
            )
            for one in workers
        ],
    )


def _state(found: "WorkerRow") -> str:
    if not found.alive:
        return "gone"
    return "stopping" if found.stop_at else "alive"


def _get(client: "Client", id: str) -> "WorkerRow":
    known = client.workers.list()
    exact = [one for one in known if one.worker == id]
    found = exact or [one for one in known if one.worker.endswith(id)]
    if len(found) == 1:
        return found[0]
    names = [one.worker for one in found or known]
    if found:
        raise UnknownWorker(
            f"{len(found)} workers end in {id!r}", fix=f"They are: {', '.join(names)}."
        )
    raise UnknownWorker(
        f"no worker is named {id!r}{nearest(id, names)}", fix="See them:  holdfast worker list"
    )
