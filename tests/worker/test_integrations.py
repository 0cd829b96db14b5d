"""Sentry and structlog, with the real packages; what would be sent is kept."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
import structlog
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from holdfast import App, Retry, integrations
from holdfast.outcome import NEVER
from holdfast.worker import Worker


class Kept(Transport):
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [item.payload.json for item in envelope.items if item.payload.json]

    def errors(self) -> list[dict[str, Any]]:
        return [one for one in self.items if one.get("type") != "transaction"]

    def transactions(self) -> list[dict[str, Any]]:
        return [one for one in self.items if one.get("type") == "transaction"]


@pytest.fixture
def sent() -> Iterator[Kept]:
    """What Sentry would be sent."""
    kept = Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="http://key@localhost/1",
            transport=kept,
            traces_sample_rate=1.0,
            default_integrations=True,
            auto_enabling_integrations=False,
        )
        yield kept
    sentry_sdk.get_client().close()
    sentry_sdk.init()


def drain(app: App) -> None:
    Worker(app, until_idle=True).run()


def test_sentry_has_each_failed_attempt_once_and_a_transaction_for_each_run(
    database: str, sent: Kept
) -> None:
    with App(database, middleware=[integrations.sentry()]) as app:

        @app.task(max_attempts=2, retry=0)
        async def pay(order: int) -> None:
            raise ValueError(f"order {order}")

        @app.task(max_attempts=1)
        def later() -> None:
            raise Retry

        @app.task
        def fine() -> None:
            logging.getLogger("shop").error("said by the handler")

        with sentry_sdk.start_transaction(name="request") as request:
            handle = pay.enqueue(7)
        later.enqueue()
        fine.enqueue()
        drain(app)

    raised = [one for one in sent.errors() if "exception" in one]
    assert [(one["level"], one["exception"]["values"][0]["value"]) for one in raised] == [
        ("warning", "order 7"),
        ("error", "order 7"),
    ]
    assert raised[1]["contexts"]["holdfast"]["job"] == str(handle.id)
    assert raised[1]["tags"]["holdfast.kind"] == "pay"
    # An error that a handler logs has the job with it.
    [said] = [one for one in sent.errors() if one.get("logger") == "shop"]
    assert said["contexts"]["holdfast"]["kind"] == "fine"
    runs = [one for one in sent.transactions() if one["contexts"]["trace"]["op"] == "queue.process"]
    assert sorted((one["transaction"], one["contexts"]["trace"]["status"]) for one in runs) == [
        ("fine", "ok"),
        ("later", "cancelled"),
        ("pay", "internal_error"),
        ("pay", "internal_error"),
    ]
    traces = {one["contexts"]["trace"]["trace_id"] for one in runs if one["transaction"] == "pay"}
    assert traces == {request.trace_id}


def test_sentry_has_an_error_for_a_job_that_its_policy_gives_up(database: str, sent: Kept) -> None:
    with App(database, middleware=[integrations.sentry()]) as app:

        @app.task(max_attempts=9, retry={ValueError: NEVER, OSError: 3600})
        def pay(refused: bool) -> None:
            raise ValueError("refused") if refused else OSError("try later")

        @app.task(max_attempts=9, retry=lambda attempt, error: None)
        def ask() -> None:
            raise ValueError("no")

        pay.enqueue(refused=True)
        pay.enqueue(refused=False)
        ask.enqueue()
        drain(app)

    raised = [one for one in sent.errors() if "exception" in one]
    assert sorted((one["exception"]["values"][0]["value"], one["level"]) for one in raised) == [
        ("no", "error"),
        ("refused", "error"),
        ("try later", "warning"),
    ]


@pytest.mark.parametrize("odd", [5, True, ["a"], {"a": 1}, "no trace"])
def test_a_header_that_is_not_a_trace_does_not_keep_a_job_from_running(
    database: str, sent: Kept, odd: Any
) -> None:
    ran = []
    with App(database, middleware=[integrations.sentry()]) as app:

        @app.task
        def pay() -> None:
            ran.append(1)

        app.client.enqueue("pay", headers={"sentry-trace": odd, "baggage": odd})
        drain(app)

    assert ran == [1]
    assert sent.errors() == []


def test_structlog_has_the_job_and_what_it_carries(database: str) -> None:
    with (
        structlog.testing.capture_logs(
            processors=[structlog.contextvars.merge_contextvars]
        ) as logged,
        App(database, middleware=[integrations.structlog(carry=["request_id"])]) as app,
    ):

        @app.task
        def greet() -> None:
            structlog.get_logger().info("hello")

        with structlog.contextvars.bound_contextvars(request_id="r-1", secret="s"):
            handle = greet.enqueue()
        greet.enqueue()
        drain(app)

    assert {k: v for k, v in logged[0].items() if k != "log_level"} == {
        "event": "hello",
        "request_id": "r-1",
        "job": str(handle.id),
        "kind": "greet",
        "queue": "default",
        "attempt": 1,
    }
    assert "request_id" not in logged[1]


def test_importing_holdfast_is_enough_to_name_an_integration() -> None:
    program = "import holdfast; print(holdfast.integrations.sentry())"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
