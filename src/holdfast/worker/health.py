"""Answers a service manager that asks whether a worker lives and works: `/livez` and `/readyz`.

It has threads of its own. What it judges by is the thread that keeps leases: a handler that blocks
the event loop does not justify killing the process, and with it every other job that runs there.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from holdfast.errors import HoldfastError
from holdfast.watch.meter import Address

# The thread that keeps leases looks at them twice a second. It waits for the database a few seconds
# at a time; after this long it hangs, or is gone.
LATE = 30.0
# How often a successor tries to take over an address that its predecessor still has.
AGAIN = 0.5

# What is wrong; an empty text if nothing is.
Ask = Callable[[], str]


@contextmanager
def served(address: Address, live: Ask, ready: Ask) -> Iterator[None]:
    """Answer at an address during the block."""
    asked = {"/livez": live, "/readyz": ready}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ask = asked.get(self.path.partition("?")[0])
            told = "ask /livez or /readyz" if ask is None else ask()
            self.send_response(404 if ask is None else 503 if told else 200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{told or 'ok'}\n".encode())

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: it is asked every few seconds."""

    try:
        server = ThreadingHTTPServer((address.host, address.port), Answers)
    except OSError as error:
        raise HoldfastError(
            f"cannot listen on {address}: {error.strerror or error}",
            fix="Choose another:  --health PORT",
            code="HF405",
        ) from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="holdfast-health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
