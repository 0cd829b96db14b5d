"""An hour of mixed load with faults: `python -m tests.server.soak --minutes 60`.

Against one `holdfast serve`: producers and consumers of both dialects, streams that come and go,
lists, people who sign in and out, hostile requests, bodies that never end. All the while backends
are ended, and the database is stopped at once several times. At the end:

- no answer is a 500, and every 503 says when to come again;
- memory is flat: the median of the last quarter is at most 1.05 times that of the second quarter,
  plus 2 MB;
- every job whose enqueue was answered with success is found, waiting or ended.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psycopg

from holdfast import Client
from holdfast.errors import HoldfastError
from tests.chaos.server import Server as Database
from tests.server import hostile
from tests.server.process import Process, served

QUEUES = ("mail", "bills")
SAMPLE = 10.0
RISE, SLACK = 1.05, 2.0
LOOKS = (
    "/v1/queues",
    "/v1/jobs?limit=50",
    "/v1/jobs?q=queue:mail%20state:dead",
    "/v1/jobs?q=send&count=true",
    "/v1/dead",
    "/v1/dead/groups",
    "/v1/workers",
    "/v1/kinds",
    "/v1/activity",
    "/v1/metrics/series?metric=done&step=10",
    "/v1/anomalies",
    "/v1/system",
    "/metrics",
    "/queue/status",
    "/queue/metrics",
    "/queue/main/messages",
    "/queue/activity",
    "/v1/me",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/",
)


class Soak:
    """One run: what was sent, what came back, and how large the server was."""

    def __init__(self, process: Process, url: str, seed: int, pace: float) -> None:
        self.process = process
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.stored: set[UUID] = set()
        self.memory: list[tuple[float, float]] = []
        self.outages: list[tuple[float, float]] = []
        self.broken = 0
        self.streams = 0
        self._chance = random.Random(seed)
        self._pace = pace
        self._over = asyncio.Event()
        self._cpu = 0.0
        with Client(url) as client:
            for queue in QUEUES:
                client.queues.set(queue, keep_done=86400, max_attempts=3)
            self._all = _bearer(client, ["admin"])
            self._secret = client.tokens.create("person", ["read"]).secret
            # What is hostile has a queue of its own to do harm in.
            self._hostile = _bearer(client, ["read", "produce", "consume", "operate"], ["default"])

    async def run(self, database: Database, url: str, minutes: float, outages: int) -> None:
        """Send the load for so long, with so many outages spread over it."""
        began = time.monotonic()
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=20)
        async with httpx.AsyncClient(
            base_url=self.process.url, timeout=30.0, limits=limits
        ) as self._http:
            loops = [
                *(self._forever(self._produce, 0.25) for _ in range(2)),
                self._forever(self._produce_many, 2.0),
                self._forever(self._produce_messages, 0.4),
                *(self._forever(self._consume, 0.05) for _ in range(6)),
                *(self._forever(self._consume_messages, 0.05) for _ in range(3)),
                *(self._forever(self._watch, 0.5) for _ in range(6)),
                *(self._forever(self._look, 0.2) for _ in range(2)),
                self._forever(self._sign_in_and_out, 3.0),
                self._forever(self._be_slow, 2.0),
                self._knock(),
                self._measure(began),
            ]
            tasks = [asyncio.create_task(loop) for loop in loops]
            await self._hurt(database, url, began + minutes * 60, outages)
            self._over.set()
            await asyncio.wait(tasks, timeout=90)
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, BaseException):
                    self.wrong.append(f"the load ended early: {ended!r}")
        await asyncio.sleep(min(20.0, minutes * 5))
        self.settled = self.process.memory()
        self._cpu = self.process.cpu()

    def verdict(self, url: str) -> list[str]:
        """Return what is wrong, in sentences."""
        wrong = list(self.wrong)
        if not self.process.runs():
            wrong.append("the server ended")
        quarter = len(self.memory) // 4
        before = statistics.median(size for _, size in self.memory[quarter : 2 * quarter])
        after = statistics.median(size for _, size in self.memory[-quarter:])
        if after > before * RISE + SLACK:
            wrong.append(f"memory grew from {before:.1f} to {after:.1f} MB")
        with psycopg.connect(url) as connection:
            found = {id for (id,) in connection.execute("select id from holdfast.jobs")}
        if lost := self.stored - found:
            wrong.append(f"{len(lost)} of {len(self.stored)} jobs are lost, as {min(lost)}")
        if self.statuses[200] == 0 or not self.stored:
            wrong.append("nothing was served")
        return wrong

    async def _forever(self, one: Callable[[], Awaitable[None]], rest: float) -> None:
        while not self._over.is_set():
            try:
                await one()
            except (httpx.HTTPError, OSError):
                # A stream that is cut, a server that closes: the next one is another.
                self.broken += 1
            except Exception as error:
                self.wrong.append(f"{one.__name__}: {error!r}")
            await asyncio.sleep(rest * self._pace * self._chance.uniform(0.5, 1.5))

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        options.setdefault("headers", self._all)
        answer = await self._http.request(method, path, **options)
        self._check(answer, f"{method} {path[:200]}")
        return answer

    def _check(self, answer: httpx.Response, told: str) -> None:
        self.statuses[answer.status_code] += 1
        text = "" if answer.status_code < 500 else answer.text[:300]
        if answer.status_code == 503 and "retry-after" not in answer.headers:
            self.wrong.append(f"{told}: a 503 that does not say when to come again: {text}")
        elif answer.status_code >= 500 and answer.status_code != 503:
            self.wrong.append(f"{told}: {answer.status_code} {text}")

    async def _produce(self) -> None:
        payload = {"to": "a@example.org", "text": "x" * self._chance.choice([10, 1000, 20_000])}
        job = {"kind": "send", "queue": self._chance.choice(QUEUES), "payload": payload}
        answer = await self._ask("POST", "/v1/jobs", json=job)
        if answer.is_success:
            self.stored.add(UUID(answer.json()["id"]))

    async def _produce_many(self) -> None:
        jobs = [{"kind": "sum", "queue": "bills", "payload": {"n": n}} for n in range(20)]
        answer = await self._ask("POST", "/v1/jobs/bulk", json=jobs)
        if answer.is_success:
            self.stored |= {UUID(one["id"]) for one in answer.json()["jobs"]}

    async def _produce_messages(self) -> None:
        message = {"type": "send", "queue": "mail", "payload": {"n": 1}}
        answer = await self._ask("POST", "/queue/message", json=message)
        if answer.is_success:
            self.stored.add(UUID(answer.json()["id"]))

    async def _consume(self) -> None:
        wanted = {
            "worker": f"http-{self._chance.randrange(20)}",
            "queues": self._chance.sample(QUEUES, k=2),
            "limit": 10,
            "lease": 20,
            "wait": self._chance.choice([0, 2, 10]),
        }
        answer = await self._ask("POST", "/v1/claims", json=wanted)
        for lease in answer.json().get("leases", []) if answer.is_success else []:
            token = {"token": lease["token"]}
            where = f"/v1/jobs/{lease['id']}"
            fate = self._chance.random()
            if fate < 0.1:
                body = token | {"error": "no such address", "retry_in": 1}
                await self._ask("POST", f"{where}/nack", json=body)
            elif fate < 0.15:
                await self._ask("POST", f"{where}/release", json=token)
            elif fate < 0.97:
                await self._ask("PUT", f"{where}/touch", json=token)
                await self._ask("POST", f"{where}/ack", json=token | {"result": {"ok": True}})
            # The others are left to be reaped.

    async def _consume_messages(self) -> None:
        query = {"queue": "mail", "timeout": self._chance.choice([0, 5]), "consumerId": "relay-1"}
        answer = await self._ask("GET", "/queue/message", params=query)
        if not answer.is_success:
            return
        message = answer.json()
        token = {"lock_token": message["lock_token"]}
        verb = "nack" if self._chance.random() < 0.1 else "ack"
        await self._ask("POST", f"/queue/message/{message['id']}/{verb}", json=token)

    async def _watch(self) -> None:
        path = self._chance.choice(["/v1/events/stream", "/queue/events"])
        until = time.monotonic() + self._chance.choice([0, 1, 5, 20])
        async with self._http.stream("GET", path, headers=self._all) as answer:
            self.streams += 1
            self.statuses[answer.status_code] += 1
            if answer.status_code == 503 and "retry-after" not in answer.headers:
                self.wrong.append(f"{path}: a 503 that does not say when to come again")
            elif answer.status_code not in (200, 503):
                # A few at a time, so whoever is refused pays for those that have left.
                self.wrong.append(f"{path}: {answer.status_code} at stream {self.streams}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(until - time.monotonic(), 0.01)):
                    async for _ in answer.aiter_bytes():
                        if self._over.is_set():
                            return

    async def _look(self) -> None:
        await self._ask("GET", self._chance.choice(LOOKS))

    async def _sign_in_and_out(self) -> None:
        answer = await self._ask("POST", "/v1/session", json={"token": self._secret}, headers={})
        cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        if cookie:
            await self._ask("GET", "/v1/queues", headers={"Cookie": cookie})
            await self._ask("DELETE", "/v1/session", headers={"Cookie": cookie})
        wrong = {"token": f"hf_{self._chance.getrandbits(100)}"}
        await self._ask("POST", "/v1/session", json=wrong, headers={})

    async def _be_slow(self) -> None:
        """Begin what is never ended, and leave."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.process.port)
        head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        secret = self._all["Authorization"]
        writer.write(f"{head}Authorization: {secret}\r\nContent-Length: 900000\r\n\r\n".encode())
        writer.write(b" " * self._chance.choice([0, 100, 500_000]))
        await asyncio.sleep(self._chance.uniform(0.1, 3.0))
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await reader.read()

    async def _knock(self) -> None:
        seed = 0
        while not self._over.is_set():
            seed += 1
            for method, address, body in hostile.requests(500, seed):
                if self._over.is_set():
                    return
                headers = self._hostile | {"Content-Type": "application/json"}
                if self._chance.random() < 0.1:
                    del headers["Authorization"]
                with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL):
                    plain = hostile.without_waiting(address)
                    await self._ask(method, plain, content=body, headers=headers)
                await asyncio.sleep(0.25 * self._pace)

    async def _measure(self, began: float) -> None:
        nth = 0
        while not self._over.is_set():
            now = time.monotonic() - began
            self.memory.append((now, self.process.memory()))
            if nth % 30 == 0:
                self.say(f"{now / 60:5.1f} min  {self.memory[-1][1]:6.1f} MB")
            nth += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), SAMPLE)

    def say(self, what: str) -> None:
        """Tell how it stands."""
        counts = " ".join(f"{status}:{n}" for status, n in sorted(self.statuses.items()))
        if self.process.runs():
            self._cpu = self.process.cpu()
        print(
            f"{what}  cpu {self._cpu:.0f} s  stored {len(self.stored)}  "
            f"streams {self.streams}  broken {self.broken}  {counts}",
            flush=True,
        )

    async def _hurt(self, database: Database, url: str, until: float, outages: int) -> None:
        began = time.monotonic()
        every = (until - began) / (outages + 1)
        for _ in range(outages):
            next_outage = time.monotonic() + every
            while time.monotonic() < next_outage - 1:
                await asyncio.sleep(min(every / 5, next_outage - time.monotonic(), 20.0))
                with contextlib.suppress(psycopg.OperationalError):
                    await asyncio.to_thread(database.end_backends, url, rng=self._chance)
            stopped = time.monotonic()
            await asyncio.to_thread(database.stop, "immediate")
            await asyncio.sleep(self._chance.uniform(0.5, 5.0))
            await asyncio.to_thread(_start, database)
            self.outages.append((stopped - began, time.monotonic() - stopped))
        await asyncio.sleep(max(until - time.monotonic(), 0))


def _start(database: Database) -> None:
    for patience in (5, 20, 0):
        try:
            database.start()
        except HoldfastError:
            # A machine that has much else to do takes its time.
            if not patience:
                raise
            time.sleep(patience)
        else:
            return


def _bearer(client: Client, scopes: list[Any], queues: list[str] | None = None) -> dict[str, str]:
    made = client.tokens.create("soak", scopes, queues=queues)
    return {"Authorization": f"Bearer {made.secret}"}


def soak(
    minutes: float, *, seed: int, outages: int, pace: float, log: Path
) -> tuple[Soak, list[str]]:
    """Run it; returns the run and what is wrong with it."""
    with Database() as database, database.database() as url:
        options = ["--auth", "token", "--redact", "payload.to"]
        with served(url, *options, log=log) as process:
            run = Soak(process, url, seed, pace)
            asyncio.run(run.run(database, url, minutes, outages))
            return run, run.verdict(url)


def main() -> None:
    """Run as long as was asked, and say what came of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--outages", type=int, default=6)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--pace", type=float, default=1.0, help="2 is half as fast")
    options.add_argument("--out", type=Path, help="write the samples here, as JSON")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        run, wrong = soak(
            asked.minutes, seed=asked.seed, outages=asked.outages, pace=asked.pace, log=log
        )
        said = log.read_text("utf-8", "replace")
    sizes = [size for _, size in run.memory]
    quarter = max(len(sizes) // 4, 1)
    quarters = [statistics.median(sizes[n * quarter : (n + 1) * quarter]) for n in range(4)]
    run.say(f"memory by quarter {[round(one, 1) for one in quarters]} MB, {run.settled:.1f} after")
    print(f"outages at {[(round(at), round(took, 1)) for at, took in run.outages]}")
    if asked.out:
        asked.out.write_text(json.dumps({"memory": run.memory, "statuses": run.statuses}))
    if "Traceback" in said:
        print(said[-4000:])
    for one in wrong[:50]:
        print(one)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
