"""The cycle while another session holds a snapshot, so that nothing can be vacuumed."""

from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from statistics import median

from bench.cycle import CYCLE, left_over
from bench.harness import BATCH, CLIENTS, Database, Load, Options, Server, items
from bench.report import Figure

SLICES = 20
WARM_UP = 4  # seconds, longer than the cycle's lease
TENTH = SLICES // 10


def run(server: Server, options: Options) -> list[Figure]:
    """Push the same number of jobs through, free and pinned in turn; compare the ends of a run."""
    loads: dict[str, list[Load]] = {"free": [], "pinned": []}
    with server.database("pinned") as database:
        for _ in range(max(1, options.rounds // 2)):
            for what, runs in loads.items():
                database.reset()
                with pin(database) if what == "pinned" else nullcontext(), database.upkeep():
                    # Until the first leases are due nothing is reaped: that flatters the start.
                    database.pgbench(
                        CYCLE, seconds=min(WARM_UP, options.seconds), items=items(BATCH)
                    )
                    load = database.pgbench(
                        CYCLE,
                        transactions=options.jobs // BATCH // CLIENTS,
                        log=True,
                        items=items(BATCH),
                    )
                left_over(database)
                runs.append(load)

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
    ]


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
