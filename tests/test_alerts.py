"""Telling people: upkeep detects, logs and delivers, signed and one job for each delivery."""

import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import psycopg
import pytest

from holdfast import App, Client, Finding, NewJob
from holdfast.errors import Misuse
from holdfast.upkeep.loop import Upkeep
from holdfast.watch import webhooks
from tests.conftest import Clock, Connect
from tests.docs.pages import ROOT
from tests.server.serving import serving

SECRET = "a secret of ada and bob"


class Inbox:
    """An HTTP server that keeps what it is sent, and answers as it is told."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version: ClassVar[str] = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                inbox.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(inbox.answers.pop(0) if inbox.answers else 204)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    @property
    def events(self) -> list[str]:
        documents = [json.loads(body) for _, body in self.got]
        return [f"{one['type']} {one['data']['code']}" for one in documents]


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    opened = Inbox()
    thread = threading.Thread(target=opened.server.serve_forever, args=(0.01,))
    thread.start()
    yield opened
    opened.server.shutdown()
    thread.join()
    opened.server.server_close()


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@contextmanager
def running(upkeep: Upkeep) -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(upkeep.run, stop)
        try:
            yield
        finally:
            stop.set()
            ended.result(timeout=100)


def eventually(true: Callable[[], Any], within: float = 120.0) -> Any:
    deadline = time.monotonic() + within
    while not (value := true()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)
    return value


def kill(client: Client, kind: str = "send") -> None:
    client.enqueue(kind, max_attempts=1)
    client.nack(client.claim(worker="w"), error_kind="Timeout", message="30 s")


@pytest.mark.proves("S4.11")
def test_an_anomaly_is_delivered_signed_and_so_is_its_end(
    client: Client, inbox: Inbox, clock: Clock
) -> None:
    client.webhooks.set("ops", url=inbox.url, secret=SECRET)
    kill(client)
    with running(Upkeep(client, holder="ada", every=0.05)):
        eventually(lambda: inbox.got)
        clock.advance(minutes=6)
        eventually(lambda: len(inbox.got) == 2)
        # Whoever was told knows before the database does.
        eventually(lambda: client.queues.get(webhooks.DELIVERIES).done == 2)

    assert inbox.events == ["anomaly.raised job_died", "anomaly.resolved job_died"]
    headers, body = inbox.got[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    told = json.loads(body)["data"]
    assert told["title"] == "1 send died"
    assert told["suggestion"] == "holdfast dead groups"


def test_a_coded_secret_is_decoded() -> None:
    coded = "whsec_" + base64.b64encode(SECRET.encode()).decode()

    assert webhooks.signature(coded, "1", "2", b"{}") == webhooks.signature(SECRET, "1", "2", b"{}")


@pytest.mark.parametrize(("status", "told"), [(500, "HTTP 500"), (302, "HTTP 302")])
def test_what_does_not_arrive_is_tried_again_later(
    client: Client, inbox: Inbox, clock: Clock, status: int, told: str
) -> None:
    client.webhooks.set("ops", url=inbox.url, secret=SECRET)
    kill(client)
    inbox.answers = [status]

    client.detectors.run(["job_died"])
    assert webhooks.deliver(client, "ada") == 0
    [waiting] = client.jobs.list(f"queue:{webhooks.DELIVERIES}")
    clock.advance(seconds=6)
    client.upkeep.run()
    assert webhooks.deliver(client, "ada") == 1

    assert (waiting.attempt, waiting.error) == (1, f"DeliveryFailed: {told}")
    assert [headers["webhook-id"] for headers, _ in inbox.got] == [str(waiting.id)] * 2


def test_what_goes_on_failing_is_tried_ever_later(
    client: Client, inbox: Inbox, clock: Clock
) -> None:
    client.webhooks.set("ops", url=inbox.url, secret=SECRET)
    kill(client)
    client.detectors.run(["job_died"])
    inbox.answers = [500] * 99

    waits: list[float] = []
    while True:
        before = client.now()
        assert webhooks.deliver(client, "ada") == 0
        [waiting] = client.jobs.list(f"queue:{webhooks.DELIVERIES}")
        if waiting.state != "queued":
            break
        waits.append((waiting.run_at - before).total_seconds())
        clock.advance(seconds=waits[-1])
        client.upkeep.promote()

    assert waiting.state == "dead"
    assert waits[:4] == [pytest.approx(wait, abs=4) for wait in (5, 15, 45, 135)]
    page = (ROOT / "docs/how-to/watch-for-trouble.md").read_text()
    assert f"retried with\ngrowing delays for about {sum(waits) / 3600:.1f} hours" in page


def test_a_webhook_that_is_gone_or_nobody_answers(client: Client, inbox: Inbox) -> None:
    client.webhooks.set("gone", url=inbox.url, secret=SECRET)
    client.webhooks.set("silent", url="http://127.0.0.1:1/", secret=SECRET)
    kill(client)
    client.detectors.run(["job_died"])
    assert client.webhooks.delete("gone") is True
    assert client.webhooks.delete("gone") is False

    assert webhooks.deliver(client, "ada") == 0

    jobs = client.jobs.list(f"queue:{webhooks.DELIVERIES}")
    errors = {job.payload["webhook"]: (job.state, job.error) for job in jobs}
    assert errors["gone"] == ("dead", "Gone: the webhook was deleted")
    assert errors["silent"][0] == "queued"
    assert inbox.got == []


def test_a_courier_survives_whatever_waits_and_signs_only_what_is_ours(
    client: Client, inbox: Inbox, connect: Connect
) -> None:
    client.webhooks.set("ops", url=inbox.url, secret=SECRET)
    odd = ["null", "[]", "1e308", '"x"', "{}", '{"webhook": "ops"}', '{"webhook": 1, "event": []}']
    forged = '{"webhook": "ops", "event": "anomaly.raised", "at": "now", "anomaly": {"code": "x"}}'
    insert = """
        insert into holdfast.job (part, id, queue, kind, payload)
        select holdfast.queue_part(q), holdfast.new_id(q), q, %s, %s from (values (%s)) v(q)
    """
    with connect() as connection:
        for payload in odd:
            connection.execute(insert, [webhooks.KIND, payload, webhooks.DELIVERIES])
        connection.execute(insert, ["invoice", forged, webhooks.DELIVERIES])
    kill(client)
    client.detectors.run(["job_died"])

    assert webhooks.deliver(client, "ada") == 1

    assert inbox.events == ["anomaly.raised job_died"]
    errors = {job.error for job in client.jobs.list(f"queue:{webhooks.DELIVERIES}")}
    assert errors == {"NotADelivery: not made by holdfast"}


def test_nobody_but_holdfast_puts_jobs_among_its_own(client: Client) -> None:
    job = client.enqueue("send").id
    dead = client.enqueue("late", run_at=datetime(2100, 1, 1, tzinfo=UTC)).id
    ours = "holdfast.alerts"
    doors: list[Callable[[], Any]] = [
        lambda: client.enqueue(webhooks.KIND, queue=ours),
        lambda: client.enqueue("send", queue="holdfast.", lane="a", key="b"),
        lambda: client.enqueue_many([NewJob(kind="a"), NewJob(kind="b", queue=ours)]),
        lambda: client.copy([NewJob(kind="send", queue=ours)]),
        lambda: client.jobs.move([job, dead], ours),
        lambda: client.schedules.set("nightly", kind="send", every=60, queue=ours),
        lambda: client.operations.preview("move", "state:queued", queue=ours),
    ]

    for door in doors:
        with pytest.raises(Misuse, match="belongs to Holdfast") as refused:
            door()
        assert refused.value.code == "HF211"

    assert {one.queue for one in client.jobs.list()} == {"default"}
    assert client.enqueue("send", queue="holdfast").created


def test_deliveries_of_a_courier_that_stops_go_to_another(client: Client, inbox: Inbox) -> None:
    client.webhooks.set("ops", url=inbox.url, secret=SECRET)
    kill(client, "one")
    kill(client, "two")
    client.detectors.run(["job_died"])

    assert webhooks.deliver(client, "ada", iter([False, False, True]).__next__) == 1
    assert webhooks.deliver(client, "bob") == 1
    assert len(inbox.got) == 2


def test_a_slow_webhook_does_not_hold_up_the_upkeep(
    client: Client, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()
    monkeypatch.setattr(webhooks, "_post", lambda *_: held.wait(100) and None)
    client.webhooks.set("ops", url=inbox.url, secret=SECRET)
    kill(client)
    late = client.enqueue("late", delay=0.2)
    with running(Upkeep(client, holder="ada", every=0.05)):
        eventually(lambda: client.jobs.list(f"queue:{webhooks.DELIVERIES} state:leased"))
        eventually(lambda: "Ready" in client.jobs.explain(late.id))
        held.set()


def test_the_log_tells_and_a_mute_is_kept(
    client: Client, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    upkeep = Upkeep(client, holder="ada")
    client.anomalies.mute("last_attempt")
    client.enqueue("send", max_attempts=2)
    client.nack(client.claim(worker="w"), message="boom")
    kill(client, "other")
    with caplog.at_level(logging.INFO, "holdfast.anomalies"):
        assert upkeep.turn()["anomalies"] == 2
        clock.advance(minutes=6)
        upkeep.turn()

    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "anomaly raised: 1 other died"
    assert "anomaly resolved: 1 other died" in told
    assert not any("close to dying" in line for line in told)


def test_a_detector_of_ones_own_runs_in_upkeep_in_one_process_of_all(
    client: Client, database: str, clock: Clock
) -> None:
    app = App(database)
    looked: list[str] = []

    @app.detector(every=60)
    def refunds(connection: psycopg.Connection[Any]) -> Iterable[Finding]:
        looked.append("looked")
        row = connection.execute("select count(*) from pg_class where relname = 'refund'")
        if row.fetchone() == (0,) and len(looked) == 1:
            yield Finding("Refunds pile up", subject="refunds", severity="critical")

    ada = Upkeep(client, holder="ada", detectors=app.detectors)
    bob = Upkeep(client, holder="bob", detectors=app.detectors)
    ada.turn()
    bob.turn()
    [found] = client.anomalies.list()
    ada._look_at["refunds"] = 0.0
    clock.advance(seconds=61)
    ada.turn()

    assert len(looked) == 2
    assert (found.code, found.title, found.severity) == ("refunds", "Refunds pile up", "critical")
    assert client.anomalies.list() == []
    assert [one.id for one in client.anomalies.list(over=True)] == [found.id]


def test_a_broken_detector_is_logged_and_stops_nothing(
    client: Client, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(database)

    @app.detector()
    def broken(connection: psycopg.Connection[Any]) -> Iterable[Finding]:
        connection.execute("select 1 / 0")
        return []

    kill(client)
    assert Upkeep(client, holder="ada", detectors=app.detectors).turn()["anomalies"] == 1
    assert [record.reason for record in caplog.records if hasattr(record, "reason")] == [
        "HF200 detector broken failed: division by zero"
    ]


def test_a_detector_needs_a_name_of_its_own(database: str) -> None:
    app = App(database)
    app.detector(name="mine")(lambda connection: [])

    for name in ("mine", "no name", ""):
        with pytest.raises(Misuse, match="a detector cannot be called"):
            app.detector(name=name)(lambda connection: [])


def test_a_pinned_snapshot_is_named_within_seconds_in_command_and_api(
    client: Client, database: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from holdfast.cli import main
    from holdfast.server import Server, Settings

    threshold = 1.0
    client.detectors.set("horizon_pinned", seconds=threshold)
    monkeypatch.setenv("HOLDFAST_URL", database)
    forgotten = connect(autocommit=False, application_name="report of ada")
    with (
        serving(Server(database, settings=Settings(fresh=0.0, upkeep=False))) as server,
        server.client() as api,
        running(Upkeep(client, holder="ada")),
    ):
        forgotten.execute("set transaction isolation level repeatable read")
        forgotten.execute("select 1 from holdfast.job")
        [pid] = forgotten.execute("select pg_backend_pid()").fetchone() or (None,)
        began = time.monotonic()

        def named_by_api() -> Any:
            found = api.get("/v1/anomalies").json()["anomalies"]
            return next((one for one in found if one["evidence"].get("pid") == pid), None)

        told = eventually(named_by_api)
        seconds = time.monotonic() - began
        listed = CliRunner().invoke(main, ["anomaly", "list"]).stdout
        shown = CliRunner().invoke(main, ["anomaly", "show", told["id"]]).stdout

    assert seconds < 40  # detectors look every ten seconds, and not once a minute
    assert told["evidence"]["application"] == "report of ada"
    assert told["suggestion"] == f"select pg_terminate_backend({pid});"
    assert f"Process {pid} (report of ada) has pinned the vacuum horizon" in listed
    assert f"select pg_terminate_backend({pid});" in shown
