"""`holdfast job log`: what a handler logs, while it runs."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from holdfast.client import Client
from holdfast.records import Lease
from tests.cli.conftest import PROGRAM, Run


def leased(client: Client, **options: int) -> Lease:
    client.enqueue("report", **options)  # type: ignore[arg-type]
    [lease] = client.claim("default", worker="w1", lease=timedelta(minutes=5))
    return lease


@contextmanager
def following(database: str, lease: Lease, *more: str) -> Iterator["subprocess.Popen[str]"]:
    command = [*PROGRAM, "job", "log", str(lease.id), "--follow", "--url", database, *more]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_log_prints_what_is_stored(holdfast: Run, client: Client) -> None:
    lease = leased(client)
    client.log([lease], [["one", "two", "three"]])

    assert holdfast("job", "log", lease.id).out == "one\ntwo\nthree\n"
    assert holdfast("job", "log", str(lease.id)[-8:], "-n", 2).out == "two\nthree\n"
    told = holdfast("job", "log", lease.id, "-n", 1, "--json").out
    assert json.loads(told)["text"] == "three"


def test_control_characters_of_a_line_do_not_reach_the_terminal(
    holdfast: Run, client: Client
) -> None:
    lease = leased(client)
    client.log([lease], [["red \x1b[31m nul \0 title \x1b]0;x\x07"]])

    assert holdfast("job", "log", lease.id).out == "red \\x1b[31m nul \\0 title \\x1b]0;x\\x07\n"


def test_what_a_short_attempt_logged_is_printed_as_well(holdfast: Run, client: Client) -> None:
    from holdfast.records import Failed

    lease = leased(client, max_attempts=1)
    client.settle([Failed(lease, "ValueError", "no", log="card refused")])

    ended = holdfast("job", "log", lease.id, "--follow")

    assert ended.out == "card refused\n"
    assert ended.err == "attempt 1 failed: ValueError: no\ndead: ValueError: no\n"
    assert ended.code == 1


def test_a_job_that_never_was_is_refused(holdfast: Run, client: Client) -> None:
    refused = holdfast("job", "log", "0" * 32, "--follow")

    assert refused.code == 1
    assert "HF301" in refused.err or "no job" in refused.err


def test_a_followed_log_ends_with_the_job_and_says_how(database: str, client: Client) -> None:
    lease = leased(client)
    client.log([lease], [["begun"]])

    with following(database, lease) as process:
        assert line_of(process) == "begun"
        client.touch([lease], progress=[{"done": 3, "total": 20, "note": "page 3"}])
        client.log([lease], [["third page"]])
        assert line_of(process) == "third page"
        client.log([lease], [["last"]])
        client.ack([lease])
        out, err = process.communicate(timeout=60)

    assert out == "last\n"
    assert err.splitlines()[0] == "attempt 1 of 3 runs at w1"
    assert err.splitlines()[-1] == "done by w1"
    assert process.returncode == 0


def test_progress_is_told_beside_the_lines(holdfast: Run, client: Client) -> None:
    lease = leased(client)
    client.touch([lease], progress=[{"done": 3, "total": 20, "note": "page 3"}])

    assert "progress 3 of 20  page 3\n" in holdfast("job", "log", lease.id).err


def test_a_followed_job_that_is_cancelled_is_a_failure(database: str, client: Client) -> None:
    lease = leased(client)
    client.log([lease], [["begun"]])

    with following(database, lease) as process:
        assert line_of(process) == "begun"
        client.jobs.cancel([lease.id], reason="user left")
        _, err = process.communicate(timeout=60)

    assert err.splitlines()[-1] == "cancelled: user left"
    assert process.returncode == 1


def test_a_followed_log_survives_a_connection_that_is_cut(
    database: str, direct: str, client: Client
) -> None:
    lease = leased(client)
    client.log([lease], [["before"]])

    with following(database, lease) as process:
        assert line_of(process) == "before"
        with psycopg.connect(direct, autocommit=True) as connection:
            cut = connection.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                "where application_name = 'holdfast cli'"
            ).fetchone()
        assert cut is not None
        assert cut[0] > 0
        client.log([lease], [["after"]])
        assert line_of(process) == "after"


def test_ctrl_c_ends_a_followed_log_without_a_traceback(database: str, client: Client) -> None:
    lease = leased(client)
    client.log([lease], [["begun"]])

    with following(database, lease) as process:
        assert line_of(process) == "begun"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in err
