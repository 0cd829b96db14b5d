"""The leader of a cluster breaks while jobs are enqueued and run: what is lost, what runs twice.

Two members under Patroni, two workers, two producers, all with default settings and one address
that names both members. Each handler notes its runs in a file; half of them write an effect in the
transaction that ends the job. Some are under way when the leader breaks.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import psycopg

from holdfast import Client, schema
from holdfast.errors import HoldfastError, UnknownOutcome
from tests.chaos.fleet import Fleet
from tests.chaos.server import EFFECTS, WORKER
from tests.cluster.servers import (
    Member,
    Patroni,
    Servers,
    end_abruptly,
    frozen,
    send,
    until,
    walsenders,
)

BREAKS = ("host", "freeze", "postgres", "switchover", "agent")
# One in so many handlers is slow enough to be under way when the leader breaks.
SLOW = 16
SLOW_SECONDS = 3.0
# How often a producer stores a job.
PAUSE = 0.02


@dataclass(frozen=True)
class Plan:
    """What breaks, how, and under which settings of the cluster."""

    breaks: str = "host"
    sync: bool = False
    lag: float = 0.0
    ttl: int = 30
    loop_wait: int = 10
    retry_timeout: int = 10
    before: float = 8.0
    after: float = 8.0

    @property
    def name(self) -> str:
        """Say it in a few words."""
        how = "synchronous" if self.sync else "asynchronous"
        return f"{how}, {self.breaks}" + (f", standby {self.lag:g} s behind" if self.lag else "")


@dataclass
class Counted:
    """What became of the jobs of one run.

    A handler whose transaction the break undid has to run again: it counts as `rolled_back`. Those
    of `run_again` were run a second time for any other reason.
    """

    plan: str
    confirmed: int = 0
    lost: int = 0
    effects_missing: int = 0
    effects_twice: int = 0
    run_again: int = 0
    rolled_back: int = 0
    in_flight: int = 0
    producer_errors: int = 0
    unknown: int = 0
    dead: int = 0
    promoted_s: float = 0.0
    works_again_s: float = 0.0
    slowest_enqueue_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """Return it as what a line of JSON holds."""
        return asdict(self)


class Producers:
    """Two threads that enqueue, and know what was confirmed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._next = 0
        self.confirmed: dict[int, str] = {}
        self.errors: list[str] = []
        self.unknown = 0
        self.slowest = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produce while the block lasts; what is under way is finished."""
        threads = [threading.Thread(target=self._run) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _run(self) -> None:
        with Client(self._url) as client:
            while not self._stop.wait(PAUSE):
                with self._lock:
                    n, self._next = self._next, self._next + 1
                kind = ("book", "nap", "book_in_thread", "doze")[n % 4]
                payload = {"n": n, "seconds": SLOW_SECONDS if n // 4 % SLOW == 0 else 0.0}
                started = time.monotonic()
                try:
                    client.enqueue(kind, payload, max_attempts=100)
                except HoldfastError as error:
                    self.unknown += isinstance(error, UnknownOutcome)
                    self.errors.append(f"{type(error).__name__}: {error}".splitlines()[0][:120])
                else:
                    self.confirmed[n] = kind
                self.slowest = max(self.slowest, time.monotonic() - started)


def run(plan: Plan) -> Counted:
    """Break the leader of a fresh cluster once; returns what became of the jobs."""
    settings = {"ttl": plan.ttl, "loop_wait": plan.loop_wait, "retry_timeout": plan.retry_timeout}
    with Servers() as servers:
        cluster = Patroni(servers, sync=plan.sync, **settings)
        schema.migrate(cluster.url)
        with psycopg.connect(cluster.url, target_session_attrs="read-write") as connection:
            connection.execute(f"create role {WORKER} login")
            connection.execute(EFFECTS)
        place = servers.place / "work"
        place.mkdir()
        worker_url = cluster.url.replace("user=postgres", f"user={WORKER}")
        with Fleet(worker_url, place) as fleet:
            for _ in range(2):
                fleet.start("-q", "default:8", app="tests.cluster.app:app")
            until(lambda: all(one.ready for one in fleet.workers), 60, "no worker")
            return _measure(plan, cluster, fleet)


def _measure(plan: Plan, cluster: Patroni, fleet: Fleet) -> Counted:
    counted = Counted(plan.name)
    producers = Producers(cluster.url)
    with producers.running():
        # At any moment of the agents' turns, each of which renews the leader's claim.
        time.sleep(plan.before + random.uniform(0, plan.loop_wait))
        leader = cluster.leader()
        others = [member for member in cluster.members if member is not leader]
        with frozen(walsenders(leader.postmaster) if plan.lag else []):
            time.sleep(plan.lag)
            broke = time.time()
            heal = _break(plan, cluster, leader)
        candidates = cluster.members if plan.breaks == "postgres" else others
        until(lambda: any(one.accepts_writes() for one in candidates), 120, "no new leader")
        promoted = time.time()
        until(lambda: _begun(fleet, promoted), 120, "no worker goes on")
        heal()
        time.sleep(plan.after)
    _drain(cluster, fleet)
    return _count(counted, cluster, fleet, producers, broke, promoted)


def _break(plan: Plan, cluster: Patroni, leader: Member) -> Callable[[], None]:
    """Break the leader; returns what is to be done when work goes on elsewhere."""
    match plan.breaks:
        case "host":
            end_abruptly(leader.pids)
        case "postgres":
            send([leader.postmaster], signal.SIGKILL)
        case "switchover":
            cluster.switch_over()
        case "freeze" | "agent":
            hung = leader.pids if plan.breaks == "freeze" else [leader.agent.pid]
            send(hung, signal.SIGSTOP)
            return lambda: send(hung, signal.SIGCONT)
    return lambda: None


def _begun(fleet: Fleet, since: float) -> bool:
    return any(run.start > since for run in fleet.witness.runs())


def _drain(cluster: Patroni, fleet: Fleet) -> None:
    def drained() -> bool:
        with psycopg.connect(
            cluster.url, target_session_attrs="read-write", connect_timeout=2
        ) as connection:
            return connection.execute("select count(*) from holdfast.job").fetchone() == (0,)

    until(drained, 240, f"jobs are left\n{fleet.said()}")


def _count(
    counted: Counted,
    cluster: Patroni,
    fleet: Fleet,
    producers: Producers,
    broke: float,
    promoted: float,
) -> Counted:
    with psycopg.connect(cluster.url, target_session_attrs="read-write") as connection:
        effects = Counter(n for (n,) in connection.execute("select n from chaos.effect"))
        dead = connection.execute("select count(*) from holdfast.dead").fetchone()
    runs = fleet.witness.runs()
    # Counted by what handlers wrote: the ids of lost claims may be handed out again.
    starts = Counter(fact.n for fact in fleet.witness.facts() if fact.what == "start")
    booked = [n for n, kind in producers.confirmed.items() if kind.startswith("book")]
    counted.confirmed = len(producers.confirmed)
    counted.lost = sum(not starts[n] for n in producers.confirmed)
    counted.effects_missing = sum(not effects[n] for n in booked)
    counted.effects_twice = sum(count > 1 for count in effects.values())
    undone = Counter(fact.n for fact in fleet.witness.facts() if fact.what == "cut")
    again = [n for n, count in starts.items() if count - undone[n] > 1]
    counted.run_again = len(again)
    counted.rolled_back = len(undone)
    counted.again = [_story(fleet, n, broke) for n in again[:5]]
    counted.in_flight = sum(one.start < broke < (one.end or broke + 1) for one in runs)
    counted.producer_errors = len(producers.errors)
    counted.unknown = producers.unknown
    counted.errors = [text for text, _ in Counter(producers.errors).most_common(3)]
    counted.dead = dead[0] if dead else 0
    counted.promoted_s = round(promoted - broke, 1)
    counted.works_again_s = round(min(x.start for x in runs if x.start > promoted) - broke, 1)
    counted.slowest_enqueue_s = round(producers.slowest, 1)
    return counted


def _story(fleet: Fleet, n: int, broke: float) -> str:
    """Tell the runs of one job, by the seconds before and after the break."""
    facts = [fact for fact in fleet.witness.facts() if fact.n == n]
    return f"{n}: " + ", ".join(
        f"{fact.what} {fact.at - broke:+.2f} (attempt {fact.attempt}, {fact.worker[-8:]})"
        for fact in facts
    )
