"""Recovery looks first: is the work of a job that was left behind already done?"""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.upkeep.loop import Upkeep
from holdfast.worker import Worker
from tests.conftest import Clock, Connect

Drain = Callable[..., Worker]


@pytest.fixture
def outputs(connect: Connect) -> psycopg.Connection[Any]:
    """The table that `import_order` writes its output to."""
    connection = connect()
    connection.execute("create table output (source_id int primary key)")
    return connection


def left_behind(app: App, clock: Clock, **options: Any) -> Any:
    """Enqueue a job and let a worker that is no more have claimed it."""
    handle = app.tasks["import_order"].options(**options).enqueue(order=7)
    [lease] = app.client.claim(worker="gone", lease=30)
    assert lease.id == handle.id
    clock.advance(seconds=31)
    return handle


@pytest.mark.proves("S1.10")
@pytest.mark.parametrize("form", ["sql", "function"])
def test_a_job_whose_output_exists_is_done_and_not_run_again(
    app: App, drain: Drain, clock: Clock, outputs: psycopg.Connection[Any], form: str
) -> None:
    runs: list[int] = []
    declare(app, runs, form)
    app.client.workers.beat("elsewhere", kinds=["import_order"])
    handle = left_behind(app, clock)
    outputs.execute("insert into output values (7)")

    recover(app)
    drain()

    assert runs == []
    assert handle.state() is None
    queue = app.client.queues.get("default")
    assert queue
    assert queue.reconciled == 1


@pytest.mark.proves("S1.11")
@pytest.mark.parametrize("form", ["sql", "function"])
def test_a_job_without_output_is_run_again(
    app: App, drain: Drain, clock: Clock, outputs: psycopg.Connection[Any], form: str
) -> None:
    runs: list[int] = []
    declare(app, runs, form)
    app.client.workers.beat("elsewhere", kinds=["import_order"])
    left_behind(app, clock)

    recover(app)
    drain()

    assert runs == [7]


def test_a_job_out_of_attempts_is_asked_about_too(
    app: App, clock: Clock, outputs: psycopg.Connection[Any]
) -> None:
    runs: list[int] = []
    declare(app, runs, "sql")
    app.client.workers.beat("elsewhere", kinds=["import_order"])
    handle = left_behind(app, clock, max_attempts=1)
    outputs.execute("insert into output values (7)")

    recover(app)

    assert handle.state() is None  # done, not dead


def test_a_worker_recovers_by_itself(
    app: App, drain: Drain, clock: Clock, outputs: psycopg.Connection[Any]
) -> None:
    runs: list[int] = []
    declare(app, runs, "function")
    handle = left_behind(app, clock)
    outputs.execute("insert into output values (7)")

    drain()

    assert runs == []
    assert handle.state() is None


def test_nobody_waits_for_a_worker_that_is_not_there(
    app: App, clock: Clock, outputs: psycopg.Connection[Any]
) -> None:
    declare(app, [], "sql")
    handle = left_behind(app, clock)

    app.client.upkeep.run()

    assert handle.state() == "queued"


def declare(app: App, runs: list[int], form: str) -> None:
    """Declare the task, with its check in one of two forms, as a worker would."""

    @app.task
    def import_order(order: int) -> None:
        runs.append(order)

    if form == "sql":
        import_order.done_when("select exists (select from output where source_id = %(order)s)")
    else:

        @import_order.done_when
        def already_there(conn: psycopg.Connection[Any], job: Any) -> bool:
            row = conn.execute(
                "select exists (select from output where source_id = %s)", [job.payload["order"]]
            ).fetchone()
            return bool(row and row[0])

    app.client.kinds.declare([{"kind": "import_order", "done_when": True}])


def recover(app: App) -> None:
    """Do one turn of upkeep with the app's checks."""
    checks = {kind: task.check for kind, task in app.tasks.items() if task.check}
    Upkeep(app.client, holder="test", checks=checks).turn()
