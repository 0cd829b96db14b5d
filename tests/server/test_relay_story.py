"""Relay's own story, by its own routes: bash and Python, two servers, one of them killed."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.ports import free_port
from tests.server.process import served

CONSUMER = Path(__file__).parents[2] / "examples" / "relay" / "consumer.sh"

pytestmark = pytest.mark.skipif(not (which("curl") and which("jq")), reason="needs curl and jq")

# The third message fails once, and what is done is written down.
HANDLERS = """
handle() {
  local n=$(jq -r .n <<<"$2")
  [ "$n" = 3 ] && [ ! -e "$FAILED" ] && touch "$FAILED" && return 7
  sleep 0.05
}
"""


def call(url: str, said: Any = None, *, method: str | None = None) -> Any:
    """Ask as a program would that has nothing but the standard library; None for a 404."""
    headers = {"Content-Type": "application/json", "X-Requested-With": "urllib"}
    data = None if said is None else json.dumps(said).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def patiently(servers: list[str], path: str, said: Any = None) -> Any:
    """Ask one server, and the next if that is away."""
    end = time.monotonic() + 60
    while True:
        for server in servers:
            with suppress(OSError):
                return call(f"{server}{path}", said)
        assert time.monotonic() < end, "no server answers"
        time.sleep(0.05)


class Listener:
    """Hears the events of one server, as a browser does: it comes back with the last id it saw."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last = ""
        self._over = threading.Event()
        self.ready = threading.Event()
        self.came_back = 0
        self.gaps: list[Any] = []
        self.lives: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def life(self, id: str) -> list[str]:
        """What happened to a message, in order; what was told twice, once."""
        return [action for _, action in sorted(self.lives[id].items())]

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                self._listen()
            time.sleep(0.1)

    def _listen(self) -> None:
        headers = {"Last-Event-ID": self._last} if self._last else {}
        request = urllib.request.Request(f"{self._url}/queue/events", headers=headers)
        with urllib.request.urlopen(request, timeout=20) as stream:
            self.came_back += bool(self._last)
            for raw in stream:
                name, _, value = raw.decode().rstrip("\r\n").partition(": ")
                if name == "id":
                    self._last = value
                elif name == "data":
                    self._hear(json.loads(value))
                if self._over.is_set():
                    return

    def _hear(self, told: Any) -> None:
        self.ready.set()
        if told.get("type") == "gap":
            self.gaps.append(told)
        elif "id" in told.get("payload", {}):
            about = told["payload"]
            place = (int(about["event_id"]), told["type"] == "dlq")
            self.lives[about["id"]][place] = told["type"]


@contextmanager
def bash_consumer(server: str, home: Path) -> Iterator[None]:
    """Run the example's consumer in a process group of its own."""
    (home / "handlers.sh").write_text(HANDLERS)
    process = subprocess.Popen(
        [str(CONSUMER), "shop"],
        env={
            **os.environ,
            "HOLDFAST_API": server,
            "HANDLERS": str(home / "handlers.sh"),
            "FAILED": str(home / "failed"),
            "LEASE": "5",
            "WAIT": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def curl(server: str, n: int) -> str:
    """Enqueue from bash, over and over while the server is away; returns the id."""
    said = json.dumps({"type": "order", "queue": "shop", "payload": {"n": n}})
    key = f"Idempotency-Key: story-{n}"
    done = subprocess.run(
        f"curl --silent --fail --retry 100 --retry-connrefused --retry-delay 1 --retry-all-errors"
        f" -H 'Content-Type: application/json' -H '{key}' -d '{said}' {server}/queue/message"
        " | jq -r .id",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert len(done.stdout.strip()) == 36, done
    return done.stdout.strip()


def consume(servers: list[str], over: threading.Event) -> None:
    """Dequeue, and acknowledge what was got, at whichever server answers."""
    while not over.is_set():
        got = patiently(servers, "/queue/messages/batch?queue=shop&count=5&consumerId=python")
        messages = got["messages"]
        acks = [{"id": one["id"], "lock_token": one["lock_token"]} for one in messages]
        if acks:
            patiently(servers, "/queue/ack/batch", {"messages": acks})
        over.wait(0.05)


@pytest.mark.proves("S4.25", "S4.26")
def test_every_messages_life_is_seen_on_both_servers_though_one_is_killed(
    database: str, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    first, second = servers = [f"http://127.0.0.1:{port}" for port in ports]
    over = threading.Event()
    with served(database, port=ports[1]):
        with served(database, port=ports[0]) as doomed:
            heard = [Listener(first), Listener(second)]
            assert all(one.ready.wait(30) for one in heard)
            ids = [curl(first, n) for n in range(5)]
            batch = [
                {"type": "order", "queue": "shop", "payload": {"n": n}} for n in range(100, 140)
            ]
            stored = call(f"{second}/queue/batch", {"messages": batch})
            ids += [one["id"] for one in stored["messages"]]
            # one that nobody ever answers for
            lone = {"type": "lone", "queue": "alone", "payload": {}, "max_attempts": 1}
            ids.append(call(f"{second}/queue/message", lone | {"ack_timeout_seconds": 1})["id"])
            assert call(f"{first}/queue/message?queue=alone&consumerId=lost")["id"] == ids[-1]
            worker = threading.Thread(target=consume, args=[servers, over], daemon=True)
            worker.start()
            while sum("ack" in heard[1].life(id) for id in ids) < 10:
                time.sleep(0.02)
            os.kill(doomed.pid, signal.SIGKILL)
        with bash_consumer(second, tmp_path):
            ids += [curl(second, n) for n in range(5, 10)]
            with served(database, port=ports[0]):
                ids += [curl(first, n) for n in range(10, 12)]
                end = time.monotonic() + 90
                while time.monotonic() < end:
                    counts = call(f"{second}/queue/status")
                    if not counts["queued"] + counts["processing"]:
                        break
                    time.sleep(0.1)
                over.set()
                worker.join(10)
                lives = {
                    server: {id: life_of(server, id) for id in ids} for server in (first, second)
                }
                expected = lives[second]
                while time.monotonic() < end and any(
                    one.life(id) != expected[id] for one in heard for id in ids
                ):
                    time.sleep(0.1)
                for one in heard:
                    one.close()

    assert lives[first] == lives[second]
    for one in heard:
        assert {id: one.life(id) for id in ids} == expected
        assert one.gaps == []
    assert heard[0].came_back >= 1
    assert counts["dead"] == 1
    assert counts["acknowledged"] == len(ids) - 1 == 52
    dead = [id for id in ids if "dlq" in expected[id]]
    assert [expected[id] for id in dead] == [["enqueue", "dequeue", "timeout", "dlq"]]
    ended = {life[-1] for life in expected.values()}
    assert ended == {"ack", "dlq"}
    assert all(life[0] == "enqueue" for life in expected.values())


def life_of(server: str, id: str) -> list[str]:
    """What a server tells of a message afterwards."""
    told = call(f"{server}/activity/message/{id}")
    return [one["action"] for one in told["activities"]]
