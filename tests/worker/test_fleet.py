"""Several processes for one app: which there are, who starts them again, how they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from holdfast import App
from holdfast.client import Client
from holdfast.errors import Misuse
from holdfast.worker import Worker, fleet
from holdfast.worker.process.source import find_source
from holdfast.worker.wear import WORKING, WORN, Wear
from tests.ports import free_port
from tests.worker import handlers
from tests.worker.handlers import alive, children, told, until

ROOT = Path(__file__).parents[2]


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


class Program:
    """A program that runs the workers of `handlers`, and all its processes."""

    def __init__(self, database: str, options: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT.format(options=options)],
            env={**os.environ, "HOLDFAST_URL": database, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def family(self) -> list[int]:
        """Return the processes it has besides itself, whatever they are."""
        found, waiting = [], [self.pid]
        while waiting:
            below = [pid for pid, _ in children(waiting.pop())]
            found += below
            waiting += below
        return found

    def end(self, seconds: float = 300.0) -> tuple[int, str]:
        """Wait for its end; return its exit code and what it said."""
        _, said = self.process.communicate(timeout=seconds)
        return self.process.returncode, said or ""


Run = Callable[..., Program]


@pytest.fixture
def run(app: App, database: str) -> Iterator[Run]:
    """Starts programs with options for `fleet.run`, and kills those that are left."""
    programs: list[Program] = []

    def start(options: str = "", **environment: str) -> Program:
        programs.append(Program(database, options, environment))
        return programs[-1]

    yield start
    for program in programs:
        program.process.kill()
        program.process.communicate()


def test_jobs_that_need_processes_have_a_worker_to_themselves(app: App) -> None:
    worker, host = fleet.plan(app)

    assert {app.tasks[kind].runs for kind in host.options["kinds"]} == {"process"}
    assert {app.tasks[kind].runs for kind in worker.options["kinds"]} == {"thread"}
    assert sorted(worker.options["kinds"] + host.options["kinds"]) == sorted(app.tasks)


def test_ordinary_workers_are_multiplied_and_the_host_is_not(app: App) -> None:
    roles = fleet.plan(app, 3, queues={"default": 2})

    assert [role.name for role in roles] == ["worker", "worker", "worker", "host"]
    assert {role.options["queues"]["default"] for role in roles} == {2}


@pytest.mark.parametrize("kinds", [["here"], ["whoami", "vanish"]])
def test_one_sort_of_jobs_needs_one_process(app: App, kinds: list[str]) -> None:
    [role] = fleet.plan(app, kinds=kinds)

    assert sorted(role.options["kinds"]) == sorted(kinds)


def test_a_number_of_processes_below_one_is_refused(app: App) -> None:
    with pytest.raises(Misuse, match="0 processes"):
        fleet.plan(app, 0)


def test_a_handler_that_keeps_the_interpreter_costs_no_lease_of_a_process(
    run: Run, client: Client, tmp_path: Path
) -> None:
    holding, toiling, release = tmp_path / "holding", tmp_path / "toiling", tmp_path / "release"
    job = handlers.wait_for.options(lease=2.0).enqueue(str(toiling), str(release))
    program = run()
    told(toiling)
    holder = handlers.hold_interpreter.enqueue(str(holding), 3)
    told(holding)
    started = time.monotonic()

    until(lambda: holder.state() == "done")
    held = time.monotonic() - started
    release.touch()
    until(lambda: job.state() == "done")

    program.process.send_signal(signal.SIGTERM)
    assert program.end()[0] == 0
    assert held > 2.5
    assert client.jobs.attempts(job.id) == []


def test_what_one_sort_of_job_enqueues_for_the_other_is_done_before_it_is_idle(
    run: Run, client: Client
) -> None:
    handlers.hand_to_here.enqueue()

    code, _ = run("until_idle=True").end()

    done = [client.jobs.get(id) for id in client.jobs.find("state:done")]
    assert code == 0
    assert sorted(job.kind for job in done if job) == ["hand_to_here", "here"]


def test_a_number_of_jobs_is_counted_over_all_processes(run: Run, client: Client) -> None:
    for _ in range(5):
        handlers.here.enqueue()
        handlers.whoami.enqueue()

    code, _ = run("max_jobs=4").end()

    assert code == 0
    assert len(client.jobs.find("state:done")) == 4
    assert client.jobs.find("state:leased") == []


def test_a_worker_that_is_killed_is_started_again(run: Run) -> None:
    program = run()
    first = handlers.here.enqueue().result(60)

    os.kill(first, signal.SIGKILL)

    second = handlers.here.enqueue().result(60)
    program.process.send_signal(signal.SIGTERM)
    code, said = program.end()
    assert second != first
    assert code == 0
    assert f"worker process died  role=worker  pid={first}  reason=killed: signal 9" in said


def test_a_worker_that_dies_again_and_again_ends_the_program(run: Run) -> None:
    code, said = run(TEST_BROKEN="no such file").end()

    assert code == 1
    assert said.count("worker process died  role=worker") >= 4
    assert "OSError: no such file" in said
    assert "HF340 a worker process died 5 times as soon as it ran" in said


def test_a_worker_that_dies_before_it_works_does_so_at_once_however_slow_the_machine_is(
    run: Run,
) -> None:
    code, said = run(TEST_BROKEN="no such file", TEST_AT_ONCE="0").end()

    assert code == 1
    assert "HF340 a worker process died 5 times as soon as it ran" in said


@pytest.mark.parametrize("whom", ["the program", "everybody"])
def test_one_signal_lets_jobs_finish(run: Run, tmp_path: Path, whom: str) -> None:
    release, toiling = tmp_path / "release", tmp_path / "toiling"
    program = run()
    handle = handlers.wait_for.enqueue(str(toiling), str(release))
    other = handlers.wait_here.enqueue(str(tmp_path / "here"), str(release))
    told(toiling)
    told(tmp_path / "here")

    # A service manager tells all processes of a service at once.
    for pid in [program.pid, *(program.family() if whom == "everybody" else ())]:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.3)
    assert program.process.poll() is None
    release.touch()

    assert program.end()[0] == 0
    assert [handle.state(), other.state()] == ["done", "done"]


def test_a_second_signal_ends_everything_at_once(run: Run, client: Client, tmp_path: Path) -> None:
    program = run("grace=60")
    handlers.wait_for.enqueue(str(tmp_path / "told"), str(tmp_path / "never"))
    told(tmp_path / "told")
    family = program.family()

    program.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    program.process.send_signal(signal.SIGTERM)

    assert program.end(40.0)[0] == 128 + signal.SIGTERM
    until(lambda: not any(map(alive, family)), 30.0)


def test_no_worker_outlives_the_program(run: Run, tmp_path: Path) -> None:
    program = run()
    handlers.wait_for.enqueue(str(tmp_path / "told"), str(tmp_path / "never"))
    told(tmp_path / "told")
    family = program.family()

    program.process.kill()

    until(lambda: not any(map(alive, family)), 30.0)


def test_a_script_runs_its_own_app_in_all_its_processes(database: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_OWN_APP)

    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_URL": database},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["here, a child: False", "there, a child: True"]


def test_a_script_that_runs_its_app_while_it_is_imported_is_told_so(
    database: str, tmp_path: Path
) -> None:
    unguarded = _OWN_APP.replace('if __name__ == "__main__":', "if True:")
    (tmp_path / "script.py").write_text(unguarded)

    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_URL": database},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 1
    assert 'Write it under  if __name__ == "__main__":' in done.stderr


def test_a_worn_worker_is_replaced_by_one_that_works_before_it_is_told_to_stop(
    run: Run, app: App, client: Client, tmp_path: Path
) -> None:
    port = free_port()
    program = run(f"recycle_jobs=20, concurrency=2, kinds=['here', 'wait_here'], health={port}")
    release = tmp_path / "release"
    # It holds the old process while the new one already works.
    handlers.wait_here.enqueue(str(tmp_path / "told"), str(release))
    [old] = told(tmp_path / "told")
    until(lambda: health(port, "/readyz") == (200, "ok"))
    app.enqueue_many(handlers.here.call() for _ in range(20))

    # The old one still has its job.
    def answered_by_another() -> bool:
        return str(handlers.here.enqueue().result(timeout=50)) != old

    until(answered_by_another)
    assert alive(int(old))
    release.touch()
    until(lambda: not alive(int(old)))

    # The address goes over to the new one.
    until(lambda: health(port, "/livez") == (200, "ok"))
    assert alive(program.pid)
    os.kill(program.pid, signal.SIGTERM)
    code, _ = program.end()
    assert code == 0
    assert client.jobs.find("state:queued") == []
    assert client.jobs.find("state:dead") == []


def test_a_worker_that_has_too_much_memory_is_replaced(run: Run) -> None:
    program = run("recycle_rss=1, kinds=['here']")
    first = handlers.here.enqueue().result(60)

    until(lambda: handlers.here.enqueue().result(60) != first)

    program.process.send_signal(signal.SIGTERM)
    code, said = program.end()
    assert code == 0
    assert "worker process died" not in said


def test_the_old_one_is_told_to_stop_only_when_its_successor_works_and_not_if_that_dies(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(fleet.Member, "start", lambda self: None)
    monkeypatch.setattr(fleet.Member, "leave", lambda self, patience: told.append("leave"))
    roles = fleet.plan(app, kinds=["here"])
    one = fleet.Fleet(find_source(app), roles, screen=None, wear=Wear(jobs=1))
    [old] = one._members
    old.process = cast("Any", object())
    old._state.value = WORKING
    one._replace_worn()
    assert one._members == [old]

    old._state.value = WORN
    one._replace_worn()
    one._replace_worn()
    _, successor = one._members  # one, however often it looks
    assert (successor.follows, told) == (old, [])
    one._take_in(successor, 1)
    one._replace_worn()
    # It goes on, and is not replaced again at once.
    assert (one._members, told) == ([old], [])

    old._replace_at = 0.0
    one._replace_worn()
    one._members[1]._state.value = WORKING
    one._replace_worn()
    assert told == ["leave"]


def test_a_blocked_event_loop_is_no_reason_to_kill_a_worker_but_a_late_keeper_is(
    app: App,
) -> None:
    worker = Worker(app)
    assert (worker.why_dead(), worker.why_not_ready()) == ("", "starting")
    worker._keeping = Kept(time.monotonic())  # type: ignore[assignment]
    assert (worker.why_dead(), worker.why_not_ready()) == ("", "")
    worker._keeping = Kept(time.monotonic() - 42)  # type: ignore[assignment]
    assert worker.why_dead() == "leases have not been kept for 42 s"
    worker.stop()
    assert worker.why_not_ready() == "stopping"


def test_a_worker_that_is_to_be_replaced_cannot_be_one_that_ends_by_itself(app: App) -> None:
    for options in ({"until_idle": True}, {"max_jobs": 5}):
        with pytest.raises(Misuse, match="does not end by itself"):
            fleet.run(app, recycle_jobs=10, **options)
    with pytest.raises(Misuse, match=r"recycle_rss must be at least 1 \(got 0\)"):
        fleet.run(app, recycle_rss=0)


@dataclass
class Kept:
    """A thread that keeps leases, and when it last looked at them."""

    looked: float


def health(port: int, path: str) -> tuple[int, str]:
    """Ask a worker; (0, "") if nobody answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode().strip()
    except HTTPError as error:
        return error.code, error.read().decode().strip()
    except OSError:
        return 0, ""


_SCRIPT = """
import logging, os, sys
from holdfast.errors import HoldfastError
from holdfast.worker import Worker, fleet
from tests.worker import handlers

fleet.AT_ONCE = float(os.environ.get("TEST_AT_ONCE", fleet.AT_ONCE))
try:
    fleet.run(handlers.app, {options})
except HoldfastError as error:
    sys.exit(str(error))
"""

_OWN_APP = """
import multiprocessing
import holdfast

app = holdfast.App()

@app.task
def here() -> None:
    print("here, a child:", bool(holdfast.current().app.tasks["there"].runs == "thread"))

@app.task(process=True)
def there() -> None:
    print("there, a child:", multiprocessing.parent_process() is not None)

if __name__ == "__main__":
    here.enqueue()
    there.enqueue()
    app.run(until_idle=True)
"""
