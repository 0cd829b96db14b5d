"""A proxy for PostgreSQL's protocol that swallows, delays or cuts the reply of chosen statements.

What travels from one Sync (or simple query) to its ReadyForQuery is one exchange. It is named by
the functions of Holdfast its texts call: `claim`, or `settle+claim` for a pipeline of both.
"""

import asyncio
import re
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Fault:
    """What to do to the nth exchange whose name has `verb` in it.

    refuse: hang up before the server hears it. hold: the server hears it `seconds` later, even
    if the client is gone by then. swallow: the server does it, the client hears
    nothing and nothing ends. cut: the server does it, then the line goes. tear: half of the reply
    arrives, then the line goes. delay: the reply comes `seconds` later.
    """

    verb: str
    do: str
    nth: int = 1
    seconds: float = 0.0
    seen: int = 0
    done_at: float | None = None

    def hits(self, name: str) -> bool:
        if self.done_at or self.verb not in name.split("+"):
            return False
        self.seen += 1
        if self.seen != self.nth:
            return False
        self.done_at = time.time()
        return True


@dataclass
class Exchange:
    """One request and its reply."""

    name: str = ""
    fault: Fault | None = None
    texts: list[str] = field(default_factory=list)


class Proxy:
    """Listens on a port of 127.0.0.1 and speaks to the server's socket; a context manager."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self.faults: list[Fault] = []
        self.exchanges: list[str] = []
        self.connects: list[float] = []
        self.dark = False
        self._lines: set[_Line] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.port = 0

    def url(self, database: str, user: str) -> str:
        """Return the address of a database through the proxy."""
        return f"host=127.0.0.1 port={self.port} dbname={database} user={user} sslmode=disable"

    def cut_all(self) -> None:
        """Hang up on everybody."""
        self._loop.call_soon_threadsafe(lambda: [line.hang_up() for line in list(self._lines)])

    def go_dark(self, dark: bool = True) -> None:
        """Let nothing pass either way, on old lines and new ones, without a word."""
        self.dark = dark
        self._loop.call_soon_threadsafe(lambda: [line.wake() for line in list(self._lines)])

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _run(self) -> None:
        async def start() -> None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = self._listener.sockets[0].getsockname()[1]
            self._ready.set()

        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(start())
        self._loop.run_forever()
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    async def _stop(self) -> None:
        self._listener.close()
        for line in list(self._lines):
            line.hang_up()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects.append(time.time())
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            writer.close()
            return
        line = _Line(self, reader, writer, server_reader, server_writer)
        self._lines.add(line)
        try:
            await line.run()
        except asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            line.hang_up()
            self._lines.discard(line)


class _Line:
    """One client's connection and the server's end of it."""

    def __init__(
        self,
        proxy: Proxy,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client = client_reader, client_writer
        self._server = server_reader, server_writer
        self._current = Exchange()
        self._waiting: deque[Exchange] = deque()
        self._held = b""
        self._mute = False
        self._light = asyncio.Event()
        self._statements: dict[str, str] = {}

    async def run(self) -> None:
        both = [asyncio.create_task(self._requests()), asyncio.create_task(self._replies())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def hang_up(self) -> None:
        for _, writer in (self._client, self._server):
            with suppress(Exception):
                writer.transport.abort()

    def wake(self) -> None:
        self._light.set()

    async def _requests(self) -> None:
        reader, _ = self._client
        _, server = self._server
        while True:
            (length,) = struct.unpack("!i", await reader.readexactly(4))
            body = await reader.readexactly(length - 4)
            server.write(struct.pack("!i", length) + body)
            if struct.unpack("!i", body[:4])[0] >> 16 == 3:  # not a question for encryption
                break
        held = False
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            await self._pass_in_light()
            kind = head[:1]
            if kind == b"P":
                name, text = body.split(b"\0", 2)[:2]
                self._statements[name.decode()] = text.decode()
                self._heard(text.decode())
            elif kind == b"B":
                name = body.split(b"\0", 2)[1].decode()
                if name:
                    self._heard(self._statements.get(name, ""))
            elif kind == b"Q":
                self._heard(body.rstrip(b"\0").decode())
            fault = self._current.fault
            if fault and fault.do == "refuse":
                return
            if fault and fault.do == "hold" and not held:
                # With the first word of it: a server that has the statement has the locks.
                held = True
                await asyncio.sleep(fault.seconds)
            if kind in (b"S", b"Q"):
                self._proxy.exchanges.append(self._current.name)
                self._waiting.append(self._current)
                self._current = Exchange()
            server.write(head + body)
            await server.drain()

    def _heard(self, text: str) -> None:
        exchange = self._current
        called = re.findall(r"holdfast\.(\w+)\s*\(", text)
        name = called[0] if called else text.strip().partition(" ")[0].lower()
        exchange.name = f"{exchange.name}+{name}" if exchange.name else name
        exchange.fault = exchange.fault or next(
            (fault for fault in self._proxy.faults if fault.hits(name)), None
        )

    async def _replies(self) -> None:
        reader, _ = self._server
        _, client = self._client
        greeting = True
        while True:
            if greeting:
                chunk = await reader.read(65536)
                if not chunk:
                    return
                # Answers to questions for encryption are one byte; then messages begin.
                if chunk[:1] in (b"N", b"S") and len(chunk) == 1:
                    client.write(chunk)
                    continue
                greeting = False
                buffered = chunk
            else:
                chunk = await reader.read(65536)
                if not chunk:
                    return
                buffered += chunk
            while len(buffered) >= 5:
                size = 1 + struct.unpack("!i", buffered[1:5])[0]
                if len(buffered) < size:
                    break
                message, buffered = buffered[:size], buffered[size:]
                if not await self._reply(message):
                    return
            await client.drain()

    async def _reply(self, message: bytes) -> bool:
        """Hand one message on, or not; returns whether the line lives."""
        _, client = self._client
        await self._pass_in_light()
        exchange = self._waiting[0] if self._waiting else self._current
        fault = exchange.fault
        ready = message[:1] == b"Z"
        if fault is None:
            if not self._mute:
                client.write(message)
        else:
            self._held += message
            if ready:
                held, self._held = self._held, b""
                match fault.do:
                    case "swallow":
                        self._mute = True
                    case "cut":
                        return False
                    case "tear":
                        client.write(held[: max(1, len(held) // 2)])
                        with suppress(ConnectionError):
                            await client.drain()
                        return False
                    case "delay":
                        await asyncio.sleep(fault.seconds)
                        client.write(held)
                    case "hold":
                        client.write(held)
        if ready and self._waiting:
            self._waiting.popleft()
        return True

    async def _pass_in_light(self) -> None:
        while self._proxy.dark:
            self._light.clear()
            await self._light.wait()
