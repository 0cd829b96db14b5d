"""The command `holdfast`: the queue from a terminal."""

import click

from holdfast import __version__
from holdfast.cli.adopt import adopt, adopted, link, unadopt
from holdfast.cli.anomaly import anomaly
from holdfast.cli.bench import bench
from holdfast.cli.completion import completion
from holdfast.cli.config import config
from holdfast.cli.dead import dead
from holdfast.cli.demo import demo
from holdfast.cli.dev import dev
from holdfast.cli.doctor import doctor
from holdfast.cli.event import event
from holdfast.cli.grammar import Program
from holdfast.cli.job import job
from holdfast.cli.lane import lane
from holdfast.cli.migrate import migrate
from holdfast.cli.moving import import_jobs
from holdfast.cli.node import node
from holdfast.cli.op import op
from holdfast.cli.queue import queue
from holdfast.cli.schedule import schedule
from holdfast.cli.serve import serve
from holdfast.cli.strike import strike
from holdfast.cli.token import token
from holdfast.cli.top import top
from holdfast.cli.upkeep import upkeep
from holdfast.cli.webhook import webhook
from holdfast.cli.worker import worker
from holdfast.cli.workflow import workflow

__all__ = ["main"]


@click.group(
    cls=Program,
    examples=["holdfast demo", "HOLDFAST_URL=postgresql://app@db/shop holdfast queue list"],
)
@click.version_option(__version__, message="holdfast %(version)s", help="show the version and exit")
def main() -> None:
    """A job queue that lives in your PostgreSQL.
    Exit codes: 0 ok, 1 failed, 2 usage, 3 no database, 4 not migrated, 5 refused.
    """


for command in (
    dev,
    worker,
    serve,
    migrate,
    job,
    queue,
    dead,
    op,
    workflow,
    top,
    doctor,
    bench,
    anomaly,
    schedule,
    event,
    strike,
    lane,
    webhook,
    token,
    upkeep,
    node,
    adopt,
    unadopt,
    adopted,
    link,
    import_jobs,
    demo,
    config,
    completion,
):
    main.add_command(command)
