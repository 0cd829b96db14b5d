"""Runs `process=True` handlers in child processes, one for each job that runs."""

import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import wait
from queue import SimpleQueue
from time import monotonic
from typing import Any

from msgspec.structs import replace

from holdfast.current import CurrentJob
from holdfast.errors import WorkerDied
from holdfast.outcome import settle_killed, settle_stopped
from holdfast.records import Lease, Released, Settlement
from holdfast.worker import screen
from holdfast.worker.handlers import Finish
from holdfast.worker.logs import Log
from holdfast.worker.process import child
from holdfast.worker.process.source import AppSource
from holdfast.worker.process.spawned import SPAWN, Spawned, how_it_ended

log = logging.getLogger("holdfast.worker")

# How long a child may take to close its lifespan when it is stopped.
PATIENCE = 5.0
# How long importing an app may take.
LONGEST_START = 120.0
# A job whose child could not start is released for a moment, a limited number of times.
BREATH = 1.0
MOST_BROKEN = 3


class ProcessRunner:
    """Child processes that run jobs; as many as there were ever jobs at once.

    Each is started when it is first needed, by a thread that then listens to it. A handler is
    stopped by killing its child; whatever kills a child costs only the job it ran.
    """

    def __init__(
        self, source: AppSource, finish: Finish, give_up: Callable[[BaseException], None]
    ) -> None:
        self._source = source
        self._finish = finish
        self._give_up = give_up
        self._jobs: SimpleQueue[CurrentJob | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._broken = 0

    def start(self, job: CurrentJob) -> None:
        """Hand the job to a child."""
        # Its time runs from when the handler starts: a fresh child has to be imported first.
        job.run_until = None
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                name = f"holdfast-child-{len(self._threads) + 1}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        self._jobs.put(job)

    def stop(self, job: CurrentJob) -> None:
        """Kill the child; the job ends when it is dead."""
        with self._lock:
            if job.runner:
                job.runner.kill()

    def close(self) -> None:
        """Let the children end, and wait until they have."""
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        deadline = monotonic() + PATIENCE + 1.0
        for thread in threads:
            thread.join(max(deadline - monotonic(), 0.0))

    def _work(self) -> None:
        running: Child | None = None
        after: CurrentJob | None = None
        try:
            while job := after or self._jobs.get():
                try:
                    running = running or Child(self._source)
                except OSError as error:
                    # There is no room for another process.
                    settlement: Settlement | None = self._no_child(job, ChildDied(str(error)))
                else:
                    settlement = self._settlement(job, running)
                after = self._finish(job, settlement)
                if after:
                    after.run_until = None
                else:
                    with self._lock:
                        self._idle += 1
                if running and not running.fit:
                    running.end()
                    running = None
            if running:
                running.end()
        except BaseException as error:
            self._give_up(error)

    def _settlement(self, job: CurrentJob, running: "Child") -> Settlement | None:
        """Run the job in the child and return how to end it; None if it has ended already."""
        try:
            while not running.ready:
                if job.stopped:
                    return settle_stopped(job)
                running.greet(0.1)
        except ChildDied as died:
            return self._no_child(job, died)
        self._broken = 0
        with self._lock:
            if job.stopped:
                return settle_stopped(job)
            job.runner = running
        try:
            told = running.run(job)
        except ChildDied as died:
            told = settle_killed(job, died.how)
        with self._lock:
            job.runner = job.mirror = None
        if job.settled:
            return None
        if job.stopped:
            # The external system with the ticket ends the job.
            return None if job.ticket else settle_stopped(job)
        return told

    def _no_child(self, job: CurrentJob, died: "ChildDied") -> Settlement:
        # It is not the job's fault: no attempt is counted.
        log.error("child process cannot start", extra={"reason": died.said or died.how})
        self._broken += 1
        if self._broken >= MOST_BROKEN:
            self._give_up(WorkerDied(f"child processes cannot start: {died.how}", why=died.said))
        return Released(job.lease, BREATH)


class Child:
    """A child process and the pipe to it; used by the one thread that made it."""

    def __init__(self, source: AppSource) -> None:
        self.ready = False
        self.fit = True
        self._said = ""
        self._ready_by = monotonic() + LONGEST_START
        self._deadline = SPAWN.RawValue("d", 0.0)
        self._pipe, theirs = SPAWN.Pipe()
        with closing(theirs):
            self._process = Spawned(
                child.run, source, theirs, self._deadline, screen.for_children()
            )

    def greet(self, patience: float) -> None:
        """Wait a while for it to be ready; raises ChildDied if it never will be."""
        match self._hear(patience):
            case ("ready",):
                self.ready = True
            case ("broken", said):
                self._said = said
            case None if monotonic() > self._ready_by:
                self._said = f"it was not ready within {LONGEST_START:g} s"
                self.kill()

    def run(self, job: CurrentJob) -> Settlement | None:
        """Run a job and return its settlement; raises ChildDied if the child dies.

        The worker renews the lease meanwhile, with its others.
        """
        job.mirror = self._deadline
        self._deadline.value = job.deadline
        if job.task.timeout is not None:
            job.run_until = monotonic() + job.task.timeout
        self._say((job.lease, job.lease_seconds))
        ending = False
        try:
            while True:
                match self._hear():
                    case ("noted", note, soon):
                        if note is not None:
                            job.progress(**note)
                        if soon:
                            job.touch()
                    case ("logged", lines):
                        job.log = job.log or Log()
                        for line in lines:
                            job.log.add(line)
                    case ("ending",):
                        # The child may end the lease from here on.
                        ending = job.settled = True
                        self._say(True)
                    case ("ended", settled, ticket):
                        ending, job.settled, job.ticket = False, settled, ticket
                    case ("done", settlement, spent):
                        self.fit = self.fit and not spent
                        return _under(job.lease, settlement)
        except ChildDied:
            if ending:
                # Only the database knows: the result of settling shows it.
                job.settled = False
            raise

    def kill(self) -> None:
        """Kill it and everything it started; from any thread."""
        self.fit = False
        self._deadline.value = 0.0
        self._process.kill()

    def end(self) -> None:
        """Let it exit, or kill it; clean up after it."""
        if not self._pipe.closed:
            self._say(None)
            if not self._process.is_dead(PATIENCE):
                self.kill()
            self._close()

    def _say(self, message: Any) -> None:
        with suppress(OSError):  # it is dead, which is heard next
            self._pipe.send(message)

    def _hear(self, patience: float | None = None) -> Any:
        heard = wait([self._pipe, self._process.died], patience)
        if not heard:
            return None
        try:
            # What it said before it died comes first.
            if self._pipe in heard:
                return self._pipe.recv()
        except (EOFError, OSError):
            # It may live on without the pipe, and must not.
            self.kill()
        raise ChildDied(self._close(), self._said)

    def _close(self) -> str:
        self.fit = False
        self._pipe.close()
        return how_it_ended(self._process.close())


class ChildDied(Exception):  # noqa: N818 - named for what happened
    """A child died: `how`, and what it `said` before."""

    def __init__(self, how: str, said: str = "") -> None:
        super().__init__(how)
        self.how = how
        self.said = said.strip()


def _under(lease: Lease, settlement: Settlement | None) -> Settlement | None:
    # The child identifies a lease by its token; a ticket has another one.
    if settlement is None or settlement.lease != (lease.id, lease.token):
        return settlement
    return replace(settlement, lease=lease)
