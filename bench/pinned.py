"""The cycle while another session holds a snapshot, so that nothing can be vacuumed.

With `--before PATH` the schema of that checkout, in a database of its own, takes its turns too.
"""

from bisect import bisect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from statistics import median

from bench.compare import other_tree
from bench.cycle import CYCLE, left_over
from bench.harness import BATCH, CLIENTS, Database, Load, Options, Server, items
from bench.report import Figure

SLICES = 20
WARM_UP = 4  # seconds, longer than the cycle's lease
TENTH = SLICES // 10


def run(server: Server, options: Options) -> list[Figure]:
    """Push the same number of jobs through, free and pinned in turn; compare the ends of a run."""
    loads: dict[str, list[Load]] = {"free": [], "pinned": []}
    others: dict[str, list[Load]] = {"free": [], "pinned": []}
    with server.database("pinned") as database, ExitStack() as stack:
        sides = [(database, loads)]
        if options.before is not None:
            sides.append((stack.enter_context(other_tree(server, options.before)), others))
        for turn in range(max(1, options.rounds // 2)):
            for what in loads:
                for place, runs in sides if turn % 2 else reversed(sides):
                    runs[what].append(_load(place, options, pinned=what == "pinned"))

    free, pinned = (
        Figure(
            "pinned", f"{what}, {options.jobs:,} jobs", "jobs/s", [_speed(load) for load in runs]
        )
        for what, runs in loads.items()
    )
    return [
        free,
        replace(pinned, base=free, at_least=0.6),
        *_decay("free", loads["free"]),
        *_decay("pinned", loads["pinned"], at_least=0.95),
        *(_beside(loads, others) if options.before is not None else ()),
    ]


def _load(database: Database, options: Options, *, pinned: bool) -> Load:
    database.reset()
    with pin(database) if pinned else nullcontext(), database.upkeep():
        # Until the first leases are due nothing is reaped: that flatters the start.
        database.pgbench(CYCLE, seconds=min(WARM_UP, options.seconds), items=items(BATCH))
        load = database.pgbench(
            CYCLE, transactions=options.jobs // BATCH // CLIENTS, log=True, items=items(BATCH)
        )
    left_over(database)
    return load


def _beside(loads: dict[str, list[Load]], others: dict[str, list[Load]]) -> Iterator[Figure]:
    """Compare with another checkout; on a busy machine, CPU says more than time."""
    for what, runs in loads.items():
        speeds = [_speed(load) for load in others[what]]
        before = Figure("pinned", f"{what}, another checkout", "jobs/s", speeds)
        now = Figure("pinned", f"{what}, beside it", "jobs/s", [_speed(load) for load in runs])
        yield before
        yield replace(now, base=before, at_least=0.98)
        costs = [[_spent(load) for load in side] for side in (others[what], runs)]
        if all(map(all, costs)):
            before = Figure("pinned", f"{what}, another checkout", "backend µs/job", costs[0])
            now = Figure("pinned", f"{what}, beside it", "backend µs/job", costs[1])
            yield before
            yield replace(now, base=before, at_most=1 / 0.98)


@contextmanager
def pin(database: Database) -> Iterator[None]:
    """Hold a snapshot, as a forgotten transaction or a long report does."""
    with database.connect(application_name="bench pin") as connection:
        connection.execute("begin isolation level repeatable read")
        connection.execute("select 1")
        yield
        connection.execute("commit")


def _decay(what: str, loads: list[Load], at_least: float | None = None) -> Iterator[Figure]:
    speeds = [_slices(load.ends) for load in loads]
    first = Figure(
        "pinned", f"{what}, first tenth", "jobs/s", [median(run[:TENTH]) for run in speeds]
    )
    yield first
    last = [median(run[-TENTH:]) for run in speeds]
    yield Figure("pinned", f"{what}, last tenth", "jobs/s", last, first, at_least=at_least)

    costs = [[_cost(load, fifth) for load in loads] for fifth in (0, 4)]
    if all(map(all, costs)):
        cheap = Figure("pinned", f"{what}, first fifth", "backend µs/job", costs[0])
        yield cheap
        yield Figure("pinned", f"{what}, last fifth", "backend µs/job", costs[1], cheap)


def _speed(load: Load) -> float:
    return load.transactions * BATCH / load.seconds


def _spent(load: Load) -> float:
    return load.backend_cpu / (load.transactions * BATCH) * 1e6


def _slices(ends: list[float]) -> list[float]:
    """Return the jobs per second of equal slices of a run, from the times transactions ended."""
    marks = [ends[n * (len(ends) - 1) // SLICES] for n in range(SLICES + 1)]
    size = (len(ends) - 1) / SLICES * BATCH
    return [size / (end - start) for start, end in pairwise(marks)]


def _cost(load: Load, fifth: int) -> float:
    """Return the microseconds of CPU for each job of one fifth of a run."""
    size = len(load.ends) // 5
    start, end = load.ends[fifth * size], load.ends[(fifth + 1) * size - 1]
    looks = [look for look in load.spent if start <= look[0] <= end]
    if len(looks) < 2:
        return 0.0
    (start, before), (end, after) = looks[0], looks[-1]
    jobs = (bisect(load.ends, end) - bisect(load.ends, start)) * BATCH
    return (after - before) / jobs * 1e6 if jobs else 0.0
