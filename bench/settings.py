"""What a queue's settings and neighbours cost: the same drain with each and without, in turn.

Eight connections claim ten at a time and ack them. Limits are so high that they never keep a job
back: what is measured is that they are counted.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import quantiles
from uuid import uuid4

import psycopg

from bench.harness import PAYLOAD, Database, Options, Server
from bench.report import Figure

WORKERS = 8
TAKE = 10
TENANTS = 100
PATIENCE = 30
CLAIM = (
    "select id from holdfast.claim(queue => 'default', worker => 'bench', token => %s::uuid, "
    "max_jobs => %s, durable => false)"
)
ACK = "select count(*) from holdfast.ack(ids => %s::uuid[], tokens => array[%s::uuid])"


@dataclass
class Way:
    """One state of the queue: how it comes about, and what it may cost."""

    settings: dict[str, object] = field(default_factory=dict)
    fields: Callable[[int], dict[str, object]] = lambda n: {}
    scheduled: int = 0
    at_least: float | None = None
    slowest_ms: float | None = None


def run(server: Server, options: Options) -> list[Figure]:
    """Drain the same number of jobs in each way in turn, round after round."""
    ways = {
        "plain": Way(),
        f"{options.scheduled:,} scheduled beside": Way(scheduled=options.scheduled, at_least=0.97),
        "finished jobs kept": Way(settings={"keep_done": 86_400}, at_least=0.75),
        "limited": Way(settings={"limit": 1_000}, at_least=0.3, slowest_ms=10),
        "fair": Way(
            settings={"fair": True},
            fields=lambda n: {"tenant": f"tenant-{n % TENANTS}"},
            at_least=0.3,
            slowest_ms=10,
        ),
    }
    speed: dict[str, list[float]] = {what: [] for what in ways}
    slowest: dict[str, list[float]] = {what: [] for what in ways}
    for _ in range(options.rounds):
        for what, way in ways.items():
            with server.database("settings") as database:
                _prepare(database, way, options.drain)
                with database.upkeep():
                    took, claims = _drain(database, options.drain)
            speed[what].append(options.drain / took)
            slowest[what].append(1000 * quantiles(claims, n=100, method="inclusive")[98])
    drained = f"{options.drain:,} jobs, {WORKERS} workers"
    plain = Figure("settings", f"{drained}, plain", "jobs/s", speed["plain"])
    found = [plain]
    for what, way in ways.items():
        if what != "plain":
            mine = replace(plain, what=f"{drained}, {what}", samples=speed[what])
            found.append(replace(mine, base=plain, at_least=way.at_least))
        found.append(
            Figure(
                "settings",
                f"claim of {TAKE}, p99, {what}",
                "ms",
                slowest[what],
                at_most=way.slowest_ms,
            )
        )
    return found


def _prepare(database: Database, way: Way, jobs: int) -> None:
    execute = database.connection.execute
    if way.settings:
        settings = json.dumps(way.settings)
        execute("select from holdfast.queue_set('default', %s::jsonb)", [settings])
    for start in range(0, jobs, 1000):
        batch = [
            {"kind": "send_email", "payload": PAYLOAD, **way.fields(n)}
            for n in range(start, min(start + 1000, jobs))
        ]
        execute("select count(*) from holdfast.enqueue(items => %s::jsonb)", [json.dumps(batch)])
    execute(
        """
        insert into holdfast.job (part, id, pos, run_at, queue, kind, payload)
        select p.part, holdfast.id_in(p.part), null, now() + interval '1 day', 'default',
               'send_email', %s::jsonb
        from (select holdfast.queue_part('default') as part) p cross join generate_series(1, %s)
        """,
        [json.dumps(PAYLOAD), way.scheduled],
    )
    execute("vacuum (analyze) holdfast.job")
    execute("checkpoint")


def _drain(database: Database, jobs: int) -> tuple[float, list[float]]:
    """Return how long it took, and each claim."""
    taken: list[int] = []
    claims: list[float] = []

    def work(_: int) -> None:
        last = time.monotonic()
        with database.connect() as connection:
            while sum(taken) < jobs:
                start = time.perf_counter()
                if got := _take(connection, claims, start):
                    taken.append(got)
                    last = time.monotonic()
                elif time.monotonic() - last > PATIENCE:
                    raise TimeoutError(f"{jobs - sum(taken)} jobs are left and cannot be claimed")

    start = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(work, range(WORKERS)))
    took = time.perf_counter() - start
    assert sum(taken) == jobs, f"{sum(taken)} of {jobs} jobs were drained"
    return took, claims


def _take(connection: psycopg.Connection, claims: list[float], start: float) -> int:
    token = uuid4()
    ids = [id for (id,) in connection.execute(CLAIM, [token, TAKE])]
    if ids:
        claims.append(time.perf_counter() - start)
        connection.execute(ACK, [ids, token])
    return len(ids)
