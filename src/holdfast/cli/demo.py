"""`holdfast demo`: a producer and a worker in one terminal, and what they leave behind."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import RLock
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast import __version__
from holdfast.cli import output
from holdfast.cli.grammar import Command
from holdfast.cli.queue import queue_table
from holdfast.cli.session import Session, connect, pass_session

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.client import Client

QUEUE = "demo"
WORKER, SLOTS = "ada", 2
PATIENCE = 20.0
# What a worker logs of a job, and what the demo calls it.
EVENTS = {"leased": "leased", "done": "done", "attempt failed": "failed", "job died": "dead"}


@click.command(
    cls=Command,
    short_help="Enqueue some jobs and run them in this terminal.",
    examples=["holdfast demo", "holdfast demo --url postgresql:///shop"],
)
@pass_session
def demo(session: Session) -> None:
    """Enqueue some jobs and run them, for a few seconds or until Ctrl-C.

    One is delayed, three share a lane, one needs a second attempt and one
    dies. On the embedded database nothing needs to be installed; on yours it
    works in the queue "demo" and wants the schema to be there.
    """
    from holdfast import conninfo, schema
    from holdfast.app import App

    with session.database() as database, connect(database) as client:
        if database.server:
            schema.migrate(database.url)
        else:
            session.say(f"using {conninfo.server(database.url)}, named by {database.origin}")
        stage = _Stage(session, client)
        with App(database.url) as app:
            interrupted = stage.play(app)
        _close(session, client, stage, interrupted)


class _Stage(logging.Handler):
    """Everything that happens in the demo, told line by line: it reads the log of the worker."""

    def __init__(self, session: Session, client: "Client") -> None:
        super().__init__()
        self.session = session
        self.client = client
        self.started = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.dead: list[UUID] = []
        # Its lock as a handler of logs, too: two of them would wait for each other.
        self.lock = self._voice = RLock()
        self._unheard: BrokenPipeError | None = None

    def play(self, app: "App") -> bool:
        """Run until every job has ended; returns whether it was interrupted before."""
        from holdfast.worker.background import Processor
        from holdfast.worker.worker import Worker

        self.client.queues.set(QUEUE, keep_done=timedelta(days=1), max_attempts=3)
        self.session.say(
            f"holdfast {__version__}  queue {QUEUE}  worker {WORKER}, {SLOTS} slots  Ctrl-C to stop"
        )
        self._declare(app)
        worker = Worker(app, concurrency=SLOTS, poll=0.2, grace=2)
        worker.id = WORKER
        interrupted = False
        with self._listening(), Processor(worker):
            try:
                self._produce(app)
                while self._busy():
                    time.sleep(0.2)
            except KeyboardInterrupt:
                interrupted = True
        if self._unheard:
            raise self._unheard
        return interrupted

    def _declare(self, app: "App") -> None:
        from holdfast.current import current

        @app.task(queue=QUEUE, keep_result=True)
        def greet(name: str, shout: bool = False) -> str:
            text = f"hello {name}"
            self._print(text.upper() if shout else text)
            return text

        @app.task(queue=QUEUE, key=lambda order: f"order-{order}")
        def receipt(order: int) -> None:
            self._print(f"receipt for order {order}")

        @app.task(queue=QUEUE)
        def fetch_rates(day: str) -> None:
            if current().attempt == 1:
                raise ConnectionResetError("the bank hung up")

        @app.task(queue=QUEUE, lane="axiom")
        def price_run(scenario: str) -> None:
            time.sleep(0.4)
            self._print(f"priced scenario {scenario}")

        @app.task(queue=QUEUE)
        def send_email(to: str) -> None:
            raise TimeoutError("no answer from mail.example.org in 30 s")

    def _produce(self, app: "App") -> None:
        tasks = app.tasks
        greet, receipt = tasks["greet"], tasks["receipt"]
        self._enqueue(
            app,
            greet.call("Ada"),
            greet.options(priority=9).call("Grace", shout=True),
            greet.options(delay=3).call("Linus, three seconds later"),
            *(tasks["price_run"].call(name) for name in ("base", "up", "down")),
            tasks["send_email"].call("ada@example.org"),
            tasks["fetch_rates"].call("today"),
        )
        time.sleep(1)
        self._enqueue(app, receipt.call(42), receipt.call(42))

    def _enqueue(self, app: "App", *calls: Any) -> None:
        # A worker is quick: that a job is queued should be read before that it is leased.
        with self._voice:
            for call, handle in zip(calls, app.enqueue_many(calls), strict=True):
                job = call.job
                note = [f"priority {job.priority}"] if job.priority else []
                note += [f"in {job.delay} s"] if job.delay else []
                note += [f"lane {job.lane}"] if job.lane else []
                note += [f"key {job.key}"] if job.key else []
                outcome = "queued" if handle.created else "duplicate"
                self._event(job.kind, handle.id, outcome, ", ".join(note))

    def _busy(self) -> bool:
        found = self.client.queues.get(QUEUE)
        waiting = found is not None and found.queued + found.leased > 0
        return waiting and not self._unheard and time.monotonic() - self.started < PATIENCE

    @contextmanager
    def _listening(self) -> Iterator[None]:
        log = logging.getLogger("holdfast")
        level, propagate, handlers = log.level, log.propagate, log.handlers
        log.handlers, log.propagate = [self], False
        log.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            log.handlers, log.propagate = handlers, propagate
            log.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Tell what a worker logs of a job."""
        if (outcome := EVENTS.get(record.getMessage())) is None:
            if record.levelno >= logging.ERROR:
                click.echo(self.format(record), err=True)
            return
        about: dict[str, Any] = vars(record)
        match outcome:
            case "leased":
                attempt = f"{about['attempt']}/{about['max_attempts']}"
                note = f"attempt {attempt} by {about['worker']}"
            case "done":
                note = f"{1000 * about['seconds']:.0f} ms"
            case _:
                note = about["error"]
        self._event(about["kind"], UUID(about["job"]), outcome, note)
        if outcome == "dead":
            self.dead.append(UUID(about["job"]))

    def _event(self, kind: str, id: UUID, outcome: str, note: str) -> None:
        word = click.style(outcome, fg=output.COLOURS.get(outcome)) + " " * (9 - len(outcome))
        with self._voice:
            now = datetime.now(UTC)
            event = {"at": now, "kind": kind, "id": id, "event": outcome, "note": note}
            self.events.append(event)
            clock = now.astimezone().strftime("%H:%M:%S")
            self._print(f"{clock}  {kind:11}  {output.short(id)}  {word}  {note}".rstrip())

    def _print(self, line: str) -> None:
        if self.session.json or self._unheard:
            return
        with self._voice:
            try:
                click.echo(line)
            except BrokenPipeError as error:
                # Nobody reads any more: the jobs that run may end, and then the demo does.
                self._unheard = error


def _close(session: Session, client: "Client", stage: _Stage, interrupted: bool) -> None:
    queues = [found for found in client.queues.list() if found.queue == QUEUE]
    rates = {one.queue: one.rate for one in client.queues.success(QUEUE) if one.kind is None}
    why = {id: client.jobs.explain(id) for id in stage.dead}
    session.answer(
        {"interrupted": interrupted, "events": stage.events, "queues": queues, "dead": why},
        lambda: "\n".join(
            [
                "",
                queue_table(queues, rates),
                *(f"{output.short(id)}: {output.clean(told)}" for id, told in why.items()),
            ]
        ),
    )
    seconds = time.monotonic() - stage.started
    session.say(f"\n{'stopped' if interrupted else 'ended'} after {seconds:.0f} s; what now?")
    hints = {
        "holdfast job list": "see every job",
        "holdfast dead groups": "see what died, grouped by how",
    }
    for id in stage.dead[:1]:
        name = output.short(id)
        hints[f"holdfast job show {name}"] = "see its attempts and traceback"
        hints[f"holdfast job retry {name}"] = "queue it again; the next demo runs it"
    if waiting := sum(found.queued + found.leased for found in queues):
        hints["holdfast demo"] = f"run the {output.counted(waiting, 'job')} that still wait"
    session.say(output.block({f"  {command}": text for command, text in hints.items()}))
