import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import Client
from tests.cli.conftest import PROGRAM, Run

APP = """
import os, pathlib, time
import holdfast

app = holdfast.App()


@app.task(max_attempts=2)
def greet(name: str) -> None:
    print(f"hello {name}\\n", end="", flush=True)  # in one piece


@app.task(queue="mail", max_attempts=1)
def send(to: str) -> None:
    raise ValueError(f"nobody is \\x1b[31m{to}")


@app.task(queue="slow")
def wait(release: str) -> None:
    print("waiting", flush=True)
    while not pathlib.Path(release).exists():
        time.sleep(0.01)
"""


class Started:
    """A `holdfast worker` beside the test; its stdout and stderr can be read line by line."""

    def __init__(self, *arguments: object, cwd: Path, url: str) -> None:
        environment = {**os.environ, "HOLDFAST_URL": url}
        self.process = subprocess.Popen(
            [*PROGRAM, "worker", *map(str, arguments)],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        assert self.process.stderr
        self.out, self.err = self.process.stdout, self.process.stderr

    def say_until(self, text: str) -> str:
        """Read what it says on stderr up to a line with this text; return that line."""
        for line in self.err:
            if text in line:
                return line
        raise AssertionError(f"it ended without {text!r}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 60.0) -> int:
        """Wait for its end; return its exit code."""
        self.process.communicate(timeout=seconds)
        return self.process.returncode


Start = Callable[..., Started]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with an app in app.py."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def start(project: Path, database: str) -> Iterator[Start]:
    """Starts `holdfast worker` in the project, and kills what is left at the end."""
    started: list[Started] = []

    def begin(*arguments: object) -> Started:
        started.append(Started(*arguments, cwd=project, url=database))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def worker(program: Run, project: Path, database: str) -> Run:
    """Runs `holdfast worker` in the project to its end."""

    def run(*arguments: object) -> object:
        return program("worker", *arguments, "--url", database, cwd=project)

    return run


@pytest.mark.proves("S0.31", "S3.35")
def test_it_runs_what_is_there_and_ends_when_nothing_is_left(worker: Run, client: Client) -> None:
    client.enqueue("greet", {"name": "Ada"})

    ended = worker("app.py", "--until-idle")

    banner, introduction, *rest = ended.err.splitlines()
    assert ended.code == 0
    assert ended.out == "hello Ada\n"
    assert re.fullmatch(r"holdfast 0\.\S+  \S+ \(user .*\)  schema \d+", banner)
    assert re.fullmatch(
        r"worker     \S+  queues: default, mail, slow  slots: 24  connections: up to \d+"
        r"  kinds: greet, send, wait",
        introduction,
    )
    assert rest == []


@pytest.mark.parametrize("app", ["app:app", "app", "app.py:app", "./app.py"])
def test_an_app_is_named_by_its_module_or_its_file(worker: Run, client: Client, app: str) -> None:
    client.enqueue("greet", {"name": "Ada"})

    assert worker("--until-idle", app).out == "hello Ada\n"


def test_a_file_of_a_package_is_imported_as_part_of_it(
    worker: Run, client: Client, project: Path
) -> None:
    package = project / "shop" / "jobs"
    package.mkdir(parents=True)
    (project / "shop" / "__init__.py").touch()
    (package / "__init__.py").write_text("NAME = 'Grace'")
    (package / "greeting.py").write_text(
        "from holdfast import App\nfrom . import NAME\napp = App()\n"
        "@app.task\ndef greet(name: str) -> None: print('hello', NAME, __name__)\n"
    )
    client.enqueue("greet", {"name": "Ada"})

    ended = worker("shop/jobs/greeting.py", "--until-idle")

    assert ended.out == "hello Grace shop.jobs.greeting\n"


def test_a_terminal_shows_a_line_for_each_step_of_a_job(
    terminal: Callable[..., tuple[int, str]], project: Path, client: Client, database: str
) -> None:
    done = client.enqueue("greet", {"name": "Ada"})
    dead = client.enqueue("send", {"to": "Bob"}, queue="mail", max_attempts=1)

    code, screen = terminal(
        "worker", project / "app.py", "--until-idle", HOLDFAST_URL=database, NO_COLOR="1"
    )

    lines = [re.sub(r"^\d\d:\d\d:\d\d", "<time>", line) for line in screen.splitlines()]
    first, second = str(done.id)[-8:], str(dead.id)[-8:]
    assert code == 0
    assert f"<time>  greet  {first}  leased    attempt 1/3" in lines
    assert any(re.fullmatch(rf"<time>  greet  {first}  done      \d+ ms", line) for line in lines)
    assert f"<time>  send  {second}  leased    attempt 1/1" in lines
    told = r"attempt 1/1  ValueError: nobody is \x1b[31mBob"
    assert f"<time>  send  {second}  dead      {told}" in lines


def test_a_log_has_failures_and_not_a_line_for_each_job(worker: Run, client: Client) -> None:
    client.enqueue("greet", {"name": "Ada"})
    dead = client.enqueue("send", {"to": "Bob"}, queue="mail", max_attempts=1)

    said = worker("app.py", "--until-idle").err

    assert "  done  " not in said
    assert f"ERROR  job died  job={dead.id}  kind=send" in said
    quiet = worker("app.py", "--until-idle", "--quiet").err.splitlines()
    # On a slow machine the detectors have their turn before it is idle.
    assert [line for line in quiet if "anomaly raised" not in line] == []


def test_json_is_an_object_for_each_event(worker: Run, client: Client) -> None:
    done = client.enqueue("greet", {"name": "Ada"})

    ended = worker("app.py", "--until-idle", "--json", "--kinds", "greet")

    events = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    assert [one["event"] for one in events] == ["starting", "worker started", "leased", "done"]
    assert events[-1]["job"] == str(done.id)
    assert events[-1]["seconds"] >= 0
    assert all(one["at"].endswith("Z") for one in events)
    assert ended.err == ""


def test_queues_and_kinds_choose_what_is_claimed(worker: Run, client: Client) -> None:
    wanted = client.enqueue("greet", {"name": "Ada"}, queue="mail")
    client.enqueue("greet", {"name": "Bob"})
    client.enqueue("send", {"to": "Eve"}, queue="mail")

    ended = worker("app.py", "-q", "mail:3", "--kinds", "greet", "--until-idle")

    assert ended.out == "hello Ada\n"
    assert "queues: mail  slots: 3  connections: up to 13  kinds: greet" in ended.err
    assert client.jobs.find("state:done") == [wanted.id]
    assert len(client.jobs.find("state:queued")) == 2


@pytest.mark.parametrize("processes", [1, 2])
def test_a_queue_that_nobody_knows_is_told_once_and_served(
    worker: Run, client: Client, processes: int
) -> None:
    client.enqueue("greet", {"name": "Ada"}, queue="bulk")

    ended = worker("app.py", "--until-idle", "-q", "bulk,mial,slow", "--processes", processes)

    warned = [line for line in ended.err.splitlines() if "no queue" in line]
    assert (ended.code, ended.out) == (0, "hello Ada\n")
    assert [line.partition("WARNING  ")[2] for line in warned] == [
        "no queue is named 'mial' yet, and no task of the app goes there (did you mean 'mail'?)"
    ]


def test_it_ends_after_so_many_jobs(worker: Run, client: Client) -> None:
    for name in ("Ada", "Grace", "Linus"):
        client.enqueue("greet", {"name": name})

    ended = worker("app.py", "--max-jobs", "2")

    assert ended.code == 0
    assert len(ended.out.splitlines()) == 2
    assert len(client.jobs.find("state:queued")) == 1


def test_more_processes_are_more_workers(worker: Run, client: Client) -> None:
    client.enqueue("greet", {"name": "Ada"})

    ended = worker("app.py", "--processes", "2", "--until-idle")

    assert ended.code == 0
    assert ended.out == "hello Ada\n"
    assert ended.err.count("worker     ") == 2


def test_modules_may_be_imported_besides(worker: Run, client: Client, project: Path) -> None:
    (project / "more.py").write_text(
        "from app import app\n@app.task\ndef wave() -> None: print('waved')\n"
    )
    client.enqueue("wave")

    assert worker("app.py", "--import", "more", "--until-idle").out == "waved\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_job_finish_and_that_is_success(
    start: Start, client: Client, project: Path, number: int
) -> None:
    client.queues.set("slow", keep_done=timedelta(hours=1))
    job = client.enqueue("wait", {"release": str(project / "release")}, queue="slow")
    started = start("app.py")
    assert started.out.readline() == "waiting\n"

    started.signal(number)
    time.sleep(0.3)
    assert started.process.poll() is None
    (project / "release").touch()

    assert started.end() == 0
    found = client.jobs.get(job.id)
    assert found is not None
    assert found.state == "done"


def test_what_does_not_end_in_its_grace_is_given_back_and_that_is_success(
    start: Start, client: Client, project: Path
) -> None:
    job = client.enqueue("wait", {"release": str(project / "never")}, queue="slow")
    started = start("app.py", "--grace", "200ms")
    assert started.out.readline() == "waiting\n"

    started.signal(signal.SIGTERM)

    assert started.end() == 0
    found = client.jobs.get(job.id)
    assert found is not None
    assert (found.state, found.attempt) == ("queued", 0)


def test_a_second_signal_ends_it_at_once(start: Start, client: Client, project: Path) -> None:
    client.enqueue("wait", {"release": str(project / "never")}, queue="slow")
    started = start("app.py", "--grace", "60s")
    assert started.out.readline() == "waiting\n"

    started.signal(signal.SIGTERM)
    time.sleep(0.3)
    started.signal(signal.SIGINT)

    assert started.end(40.0) == 128 + signal.SIGINT


def test_a_database_without_the_schema_is_refused(
    program: Run, project: Path, empty_database: str
) -> None:
    ended = program("worker", "app.py", "--url", empty_database, cwd=project)

    assert ended.code == 4
    assert ended.err.startswith("HF110 ")


def test_a_database_that_is_down_ends_a_worker_for_cron(program: Run, project: Path) -> None:
    down = "postgresql://127.0.0.1:1/x"
    ended = program("worker", "app.py", "--until-idle", "--url", down, cwd=project)

    assert ended.code == 3
    assert ended.err.startswith("HF100 ")


def test_a_database_that_is_down_is_told_and_waited_for(project: Path) -> None:
    command = [*PROGRAM, "worker", "app.py", "--url", "postgresql://127.0.0.1:1/x"]
    with subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        alive = process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.stderr.read()

    assert "HF100 " in said
    assert alive


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("appp", "no module named 'appp' (did you mean `app`?)"),
        ("app.tasks:app", "no module named 'app.tasks'\n      app is not a package."),
        ("nosuch.py", "file not found: nosuch.py"),
        ("app:ap", "app has no 'ap' (did you mean `app`?)"),
        ("app:greet", "app:greet is not an App; its type is Task"),
        ("empty.py", "empty.py contains no app"),
        ("two.py", "two.py contains several apps: first, second"),
    ],
)
def test_an_app_that_is_not_there_is_told(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch, app: str, told: str
) -> None:
    (project / "empty.py").touch()
    (project / "two.py").write_text("from holdfast import App\nfirst, second = App(), App()\n")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    for name in ("app", "empty", "two"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    ended = run("worker", app)

    assert ended.code == 2
    assert ended.err.startswith(f"HF240 {told}")


def test_an_error_of_the_module_itself_is_shown_where_it_is(worker: Run, project: Path) -> None:
    (project / "broken.py").write_text("import holdfast\n\nraise KeyError('colour')\n")

    ended = worker("broken.py")

    assert ended.code == 1
    assert 'broken.py", line 3, in <module>' in ended.err
    assert "importlib" not in ended.err
    assert "HF241 broken cannot be imported: KeyError: 'colour'" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker"],
        ["worker", "app.py", "other.py"],
        ["worker", "app.py", "-q", "mail:0"],
        ["worker", "app.py", "-q", "mail:many"],
        ["worker", "app.py", "--processes", "0"],
        ["worker", "app.py", "--max-jobs", "0"],
        ["worker", "app.py", "--poll", "0s"],
    ],
)
def test_what_cannot_be_meant_is_usage(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).code == 2


def test_how_often_it_looks_is_an_option(
    project: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from holdfast.cli import main
    from holdfast.worker import fleet

    told: list[dict[str, Any]] = []
    monkeypatch.setattr(fleet, "run", lambda app, **options: told.append(options))
    arguments = ["worker", str(project / "app.py"), "--url", database]
    CliRunner().invoke(main, arguments)
    CliRunner().invoke(main, [*arguments, "--poll", "250ms"])

    assert [one.get("poll") for one in told] == [None, timedelta(milliseconds=250)]


def test_workers_are_listed_and_stopped(start: Start, run: Run, database: str) -> None:
    started = start("app.py", "--kinds", "greet")
    id = started.say_until("worker     ").split()[1]
    listed = _until(lambda: run("worker", "list", "--url", database, "--json").json)

    table = run("worker", "list", "--url", database).out
    stopped = run("worker", "stop", id[-8:], "--url", database)

    assert [(one["worker"], one["kinds"], one["slots"]) for one in listed] == [(id, ["greet"], 8)]
    assert re.search(rf"^{id} +alive ", table, re.MULTILINE)
    assert (stopped.code, stopped.out) == (0, f"{id} will stop\n")
    assert started.end(60.0) == 0
    assert run("worker", "list", "--url", database, "--json").json == []


def test_stopping_nobody_is_told(run: Run, database: str) -> None:
    ended = run("worker", "stop", "nobody", "--url", database)

    assert ended.code == 1
    assert ended.err.startswith("HF313 no worker is named 'nobody'")


def test_a_changed_file_starts_the_worker_anew_after_it_has_drained(
    start: Start, client: Client, project: Path
) -> None:
    client.queues.set("slow", keep_done=timedelta(hours=1))
    job = client.enqueue("wait", {"release": str(project / "release")}, queue="slow")
    started = start("app.py", "--reload")
    assert started.out.readline() == "waiting\n"

    _change(project / "app.py", "hello", "good morning")
    started.say_until("app.py changed")
    (project / "release").touch()
    started.say_until("worker     ")
    client.enqueue("greet", {"name": "Ada"})

    assert started.out.readline() == "good morning Ada\n"
    found = client.jobs.get(job.id)
    assert found is not None
    assert (found.state, found.attempt) == ("done", 1)
    started.signal(signal.SIGTERM)
    assert started.end() == 0


def test_a_mistake_while_reloading_waits_for_its_correction(
    start: Start, client: Client, project: Path
) -> None:
    _change(project / "app.py", "import holdfast", "import holdfest")
    started = start("app.py", "--reload")
    started.say_until("the worker exited with status 1; waiting for a change")

    _change(project / "app.py", "import holdfest", "import holdfast")
    started.say_until("worker     ")
    client.enqueue("greet", {"name": "Ada"})

    assert started.out.readline() == "hello Ada\n"
    started.signal(signal.SIGINT)
    assert started.end() == 0


def _change(file: Path, old: str, new: str) -> None:
    # Bytecode is taken for that of a source of the same second and size: no two of them are alike.
    later = max(time.time(), file.stat().st_mtime) + 2
    file.write_text(file.read_text().replace(old, new))
    os.utime(file, (later, later))


def _until(answer: Callable[[], list[dict[str, object]]]) -> list[dict[str, object]]:
    deadline = time.monotonic() + 120
    while not (found := answer()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
    return found
