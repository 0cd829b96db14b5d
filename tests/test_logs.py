"""Records of handlers say which job they belong to, in words and in JSON."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Client
from holdfast.watch.logs import JobFields, JsonFormatter, json_lines
from holdfast.worker import Worker
from holdfast.worker.logs import capture_logs
from tests.ports import free_port

BOUND = {"job", "kind", "queue", "attempt", "max_attempts", "worker"}
log = logging.getLogger("shop")


@pytest.fixture
def app(database: str) -> Iterator[App]:
    with App(database) as app:
        yield app


def lines_of(app: App) -> list[dict[str, Any]]:
    stream = io.StringIO()
    with json_lines(stream=stream):
        Worker(app, until_idle=True).run()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("style", ["async", "thread"])
def test_what_a_handler_logs_names_its_job(app: App, style: str) -> None:
    if style == "thread":

        @app.task(queue="mail", max_attempts=2, retry=lambda attempt, error: 0)
        def send(to: str) -> None:
            log.info("sending", extra={"to": to})
            raise ValueError("no")
    else:

        @app.task(queue="mail", max_attempts=2, retry=lambda attempt, error: 0)
        async def send(to: str) -> None:
            log.info("sending", extra={"to": to})
            raise ValueError("no")

    job = send.enqueue("ada")

    told = lines_of(app)

    sent = [line for line in told if line["event"] == "sending"]
    for attempt, line in enumerate(sent, start=1):
        assert line.pop("at").endswith("Z")
        assert line.pop("worker")
        assert line == {
            "level": "info",
            "logger": "shop",
            "event": "sending",
            "to": "ada",
            "job": str(job.id),
            "kind": "send",
            "queue": "mail",
            "attempt": attempt,
            "max_attempts": 2,
        }
    failed, died = (line for line in told if line["event"] in ("attempt failed", "job died"))
    assert failed.keys() >= BOUND | {"error"}
    assert (died["attempt"], died["job"], died["error"]) == (2, str(job.id), "ValueError: no")


def test_outside_of_a_job_nothing_is_added(app: App) -> None:
    stream = io.StringIO()
    with json_lines(stream=stream):
        log.warning("alone")

    assert not json.loads(stream.getvalue()).keys() & BOUND


def test_the_trace_of_whoever_enqueued_is_named(app: App) -> None:
    @app.task
    def greet() -> None:
        log.info("hello")

    given = f"00-{'ab' * 16}-{'cd' * 8}-01"
    greet.options(headers={"traceparent": given}).enqueue()
    greet.options(headers={"traceparent": "no trace"}).enqueue()

    first, second = (line for line in lines_of(app) if line["event"] == "hello")

    assert (first["trace_id"], first["span_id"]) == ("ab" * 16, "cd" * 8)
    assert "trace_id" not in second


def test_a_record_about_another_job_keeps_what_it_says(app: App) -> None:
    @app.task
    def greet() -> None:
        log.info("seen", extra={"job": "another"})

    greet.enqueue()

    [line] = (line for line in lines_of(app) if line["event"] == "seen")

    assert line["job"] == "another"
    assert "kind" not in line


def test_the_parts_serve_a_logging_of_ones_own(app: App) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s kind=%(kind)s attempt=%(attempt)s"))
    handler.addFilter(JobFields())

    @app.task
    def greet() -> None:
        log.warning("hello")

    greet.enqueue()
    log.addHandler(handler)
    try:
        Worker(app, until_idle=True).run()
    finally:
        log.removeHandler(handler)

    assert stream.getvalue() == "hello kind=greet attempt=1\n"


def test_what_json_cannot_say_is_told_in_words_and_in_one_line() -> None:
    record = logging.makeLogRecord(
        {"msg": "two\nlines %s", "args": ("é",), "levelname": "ERROR", "thing": {1, 2}}
    )
    try:
        raise ValueError("no")
    except ValueError:
        record.exc_info = sys.exc_info()

    text = JsonFormatter().format(record)

    told = json.loads(text)
    assert "\n" not in text
    assert told["event"] == "two\nlines é"
    assert told["thing"] == "{1, 2}"
    assert told["traceback"].endswith("ValueError: no")


def test_the_logging_of_before_is_back_afterwards() -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level

    with json_lines(stream=io.StringIO()):
        assert root.isEnabledFor(logging.INFO)

    assert (root.handlers, root.level) == before


def test_warnings_of_a_program_without_logging_of_its_own_are_still_printed_while_a_worker_runs(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(max_attempts=1)
    def fail() -> None:
        raise ValueError("the card was refused")

    printed = io.StringIO()
    last_resort = logging.StreamHandler(printed)
    last_resort.setLevel(logging.WARNING)
    monkeypatch.setattr(logging, "lastResort", last_resort)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configured = logging.getLogger("shop.configured")
    configured.addHandler(logging.NullHandler())
    fail.enqueue()
    with capture_logs():
        Worker(app, until_idle=True).run()
        log.warning("the shelf is empty")
        log.info("of no interest")
        configured.warning("printed elsewhere")
    configured.handlers.clear()

    told = printed.getvalue().splitlines()
    assert told[0] == "job died"
    assert told[-2:] == ["ValueError: the card was refused", "the shelf is empty"]


SHOP = """
import logging
import holdfast

app = holdfast.App()
log = logging.getLogger("shop")

@app.task(process=True)
def render():
    log.info("rendering")

@app.task
def greet():
    log.info("greeting")
"""


def test_a_worker_writes_json_and_serves_metrics_for_all_of_its_processes(
    database: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with Client(database) as client:
        client.enqueue("render")
        client.enqueue("greet")
    port = free_port(beside=2)
    command = [sys.executable, "-m", "holdfast", "worker", "shop:app", "--until-idle"]

    done = subprocess.run(
        [*command, "--metrics", str(port)],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_URL": database, "HOLDFAST_LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
        check=True,
    )

    told = [json.loads(line) for line in done.stderr.splitlines()]
    logged = {line["event"]: line for line in told if line["logger"] == "shop"}
    assert logged.keys() == {"rendering", "greeting"}
    assert logged["rendering"]["kind"] == "render"
    assert logged["rendering"].keys() >= BOUND
    assert {"starting", "worker started"} <= {line["event"] for line in told}
    assert {line["address"] for line in told if line["event"] == "metrics"} == {
        f"127.0.0.1:{port}",
        f"127.0.0.1:{port + 1}",
    }
    assert done.stdout == ""
