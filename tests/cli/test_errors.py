import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psycopg
import pytest

from holdfast import embedded
from holdfast.client import Client
from holdfast.client.sync.queues import Queues
from tests.cli.conftest import PROGRAM, Run
from tests.conftest import Connect

NOWHERE = "postgresql://ada:secret@127.0.0.1:1/shop"


def test_a_database_that_is_down_is_one_message_within_seconds(run: Run) -> None:
    started = time.monotonic()
    answer = run("queue", "list", "--url", NOWHERE)

    assert answer.code == 3
    assert answer.out == ""
    assert answer.err.splitlines()[0] == (
        "HF100 cannot reach PostgreSQL at 127.0.0.1:1 (user ada, database shop): connection refused"
    )
    assert answer.err.count("HF1") == 1
    assert "from --url." in answer.err
    assert "secret" not in answer.err
    assert time.monotonic() - started < 9  # and not the ten seconds that a call may take


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "status"], ["demo"], ["job", "list"]])
def test_every_door_to_the_database_reports_it_down_alike(
    run: Run, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", NOWHERE)

    answer = run(*command)

    assert answer.code == 3
    assert "from HOLDFAST_URL in the environment" in answer.err


def test_a_database_without_the_schema_says_what_to_run(run: Run, empty_database: str) -> None:
    for command in (["queue", "list"], ["job", "enqueue", "greet"], ["upkeep", "--once"], ["demo"]):
        answer = run(*command, "--url", empty_database, "--quiet")

        assert answer.code == 4
        assert answer.out == ""
        assert "HF110" in answer.err
        assert "Run:  holdfast migrate" in answer.err


def test_a_command_names_the_extra_that_it_needs(database: str) -> None:
    for module in ("starlette", "uvicorn"):
        answer = _without(module, "serve", "--url", database)

        assert answer.returncode == 2
        assert f"HF200 this command needs {module}, which is not installed" in answer.stderr
        assert 'pip install "holdfast[server]"' in answer.stderr


def test_a_token_is_created_without_the_packages_of_a_server(database: str) -> None:
    answer = _without("starlette", "token", "create", "--role", "admin", "--url", database)

    assert answer.stdout.startswith("hf_")


def test_an_unreadable_address_is_usage(run: Run) -> None:
    assert run("queue", "list", "--url", "nonsense").code == 2
    assert run("queue", "list", "--url", "").code == 2


def test_the_common_options_may_stand_anywhere(run: Run, database: str) -> None:
    assert run("--url", database, "queue", "--json", "list").json == []
    assert run("queue", "--url", database, "list", "--json").json == []


def test_the_innermost_address_wins(run: Run, database: str) -> None:
    assert run("--url", NOWHERE, "queue", "list", "--url", database).code == 0


def test_quiet_keeps_talk_off_stderr(holdfast: Run) -> None:
    assert holdfast("queue", "list").err != ""
    assert holdfast("queue", "list", "--quiet").err == ""


def test_arguments_that_are_not_text_are_refused(program: Run, database: str) -> None:
    answer = program("job", "enqueue", b"\xff".decode(errors="surrogateescape"), "--url", database)

    assert answer.code == 2
    assert "is not valid UTF-8" in answer.err
    assert "Traceback" not in answer.err


def test_a_traceback_is_shown_only_on_request(
    run: Run, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run("queue", "list", "--url", empty_database)
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    debugged = run("queue", "list", "--url", empty_database)

    assert "Traceback" not in plain.err
    assert "Traceback" in debugged.err
    assert debugged.code == plain.code


def test_an_error_nobody_foresaw_is_one_message_too(
    holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(queues: Queues) -> None:
        raise ValueError("the sky\nfell")

    monkeypatch.setattr(Queues, "list", explode)

    answer = holdfast("queue", "list")

    assert answer.code == 1
    assert answer.err.splitlines() == [
        "HF000 ValueError: the sky",
        "      HOLDFAST_DEBUG=1 shows where it happened.",
    ]


def test_a_reader_that_stops_reading_is_no_error(client: Client, database: str) -> None:
    for _ in range(300):
        client.enqueue("greet", {"text": "x" * 400})
    command = [*PROGRAM, "job", "list", "--json", "--limit", "300", "--url", database]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        said = process.stderr.read()

    assert process.returncode == 0
    assert said == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_no_traceback(
    database: str, connect: Connect, number: signal.Signals
) -> None:
    observer, blocker = connect(), connect(autocommit=False)
    blocker.execute("lock table holdfast.job in access exclusive mode")

    with subprocess.Popen(
        [*PROGRAM, "job", "list", "--url", database], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        _wait_for_a_waiter(observer)
        process.send_signal(number)
        process.wait(100)
        said = process.stderr.read()

    assert process.returncode == 128 + number
    assert said.strip() == b""


def test_colour_is_for_terminals_that_want_it(
    client: Client, database: str, terminal: Callable[..., tuple[int, str]], program: Run
) -> None:
    client.jobs.cancel([client.enqueue("greet").id])
    command = ("job", "list", "--url", database)

    assert "\x1b[33mcancelled\x1b[0m" in terminal(*command)[1]
    assert "\x1b[" not in terminal(*command, NO_COLOR="1")[1]
    assert "\x1b[" not in program(*command).out


def test_without_an_address_the_embedded_database_is_used_and_named(
    run: Run, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", f"{tmp_path}/home")

    with embedded.start():
        fresh = run("queue", "list")
        migrated = run("migrate")
        listed = run("queue", "list", "--quiet")

    assert fresh.code == 4
    assert fresh.err.startswith("using PostgreSQL ")
    assert "--url or HOLDFAST_URL name another" in fresh.err
    assert migrated.code == 0
    assert (listed.code, listed.out, listed.err) == (0, "", "")


def _wait_for_a_waiter(connection: psycopg.Connection) -> None:
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock'"
    deadline = time.monotonic() + 120
    while not connection.execute(waiting).rowcount:
        assert time.monotonic() < deadline, "nobody waits for the lock"


def _without(module: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `holdfast` as where a module is not installed."""
    program = f"import sys; sys.modules[{module!r}] = None; from holdfast.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
