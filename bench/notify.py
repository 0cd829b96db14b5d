"""What it costs producers that an idle worker wants to be woken."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from bench.harness import BATCH, Database, Options, Server, items, running, take
from bench.report import Figure

PRODUCERS = 16
ENQUEUE = "select id from holdfast.enqueue(items => :item::jsonb);"
AWAIT = "select holdfast.await_work(array['default'], 'bench', '1 second')"


def run(server: Server, options: Options) -> list[Figure]:
    """Enqueue one job per transaction: alone, beside a worker that polls, beside one that is woken.

    A worker takes its share of the machine; the one that polls tells that share from the price of
    being woken.
    """
    names = {"alone": "no worker", "polls": "a worker polls", "woken": "a worker is woken"}
    speed: dict[str, list[float]] = {what: [] for what in names}
    spent: dict[str, list[float]] = {what: [] for what in names}
    wakes: list[float] = []
    with server.database("notify") as database:
        for _ in range(options.rounds):
            for what in names:
                database.reset()
                worker = Worker(database, listens=what == "woken")
                with database.upkeep(), nullcontext() if what == "alone" else worker.working():
                    load = database.pgbench(
                        ENQUEUE, clients=PRODUCERS, seconds=options.seconds, item=items(1)
                    )
                speed[what].append(load.transactions / load.seconds)
                spent[what].append(load.backend_cpu / load.transactions * 1e6)
                if what == "woken":
                    wakes.append(worker.wakes / load.seconds)

    alone, polls, woken = (
        Figure("notify", f"{PRODUCERS} producers, {name}", "jobs/s", speed[what])
        for what, name in names.items()
    )
    costs = [
        Figure("notify", f"{PRODUCERS} producers, {name}", "backend µs/job", spent[what])
        for what, name in names.items()
        if all(spent[what])
    ]
    return [
        alone,
        replace(polls, base=alone),
        replace(woken, base=alone),
        replace(woken, base=polls, at_least=0.8),
        Figure("notify", "notifications", "/s", wakes),
        *costs[:1],
        *(replace(cost, base=costs[0]) for cost in costs[1:]),
    ]


class Worker:
    """Claims and acks all it finds; when it comes up short it polls, or asks to be woken."""

    def __init__(self, database: Database, *, listens: bool) -> None:
        self._database = database
        self._listens = listens
        self._done = threading.Event()
        self.wakes = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work in the background."""
        with running(self._work, self._done):
            yield

    def _work(self) -> None:
        with self._database.connect(application_name="bench worker") as connection:
            if self._listens:
                connection.execute("listen holdfast")
            while not self._done.is_set():
                if take(connection) == BATCH:
                    continue
                if not self._listens:
                    time.sleep(0.005)
                    continue
                connection.execute(AWAIT)
                # Who enqueued between the claim and the waiting has woken nobody.
                patience = 0.0 if take(connection) else 0.2
                self.wakes += len(list(connection.notifies(timeout=patience, stop_after=1)))
