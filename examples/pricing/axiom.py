"""A stand-in for Axiom: a robot with one browser, which two runs at once confuse.

It takes a run by `POST /runs`, works for a while, and tells the outcome to the address it was told.
"""

import json
import random
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from examples.pricing.app import post

CONFUSED = "couldn't find content during run on step 20"


class Axiom:
    """Counts its runs, how many were in the browser at once, and the answers that came too late.

    A run takes some `seconds`; a share of `failures` goes wrong by chance. The page of the scenario
    that `hangs` answers only when everything is over.
    """

    def __init__(
        self, *, seconds: float = 0.01, failures: float = 0.0, hangs: str = "", seed: int = 20
    ) -> None:
        self.seconds = seconds
        self.failures = failures
        self.runs = 0
        self.most_at_once = 0
        self.too_late = 0
        self._hangs = hangs
        self._chance = random.Random(seed)
        self._in_browser: set[str] = set()
        self._confused: set[str] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Take runs over HTTP for the time of the block; gives the address."""
        axiom = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                run = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(202)
                self.end_headers()
                axiom.start(run)

            def log_message(self, *_: Any) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                self.finish()

    def start(self, run: dict[str, Any]) -> None:
        """Begin a run; whoever asked for it need not wait."""
        self._threads.append(threading.Thread(target=self._work, args=[run]))
        self._threads[-1].start()

    def finish(self) -> None:
        """Close the pages that hang, and wait until all answers are given."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, run: dict[str, Any]) -> None:
        if run["scenario"] == self._hangs:
            self._over.wait()
            self._tell(run["on_success"], {"token": run["token"]})
            return
        fails = self._enter(run["token"])
        time.sleep(self.seconds)
        if self._leave(run["token"]) or fails:
            error = {"kind": "AxiomError", "message": CONFUSED}
            self._tell(run["on_failure"], {"token": run["token"], "error": error})
        else:
            rate = 5 + len(run["scenario"]) / 8
            self._tell(run["on_success"], {"token": run["token"], "result": {"rate": rate}})

    def _enter(self, token: str) -> bool:
        with self._lock:
            self.runs += 1
            self._in_browser.add(token)
            self.most_at_once = max(self.most_at_once, len(self._in_browser))
            if len(self._in_browser) > 1:
                self._confused |= self._in_browser
            return self._chance.random() < self.failures

    def _leave(self, token: str) -> bool:
        with self._lock:
            self._in_browser.remove(token)
            return token in self._confused

    def _tell(self, address: str, outcome: dict[str, Any]) -> None:
        try:
            post(address, outcome)
        except urllib.error.HTTPError as refused:
            refused.close()
            # The run was given up, and its lease is nobody's or another's: this changes nothing.
            self.too_late += refused.code == 409
