"""What somebody unknown can make the server grow by: each of these is tried on one server.

Its memory is read from the system while everything that was opened is still open, after a request
that shows that the server has seen it.
"""

import asyncio
import gc
import re
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest

from holdfast import Client
from holdfast.server import serve as listening
from tests.server.conftest import Serve
from tests.server.process import Process, served
from tests.server.provider import CLIENT, SECRET, provider

# Megabytes.
MOST = 50
# As many as one address may have open, but for a few for whoever looks.
CONNECTIONS = 600
HEAD = b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\n"
Attack = Callable[[Process, ExitStack], None]


@pytest.fixture(scope="module")
def process(shared: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One server for all of them, that was used a little."""
    place = tmp_path_factory.mktemp("growth")
    with provider(place) as idp:
        options = {
            "--auth": "token,oidc",
            "--oidc-issuer": idp.issuer,
            "--oidc-client": CLIENT,
            "--oidc-group": "admins=admin",
            "--oidc-ca": str(idp.ca),
            "--public-url": "http://localhost:1",
        }
        words = [word for option in options.items() for word in option]
        with served(shared, *words, HOLDFAST_OIDC_SECRET=SECRET) as process:
            with httpx.Client(base_url=process.url, timeout=60) as api:
                for path in ("/", "/healthz", "/readyz", "/openapi.json", "/oidc/sign-in"):
                    for _ in range(20):
                        api.get(path)
                api.post("/v1/session", json={"token": "x"})
            yield process


@pytest.fixture(scope="module")
def before(process: Process) -> float:
    """Megabytes of the server before anybody tried anything."""
    return process.memory()


@pytest.fixture
def calm(process: Process) -> None:
    """Wait until the server has dropped whoever came before; what it needed then is forgotten."""
    until = time.monotonic() + 120
    while left := process.connections():
        assert time.monotonic() < until, f"the server still has {left} connections"
        time.sleep(0.02)
    process.forget_most_memory()


def opened(process: Process, stack: ExitStack, *said: bytes) -> socket.socket:
    """Open a connection that is never read from, and say as much as the server takes at once."""
    one = stack.enter_context(socket.create_connection(("127.0.0.1", process.port), 30))
    one.settimeout(0.2)
    with suppress(OSError):
        for words in said:
            one.sendall(words)
    return one


def many(process: Process, stack: ExitStack, *said: bytes, count: int = CONNECTIONS) -> None:
    for _ in range(count):
        opened(process, stack, *said)


def silence(process: Process, stack: ExitStack) -> None:
    many(process, stack)


def heads_that_do_not_end(process: Process, stack: ExitStack) -> None:
    many(process, stack, HEAD + b"X: " + b"x" * 60_000)


def heads_just_small_enough_that_do_not_end(process: Process, stack: ExitStack) -> None:
    many(process, stack, HEAD + b"".join(b"h%03d: %s\r\n" % (n, b"v" * 330) for n in range(90)))


def heads_of_many_small_headers(process: Process, stack: ExitStack) -> None:
    many(process, stack, HEAD + b"".join(b"h%04d: v%04d\r\n" % (n, n) for n in range(4000)))


def heads_that_drip(process: Process, stack: ExitStack) -> None:
    held = [opened(process, stack, HEAD) for _ in range(CONNECTIONS)]
    for nth in range(20):
        for one in held:
            with suppress(OSError):
                one.sendall(b"".join(b"h%02d%04d: v\r\n" % (nth, n) for n in range(150)))


def large_heads_of_connections_that_stay(process: Process, stack: ExitStack) -> None:
    many(process, stack, HEAD + b"X: " + b"x" * 60_000 + b"\r\n\r\n")


def heads_just_small_enough_of_connections_that_stay(process: Process, stack: ExitStack) -> None:
    lines = b"".join(b"h%03d: %s\r\n" % (n, b"v" * 330) for n in range(90))
    many(process, stack, HEAD + lines + b"\r\n")


def bodies_that_do_not_end(process: Process, stack: ExitStack) -> None:
    head = b"POST /v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    many(process, stack, head + b"Content-Length: 4000\r\n\r\n" + b" " * 3999)


def large_bodies(process: Process, stack: ExitStack) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 15000000\r\n\r\n"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: opened(process, stack, head, b"x" * 15_000_000), range(40)))


def requests_all_at_once(process: Process, stack: ExitStack) -> None:
    many(process, stack, (HEAD + b"\r\n") * 4000, count=100)


def answers_that_nobody_reads(process: Process, stack: ExitStack) -> None:
    page = httpx.get(f"{process.url}/").text
    [script] = re.findall(r'src="(/assets/[^"]+\.js)"', page)
    asked = f"GET {script} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    held = [opened(process, stack, asked) for _ in range(CONNECTIONS)]
    for _ in range(15):
        for one in held:
            with suppress(OSError):
                one.sendall(asked)


def streams_and_websockets(process: Process, stack: ExitStack) -> None:
    many(process, stack, b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n", count=300)
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    many(process, stack, HEAD + upgrade + b"Sec-WebSocket-Key: x\r\n\r\n", count=300)


def sign_ins(process: Process, stack: ExitStack) -> None:
    with httpx.Client(base_url=process.url, timeout=60) as api:
        for nth in range(1000):
            wrong = f"hf_{nth}{'x' * 150}"
            if nth % 2:
                api.post("/v1/session", json={"token": wrong})
            else:
                api.get("/v1/queues", headers={"Authorization": f"Bearer {wrong}"})


def sign_ins_at_the_provider(process: Process, stack: ExitStack) -> None:
    start = b"GET /oidc/sign-in?next=/jobs?q=%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    many(process, stack, start % (b"x" * 1900))
    with httpx.Client(base_url=process.url, timeout=60) as api:
        for nth in range(100):
            api.get("/oidc/callback", params={"code": "x" * 3000, "state": str(nth)})


ATTACKS: list[Attack] = [
    silence,
    heads_that_do_not_end,
    heads_just_small_enough_that_do_not_end,
    heads_of_many_small_headers,
    heads_that_drip,
    large_heads_of_connections_that_stay,
    heads_just_small_enough_of_connections_that_stay,
    bodies_that_do_not_end,
    large_bodies,
    requests_all_at_once,
    answers_that_nobody_reads,
    streams_and_websockets,
    sign_ins,
    sign_ins_at_the_provider,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
@pytest.mark.usefixtures("calm")
def test_somebody_unknown_makes_the_server_grow_by_less_than_50_mb(
    process: Process, before: float, attack: Attack
) -> None:
    with ExitStack() as stack:
        attack(process, stack)
        # Whoever waits behind the others is answered, so the server has seen them all.
        answer = httpx.get(f"{process.url}/healthz", timeout=60)
        grown = process.memory() - before
        most = process.most_memory() - before
    print(f"{attack.__name__}: {grown:.1f} MB more, {most:.1f} MB at most")

    assert answer.status_code == 200
    assert grown < MOST
    assert most < MOST


# What everybody else may still do.


def answers(port: int, said: bytes) -> list[int]:
    """Send it at once, and return the statuses of what comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        one.sendall(said)
        heard = b""
        with suppress(ConnectionResetError):
            while data := one.recv(65536):
                heard += data
    return [int(found) for found in re.findall(rb"HTTP/1.1 (\d+) ", heard)]


def asking(path: str, token: str, *, size: int = 3000, last: bool = False) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {token}",
        f"Cookie: a={'x' * size}",
        *(["Connection: close"] if last else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_requests_sent_together_are_answered_each_with_its_own_head(
    serve: Serve, client: Client
) -> None:
    token = client.tokens.create("t", ["read"]).secret
    server = serve(ways=["token"])
    said = [asking("/v1/queues", token) for _ in range(4)]

    found = answers(server.port, b"".join([*said, asking("/v1/tokens", token, last=True)]))

    assert found == [200, 200, 200, 200, 403]


def test_a_head_may_be_large_and_one_that_is_larger_is_refused(
    serve: Serve, client: Client
) -> None:
    token = client.tokens.create("t", ["read"]).secret
    server = serve(ways=["token"])
    headers = "".join(f"h{n}: v\r\n" for n in range(listening.LINES)).encode()

    large = answers(server.port, asking("/v1/queues", token, size=30_000, last=True))
    larger = answers(server.port, asking("/v1/queues", token, size=40_000, last=True))
    lines = answers(server.port, HEAD + headers + b"\r\n")
    many = answers(server.port, asking("/v1/queues", token) * 50)

    assert (large, larger, lines) == ([200], [431], [431])
    assert many[-1] == 429


def test_a_connection_that_does_not_read_its_answer_is_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, lost = listening._bound, listening._Protocol.connection_lost
    elsewhere, hung_up = "127.0.0.3", threading.Event()

    def note(connection: listening._Protocol, error: Exception | None) -> None:
        if connection._address == elsewhere:
            hung_up.set()
        lost(connection, error)

    def narrow(host: str, port: int) -> socket.socket:
        made = bound(host, port)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        return made

    monkeypatch.setattr(listening, "STALLED", 0.5)
    monkeypatch.setattr(listening, "_bound", narrow)
    monkeypatch.setattr(listening._Protocol, "connection_lost", note)
    server = serve()
    with socket.socket() as one, server.client() as api:
        whole = api.get("/openapi.json")
        # Little fits between the two: what is not read stays in the server.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.bind((elsewhere, 0))
        one.connect(("127.0.0.1", server.port))
        one.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert hung_up.wait(20)

    # Whoever reads gets all of it, piece by piece.
    assert whole.status_code == 200
    assert len(whole.content) == int(whole.headers["content-length"]) > listening.UNREAD


def test_a_connection_that_was_reset_after_its_answer_is_forgotten(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, lost = listening._Protocol.connection_made, listening._Protocol.connection_lost
    seen: list[weakref.ref[listening._Protocol]] = []
    ends: list[Exception | None] = []

    def note(connection: listening._Protocol, transport: asyncio.Transport) -> None:
        seen.append(weakref.ref(connection))
        made(connection, transport)

    def note_end(connection: listening._Protocol, error: Exception | None) -> None:
        lost(connection, error)
        ends.append(error)

    server = serve()
    monkeypatch.setattr(listening._Protocol, "connection_made", note)
    monkeypatch.setattr(listening._Protocol, "connection_lost", note_end)
    with socket.create_connection(("127.0.0.1", server.port), 20) as one:
        one.sendall(HEAD + b"\r\n")
        assert one.recv(1)
        # What is closed before all was read is reset.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    until = time.monotonic() + 20
    while any(ref() for ref in seen) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    assert len(ends) == 1
    assert [ref() for ref in seen] == [None]
