"""A producer that keeps a backlog and knows exactly what was confirmed, through every outage."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from holdfast import Client
from holdfast.errors import Unavailable, UnknownOutcome
from holdfast.records import NewJob, new_id


class Producer:
    """Enqueues jobs of one kind in a thread, never many more than are asked for."""

    def __init__(self, url: str, kind: str, *, backlog: int, lease: float, **payload: Any) -> None:
        self._url = url
        self._kind = kind
        self._backlog = backlog
        self._lease = timedelta(seconds=lease)
        self._payload = payload
        self._done = threading.Event()
        self.confirmed: list[UUID] = []

    @contextmanager
    def running(self) -> Iterator["Producer"]:
        """Produce while the block lasts; what is under way is finished."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._done.set()
            thread.join()

    def _run(self) -> None:
        with Client(self._url, application_name="chaos", timeout=5) as client:
            while not self._done.wait(0.1):
                try:
                    waiting = [x.jobs for x in client.queues.depth() if x.state == "queued"]
                    if sum(waiting) > self._backlog:
                        continue
                except Unavailable:
                    continue
                self._enqueue(client, self._backlog // 4)

    def _enqueue(self, client: Client, count: int) -> None:
        first = len(self.confirmed)
        jobs = [
            NewJob(
                kind=self._kind,
                payload={"n": n, **self._payload},
                lease=self._lease,
                max_attempts=100,
                id=new_id(),
            )
            for n in range(first, first + count)
        ]
        # The ids are ours: whatever became of the first try, the next one stores nothing twice.
        repeat = False
        while True:
            try:
                self.confirmed += [job.id for job in client.enqueue_many(jobs, repeat=repeat)]
            except (Unavailable, UnknownOutcome):
                repeat = True
            else:
                return
