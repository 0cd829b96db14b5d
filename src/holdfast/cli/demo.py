"""`holdfast demo`: a producer and two workers in one terminal, and what they leave behind."""

import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event, RLock
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
from msgspec.structs import replace

from holdfast import __version__
from holdfast.cli import output
from holdfast.cli.grammar import Command
from holdfast.cli.queue import queue_table
from holdfast.cli.session import Session, connect, pass_session
from holdfast.records import Lease, NewJob

if TYPE_CHECKING:
    from holdfast.client import Client

QUEUE = "demo"
WORKERS = ("ada", "grace")
PATIENCE = 20.0


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

    with session.database() as database, connect(database) as client:
        if database.server:
            schema.migrate(database.url)
        else:
            session.say(f"using {conninfo.server(database.url)}, named by {database.origin}")
        stage = _Stage(session, client)
        interrupted = stage.play()
        _close(session, client, stage, interrupted)


class _Stage:
    """The queue, the two workers and everything that was said on it."""

    def __init__(self, session: Session, client: "Client") -> None:
        self.session = session
        self.client = client
        self.started = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.dead: list[UUID] = []
        self._voice = RLock()
        self._handlers: Mapping[str, Callable[[Lease], Any]] = {
            "greet": self._greet,
            "receipt": self._receipt,
            "fetch_rates": self._fetch_rates,
            "price_run": self._price_run,
            "send_email": self._send_email,
        }

    def play(self) -> bool:
        """Run until every job has ended; returns whether it was interrupted before."""
        self.client.queues.set(QUEUE, keep_done=timedelta(days=1), max_attempts=3)
        self.session.say(
            f"holdfast {__version__}  queue {QUEUE}  workers: {', '.join(WORKERS)}  Ctrl-C to stop"
        )
        interrupted, stop = False, Event()
        with ThreadPoolExecutor(len(WORKERS)) as pool:
            workers = [pool.submit(self._work, name, stop) for name in WORKERS]
            try:
                self._produce(stop)
                while self._busy() and not stop.wait(0.2):
                    self.client.upkeep.run()
            except KeyboardInterrupt:
                interrupted = True
            finally:
                stop.set()
            for worker in workers:
                worker.result()
        return interrupted

    def _produce(self, stop: Event) -> None:
        self._enqueue(
            NewJob(kind="greet", payload={"name": "Ada"}),
            NewJob(kind="greet", payload={"name": "Grace", "shout": True}, priority=9),
            NewJob(kind="greet", payload={"name": "Linus, three seconds later"}, delay=3),
            *(
                NewJob(kind="price_run", payload={"scenario": name}, lane="axiom")
                for name in ("base", "up", "down")
            ),
            NewJob(kind="send_email", payload={"to": "ada@example.org"}),
            NewJob(kind="fetch_rates", payload={"day": "today"}),
        )
        if not stop.wait(1):
            receipt = NewJob(kind="receipt", payload={"order": 42}, key="order-42")
            self._enqueue(receipt, receipt)

    def _enqueue(self, *jobs: NewJob) -> None:
        wanted = [replace(job, queue=QUEUE) for job in jobs]
        # Workers are quick: that a job is queued should be read before that it is leased.
        with self._voice:
            for job, enqueued in zip(wanted, self.client.enqueue_many(wanted), strict=True):
                note = [f"priority {job.priority}"] if job.priority else []
                note += [f"in {job.delay} s"] if job.delay else []
                note += [f"lane {job.lane}"] if job.lane else []
                note += [f"key {job.key}"] if job.key else []
                outcome = "queued" if enqueued.created else "duplicate"
                self._event(job.kind, enqueued.id, outcome, ", ".join(note))

    def _busy(self) -> bool:
        found = self.client.queues.get(QUEUE)
        waiting = found is not None and found.queued + found.leased > 0
        return waiting and time.monotonic() - self.started < PATIENCE

    def _work(self, worker: str, stop: Event) -> None:
        try:
            while not stop.is_set():
                leases = self.client.claim(
                    QUEUE, worker=worker, lease=5.0, kinds=list(self._handlers)
                )
                for lease in leases:
                    self._run_or_release(lease, stop)
                if not leases:
                    stop.wait(0.05)
        finally:
            stop.set()

    def _run_or_release(self, lease: Lease, stop: Event) -> None:
        try:
            self._run(lease, stop)
        except BrokenPipeError:
            # Nobody watches any more; the next demo need not wait for the lease to expire.
            self.client.release([lease])
            raise

    def _run(self, lease: Lease, stop: Event) -> None:
        if stop.is_set():
            self.client.release([lease])
            return
        attempt = f"attempt {lease.attempt}/{lease.max_attempts}"
        self._event(lease.kind, lease.id, "leased", f"{attempt} by {lease.worker}")
        started = time.monotonic()
        try:
            result = self._handlers[lease.kind](lease)
        except BrokenPipeError:
            raise
        except Exception as error:
            note = f"{type(error).__name__}: {error}"
            settle = partial(
                self.client.nack,
                [lease],
                error_kind=type(error).__name__,
                message=str(error),
                traceback=traceback.format_exc(),
            )
        else:
            note = f"{1000 * (time.monotonic() - started):.0f} ms"
            settle = partial(self.client.ack, [lease], [result])
        # That a job is done should be read before that the next of its lane is leased.
        with self._voice:
            [settled] = settle()
            outcome = "failed" if settled.outcome == "queued" else settled.outcome
            self._event(lease.kind, lease.id, outcome, note)
        if settled.outcome == "dead":
            self.dead.append(lease.id)

    def _greet(self, lease: Lease) -> str:
        text = f"hello {lease.payload['name']}"
        self._print(text.upper() if lease.payload.get("shout") else text)
        return text

    def _receipt(self, lease: Lease) -> None:
        self._print(f"receipt for order {lease.payload['order']}")

    def _fetch_rates(self, lease: Lease) -> None:
        if lease.attempt == 1:
            raise ConnectionResetError("the bank hung up")

    def _price_run(self, lease: Lease) -> None:
        time.sleep(0.4)
        self._print(f"priced scenario {lease.payload['scenario']}")

    def _send_email(self, lease: Lease) -> None:
        raise TimeoutError("no answer from mail.example.org in 30 s")

    def _event(self, kind: str, id: UUID, outcome: str, note: str) -> None:
        word = click.style(outcome, fg=output.COLOURS.get(outcome)) + " " * (9 - len(outcome))
        with self._voice:
            now = datetime.now(UTC)
            event = {"at": now, "kind": kind, "id": id, "event": outcome, "note": note}
            self.events.append(event)
            clock = now.astimezone().strftime("%H:%M:%S")
            self._print(f"{clock}  {kind:11}  {output.short(id)}  {word}  {note}".rstrip())

    def _print(self, line: str) -> None:
        if not self.session.json:
            with self._voice:
                click.echo(line)


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
