"""Server-sent events: what is seen, resumed, bounded."""

import asyncio
import json
import queue
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Client, Finding
from holdfast.server import Server, Settings
from holdfast.server.live import feed
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving


class Watcher:
    """Reads a stream in a thread of its own."""

    def __init__(self, server: Serving, path: str, headers: dict[str, str]) -> None:
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        Thread(target=self._read, daemon=True).start()

    def next(self, name: str, within: float = 60.0) -> dict[str, Any]:
        """Return the next event of a name; others are passed over."""
        end = time.monotonic() + within
        while True:
            event = self._events.get(timeout=max(end - time.monotonic(), 0.01))
            if event["event"] == name:
                return event

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()

    def _read(self) -> None:
        event: dict[str, Any] = {"event": "message"}
        try:
            for raw in self._file:
                name, _, value = raw.decode().rstrip("\r\n").partition(": ")
                if name == "data":
                    event["data"] = json.loads(value)
                elif name in ("event", "id"):
                    event[name] = value
                elif raw.strip() == b"" and "data" in event:
                    self._events.put(event)
                    event = {"event": "message"}
        except (OSError, ValueError):
            pass


@contextmanager
def watching(server: Serving, path: str = "/v1/events/stream", **headers: str) -> Iterator[Watcher]:
    watcher = Watcher(server, path, {k.replace("_", "-"): v for k, v in headers.items()})
    try:
        yield watcher
    finally:
        watcher.close()


@pytest.mark.proves("S0.3")
def test_a_tick_tells_what_changed_in_which_queue(server: Serving, client: Client) -> None:
    client.queues.set("mail")
    with watching(server) as watcher:
        hello = watcher.next("hello")
        client.enqueue("a", queue="mail")
        tick = watcher.next("tick")

    [row] = tick["data"]["queues"]
    assert hello["data"]["mode"] in ("live", "polling")
    assert (row["queue"], row["queued"], row["change"]) == ("mail", 1, {"queued": 1})


def test_ticks_come_four_times_a_second_at_most_and_stay_small(
    server: Serving, client: Client
) -> None:
    for n in range(60):
        client.queues.set(f"queue-{n}")
    with watching(server) as watcher:
        watcher.next("hello")
        started, ticks = time.monotonic(), []
        while time.monotonic() < started + 2:
            for n in range(60):
                client.enqueue("a", queue=f"queue-{n}")
            try:
                while True:
                    ticks.append(watcher.next("tick", within=0.01))
            except queue.Empty:
                pass

        seconds = time.monotonic() - started

    assert 1 <= len(ticks) <= 4 * seconds + 2
    assert any(tick["data"].get("more") for tick in ticks)
    assert max(len(json.dumps(tick["data"], separators=(",", ":"))) for tick in ticks) <= 2000


def test_the_first_queue_of_all_is_told_of(server: Serving, client: Client) -> None:
    with watching(server) as watcher:
        watcher.next("hello")
        client.enqueue("a", queue="first")
        tick = watcher.next("tick")

    assert [row["queue"] for row in tick["data"]["queues"]] == ["first"]


def test_nobody_asks_the_database_while_nobody_watches(serve: Serve, connect: Any) -> None:
    server = serve()
    sql = (
        "select max(query_start) from pg_stat_activity "
        "where application_name = 'holdfast server reads'"
    )
    with watching(server) as watcher:
        watcher.next("hello")
    # It may take a while until the server knows that it is alone; whoever asks does so every
    # quarter of a second.
    for _ in range(10):
        [(before,)] = connect().execute(sql).fetchall()
        time.sleep(1.5)
        [(after,)] = connect().execute(sql).fetchall()
        if after == before:
            break

    assert before is not None
    assert after == before


def test_a_watched_job_is_told_of_and_no_other(server: Serving, client: Client) -> None:
    job, other = client.enqueue("a"), client.enqueue("a")
    with watching(server, f"/v1/events/stream?watch={job.id}") as watcher:
        watcher.next("hello")
        queued = watcher.next("job")
        client.jobs.cancel([other.id])
        [lease] = client.claim(worker="w")
        leased = watcher.next("job")
        client.touch([lease], progress=[{"done": 3, "total": 20}])
        moved = watcher.next("job")
        client.ack([lease])
        gone = watcher.next("job")

    told = [event["data"] for event in (leased, moved, gone)]
    assert queued["data"]["state"] == "queued"
    assert {event["id"] for event in told} == {str(job.id)}
    assert (told[0]["state"], told[0]["worker"]) == ("leased", "w")
    assert told[1]["progress"]["done"] == 3
    assert told[2]["state"] == "gone"


def test_a_stream_resumes_where_it_was_cut(server: Serving, client: Client) -> None:
    client.queues.set("mail")
    with watching(server) as first, watching(server) as keeps_the_feed_going:
        keeps_the_feed_going.next("hello")
        first.next("hello")
        client.enqueue("a", queue="mail")
        seen = first.next("tick")
        first.close()
        client.enqueue("a", queue="mail")
        missed = keeps_the_feed_going.next("tick")
        missed = keeps_the_feed_going.next("tick")
        with watching(server, Last_Event_ID=seen["id"]) as second:
            again = second.next("tick")

    assert again == missed


@pytest.mark.parametrize("last", ["00000000-5", "nonsense", "-", "x" * 100])
def test_a_stream_that_cannot_resume_is_told_to_start_afresh(server: Serving, last: str) -> None:
    with watching(server, Last_Event_ID=last) as watcher:
        assert watcher.next("resync")["event"] == "resync"


def test_a_stream_the_ring_has_passed_is_told_to_start_afresh(
    server: Serving, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(server) as watcher, watching(server) as keeps_the_feed_going:
        keeps_the_feed_going.next("hello")
        first = watcher.next("hello")
        [live] = server.server._live.values()
        for n in range(feed.REMEMBERED + 10):
            live._loop.call_soon_threadsafe(live.feed._publish, "op", {"n": n}, None)
        while live.feed._seq < feed.REMEMBERED + 10:
            time.sleep(0.01)
        watcher.close()
        with watching(server, Last_Event_ID=first["id"]) as late:
            assert late.next("resync")["event"] == "resync"


def test_a_token_of_some_queues_is_told_of_those(serve: Serve, client: Client) -> None:
    token = client.tokens.create("php", ["read"], queues=["mail"])
    for name in ("mail", "secret"):
        client.queues.set(name)
    server = serve(ways=["token"])
    with watching(server, Authorization=f"Bearer {token.secret}") as watcher:
        watcher.next("hello")
        for name in ("secret", "mail"):
            client.enqueue("a", queue=name)
        tick = watcher.next("tick")

    assert [row["queue"] for row in tick["data"]["queues"]] == ["mail"]


def test_a_token_of_some_queues_watches_no_job_of_another(serve: Serve, client: Client) -> None:
    some = client.tokens.create("php", ["read"], queues=["mail"]).secret
    every = client.tokens.create("ada", ["read"]).secret
    own, foreign = client.enqueue("a", queue="mail"), client.enqueue("a", queue="secret")
    path = f"/v1/events/stream?watch={own.id},{foreign.id}"
    server = serve(ways=["token"])
    with (
        watching(server, path, Authorization=f"Bearer {some}") as watcher,
        watching(server, path, Authorization=f"Bearer {every}") as witness,
    ):
        first = watcher.next("job")
        for _ in range(2):
            witness.next("job")
        client.jobs.cancel([foreign.id])
        seen = witness.next("job")
        client.jobs.cancel([own.id])
        second = watcher.next("job")

    assert (seen["data"]["id"], seen["data"]["state"]) == (str(foreign.id), "cancelled")
    assert (first["data"]["id"], first["data"]["state"]) == (str(own.id), "queued")
    assert (second["data"]["id"], second["data"]["state"]) == (str(own.id), "cancelled")


def test_a_ping_comes_when_nothing_happens(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "PING", 0.2)
    asked = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    asked.sendall(b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    seen = b""
    while b": ping" not in seen:
        seen += asked.recv(4096)
    asked.close()

    assert b"retry: 3000" in seen


def test_streams_end_when_the_server_does(serve: Serve) -> None:
    server = serve()
    with watching(server) as watcher:
        watcher.next("hello")
        server.server.hang_up()
        deadline = time.monotonic() + 60
        while any(live.feed._streams for live in server.server._live.values()):
            assert time.monotonic() < deadline, "a stream goes on"
            time.sleep(0.02)


def test_too_many_streams_are_refused(serve: Serve) -> None:
    server = serve(streams=3, streams_per_address=2)
    with watching(server) as one, watching(server) as two:
        one.next("hello")
        two.next("hello")
        with server.client() as api:
            refused = api.get("/v1/events/stream")
            other = api.get("/queue/events")

    assert (refused.status_code, refused.json()["code"]) == (429, "HF429")
    assert other.status_code == 429


def test_without_notifications_the_stream_says_that_it_polls(
    serve: Serve, database: str, client: Client
) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    client.queues.set("mail")
    server = serve(listen_url=nowhere)
    with watching(server) as watcher:
        hello = watcher.next("hello")
        client.enqueue("a", queue="mail")
        tick = watcher.next("tick")

    assert hello["data"]["mode"] == "polling"
    assert tick["data"]["mode"] == "polling"


def test_one_connection_listens_for_everybody(serve: Serve, connect: Any) -> None:
    server = serve()
    sql = "select count(*) from pg_stat_activity where application_name = 'holdfast listener'"
    streams = [watching(server) for _ in range(10)]
    opened = [stream.__enter__() for stream in streams]
    for watcher in opened:
        watcher.next("hello")
    [(listeners,)] = connect().execute(sql).fetchall()
    for stream in streams:
        stream.__exit__(None, None, None)

    assert listeners == 1


def test_a_killed_listener_comes_back_and_no_change_is_missed(
    server: Serving, client: Client, connect: Any
) -> None:
    client.queues.set("mail")
    with watching(server) as watcher:
        watcher.next("hello")
        connect().execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'holdfast listener'"
        )
        client.enqueue("a", queue="mail")
        tick = watcher.next("tick")

    assert tick["data"]["queues"][0]["change"] == {"queued": 1}


def test_500_sockets_that_never_read_cost_little_and_harm_nobody(
    serve: Serve, client: Client
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    server = serve(streams=500, streams_per_address=500)
    with server.client() as api:
        alone = _claims(api, client)
    before = _resident()
    with ExitStack() as open_ones:
        for _ in range(500):
            open_ones.enter_context(closing(_silent(server)))
        [live] = server.server._live.values()
        while len(live.feed._streams) < 500:
            time.sleep(0.05)

        with server.client() as api:
            api.timeout = 120  # the flood keeps a busy machine longer than usual
            refused = api.get("/v1/events/stream")
            _flood(server, live)
            took = _claims(api, client)
        after = _resident()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (refused.status_code, refused.json()["code"]) == (503, "HF429")
    # A machine that is busy anyway is slow without them, too.
    assert sorted(took)[len(took) // 2] < max(2, 5 * sorted(alone)[len(alone) // 2])
    assert after - before < 200 * 1024 * 1024


def test_a_socket_that_does_not_read_is_dropped_in_the_end(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.live.stream.STALLED", 0.5)
    server = serve()
    asked = _silent(server)
    [live] = server.server._live.values()
    while not live.feed._streams:
        time.sleep(0.02)
    end = time.monotonic() + 120
    while live.feed._streams and time.monotonic() < end:
        _flood(server, live)
    asked.close()

    assert not live.feed._streams


def test_a_stream_ends_when_its_token_does(
    serve: Serve, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.live.stream.ALLOWED_EVERY", 0.1)
    monkeypatch.setattr("holdfast.server.doors.access.BELIEVED", 0.0)
    kept, revoked = (client.tokens.create(name, ["read"]) for name in ("kept", "revoked"))
    server = serve(ways=["token"])
    with (
        watching(server, Authorization=f"Bearer {kept.secret}") as stays,
        watching(server, Authorization=f"Bearer {revoked.secret}") as goes,
    ):
        stays.next("hello")
        goes.next("hello")
        [live] = server.server._live.values()
        client.tokens.revoke(revoked.token.id)
        end = time.monotonic() + 120
        while len(live.feed._streams) > 1 and time.monotonic() < end:
            time.sleep(0.02)
        client.enqueue("a", queue="mail")
        stays.next("tick")
        left = [stream.user.name for stream in live.feed._streams]

    assert left == ["kept"]


def _silent(server: Serving) -> socket.socket:
    asked = socket.socket()
    asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked.connect(("127.0.0.1", server.port))
    asked.sendall(b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return asked


def _flood(server: Serving, live: Any) -> None:
    """Make a megabyte of events for everybody who reads."""
    for _ in range(500):
        live._loop.call_soon_threadsafe(live.feed._publish, "op", {"x": "x" * 2000}, None)
    time.sleep(0.3)


def _claims(api: Api, client: Client) -> list[float]:
    took = []
    for _ in range(30):
        client.enqueue("a", queue=f"q{uuid4().hex[:8]}")
        [name] = [one.queue for one in client.queues.list() if one.queued][:1]
        started = time.monotonic()
        [lease] = api.post("/v1/claims", json={"worker": "w", "queues": [name]}).json()["leases"]
        api.post(f"/v1/jobs/{lease['id']}/ack", json={"token": lease["token"]})
        took.append(time.monotonic() - started)
    return took


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_an_anomaly_is_told_when_it_is_raised_acked_and_over(serve: Serve, client: Client) -> None:
    server = serve(fresh=0.0, upkeep=False)
    client.enqueue("a")
    with watching(server) as watcher:
        watcher.next("hello")
        [raised] = client.detectors.report("refunds", [Finding("Refunds pile up", queue="mail")])
        first = watcher.next("anomaly")["data"]
        client.anomalies.ack(str(raised.id), actor="ada")
        second = watcher.next("anomaly")["data"]
        client.detectors.report("refunds", [])
        third = watcher.next("anomaly")["data"]

    assert (first["change"], first["id"], first["title"]) == (
        "raised",
        raised.id,
        "Refunds pile up",
    )
    assert (second["change"], second["acked_by"]) == ("changed", "ada")
    assert third == {"id": raised.id, "queue": "mail", "change": "resolved"}


def test_whoever_leaves_just_when_something_happens_is_not_counted_on(database: str) -> None:
    server = Server(database, settings=Settings(insecure=True, upkeep=False))

    async def leave(ticks: int) -> int:
        left, greeted = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if b"hello" in message.get("body", b""):
                greeted.set()

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/events/stream",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "http_version": "1.1",
        }
        watching = asyncio.create_task(server(scope, receive, send))
        await asyncio.wait_for(greeted.wait(), 20)
        await asyncio.sleep(0.05)
        [live] = server._live.values()
        # The client has gone, and so many turns of the event loop later the bell rings.
        left.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        live.feed._ring_all()
        await asyncio.wait([watching], timeout=10)
        return len(live.feed._streams)

    async def leave_at_every_moment() -> list[int]:
        still = [await leave(ticks) for ticks in range(20)]
        await server.stop()
        return still

    assert asyncio.run(leave_at_every_moment()) == [0] * 20


@pytest.mark.parametrize("told_first", ["the stream", "the feed"])
def test_a_line_is_told_although_a_stream_begins_during_a_look(
    database: str, client: Client, told_first: str
) -> None:
    # A look begins, the greeting of a stream reads the job, a line is logged, the look reads it.
    # What the greeting read is told before the look is done, or after.
    server = Server(database, settings=Settings(insecure=True, upkeep=False))
    job = client.enqueue("a")
    [lease] = client.claim(worker="w")
    logged: list[int] = []
    read, looked, told = asyncio.Event(), asyncio.Event(), asyncio.Event()
    looking = asyncio.Event()

    async def log() -> None:
        await asyncio.to_thread(client.log, [lease], [["one"]])
        read.set()

    async def receive() -> dict[str, Any]:
        await told.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        body = message.get("body", b"").decode()
        for line in body.splitlines():
            if line.startswith("data: ") and "log" in (said := json.loads(line[6:])):
                logged.append(said["log"])
                if said["log"] == 1:
                    told.set()
                elif not read.is_set():
                    await log()

    async def watch() -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/events/stream",
            "query_string": f"watch={job.id}".encode(),
            "headers": [(b"host", b"localhost")],
            "http_version": "1.1",
        }
        live = server._running()
        lines = live.reads.jobs.last_lines

        async def last_lines(ids: list[Any]) -> dict[Any, int]:
            by_look = "Feed.run" in repr(asyncio.current_task())
            if looked.is_set():
                return await lines(ids)
            if by_look:
                looking.set()
                await read.wait()
                found = await lines(ids)
                looked.set()
                return found
            await looking.wait()
            found = await lines(ids)
            if told_first == "the feed":
                await log()
                await looked.wait()
            return found

        live.reads.jobs.last_lines = last_lines  # type: ignore[method-assign]
        await asyncio.wait_for(server(scope, receive, send), 30)
        await server.stop()

    asyncio.run(watch())

    assert logged[0] == 0
    assert logged[-1] == 1
