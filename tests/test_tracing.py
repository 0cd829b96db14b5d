"""Spans from whoever enqueues to the handler, over retries, threads and processes."""

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import App, AsyncClient, Client, Release, current
from holdfast.records import NewJob
from holdfast.watch import tracing
from holdfast.watch.logs import json_lines
from holdfast.worker import Worker

Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Everything that ended in this test so far, oldest first."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A program can set its provider once; a test has one of its own.
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield lambda: sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
    provider.shutdown()


@pytest.fixture
def app(database: str) -> Iterator[App]:
    with App(database) as app:
        yield app


def drain(app: App) -> None:
    Worker(app, until_idle=True).run()


def test_every_attempt_has_a_span_linked_to_where_the_job_was_enqueued(
    app: App, spans: Spans
) -> None:
    @app.task(queue="mail", max_attempts=3, retry=lambda attempt, error: 0)
    def send(to: str) -> None:
        if current().attempt == 1:
            raise ConnectionError("no route")

    job = send.enqueue("ada")
    drain(app)

    enqueued, failed, done = spans()
    assert (enqueued.name, enqueued.kind) == ("enqueue mail", SpanKind.PRODUCER)
    assert dict(enqueued.attributes) == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job.id),
        "holdfast.job.kind": "send",
    }
    for attempt, span in enumerate((failed, done), start=1):
        assert (span.name, span.kind) == ("process mail", SpanKind.CONSUMER)
        assert span.parent is None
        assert [link.context.span_id for link in span.links] == [enqueued.context.span_id]
        assert [link.context.trace_id for link in span.links] == [enqueued.context.trace_id]
        assert span.attributes["messaging.message.id"] == str(job.id)
        assert span.attributes["messaging.operation.type"] == "process"
        assert span.attributes["holdfast.job.attempt"] == attempt
    assert failed.context.trace_id != done.context.trace_id
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "ConnectionError"
    assert failed.attributes["holdfast.job.outcome"] == "failed"
    assert [event.name for event in failed.events] == ["exception"]
    assert done.status.status_code is StatusCode.UNSET
    assert done.attributes["holdfast.job.outcome"] == "done"


def test_every_attempt_of_a_workflow_is_linked_to_the_span_that_started_it(
    app: App, spans: Spans, database: str
) -> None:
    @app.task(kind="a", max_attempts=2, retry=lambda attempt, error: 0)
    def first() -> None:
        if current().attempt == 1:
            raise ConnectionError("no route")

    @app.task(kind="b")
    def second() -> None: ...

    with Client(database) as client:
        jobs = [NewJob(kind="a", max_attempts=2), NewJob(kind="b", after=[1])]
        id = client.workflows.start("import", jobs).id
    drain(app)

    started, *attempts = spans()
    assert started.kind is SpanKind.PRODUCER
    assert started.attributes["holdfast.workflow.id"] == str(id)
    assert started.attributes["holdfast.workflow.name"] == "import"
    assert started.attributes["messaging.batch.message_count"] == 2
    kinds = [span.attributes["holdfast.job.kind"] for span in attempts]
    assert kinds == ["a", "a", "b"]
    for span in attempts:
        assert [link.context.span_id for link in span.links] == [started.context.span_id]


@pytest.mark.parametrize("style", ["async", "thread"])
def test_what_a_handler_enqueues_belongs_to_its_attempt(app: App, spans: Spans, style: str) -> None:
    @app.task
    def last() -> None: ...

    if style == "thread":

        @app.task
        def first() -> None:
            last.enqueue()
    else:

        @app.task
        async def first() -> None:
            await last.aenqueue()

    with trace.get_tracer_provider().get_tracer("test").start_as_current_span("request"):
        first.enqueue()
    drain(app)

    request, enqueued, ran, enqueued_inside, ran_inside = spans()
    assert enqueued.parent.span_id == request.context.span_id
    assert ran.links[0].context.span_id == enqueued.context.span_id
    assert enqueued_inside.parent.span_id == ran.context.span_id
    assert ran_inside.links[0].context.span_id == enqueued_inside.context.span_id


def test_jobs_enqueued_together_share_one_span(app: App, spans: Spans) -> None:
    @app.task
    def greet(name: str) -> None: ...

    @app.task(queue="mail")
    def send(name: str) -> None: ...

    app.enqueue_many([greet.call("ada"), greet.call("grace"), send.call("ada")])
    drain(app)

    enqueued, *ran = spans()
    assert enqueued.name == "enqueue"
    assert enqueued.attributes["messaging.batch.message_count"] == 3
    assert "messaging.destination.name" not in enqueued.attributes
    assert len(ran) == 3
    assert {span.links[0].context.span_id for span in ran} == {enqueued.context.span_id}


def test_copied_jobs_carry_the_context(database: str, spans: Spans) -> None:
    with Client(database) as client:
        client.copy(NewJob(kind="greet") for _ in range(3))
        leases = client.claim(worker="w", limit=9)

    [copied] = spans()
    assert {tracing.ids_in(lease.headers)["span_id"] for lease in leases} == {
        f"{copied.context.span_id:016x}"
    }
    assert len(leases) == 3


def test_the_asynchronous_client_carries_it_too(database: str, spans: Spans) -> None:
    async def enqueue() -> None:
        async with AsyncClient(database) as client:
            await client.enqueue("greet")

    asyncio.run(enqueue())

    with Client(database) as client:
        [lease] = client.claim(worker="w")
    [enqueued] = spans()
    assert tracing.ids_in(lease.headers)["trace_id"] == f"{enqueued.context.trace_id:032x}"


def test_a_context_given_by_hand_and_other_headers_are_kept(database: str, spans: Spans) -> None:
    given = f"00-{1:032x}-{2:016x}-01"
    with Client(database) as client:
        client.enqueue("greet", headers={"traceparent": given, "tenant": "a"})
        client.enqueue("greet", headers={"tenant": "b"})
        first, second = client.claim(worker="w", limit=2)

    assert first.headers == {"traceparent": given, "tenant": "a"}
    assert second.headers["tenant"] == "b"
    assert tracing.ids_in(second.headers)["span_id"] == f"{spans()[1].context.span_id:016x}"


def test_baggage_reaches_the_handler(app: App, spans: Spans) -> None:
    seen: list[Any] = []

    @app.task
    def greet() -> None:
        seen.append(baggage.get_baggage("tenant"))

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    greet.enqueue()
    context.detach(token)
    drain(app)

    assert seen == ["acme"]


def test_what_a_handler_logs_names_the_span_that_is_current(app: App, spans: Spans) -> None:
    stream = io.StringIO()

    @app.task(max_attempts=1)
    def greet() -> None:
        logging.getLogger("shop").info("outer")
        with trace.get_tracer_provider().get_tracer("shop").start_as_current_span("step"):
            logging.getLogger("shop").info("inner")
        raise ValueError("no")

    greet.enqueue()
    with json_lines(stream=stream):
        drain(app)

    told = {line["event"]: line for line in map(json.loads, stream.getvalue().splitlines())}
    _, ran, step = spans()
    for event, span in (("outer", ran), ("inner", step), ("job died", ran)):
        assert told[event]["trace_id"] == f"{ran.context.trace_id:032x}"
        assert told[event]["span_id"] == f"{span.context.span_id:016x}"


def test_giving_a_job_back_is_no_error(app: App, spans: Spans) -> None:
    @app.task
    def greet() -> None:
        if len(spans()) == 1:
            raise Release

    greet.enqueue()
    drain(app)

    _, released, done = spans()
    assert released.attributes["holdfast.job.outcome"] == "released"
    assert released.status.status_code is StatusCode.UNSET
    assert done.attributes["holdfast.job.attempt"] == 1


@pytest.mark.parametrize("moment", ["on_start", "on_end"])
def test_jobs_are_run_whatever_is_wrong_with_the_tracing(
    app: App, spans: Spans, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    @app.task
    def greet() -> None: ...

    job = greet.enqueue()
    monkeypatch.setattr(SimpleSpanProcessor, moment, _broken)
    drain(app)

    assert job.state() == "done"


def _broken(*_: object, **__: object) -> None:
    raise RuntimeError("out of order")


def test_a_failed_enqueue_is_an_error_of_its_span(database: str, spans: Spans) -> None:
    from holdfast.errors import InvalidJob

    with Client(database) as client, pytest.raises(InvalidJob):
        client.enqueue("greet", priority=77)

    [enqueued] = spans()
    assert enqueued.status.status_code is StatusCode.ERROR


def test_without_a_provider_headers_stay_empty_and_nothing_is_imported(database: str) -> None:
    program = f"""
import sys, holdfast
with holdfast.Client({database!r}) as client:
    client.enqueue("greet")
    [lease] = client.claim(worker="w")
assert lease.headers == {{}}, lease.headers
assert holdfast.watch.tracing.begin(lease) is None
loaded = [name for name in sys.modules if name.startswith("opentelemetry")]
assert not loaded, loaded
import opentelemetry.trace          # the interface alone, without anywhere to send spans
assert holdfast.watch.tracing.begin(lease) is None
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


TRACED = """
import json, os
import holdfast
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

class File(SpanExporter):
    def export(self, spans):
        with open(os.environ["TEST_SPANS"], "a") as file:
            for span in spans:
                file.write(json.dumps([os.getpid(), json.loads(span.to_json(indent=None))]) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(File()))
trace.set_tracer_provider(provider)
app = holdfast.App()

@app.task(process=True, retry=lambda attempt, error: 0)
async def render():
    with trace.get_tracer("shop").start_as_current_span("draw"):
        if holdfast.current().attempt == 1:
            raise ValueError("no paper")

if __name__ == "__main__":
    render.enqueue()
"""


def test_spans_of_child_processes_arrive(database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TRACED)
    told = tmp_path / "spans"
    environment = {**os.environ, "HOLDFAST_URL": database, "TEST_SPANS": str(told)}
    for command in (["shop.py"], ["-m", "holdfast", "worker", "shop:app", "--until-idle"]):
        subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, check=True)

    lines = [json.loads(line) for line in told.read_text().splitlines()]
    pids = {span["name"]: pid for pid, span in lines}
    spans = sorted((span for _, span in lines), key=lambda span: span["start_time"])
    enqueued, *rest = spans
    assert [span["name"] for span in rest] == ["process default", "draw"] * 2
    assert pids["enqueue default"] != pids["process default"]
    for ran, drawn in (rest[:2], rest[2:]):
        assert ran["links"][0]["context"]["span_id"] == enqueued["context"]["span_id"]
        assert drawn["parent_id"] == ran["context"]["span_id"]
    assert [span["attributes"]["holdfast.job.outcome"] for span in rest[::2]] == ["failed", "done"]
