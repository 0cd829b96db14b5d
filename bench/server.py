"""The server and its dashboard on very many rows."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import quantiles

import httpx

from bench import peers
from bench.harness import PAYLOAD, Database, Options, Server, running
from bench.report import Figure

QUEUES = 20
KINDS = 10
STREAMS = 50
# What the first page asks for, and what the list of jobs is asked for: every field of the language.
OVERVIEW = [
    "/v1/queues",
    "/v1/workers",
    "/v1/kinds",
    "/v1/dead/groups",
    "/v1/operations",
    "/v1/metrics/series",
]
FILTERS = [
    "",
    "state:queued",
    "state:leased",
    "state:done",
    "state:dead",
    "state:dead,cancelled queue:q3",
    "queue:q7",
    "kind:k3",
    "kind:k*",
    "-kind:k3",
    "worker:w1",
    "worker:nobody",
    "key:order-42",
    "lane:none",
    "tenant:t7",
    "subject:none/1",
    "error:*timed*",
    'error:"no such error"',
    "group:f7",
    "group:none",
    "id:{digits}",
    "attempt:>2",
    "priority:>=5",
    "age:<1m",
    "age:>7d",
    "payload.n:1",
    "payload.n:999999999",
    '"never said"',
    "state:queued payload.n:999999999 queue:q3",
]


def run(server: Server, options: Options) -> list[Figure]:
    """Ask for pages of many rows while streams are open."""
    with server.database("server") as database:
        _fill(database, options.rows)
        return _pages(database, options)


@dataclass(frozen=True)
class Served:
    """A server that runs: where, and as which process."""

    address: str
    pid: int


@contextmanager
def serving(database: Database) -> Iterator[Served]:
    """Run `holdfast serve` beside, and say where once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "holdfast", "serve", "--port", port, "--url", database.url]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in peers.until(time.time() + 30, every=0.1):
            with suppress(httpx.ConnectError):
                if httpx.get(f"{address}/readyz").is_success:
                    break
        yield Served(address, process.pid)
    finally:
        process.terminate()
        process.wait()


def _fill(database: Database, rows: int) -> None:
    """Spread rows over the tables: a third waits, a fifth is dead, the rest has ended."""
    live, dead, archived = rows * 3 // 10, rows // 5, rows // 20
    parameters = {"payload": json.dumps(PAYLOAD), "queues": QUEUES, "kinds": KINDS}
    execute = database.connection.execute
    execute(
        """
        insert into holdfast.job (part, id, queue, kind, tenant, priority, payload)
        select p.part, holdfast.id_in(p.part), p.queue, 'k' || n %% %(kinds)s, 't' || n %% 100,
               n %% 10, %(payload)s::jsonb
        from generate_series(1, %(rows)s) n
        cross join lateral (select 'q' || n %% %(queues)s as queue) q
        cross join lateral (select q.queue, holdfast.queue_part(q.queue) as part) p
        """,
        parameters | {"rows": live},
    )
    for state, many in (
        ("dead", dead),
        ("archived", archived),
        ("done", rows - live - dead - archived),
    ):
        execute(
            """
            insert into holdfast.ended (
              part, id, state, queue, kind, priority, attempt, max_attempts,
              run_at, created_at, ended_at, worker, error, fingerprint, payload)
            select p.part, holdfast.id_in(p.part), %(state)s, p.queue, 'k' || n %% %(kinds)s,
                   n %% 10, 3, 3, t.at, t.at, t.at, 'w' || n %% 8,
                   case when %(state)s <> 'done' then 'Timeout: ' || n %% 50 || ' timed out' end,
                   case when %(state)s <> 'done' then 'f' || n %% 50 end, %(payload)s::jsonb
            from generate_series(1, %(rows)s) n
            cross join lateral (select 'q' || n %% %(queues)s as queue) q
            cross join lateral (select q.queue, holdfast.queue_part(q.queue) as part) p
            cross join lateral (select now() - n %% 600000 * interval '1 second' as at) t
            """,
            parameters | {"rows": many, "state": state},
        )
    for n in range(QUEUES):
        execute("select holdfast.queue_set(%s, '{}')", [f"q{n}"])
    execute("select holdfast.recount()")
    execute("vacuum analyze")
    execute("checkpoint")


def _pages(database: Database, options: Options) -> list[Figure]:
    digits = str(database.value("select id from holdfast.dead limit 1"))[-8:]
    with (
        serving(database) as served,
        _streams(served.address),
        _traffic(database),
        httpx.Client(base_url=served.address, timeout=30) as client,
    ):
        for path in OVERVIEW:
            client.get(path).raise_for_status()
        overview = [
            Figure("server", f"{path.partition('?')[0]}, p95", "ms", [took], at_most=50.0)
            for path in OVERVIEW
            for took in [_p95(client, path, options.requests)[0]]
        ]
        lists, bounded = [], 0
        for filter in FILTERS:
            query = httpx.QueryParams({"q": filter.replace("{digits}", digits)})
            took, notice = _p95(client, f"/v1/jobs?{query}", options.requests // 3)
            bounded += notice
            what = f"jobs {filter or '(all)'}{', searched for a while' if notice else ''}, p95"
            lists.append(Figure("server", what, "ms", [took], at_most=100.0))
    told = f"{options.rows:,} rows, {STREAMS} streams; {bounded} of {len(FILTERS)} lists bounded"
    print(told, file=sys.stderr, flush=True)
    return overview + lists


def _p95(client: httpx.Client, path: str, many: int) -> tuple[float, bool]:
    """Ask at a browser's pace, so that no answer is that of the request before."""
    times, notice = [], False
    for _ in range(max(many, 2)):
        start = time.perf_counter()
        answer = client.get(path)
        times.append((time.perf_counter() - start) * 1000)
        answer.raise_for_status()
        told = answer.json()
        notice = notice or bool(isinstance(told, dict) and told.get("searched_to"))
        time.sleep(0.05)
    return quantiles(times, n=20, method="inclusive")[18], notice


@contextmanager
def _streams(address: str) -> Iterator[None]:
    """Keep streams open and read them, as tabs do."""
    done = threading.Event()
    ready = threading.Barrier(2)

    async def read(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/v1/events/stream") as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_raw():
                pass

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=address, timeout=None, limits=limits) as client:
            tasks = [asyncio.create_task(read(client)) for _ in range(STREAMS)]
            await asyncio.sleep(1)
            ready.wait()
            await asyncio.to_thread(done.wait)
            for task in tasks:
                if task.done():
                    task.result()
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with running(lambda: asyncio.run(all_of_them()), done):
        ready.wait(30)
        yield


@contextmanager
def _traffic(database: Database) -> Iterator[None]:
    """Change something ten times a second, so that streams have something to tell."""
    done = threading.Event()

    def busy() -> None:
        with database.connect(application_name="bench traffic") as connection:
            while not done.wait(0.1):
                connection.execute(
                    "select count(*) from holdfast.enqueue(items => %s::jsonb)",
                    [json.dumps([{"kind": "k1", "queue": "q1", "payload": PAYLOAD}] * 5)],
                )

    with running(busy, done):
        yield
