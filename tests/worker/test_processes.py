"""Handlers in child processes: what kills one costs only its job, and none outlives its worker."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import App
from holdfast.client import Client
from holdfast.errors import AppNotFound, WorkerDied
from holdfast.worker import Worker
from tests.conftest import Connect
from tests.worker import handlers
from tests.worker.conftest import Running
from tests.worker.handlers import alive, children, told, until

Start = Callable[..., Running]
Begin = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def app(database: str) -> Iterator[App]:
    """The app of `handlers`, on a fresh database that keeps what is done."""
    handlers.app.use(database)
    handlers.app.client.queues.set("default", keep_done=timedelta(hours=1))
    yield handlers.app
    handlers.app.close()


@pytest.fixture
def client(app: App) -> Client:
    return app.client


@pytest.fixture
def begin(database: str) -> Iterator[Begin]:
    """Starts workers of the app of `handlers` as processes, and kills them at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(options: str = "") -> "subprocess.Popen[bytes]":
        script = (
            "from holdfast.worker import Worker; from tests.worker import handlers; "
            f"Worker(handlers.app, {options}).run()"
        )
        environment = {**os.environ, "HOLDFAST_URL": database}
        started.append(subprocess.Popen([sys.executable, "-c", script], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_child_is_used_for_one_job_after_the_other(drain: Callable[..., Worker]) -> None:
    first, second = handlers.whoami.enqueue(), handlers.whoami.enqueue()

    drain(queues={"default": 1})

    child, opened_by = first.result()
    assert child == opened_by != os.getpid()
    assert second.result() == (child, opened_by)


def test_each_job_that_runs_has_a_child(app: App, start: Start, tmp_path: Path) -> None:
    release = tmp_path / "release"
    for nth in range(3):
        handlers.wait_for.enqueue(str(tmp_path / f"{nth}"), str(release))

    running = start(queues={"default": 3})
    pids = {told(tmp_path / f"{nth}")[0] for nth in range(3)}
    release.touch()

    until(lambda: running.worker.counts.acked == 3)
    assert len(pids) == 3


def test_what_a_child_logs_is_there_while_it_runs_and_after_it(
    client: Client, start: Start, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    id = handlers.log_lines.enqueue(str(release)).id
    running = start(max_jobs=1)

    until(lambda: bool(client.jobs.lines(id)))
    assert client.jobs.lines(id)[0].text.endswith("WARNING shop: begun")
    release.touch()
    running.join()

    assert [one.text.split()[-1] for one in client.jobs.lines(id)] == ["begun", "over"]


def test_what_a_child_logged_before_it_was_killed_is_kept_with_the_attempt(
    client: Client, drain: Callable[..., Worker], tmp_path: Path
) -> None:
    (tmp_path / "release").touch()
    id = handlers.log_and_die.enqueue(str(tmp_path / "release")).id

    drain()

    [attempt] = client.jobs.attempts(id)
    assert attempt.message == "killed: signal 9"
    assert attempt.log is not None
    assert attempt.log.endswith("shop: about to die")


def test_a_coroutine_runs_on_the_loop_of_what_the_lifespan_opened(
    drain: Callable[..., Worker],
) -> None:
    handle = handlers.whoami_async.enqueue()

    drain()

    assert handle.result() is True


def test_a_job_in_a_child_takes_steps_and_waits_without_one(
    app: App, drain: Callable[..., Worker], tmp_path: Path
) -> None:
    files = [tmp_path / "plain", tmp_path / "async"]
    handlers.in_steps.enqueue(str(files[0]))
    handlers.in_steps_async.enqueue(str(files[1]))
    drain()
    assert [job.state for job in app.client.jobs.list("state:queued")] == ["queued"] * 2

    for _ in files:
        app.client.send_event("go", "went")
    drain()

    assert [file.read_text() for file in files] == ["first run run went "] * 2
    assert {job.state for job in app.client.jobs.list()} == {"done"}


def test_the_lifespan_ends_with_the_child(
    drain: Callable[..., Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"
    monkeypatch.setenv("TEST_LEFT", str(left))
    handle = handlers.whoami.enqueue()

    drain(kinds=["whoami"])

    # The worker itself runs no handler, and opened nothing.
    assert left.read_text().split() == [str(handle.result()[0])]


# Much less than the fork lives, which must not keep anybody waiting.
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", "exited with status 3"),
        ("quietly", "exited with status 0"),
        ("abort", "killed: signal 6"),
        ("kill", "killed: signal 9"),
        ("with a fork", "exited with status 4"),
    ],
)
def test_a_child_that_dies_costs_only_its_own_job(
    app: App, drain: Callable[..., Worker], client: Client, tmp_path: Path, how: str, message: str
) -> None:
    before = children(os.getpid())
    beside, release = tmp_path / "beside", tmp_path / "release"
    neighbour = handlers.wait_for.enqueue(str(beside), str(release), seconds=1.5)
    poison = handlers.vanish.enqueue(how)
    after = handlers.whoami.enqueue()

    drain(queues={"default": 2})

    [attempt] = client.jobs.attempts(poison.id)
    assert (attempt.error_kind, attempt.message) == ("Killed", message)
    assert poison.state() == "dead"
    assert [neighbour.state(), after.state()] == ["done", "done"]
    assert [client.jobs.attempts(other.id) for other in (neighbour, after)] == [[], []]
    assert children(os.getpid()) == before


def test_a_job_that_always_kills_its_child_dies_after_its_attempts(
    drain: Callable[..., Worker], client: Client
) -> None:
    client.queues.set("default", backoff=timedelta(milliseconds=1))
    poison = handlers.vanish.options(max_attempts=3).enqueue("kill")

    while poison.state() != "dead":
        drain(queues={"default": 1})

    assert [one.message for one in client.jobs.attempts(poison.id)] == ["killed: signal 9"] * 3


def test_a_handler_over_its_memory_fails_and_its_child_is_replaced(
    drain: Callable[..., Worker], client: Client
) -> None:
    before = handlers.whoami.enqueue()
    modest = handlers.devour.enqueue(50)
    greedy = handlers.devour.enqueue(1000)
    after = handlers.whoami.enqueue()

    drain(queues={"default": 1})

    [attempt] = client.jobs.attempts(greedy.id)
    assert attempt.error_kind == "MemoryError"
    assert attempt.traceback is not None
    assert "devour" in attempt.traceback
    assert modest.result() == 50
    assert before.result() != after.result()


def test_a_handler_that_runs_too_long_is_killed_with_what_it_started(
    drain: Callable[..., Worker], client: Client, tmp_path: Path
) -> None:
    handle = handlers.overrun.enqueue(str(tmp_path / "told"))

    drain()

    [attempt] = client.jobs.attempts(handle.id)
    assert attempt.error_kind == "TimedOut"
    for pid in told(tmp_path / "told"):
        until(lambda pid=pid: not alive(int(pid)))


def test_the_child_of_a_lost_lease_is_killed(
    app: App, start: Start, client: Client, tmp_path: Path
) -> None:
    handle = handlers.wait_for.enqueue(str(tmp_path / "told"), str(tmp_path / "never"))
    running = start(lease=3.0)
    [pid] = told(tmp_path / "told")

    assert handle.cancel("not needed")

    until(lambda: not alive(int(pid)))
    until(lambda: running.worker.counts.lost == 1)
    assert handle.state() == "cancelled"


def test_what_does_not_end_within_the_grace_is_killed_and_given_back(
    app: App, start: Start, client: Client, tmp_path: Path
) -> None:
    handle = handlers.wait_for.enqueue(str(tmp_path / "told"), str(tmp_path / "never"))
    running = start(grace=0.2)
    [pid] = told(tmp_path / "told")

    running.stop()

    job = client.jobs.get(handle.id)
    assert not alive(int(pid))
    assert job is not None
    assert (job.state, job.attempt) == ("queued", 0)


def test_progress_reaches_the_database(
    app: App, start: Start, connect: Connect, tmp_path: Path
) -> None:
    handle = handlers.report.enqueue(str(tmp_path / "told"), str(tmp_path / "never"))
    start(grace=0.0)
    told(tmp_path / "told")

    def last() -> Any:
        query = "select progress from holdfast.job where id = %s"
        [[progress]] = connect(app.url).execute(query, [handle.id]).fetchall()
        return progress

    until(lambda: (last() or {}).get("done") == 999)
    assert (last()["total"], last()["note"]) == (1000, "counting")


@pytest.mark.parametrize("task", [handlers.insert_and_ack, handlers.insert_and_ack_async])
def test_a_transaction_of_the_child_ends_the_job(
    app: App, drain: Callable[..., Worker], connect: Connect, task: Any
) -> None:
    observer = connect(app.url)
    observer.execute("create table effect (pid integer)")
    handle = task.enqueue("effect")

    worker = drain()

    [[pid]] = observer.execute("select pid from effect").fetchall()
    assert pid != os.getpid()
    assert handle.state() == "done"
    assert (worker.counts.acked, worker.counts.lost) == (1, 0)


def test_a_commit_of_the_child_is_never_taken_for_a_lost_lease(
    app: App, drain: Callable[..., Worker], connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    observer = connect(app.url)
    # The commit takes longer than the worker waits until it renews.
    observer.execute(
        """
        create table effect (pid integer);
        create function dawdle() returns trigger language plpgsql
        as 'begin perform pg_sleep(1.5); return null; end';
        create constraint trigger slow after insert on effect deferrable initially deferred
        for each row execute function dawdle();
        """
    )
    handlers.insert_and_ack.enqueue("effect")

    worker = drain(lease=3.0)

    assert observer.execute("select from effect").rowcount == 1
    assert (worker.counts.acked, worker.counts.lost) == (1, 0)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_lease_that_the_child_handed_over_is_left_alone(
    app: App, drain: Callable[..., Worker], client: Client, tmp_path: Path
) -> None:
    handle = handlers.pass_on.enqueue(str(tmp_path / "told"))

    worker = drain(lease=1.0)

    _, id, token = told(tmp_path / "told")
    assert handle.state() == "leased"
    assert worker.counts.lost == 0
    [settled] = client.ack([(UUID(id), UUID(token))])
    assert settled.outcome == "done"


def test_a_child_knows_that_its_lease_is_renewed_and_when_it_could_not_be(
    begin: Begin, client: Client, tmp_path: Path
) -> None:
    handlers.held_after_freeze.enqueue(str(tmp_path / "told"), str(tmp_path / "ended"))
    worker = begin("lease=2.0")
    told(tmp_path / "told")

    time.sleep(3.0)
    assert not (tmp_path / "ended").exists()
    started = time.monotonic()
    os.kill(worker.pid, signal.SIGSTOP)
    told(tmp_path / "ended")
    noticed_after = time.monotonic() - started
    os.kill(worker.pid, signal.SIGCONT)

    # Not before the last renewal ran out: the worker was stopped with more than half of it left.
    assert noticed_after > 0.3


def test_no_child_outlives_its_worker(begin: Begin, client: Client, tmp_path: Path) -> None:
    handlers.wait_for.enqueue(str(tmp_path / "told"), str(tmp_path / "never"))
    worker = begin()
    child = int(told(tmp_path / "told")[0])

    worker.kill()

    until(lambda: not alive(child))


def test_a_signal_for_everybody_leaves_it_to_the_worker_when_children_end(
    begin: Begin, client: Client, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    handle = handlers.wait_for.enqueue(str(tmp_path / "told"), str(release))
    worker = begin()
    child = int(told(tmp_path / "told")[0])

    # As a service manager does to all processes of a service, and a terminal to its foreground.
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(child, number)
    worker.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert alive(child)
    release.touch()

    assert worker.wait(100) == 0
    assert handle.state() == "done"
    assert client.jobs.attempts(handle.id) == []


def test_many_deaths_leave_neither_zombies_nor_open_files(
    drain: Callable[..., Worker], client: Client
) -> None:
    others = children(os.getpid())
    handlers.vanish.enqueue("kill")
    drain(queues={"default": 2})
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(6):
        handlers.vanish.enqueue("kill")

    drain(queues={"default": 2})

    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert children(os.getpid()) == others


def test_a_child_that_cannot_start_charges_no_attempt_and_ends_the_worker(
    drain: Callable[..., Worker], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = handlers.whoami.enqueue()
    monkeypatch.setenv("TEST_BROKEN", "the disk is full")

    with pytest.raises(WorkerDied, match="cannot start"):
        Worker(handlers.app, lease=2.0).run()

    job = client.jobs.get(handle.id)
    assert job is not None
    assert (job.state, job.attempt) == ("queued", 0)


def test_an_app_that_no_other_process_can_import_is_refused(database: str) -> None:
    hidden = App(database)

    @hidden.task(process=True)
    def hide() -> None: ...

    with pytest.raises(AppNotFound, match="not in a module"):
        Worker(hidden, until_idle=True).run()
    hidden.close()
