"""What a worker tells Prometheus of its jobs."""

import builtins
import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx
import prometheus_client
import pytest

from holdfast import App, Cancel, Release, current
from holdfast.errors import HoldfastError, Misuse
from holdfast.watch.labels import MOST_KINDS
from holdfast.watch.meter import Address
from holdfast.worker import Worker
from tests import promtext
from tests.conftest import Connect
from tests.ports import free_port
from tests.promtext import values
from tests.worker.conftest import Running
from tests.worker.handlers import until

Start = Callable[..., Running]


@pytest.fixture
def port() -> int:
    """A port that is free."""
    return free_port(beside=2)


def scrape(port: int) -> dict[str, Any]:
    until(lambda: _answers(port))
    return promtext.check(httpx.get(f"http://127.0.0.1:{port}/metrics").text)


def test_attempts_are_timed_and_counted_by_how_they_ended(
    app: App, start: Start, port: int
) -> None:
    @app.task(queue="mail", max_attempts=2, retry=lambda attempt, error: 0)
    def send(how: str) -> None:
        match how:
            case "fail":
                raise ValueError("no")
            case "cancel":
                raise Cancel
            case "transaction":
                with current().transaction():
                    pass
            case "release" if not given_back:
                given_back.append(how)
                raise Release

    given_back: list[str] = []
    for how in ("fine", "fail", "cancel", "transaction", "release"):
        send.enqueue(how)
    running = start(metrics=port)
    until(lambda: running.worker.counts.acked == 3 and running.worker.counts.failed == 2)
    until(lambda: app.client.queues.get("mail").queued + app.client.queues.get("mail").leased == 0)

    told = scrape(port)

    outcomes = values(told, "holdfast_attempts_total", "queue", "kind", "outcome")
    assert outcomes == {
        ("mail", "send", "done"): 3,
        ("mail", "send", "failed"): 1,
        ("mail", "send", "dead"): 1,
        ("mail", "send", "cancelled"): 1,
        ("mail", "send", "released"): 1,
    }
    assert values(told, "holdfast_run_seconds_count", "queue", "kind") == {("mail", "send"): 7}
    assert values(told, "holdfast_pickup_seconds_count", "queue", "kind") == {("mail", "send"): 7}
    assert values(told, "holdfast_leases_lost_total", "queue", "kind") == {("mail", "send"): 0}
    assert values(told, "holdfast_loop_lag_seconds")[()] < 30
    assert values(told, "holdfast_listen_up")[()] in (0, 1)


def test_pickup_is_from_when_a_job_was_due(
    app: App, start: Start, port: int, connect: Connect
) -> None:
    done = threading.Event()

    @app.task
    def greet() -> None:
        done.set()

    greet.enqueue()
    # As if it had been enqueued a minute ago, whatever this machine's clock says.
    connect().execute("update holdfast.job set run_at = run_at - interval '1 minute'")
    start(metrics=port)
    assert done.wait(100)

    [waited] = values(scrape(port), "holdfast_pickup_seconds_sum", "kind").values()

    assert 60 <= waited < 110


def test_a_lost_lease_is_counted(app: App, start: Start, port: int) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def greet() -> None:
        begun.set()
        go_on.wait(100)

    job = greet.enqueue()
    running = start(metrics=port, lease=1.5)
    assert begun.wait(100)
    app.client.jobs.cancel([job.id])
    until(lambda: running.worker.counts.lost == 1)
    go_on.set()

    told = scrape(port)

    assert values(told, "holdfast_leases_lost_total", "kind") == {"greet": 1}
    assert values(told, "holdfast_attempts_total", "outcome") == {"lost": 1}


def test_what_the_program_counts_itself_is_told_too(app: App, start: Start, port: int) -> None:
    counter = prometheus_client.Counter("shop_mails_total", "Mails that were sent")

    @app.task
    def send() -> None:
        counter.inc()

    try:
        send.enqueue()
        running = start(metrics=port)
        until(lambda: running.worker.counts.acked == 1)
        told = scrape(port)
    finally:
        prometheus_client.REGISTRY.unregister(counter)

    assert values(told, "shop_mails_total") == {(): 1}
    assert not [name for name in told if name.startswith("holdfast") and "created" in name]


def test_more_kinds_than_there_are_labels_share_one(app: App, start: Start, port: int) -> None:
    for number in range(MOST_KINDS + 5):
        app.task(kind=f"kind{number}")(_nothing).enqueue()
    running = start(metrics=port, concurrency=50)
    until(lambda: running.worker.counts.acked == MOST_KINDS + 5)

    counts = values(scrape(port), "holdfast_attempts_total", "kind")

    assert len(counts) == MOST_KINDS + 1
    assert counts["other"] == 5


def test_the_port_is_free_again_when_the_worker_has_ended(
    app: App, start: Start, port: int
) -> None:
    app.task(_nothing)
    running = start(metrics=f"127.0.0.1:{port}")
    scrape(port)

    running.stop()

    assert not _answers(port)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_port_that_is_taken_ends_the_worker_with_an_error(app: App) -> None:
    app.task(_nothing)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HoldfastError, match=f"HF405 cannot listen on 127.0.0.1:{port}"):
            Worker(app, metrics=port, until_idle=True).run()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (9464, "127.0.0.1:9464"),
        ("9464", "127.0.0.1:9464"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("[::]:9464", "[::]:9464"),
    ],
)
def test_an_address_is_a_port_or_has_one(text: str | int, address: str) -> None:
    assert str(Address.read(text)) == address


@pytest.mark.parametrize("text", ["", "metrics", "0.0.0.0", "host:", "host:99999", "-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="metrics cannot be served on"):
        Address.read(text)


def test_without_the_library_the_extra_is_named(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "prometheus_client":
            raise ImportError(name)
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    app.task(_nothing)

    with pytest.raises(Misuse, match=r"holdfast\[metrics\]"):
        Worker(app, metrics=9464)


def _nothing() -> None: ...


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
