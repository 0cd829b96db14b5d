"""Enqueue, and claim and ack, by HTTP: one by one and a hundred at a time, 1 and 100 clients.

The clients are one process with a connection each that writes requests and reads answers by hand,
so that as much of the machine as possible is left to the server.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from bench import measures, peers, proc
from bench.harness import BATCH, Database, Options, Server
from bench.report import Figure
from bench.server import Served, serving

CLIENTS = (1, 100)
# The targets, for jobs a second and for the server's CPU.
ONE_BY_ONE = 2_500
IN_BATCHES = 15_000
CPU = 150


@dataclass
class Load:
    """What the clients of one run have done; `until` is when they stop."""

    until: float
    jobs: int = 0
    requests: int = 0


Client = Callable[["Connection", Load], Coroutine[Any, Any, None]]


def run(server: Server, options: Options) -> list[Figure]:
    """Load a server in each way in turn, round after round."""
    ways: dict[str, tuple[Client, bool, float | None]] = {
        "enqueue one by one": (_enqueue, False, None),
        f"enqueue {BATCH} at a time": (_enqueue_many, False, None),
        "claim and ack one by one": (_claim, True, ONE_BY_ONE),
        f"claim and ack {BATCH} at a time": (_claim_many, True, IN_BATCHES),
    }
    speed: dict[tuple[str, int], list[float]] = {}
    used: dict[tuple[str, int], list[float]] = {}
    with server.database("http") as database, serving(database) as served:
        for _ in range(options.rounds):
            for what, (client, filled, _) in ways.items():
                for many in CLIENTS:
                    database.reset()
                    if filled:
                        url = measures.url_of(database)
                        peers.here("holdfast").run("bulk", url, options.drain, "plain")
                    rate, cpu = _load(served, database, client, many, options.seconds / 4)
                    speed.setdefault((what, many), []).append(rate)
                    used.setdefault((what, many), []).append(cpu)
    found: list[Figure] = []
    for (what, many), samples in speed.items():
        target = ways[what][2]
        # One client that goes one by one waits for the disk each time, whatever a server does.
        judged = target if many > 1 or target == IN_BATCHES else None
        clients = "1 client" if many == 1 else f"{many} clients"
        found.append(Figure("http", f"{what}, {clients}", "jobs/s", samples, at_least=judged))
        if "one by one" in what:
            cpu = used[what, many]
            found.append(Figure("http", f"{what}, {clients}", "µs/request", cpu, at_most=CPU))
    return found


def _load(
    served: Served, database: Database, client: Client, many: int, seconds: float
) -> tuple[float, float]:
    """Return the jobs a second, and the microseconds of the server's CPU for each request."""

    async def go() -> Load:
        connections = [await Connection.open(served.address) for _ in range(many)]
        load = Load(time.time() + seconds)
        try:
            await asyncio.gather(*(client(connection, load) for connection in connections))
        finally:
            for connection in connections:
                connection.close()
        return load

    start, before = time.perf_counter(), proc.family_cpu(served.pid)
    load = asyncio.run(go())
    cpu, took = proc.family_cpu(served.pid) - before, time.perf_counter() - start
    assert load.jobs, "nothing was done in that time"
    return load.jobs / took, cpu / load.requests * 1e6


async def _enqueue(connection: "Connection", load: Load) -> None:
    while True:
        await connection.post("/v1/jobs", {"kind": "noop", "payload": {"n": 1}})
        load.jobs, load.requests = load.jobs + 1, load.requests + 1
        if time.time() > load.until:
            return


async def _enqueue_many(connection: "Connection", load: Load) -> None:
    jobs = [{"kind": "noop", "payload": {"n": n}} for n in range(BATCH)]
    while True:
        await connection.post("/v1/jobs/bulk", jobs)
        load.jobs, load.requests = load.jobs + BATCH, load.requests + 1
        if time.time() > load.until:
            return


async def _claim(connection: "Connection", load: Load) -> None:
    while leases := await _leases(connection, 1):
        [lease] = leases
        await connection.post(f"/v1/jobs/{lease['id']}/ack", {"token": lease["token"]})
        load.jobs, load.requests = load.jobs + 1, load.requests + 2
        if time.time() > load.until:
            return


async def _claim_many(connection: "Connection", load: Load) -> None:
    while leases := await _leases(connection, BATCH):
        items = [{"id": x["id"], "token": x["token"], "verb": "ack"} for x in leases]
        answer = await connection.post("/v1/settle", {"items": items})
        assert all(result["ok"] for result in answer["results"]), answer["results"][0]
        load.jobs, load.requests = load.jobs + len(leases), load.requests + 2
        if time.time() > load.until:
            return


async def _leases(connection: "Connection", most: int) -> list[dict[str, Any]]:
    wanted = {"worker": "bench", "queues": ["default"], "limit": most}
    leases: list[dict[str, Any]] = (await connection.post("/v1/claims", wanted))["leases"]
    return leases


class Connection:
    """A kept connection to the server that sends JSON and reads JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Self:
        place = urlsplit(address)
        return cls(*await asyncio.open_connection(place.hostname, place.port, limit=2**22))

    async def post(self, path: str, body: Any) -> Any:
        """Send a request and return its answer; raises if it was not a success."""
        said = json.dumps(body).encode()
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(said)}\r\n\r\n".encode()
            + said
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, _, fields = head.partition("\r\n")
        lengths = [x for x in fields.split("\r\n") if x.lower().startswith("content-length:")]
        answer = await self._reader.readexactly(int(lengths[0].partition(":")[2]))
        if status.split()[1] not in ("200", "201"):
            raise RuntimeError(f"{path}: {status}: {answer.decode()[:200]}")
        return json.loads(answer)

    def close(self) -> None:
        self._writer.close()
