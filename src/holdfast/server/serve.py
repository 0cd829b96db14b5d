"""Listening: the server under uvicorn, with limits that uvicorn does not have."""

import asyncio
import ipaddress
import logging
import socket
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from time import sleep
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from holdfast.errors import HoldfastError
from holdfast.server.asgi import Server
from holdfast.server.doors.access import CONNECTION
from holdfast.server.http.direct import DIRECT

# A connection without a complete request by then is closed.
HEADERS_WITHIN = 15.0
# Limits of the bytes of an address and headers, and of the number of headers.
HEADERS = 32 * 1024
LINES = 100
# Of a connection that stays open, no more than this is kept of the request before.
KEPT = 2 * 1024
# Requests that a client may send before it has an answer.
PIPELINED = 8
# Bytes that wait in the server for a client to read them, and how long they do.
UNREAD = 16 * 1024
STALLED = 30.0
# How long a shutdown waits for requests that are under way.
GRACE = 5
BACKLOG = 2048


def run(server: Server, *, host: str, port: int) -> None:
    """Serve until a signal comes."""
    bound = _bound(host, port)
    try:
        _Uvicorn(_config(server), server).run([bound])
    finally:
        bound.close()


@contextmanager
def beside(server: Server, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve in a thread while the block lasts; gives the address."""
    bound = _bound(host, port)
    running = _Uvicorn(_config(server), server)
    thread = threading.Thread(target=lambda: _run(running.serve([bound])), daemon=True)
    thread.start()
    try:
        while not running.started and thread.is_alive():
            sleep(0.01)
        yield f"http://{host}:{bound.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(2 * GRACE)
        bound.close()


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._server.hang_up()
        await super().shutdown(sockets)


def _run(serving: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop if it is installed, as uvicorn itself does."""
    if find_spec("uvloop"):
        import_module("uvloop").run(serving)
    else:
        asyncio.run(serving)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise HoldfastError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            fix="Choose another:  --port N",
            code="HF405",
        ) from None


def _config(server: Server) -> uvicorn.Config:
    # Clients that disconnect, and similar events, are not logged.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    settings = server.settings
    _Protocol.most = settings.requests + settings.waits + settings.streams
    _Protocol.most_of_one = max(_Protocol.most // 4, 1)
    _Protocol.proxies = [ipaddress.ip_network(one) for one in settings.proxies]
    return uvicorn.Config(
        server,
        loop="auto",
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE,
    )


TOO_LARGE = b"431 Request Header Fields Too Large"
TOO_MANY = b"429 Too Many Requests"


class _Corked:
    """A transport that sends the head of an answer together with its body, in one packet.

    uvicorn writes them apart, which costs a system call here and a wake-up there: a quarter of all
    that a small answer costs.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send, or wait for what follows if it is the head of an answer."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._uncork)
            return
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether it is being closed; asked for every answer."""
        return self._transport.is_closing()

    def write_whole(self, message: bytes) -> None:
        """Send an answer that is complete."""
        if self._head:
            self._uncork()
        self._transport.write(message)

    def close(self) -> None:
        """Send what is left, and close."""
        self._uncork()
        self._transport.close()

    def _uncork(self) -> None:
        if self._head:
            self.write(b"")


class _Direct:
    """The listener's part of the short way, for one request."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def body(self) -> bytes | None:
        """Take the body; None if it has not all arrived."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        cycle.flow.resume_reading()
        cycle.message_event.clear()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def gone(self) -> bool:
        """Whether the client has hung up."""
        return self._cycle.disconnected

    def answer(self, message: bytes) -> bool:
        """Send a whole answer; False if it must go by messages: it must wait, or is the last."""
        cycle = self._cycle
        if cycle.flow.write_paused or not cycle.keep_alive or cycle.scope["method"] == "HEAD":
            return False
        if not cycle.disconnected:
            cycle.waiting_for_100_continue = False
            cycle.response_started = cycle.response_complete = True
            cycle.transport.write_whole(message)  # type: ignore[attr-defined]
            cycle.message_event.set()
            cycle.on_response()
        return True


class _Protocol(HttpToolsProtocol):
    """A connection with a time limit for its request, and a limit of their number."""

    most = 2500
    # Of one address, unless it is a proxy's, behind which are many.
    most_of_one = 625
    proxies: ClassVar[list[ipaddress.IPv4Network | ipaddress.IPv6Network]] = []
    near: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Corked(transport, self.loop))  # type: ignore[arg-type]
        self._address = self.client[0] if self.client else ""
        self.near[self._address] += 1
        many = self.near[self._address] > self.most_of_one and not self._is_proxy()
        if many or len(self.connections) > self.most:
            transport.abort()
            return
        self._slow: asyncio.TimerHandle | None = self.loop.call_later(HEADERS_WITHIN, self._give_up)
        self._stalled: asyncio.TimerHandle | None = None
        self._in_head, self._head, self._packet = False, 0, 0
        self._known: dict[str, bool] = {}
        transport.set_write_buffer_limits(high=UNREAD)

    def data_received(self, data: bytes) -> None:
        self._packet = len(data)
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if not self._in_head:
            return
        if self._head > HEADERS or len(self.headers) > LINES:
            self._refuse(TOO_LARGE)
        elif self._slow is None:
            # Only for a head that did not arrive as a whole: most do.
            self._slow = self.loop.call_later(HEADERS_WITHIN, self._give_up)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        # Not only after a packet, which may have thousands of them.
        if len(self.headers) > LINES:
            self._refuse(TOO_LARGE)
            raise ValueError("the head has too many lines")

    def on_headers_complete(self) -> None:
        self._in_time()
        self._in_head = False
        # Only a packet that has more than the head can be larger than it may be.
        if self._head > HEADERS:
            self._head = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._head > HEADERS or len(self.headers) > LINES:
            self._refuse(TOO_LARGE)
            raise ValueError("the head is too large")
        super().on_headers_complete()
        if self.cycle.scope is self.scope:
            self.scope[DIRECT] = _Direct(self.cycle)  # type: ignore[literal-required]

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._head > KEPT and not self._in_head and self.cycle.response_complete:
            # An idle connection must not keep the memory of its last request.
            self.headers.clear()
            self.url = b""
            self.scope["path"], self.scope["raw_path"], self.scope["query_string"] = "", b"", b""

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            self._refuse(TOO_MANY)
            raise ValueError("too many requests at once")
        self._in_time()
        # As many bytes at most, if it did not begin with the packet.
        self._in_head, self._head = True, self._packet
        super().on_message_begin()
        self.scope[CONNECTION] = self._known  # type: ignore[literal-required]

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED, self._give_up)

    def resume_writing(self) -> None:
        if self._stalled:
            self._stalled.cancel()
        super().resume_writing()

    def _is_proxy(self) -> bool:
        try:
            found = ipaddress.ip_address(self._address)
        except ValueError:
            return False
        return any(found in network for network in self.proxies)

    def connection_lost(self, exc: Exception | None) -> None:
        self.near[self._address] -= 1
        if self.near[self._address] <= 0:
            del self.near[self._address]
        for timer in (getattr(self, "_slow", None), getattr(self, "_stalled", None)):
            if timer:
                timer.cancel()
        super().connection_lost(exc)
        # After a reset uvicorn leaves this timer running, which holds the connection till then.
        self._unset_keepalive_if_required()
        if getattr(self.cycle, "response_complete", False):
            self.cycle = None  # type: ignore[assignment]

    def _in_time(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _give_up(self) -> None:
        self.transport.abort()

    def _refuse(self, status: bytes) -> None:
        self._in_head = False
        self._in_time()
        self.headers = []
        self.pipeline.clear()
        if not self.transport.is_closing():
            head = b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head % status)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless it was refused already."""
        if not self.transport.is_closing():
            super().send_400_response(msg)
