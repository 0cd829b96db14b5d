"""Draining a backlog in which every job belongs to a lane that runs one at a time."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

from bench.harness import CLIENTS, PAYLOAD, Database, Options, Server, take
from bench.report import Figure

JOBS_PER_LANE = 5
PATIENCE = 60.0


def run(server: Server, options: Options) -> list[Figure]:
    """Drain the same number of jobs without lanes and with, in turn."""
    jobs = options.lanes * JOBS_PER_LANE
    speed: dict[int, list[float]] = {0: [], options.lanes: []}
    with server.database("lanes") as database:
        for _ in range(max(1, options.rounds // 2)):
            for lanes in speed:
                database.reset()
                with database.upkeep():
                    _fill(database, jobs, lanes)
                    speed[lanes].append(jobs / _drain(database, jobs))
    plain = Figure("lanes", f"drain of {jobs:,} jobs, no lanes", "jobs/s", speed[0])
    what = f"drain of {options.lanes:,} lanes with {JOBS_PER_LANE} jobs each"
    return [
        plain,
        Figure("lanes", what, "jobs/s", speed[options.lanes], plain, at_least=0.6),
    ]


def _fill(database: Database, jobs: int, lanes: int) -> None:
    """Enqueue round the lanes, so that neighbours in the ready order are in different ones."""
    for start in range(0, jobs, 1000):
        batch = [
            {"kind": "send_email", "payload": PAYLOAD}
            | ({"lane": f"customer-{n % lanes}"} if lanes else {})
            for n in range(start, min(start + 1000, jobs))
        ]
        database.connection.execute(
            "select count(*) from holdfast.enqueue(items => %s::jsonb)", [json.dumps(batch)]
        )
    database.connection.execute("vacuum (analyze) holdfast.job")


def _drain(database: Database, jobs: int) -> float:
    taken: list[int] = []

    def work(_: int) -> None:
        last = time.monotonic()
        with database.connect() as connection:
            while sum(taken) < jobs:
                if got := take(connection):
                    taken.append(got)
                    last = time.monotonic()
                elif time.monotonic() - last > PATIENCE:
                    raise TimeoutError(f"{jobs - sum(taken)} jobs are left and cannot be claimed")

    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(work, range(CLIENTS)))
    took = time.perf_counter() - start
    assert sum(taken) == jobs, f"{sum(taken)} of {jobs} jobs were drained"
    return took
