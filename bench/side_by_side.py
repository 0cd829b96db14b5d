"""Holdfast beside other queues and beside the floors: the same jobs, by turns, round after round.

Each sample is taken in a database of its own, made from one in which the queue was set up once. A
queue that cannot be installed, or that fails on the way, is named with the reason, and left out.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from subprocess import TimeoutExpired

import psycopg

from bench import measures, peers
from bench.harness import Database, Options, Server
from bench.peers import EndedError, NotInstalledError, Peer
from bench.report import Figure

OURS, FLOOR = "holdfast", "floor"
# Of the jobs of a drain: what sleeps 10 ms, 100 at once, would take ten times as long.
SLEEPERS = 0.4
# How the cost grows: Holdfast alone, with fewer jobs and with more.
GROWTH = {"a tenth": 0.1, "five times": 5.0}
FAILURES = (
    NotInstalledError,
    EndedError,
    RuntimeError,
    OSError,
    TimeoutError,
    TimeoutExpired,
    psycopg.Error,
    KeyError,
)

# Every measure that is kept, its unit, and whether it is shown with the others.
MEASURES = {
    "bulk enqueue": "jobs/s",
    "bulk enqueue, client's CPU": "µs/job",
    "bulk enqueue, server's CPU": "µs/job",
    "bulk enqueue, keys": "jobs/s",
    "single enqueue": "jobs/s",
    "single enqueue, client's CPU": "µs/job",
    "single enqueue, server's CPU": "µs/job",
    "drain": "jobs/s",
    "drain, worker's CPU": "µs/job",
    "drain, server's CPU": "µs/job",
    "drain, two processes": "jobs/s",
    "drain, def": "jobs/s",
    **{f"{what}, {size}": "jobs/s" for size in GROWTH for what in ("bulk enqueue", "drain")},
    "10 ms, 100 at once": "of the ideal",
    "pick-up p50": "ms",
    "pick-up p99": "ms",
    "draining worker": "MB",
    "idle worker": "MB",
    "idle": "tx/s",
    "WAL, in and out": "B/job",
    "lost": "jobs",
    "doubled": "jobs",
}


@dataclass
class Contestant:
    """One queue that takes part, the database it was set up in, and its samples by measure."""

    peer: Peer
    template: str
    samples: dict[str, list[float]] = field(default_factory=dict)

    def note(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.samples.setdefault(name, []).append(value)

    @property
    def floor(self) -> bool:
        return self.peer.name == FLOOR


class Contest:
    """The queues that take part, and those that dropped out."""

    def __init__(self, server: Server, options: Options) -> None:
        self._server = server
        self._options = options
        self.contestants: list[Contestant] = []
        self.left_out: dict[str, str] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Install and set up the queues; their databases are dropped at the end."""
        with ExitStack() as stack:
            for name in (OURS, FLOOR, *self._options.peers):
                with self._spared(name):
                    peer = peers.here(name) if name in (OURS, FLOOR) else peers.installed(name)
                    template = f"bench_{name}"
                    database = stack.enter_context(self._server.database(template))
                    peer.run("setup", measures.url_of(database))
                    # A database that others are made from must have no session.
                    database.connection.close()
                    self.contestants.append(Contestant(peer, template))
            yield

    def round(self) -> None:
        """Take one sample of everything from everyone."""
        jobs = self._options.drain
        sleepers = int(jobs * SLEEPERS)
        ways: list[tuple[str, Callable[[Contestant], dict[str, float]], Callable[[Peer], bool]]] = [
            ("drain", partial(self._drained, jobs=jobs), lambda peer: True),
            ("keys", partial(self._keyed, jobs=jobs), lambda peer: peer.queue.keys),
            ("single", self._single, lambda peer: True),
            ("two", partial(self._drained, jobs=jobs, processes=2), lambda peer: True),
            ("def", partial(self._drained, jobs=jobs, style="def"), _runs("def")),
            ("10 ms", partial(self._drained, jobs=sleepers, style="sleep"), _runs("sleep")),
            ("pick-up", self._pick_up, lambda peer: peer.name != FLOOR),
            ("growth", partial(self._grown, jobs=jobs), lambda peer: peer.name == OURS),
        ]
        for what, way, fits in ways:
            _say(f"  {what}:")
            for contestant in list(self.contestants):
                if fits(contestant.peer):
                    _say(f" {contestant.peer.name}")
                    with self._spared(contestant.peer.name):
                        contestant.note(self._sample(way, contestant))
            _say("\n")
        self._idle(self._options.idle)

    def _sample(
        self, way: Callable[[Contestant], dict[str, float]], contestant: Contestant
    ) -> dict[str, float]:
        """Take a sample, once more if that fails: a hiccup in the last round must not cost all."""
        try:
            return way(contestant)
        except FAILURES as error:
            if contestant.peer.name in (OURS, FLOOR):
                raise
            _say(f" (failed, once more: {error})")
            return way(contestant)

    def _drained(
        self, contestant: Contestant, *, jobs: int, style: str = "async", processes: int = 1
    ) -> dict[str, float]:
        peer = contestant.peer
        jobs = peer.queue.jobs(jobs)
        with self._fresh(contestant) as database:
            filled = measures.bulk(peer, database, jobs)
            found = measures.drain(peer, database, jobs, style=style, processes=processes)
        counted = {"lost": found["lost"], "doubled": found["doubled"]}
        if style == "sleep":
            return {"10 ms, 100 at once": found["share"], **counted}
        if style == "def":
            return {"drain, def": found["rate"], **counted}
        if processes == 2:
            return {"drain, two processes": found["rate"], **counted}
        samples = {
            "bulk enqueue": filled["rate"],
            "drain": found["rate"],
            "drain, worker's CPU": found["worker_cpu"],
            "drain, server's CPU": found["server_cpu"],
            "draining worker": found["memory"],
            **counted,
        }
        if not contestant.floor:
            # The floor's bytes are made by storing jobs, which would be counted too.
            samples |= {
                "bulk enqueue, client's CPU": filled["client_cpu"],
                "bulk enqueue, server's CPU": filled["server_cpu"],
                "WAL, in and out": filled["wal"] + found["wal"],
            }
        return samples

    def _grown(self, contestant: Contestant, *, jobs: int) -> dict[str, float]:
        samples: dict[str, float] = {}
        for size, factor in GROWTH.items():
            found = self._drained(contestant, jobs=max(1, int(jobs * factor)))
            samples |= {f"{what}, {size}": found[what] for what in ("bulk enqueue", "drain")}
        return samples

    def _keyed(self, contestant: Contestant, *, jobs: int) -> dict[str, float]:
        peer = contestant.peer
        with self._fresh(contestant) as database:
            rate = measures.bulk(peer, database, peer.queue.jobs(jobs), keys=True)["rate"]
        return {"bulk enqueue, keys": rate}

    def _single(self, contestant: Contestant) -> dict[str, float]:
        with self._fresh(contestant) as database:
            found = measures.single(contestant.peer, database, self._options.singles)
        return {
            "single enqueue": found["rate"],
            "single enqueue, client's CPU": found["client_cpu"],
            "single enqueue, server's CPU": found["server_cpu"],
        }

    def _pick_up(self, contestant: Contestant) -> dict[str, float]:
        with self._fresh(contestant) as database:
            found = measures.pick_up(contestant.peer, database, self._options.pickups)
        return {"pick-up p50": found["p50"], "pick-up p99": found["p99"]}

    def _idle(self, seconds: int) -> None:
        """Watch the idle workers of all at once: each has its own database."""
        with ExitStack() as stack:
            waiting = {}
            for contestant in list(self.contestants):
                if contestant.floor:
                    continue
                with self._spared(contestant.peer.name):
                    database = stack.enter_context(self._fresh(contestant))
                    _, workers = stack.enter_context(measures.waiting(contestant.peer, database, 1))
                    waiting[contestant.peer.name] = (database, workers)
            seen = measures.idle(self._server, waiting, seconds)
        for contestant in self.contestants:
            if found := seen.get(contestant.peer.name):
                contestant.note({"idle": found["transactions"], "idle worker": found["memory"]})

    @contextmanager
    def _fresh(self, contestant: Contestant) -> Iterator[Database]:
        name = f"{contestant.template}_run"
        with self._server.database(name, like=contestant.template) as database:
            yield database

    @contextmanager
    def _spared(self, name: str) -> Iterator[None]:
        """Leave out a queue that fails, so that the others go on; Holdfast may not fail."""
        try:
            yield
        except FAILURES as error:
            self._leave_out(name, error)

    def _leave_out(self, name: str, error: Exception) -> None:
        if name in (OURS, FLOOR):
            raise error
        self.left_out[name] = str(error) or type(error).__name__
        self.contestants = [x for x in self.contestants if x.peer.name != name]
        print(f"{name} is left out: {self.left_out[name]}", file=sys.stderr, flush=True)


def run(server: Server, options: Options) -> list[Figure]:
    """Measure everything of everyone in turn, round after round."""
    contest = Contest(server, options)
    with contest.open():
        for nth in range(options.rounds):
            print(f"round {nth + 1} of {options.rounds} …", file=sys.stderr, flush=True)
            contest.round()
    return figures(contest.contestants, contest.left_out)


def figures(contestants: Sequence[Contestant], left_out: dict[str, str]) -> list[Figure]:
    """Return what is judged, each bar the target that was set, then every figure by queue."""
    by_queue = [
        Figure(
            "peers",
            what,
            unit,
            # None may be lost in any round, whatever the others came to.
            [sum(x.samples[what])] if unit == "jobs" else x.samples[what],
            whose=x.peer.name,
            about=_described(x.peer.queue),
        )
        for what, unit in MEASURES.items()
        for x in contestants
        if what in x.samples
    ]
    absent = [
        Figure("peers", "left out", "", [], whose=name, about=reason)
        for name, reason in left_out.items()
    ]
    return [*judged(by_queue), *by_queue, *absent]


def judged(by_queue: Sequence[Figure]) -> list[Figure]:
    """Hold Holdfast's figures against the best of the others and against the floors."""
    found = {(figure.whose, figure.what): figure for figure in by_queue}
    if not found:
        return []

    def mine(what: str, **limits: float) -> list[Figure]:
        return [replace(found[OURS, what], whose="", about="", **limits)]

    def against(what: str, base: Figure | None, **limits: float) -> list[Figure]:
        if base is None:
            return []
        shown = replace(base, what=f"{base.what}, {base.whose}" if base.whose else base.what)
        return [replace(figure, base=shown, **limits) for figure in mine(what)]

    def best(what: str, *, least: bool = False, but: tuple[str, ...] = ()) -> Figure | None:
        out = (OURS, FLOOR, *but)
        others = [x for (whose, name), x in found.items() if name == what and whose not in out]
        if not others:
            return None
        return min(others, key=lambda x: x.value) if least else max(others, key=lambda x: x.value)

    rivers = ("river", "river_2000")
    copying = [found[name, "bulk enqueue"] for name in rivers if (name, "bulk enqueue") in found]
    river = max(copying, key=lambda figure: figure.value, default=None)
    p50, p99 = found[OURS, "pick-up p50"], found[OURS, "pick-up p99"]
    tail = [slow / (2 * usual + 3) for slow, usual in zip(p99.samples, p50.samples, strict=True)]
    return [
        *against("bulk enqueue", river, at_least=1.0, stretch=1.2),
        *against("bulk enqueue", best("bulk enqueue", but=rivers), at_least=1.2),
        *against("bulk enqueue", found.get((FLOOR, "bulk enqueue"))),
        *against("bulk enqueue, keys", found[OURS, "bulk enqueue"], at_least=0.8),
        *against("single enqueue", best("single enqueue"), at_least=1.1),
        *against(
            "single enqueue", found.get((FLOOR, "single enqueue")), at_least=0.85, stretch=0.95
        ),
        *against("drain", best("drain"), at_least=1.2, stretch=1.5),
        *against("drain", found.get((FLOOR, "drain"))),
        *mine("drain, worker's CPU", at_most=12),
        *against("drain, two processes", best("drain, two processes"), at_least=1.1, stretch=1.3),
        *against("drain, two processes", found[OURS, "drain"], at_least=1.8),
        *against("drain, def", found[OURS, "drain"], at_least=0.8),
        *(
            figure
            for what in ("bulk enqueue", "drain")
            for size in GROWTH
            for figure in against(f"{what}, {size}", found[OURS, what])
        ),
        *mine("10 ms, 100 at once", at_least=0.95),
        *against("10 ms, 100 at once", found.get((FLOOR, "10 ms, 100 at once"))),
        *against("pick-up p50", best("pick-up p50", least=True), at_most=1.0),
        Figure("peers", "pick-up p99", "of twice p50 + 3 ms", tail, at_most=1.0),
        *mine("idle", at_most=1.0),
        *mine("idle worker", at_most=50),
        *mine("draining worker", at_most=70),
        *mine("WAL, in and out", at_most=700),
        *mine("lost", at_most=0),
        *mine("doubled", at_most=0),
    ]


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _runs(style: str) -> Callable[[Peer], bool]:
    return lambda peer: style in peer.queue.styles


def _described(queue: peers.Queue) -> str:
    share = "" if queue.share == 1 else f"; given {queue.share:g} of the jobs"
    return f"{queue.name} {queue.version}".strip() + f": {queue.about}{share}"
