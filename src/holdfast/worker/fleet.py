"""Runs the workers of an app: in this process, or in several if one is not enough.

Jobs of `process=True` tasks are claimed and kept by a worker in whose process no handler runs, the
host: no handler that blocks or keeps the interpreter to itself can make it late. Ordinary workers
run all other jobs. With more than one of them this process only watches over the others.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from math import inf
from multiprocessing.connection import wait
from time import monotonic, sleep
from typing import Any

import psycopg

from holdfast import __version__, conninfo, schema, synonyms
from holdfast.app import SOURCES, App
from holdfast.callsite import caller
from holdfast.client import Client
from holdfast.errors import HoldfastError, Misuse, SchemaTooNew, Unavailable, WorkerDied
from holdfast.jitter import random_between
from holdfast.outcome import seconds
from holdfast.watch.meter import Address
from holdfast.worker.allowance import Allowance
from holdfast.worker.health import AGAIN
from holdfast.worker.process.source import AppSource, find_source, refuse_while_importing
from holdfast.worker.process.spawned import (
    KILL_AFTER,
    SPAWN,
    STOPS,
    Signals,
    Spawned,
    belong,
    how_it_ended,
    refuse_off_unix,
    unblock_stops,
)
from holdfast.worker.screen import Screen
from holdfast.worker.strange_queues import warn_of_strange_queues
from holdfast.worker.wear import STARTING, WORKING, WORN, Wear, memory
from holdfast.worker.worker import GRACE, Worker, refuse_in_loop

log = logging.getLogger("holdfast.worker")

# A worker that dies is started again, after a pause that doubles while it dies at once: before it
# has begun to work, however long that takes a busy machine, or within so many seconds of its start.
AT_ONCE = 10.0
FIRST_PAUSE = 0.25
MOST_FALLS = 5
# How often a fleet looks whether one of its processes is worn; and when it tries again to replace
# one whose successor died.
LOOK = 0.5
REPLACE_AGAIN = 30.0


def run(
    app: App,
    *,
    processes: int = 1,
    screen: Screen | None = None,
    recycle_jobs: int | None = None,
    recycle_rss: int | None = None,
    **options: Any,
) -> None:
    """Run the workers of an app until they are stopped; raises if one of them fails.

    `processes` is how many ordinary workers there are. One that has run `recycle_jobs` jobs, or has
    `recycle_rss` bytes of memory, is replaced by a fresh one. The options are those of Worker.
    """
    _check_options(options)
    wear = Wear.read(recycle_jobs, recycle_rss, options)
    if wear:
        refuse_off_unix(str(wear))
    refuse_while_importing()
    refuse_in_loop()
    # Before it waits for a database: waiting does not make a wrong option right.
    roles = plan(app, processes, **options)
    with (screen or Screen.default()).shown():
        # A worker that cron runs is started again; any other waits for its database.
        _look_at_database(app, patient=not options.get("until_idle"))
        if len(roles) == 1 and not wear:
            Worker(app, **roles[0].options).run()
        else:
            source = find_source(app)
            with Client(app.url) as client:
                warn_of_strange_queues(app, client, options.get("queues") or ())
            Fleet(source, roles, screen=screen, wear=wear).run()


@dataclass(frozen=True, slots=True)
class Role:
    """The role of one process: a name to show, and the options of its Worker."""

    name: str
    options: Mapping[str, Any]


def plan(app: App, processes: int = 1, **options: Any) -> list[Role]:
    """Return which workers an app needs."""
    if processes < 1:
        raise Misuse(f"processes must be at least 1, not {processes}")
    if processes > 1:
        refuse_off_unix(f"processes={processes}")
    kinds = Worker(app, **options).kinds
    hosted = [kind for kind in kinds if app.handlers[kind].runs == "process"]
    others = [kind for kind in kinds if kind not in hosted]
    roles = []
    if others:
        roles += [Role("worker", {**options, "kinds": others})] * processes
    if hosted:
        # A process for each handler: more than there are processors would only share them.
        slots = {"concurrency": _processors()} | options
        # Upkeep may ask a task's own check, which is better done elsewhere.
        upkeep = options.get("upkeep", True) and not others
        roles.append(Role("host", {**slots, "kinds": hosted, "upkeep": upkeep}))
    return roles


class Fleet:
    """Workers in their own processes, restarted when they die, and replaced when they are worn.

    A successor works before its predecessor is told to stop: there is always somebody who claims.
    """

    def __init__(
        self,
        source: AppSource,
        roles: Sequence[Role],
        *,
        screen: Screen | None,
        wear: Wear | None = None,
    ) -> None:
        options = roles[0].options
        self._until_idle = bool(options.get("until_idle"))
        self._grace = seconds(options.get("grace", GRACE))
        allowance = None
        if jobs := options.get("max_jobs"):
            allowance = Allowance(jobs, sharers=len(roles))
        self._members = [
            Member(source, role, screen, nth, allowance, wear) for nth, role in enumerate(roles)
        ]
        self._wears = wear is not None
        self._stopping = False
        self._kill_at = 0.0
        self._failure: HoldfastError | None = None

    def run(self) -> None:
        """Start all and watch over them until all have ended."""
        with Signals() as signals:
            self._watch(signals)
            # What a job of one sort enqueued may be of another, whose worker had ended before.
            while self._until_idle and not self._stopping and self._did_something():
                self._watch(signals)
        if self._failure:
            raise self._failure

    def _watch(self, signals: Signals) -> None:
        for member in self._members:
            member.start()
        while self._unended():
            wait([signals.fileno(), *self._deaths()], self._patience())
            signals.hush()
            if signals.caught:
                self._heed(signals.caught)
            for member in self._unended():
                if member.process and member.process.is_dead():
                    self._take_in(member, member.close())
                elif not member.process and member.start_at <= monotonic():
                    member.start()
            if self._wears and not self._stopping:
                self._replace_worn()
            for member in self._members:
                if member.process and monotonic() >= member.kill_at:
                    member.process.kill(signal.SIGKILL)
            if self._stopping and monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)

    def _replace_worn(self) -> None:
        """Start a successor for each that is worn, and let those go whose successor works."""
        for member in list(self._members):
            before = member.follows
            if before and member.state != STARTING:
                member.follows = None
                before.leave(self._grace + KILL_AFTER)
                log.info("worker replaced", extra={"pid": before.pid, "by": member.pid})
                if not before.process:
                    self._members.remove(before)
            elif member.is_due_to_go() and not any(one.follows is member for one in self._members):
                self._members.append(member.successor())
                self._members[-1].start()

    def _heed(self, caught: Sequence[int]) -> None:
        if len(caught) > 1:
            self._signal(signal.SIGKILL)
            os._exit(128 + caught[-1])
        self._stop()

    def _take_in(self, member: "Member", code: int) -> None:
        how = how_it_ended(code)
        facts = {"role": member.role.name, "pid": member.pid, "reason": how}
        if member.kill_at < inf or member.follows:
            self._members.remove(member)
            if member.follows and not self._stopping:
                # Its predecessor goes on, and has another successor later.
                member.follows.wait_for_successor()
            if code:
                log.error("worker process died", extra=facts)
        elif code == 0:
            return
        elif self._stopping:
            log.error("worker process died", extra=facts)
            self._fail(f"a worker process ended badly: {how}")
        elif member.falls < MOST_FALLS:
            pause = member.start_again()
            log.error("worker process died", extra={**facts, "again_in": pause})
        else:
            log.critical("worker process keeps dying", extra=facts)
            self._fail(f"a worker process died {member.falls} times as soon as it ran: {how}")
            self._stop()

    def _fail(self, what: str) -> None:
        fix = "What it said before it died is above."
        self._failure = self._failure or WorkerDied(what, fix=fix)

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._kill_at = monotonic() + self._grace + KILL_AFTER
            log.info("workers stop", extra={"grace": self._grace})
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for member in self._members:
            if member.process:
                member.process.kill(number)

    def _unended(self) -> list["Member"]:
        return [
            member
            for member in self._members
            if member.process or (member.waits and not self._stopping)
        ]

    def _deaths(self) -> list[int]:
        return [member.process.died for member in self._members if member.process]

    def _patience(self) -> float | None:
        moments = [member.start_at for member in self._unended() if not member.process]
        if self._stopping:
            moments.append(self._kill_at)
        elif self._wears:
            moments.append(monotonic() + LOOK)
        return max(min(moments) - monotonic(), 0.0) if moments else None

    def _did_something(self) -> bool:
        mixed = len({tuple(member.role.options["kinds"]) for member in self._members}) > 1
        return mixed and any(member.claimed() for member in self._members)


class Member:
    """One worker of a fleet: its process, and how often it died."""

    def __init__(
        self,
        source: AppSource,
        role: Role,
        screen: Screen | None,
        nth: int,
        allowance: Any,
        wear: Wear | None = None,
        follows: "Member | None" = None,
    ) -> None:
        self.role = role
        # The one it is to replace; and from when on it is killed, once it has been replaced itself.
        self.follows = follows
        self.kill_at = inf
        self._again = (source, role, screen, nth, allowance, wear)
        self._replace_at = 0.0
        self._state = SPAWN.RawValue("i", STARTING)
        self.process: Spawned | None = None
        self.pid = 0
        self.falls = 0
        self.waits = False
        self.start_at = 0.0
        self._started_at = 0.0
        self._claimed = SPAWN.RawValue("q", 0)
        shared = self._claimed, self._state, wear and wear.soon(), follows is not None
        self._arguments = (source, role, screen, nth, allowance, *shared)

    @property
    def state(self) -> int:
        """What its process says of itself."""
        state: int = self._state.value
        return state

    def is_due_to_go(self) -> bool:
        """Whether its process is worn, and nothing replaces it yet."""
        worn = bool(self.process) and self.state == WORN and self.kill_at == inf
        return worn and monotonic() >= self._replace_at

    def successor(self) -> "Member":
        """Return one that is to replace it."""
        return Member(*self._again, follows=self)

    def wait_for_successor(self) -> None:
        """Go on for a while: its successor has died."""
        self._replace_at = monotonic() + REPLACE_AGAIN

    def leave(self, patience: float) -> None:
        """Let its process finish its jobs and end."""
        self.waits = False
        self.kill_at = monotonic() + patience
        if self.process:
            self.process.kill(signal.SIGTERM)

    def start(self) -> None:
        """Start its process."""
        self.waits = False
        self._state.value = STARTING
        self._claimed.value = 0
        self._started_at = monotonic()
        self.process = Spawned(_work, *self._arguments)
        self.pid = self.process.pid

    def close(self) -> int:
        """Clean up a process that has ended; returns its exit code."""
        assert self.process
        code = self.process.close()
        self.process = None
        at_once = self.state == STARTING or monotonic() - self._started_at < AT_ONCE
        self.falls = self.falls + 1 if code and at_once else int(code != 0)
        return code

    def start_again(self) -> float:
        """Schedule a restart of its process; returns the delay."""
        pause: float = FIRST_PAUSE * 2 ** (self.falls - 1)
        self.waits, self.start_at = True, monotonic() + pause
        return pause

    def claimed(self) -> int:
        """Return how many jobs it claimed before it ended."""
        claimed: int = self._claimed.value
        return claimed


class _Ordered(Worker):
    """A worker that leaves it to the fleet when to stop.

    A signal to all processes of a machine or a terminal reaches it too, besides the fleet.
    """

    state: Any = None
    wear: Wear | None = None
    succeeds = False

    def _signalled(self, number: int) -> None:
        self.stop()

    def _warn_of_strange_queues(self, client: Client) -> None:
        pass  # the fleet has

    def _beat(self, client: Client) -> None:
        super()._beat(client)
        # The thread that keeps leases calls this, twice a second.
        if self.state.value == STARTING:
            self.state.value = WORKING
        elif self.state.value == WORKING and self.wear and self.wear.is_reached(self._jobs_ended()):
            self.state.value = WORN
            log.info("worker is due to be replaced", extra={"worker": self.id, "rss": memory()})

    def _jobs_ended(self) -> int:
        return self.counts.acked + self.counts.failed

    @contextmanager
    def _measured(self) -> Iterator[None]:
        with _in_time(super()._measured, patient=self.succeeds):
            yield

    @contextmanager
    def _answering(self) -> Iterator[None]:
        with _in_time(super()._answering, patient=self.succeeds):
            yield


@contextmanager
def _in_time(serve: Callable[[], AbstractContextManager[None]], *, patient: bool) -> Iterator[None]:
    """Serve during the block; a successor as soon as its predecessor has left the address."""
    if not patient:
        with serve():
            yield
        return
    over = threading.Event()

    def insist() -> None:
        while not over.is_set():
            try:
                with serve():
                    over.wait()
            except HoldfastError:
                over.wait(AGAIN)

    thread = threading.Thread(target=insist, name="holdfast-address", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _work(
    parent: int,
    source: AppSource,
    role: Role,
    screen: Screen | None,
    nth: int,
    allowance: Allowance | None,
    claimed: Any,
    state: Any,
    wear: Wear | None,
    succeeds: bool,
) -> None:
    belong(parent)
    options = dict(role.options)
    if allowance:
        allowance.join(nth)
        options["max_jobs"] = allowance
    for name in ("metrics", "health"):
        if options.get(name) is not None:
            # Each process has what only it knows: the ports follow each other.
            first = Address.read(options[name])
            options[name] = str(replace(first, port=first.port + nth))
    with (screen or Screen.default()).shown():
        try:
            worker = _Ordered(source.app(), **options)
            worker.state, worker.wear, worker.succeeds = state, wear, succeeds
            for number in STOPS:
                signal.signal(number, lambda *_: worker.stop())
            unblock_stops()
            worker.run()
            claimed.value = worker.counts.claimed
        except Exception as error:
            ours = isinstance(error, HoldfastError)
            log.critical("worker failed: %s", error, exc_info=None if ours else error)
            sys.exit(1)


def _check_options(options: Mapping[str, Any]) -> None:
    own = signature(run).parameters.values()
    known = [one.name for one in own if one.kind is one.KEYWORD_ONLY and one.name != "screen"]
    known += [name for name in signature(Worker).parameters if name != "app"]
    for option in options.keys() - set(known):
        near = synonyms.meant(option, known)
        raise Misuse(
            f"app.run: unknown option `{option}`" + (f" (did you mean `{near}`?)" if near else ""),
            why=caller(),
            fix=f"Options are: {', '.join(known)}.",
        )


def _look_at_database(app: App, *, patient: bool) -> None:
    """Check that the schema is installed before anything starts, and log the database."""
    database = app.database
    found = _status(database.url, SOURCES[database.origin], patient=patient)
    if isinstance(found.problem, SchemaTooNew):
        # In an upgrade the schema comes first, and programs of the release before go on.
        log.warning("the schema is newer than this program", extra={"version": __version__})
    elif found.problem:
        raise found.problem
    server = str(database.server) if database.server else conninfo.server(database.url)
    log.info("starting", extra={"version": __version__, "server": server, "schema": found.found})


def _status(url: str, source: str, *, patient: bool) -> schema.Status:
    """Check the schema, and wait for the database if it is unavailable; this is logged once."""
    told = False
    while True:
        try:
            return schema.status(url, source=source)
        except (Unavailable, psycopg.OperationalError) as error:
            if not patient:
                raise
            if not told:
                log.warning("%s\n      Waiting for it.", error)
            told = True
            sleep(random_between(0.2, 1.0))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
