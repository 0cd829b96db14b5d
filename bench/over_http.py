"""Enqueue, and claim and ack, by HTTP: one by one and a hundred at a time, 1 and 100 clients.

The clients are one process with kept connections, which writes requests as bytes and reads little
more of an answer than its length, so that as much of the machine as possible is left to the server.
What they use is told beside what the server uses; PostgreSQL has the rest. `an answer without the
database` is what HTTP itself costs.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench import measures, peers, proc
from bench.harness import BATCH, Options, Server
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
        "an answer without the database": (_look, False, None),
        "enqueue one by one": (_enqueue, False, None),
        f"enqueue {BATCH} at a time": (_enqueue_many, False, None),
        "claim and ack one by one": (_claim, True, ONE_BY_ONE),
        f"claim and ack {BATCH} at a time": (_claim_many, True, IN_BATCHES),
    }
    used: dict[tuple[str, int], list[Used]] = {}
    with server.database("http") as database, serving(database) as served:
        for _ in range(options.rounds):
            for what, (client, filled, _) in ways.items():
                for many in CLIENTS:
                    database.reset()
                    if filled:
                        url = measures.url_of(database)
                        peers.here("holdfast").run("bulk", url, options.drain, "plain")
                    one = _load(served, client, many, options.seconds / 4)
                    used.setdefault((what, many), []).append(one)
    found: list[Figure] = []
    for (what, many), samples in used.items():
        target = ways[what][2]
        # One client that goes one by one waits for the disk each time, whatever a server does.
        judged = target if many > 1 or target == IN_BATCHES else None
        said = f"{what}, {'1 client' if many == 1 else f'{many} clients'}"
        if ways[what][0] is not _look:
            rates = [one.rate for one in samples]
            found.append(Figure("http", said, "jobs/s", rates, at_least=judged))
        # Of a batch it is the CPU of a hundred jobs: the target is for what is said one by one.
        most = CPU if "one by one" in what else None
        for whose, spent, limit in (
            ("server", [one.server for one in samples], most),
            ("clients", [one.clients for one in samples], None),
        ):
            name = f"{said}: CPU of the {whose}"
            found.append(Figure("http", name, "µs/request", spent, at_most=limit))
    return found


@dataclass(frozen=True)
class Used:
    """Jobs a second, and microseconds of CPU for each request: the server's and the clients'."""

    rate: float
    server: float
    clients: float


def _load(served: Served, client: Client, many: int, seconds: float) -> Used:
    async def go() -> Load:
        connections = [await Connection.open(served.address) for _ in range(many)]
        load = Load(time.time() + seconds)
        try:
            await asyncio.gather(*(client(connection, load) for connection in connections))
        finally:
            for connection in connections:
                connection.close()
        return load

    start, before, own = time.perf_counter(), proc.family_cpu(served.pid), time.process_time()
    load = uvloop.run(go())
    took, own = time.perf_counter() - start, time.process_time() - own
    cpu = proc.family_cpu(served.pid) - before
    assert load.requests, "nothing was done in that time"
    each = 1e6 / load.requests
    return Used(load.jobs / took, cpu * each, own * each)


async def _look(connection: "Connection", load: Load) -> None:
    while time.time() < load.until or not load.requests:
        await connection.get("/healthz")
        load.requests += 1


async def _enqueue(connection: "Connection", load: Load) -> None:
    job = msgspec.json.encode({"kind": "noop", "payload": {"n": 1}})
    while True:
        await connection.post("/v1/jobs", job)
        load.jobs, load.requests = load.jobs + 1, load.requests + 1
        if time.time() > load.until:
            return


async def _enqueue_many(connection: "Connection", load: Load) -> None:
    jobs = msgspec.json.encode([{"kind": "noop", "payload": {"n": n}} for n in range(BATCH)])
    while True:
        await connection.post("/v1/jobs/bulk", jobs)
        load.jobs, load.requests = load.jobs + BATCH, load.requests + 1
        if time.time() > load.until:
            return


async def _claim(connection: "Connection", load: Load) -> None:
    while leases := await _leases(connection, 1):
        [lease] = leases
        token = b'{"token":"%b"}' % lease["token"].encode()
        await connection.post(f"/v1/jobs/{lease['id']}/ack", token)
        load.jobs, load.requests = load.jobs + 1, load.requests + 2
        if time.time() > load.until:
            return


async def _claim_many(connection: "Connection", load: Load) -> None:
    while leases := await _leases(connection, BATCH):
        items = [{"id": x["id"], "token": x["token"], "verb": "ack"} for x in leases]
        answer = await connection.post("/v1/settle", msgspec.json.encode({"items": items}))
        assert answer.count(b'"ok":true') == len(leases), answer[:200]
        load.jobs, load.requests = load.jobs + len(leases), load.requests + 2
        if time.time() > load.until:
            return


async def _leases(connection: "Connection", most: int) -> list[dict[str, Any]]:
    wanted = b'{"worker":"bench","queues":["default"],"limit":%d}' % most
    leases: list[dict[str, Any]] = msgspec.json.decode(await connection.post("/v1/claims", wanted))[
        "leases"
    ]
    return leases


class Connection(asyncio.Protocol):
    """A kept connection to the server that has one request under way."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, address: str) -> "Connection":
        place = urlsplit(address)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, place.hostname, place.port)
        return connection

    def get(self, path: str) -> "asyncio.Future[bytes]":
        """Ask for something; returns what will be the body of the answer."""
        return self._send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())

    def post(self, path: str, body: bytes) -> "asyncio.Future[bytes]":
        """Send JSON; returns what will be the body of the answer."""
        return self._send(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
        )

    def close(self) -> None:
        self._transport.close()

    def _send(self, request: bytes) -> "asyncio.Future[bytes]":
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n") + 4
        if head < 4 or self._answer is None:
            return
        at = self._received.find(b"content-length: ") + len(b"content-length: ")
        whole = head + int(self._received[at : self._received.find(b"\r\n", at)])
        if len(self._received) < whole:
            return
        answer, self._received = self._received, b""
        if answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            self._answer.set_result(answer[head:])
        else:
            self._answer.set_exception(RuntimeError(answer.decode()[:1000]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server hung up"))
