"""One address of the server: who may call it, what it takes, and what handles it."""

from dataclasses import dataclass
from typing import Any

from holdfast.server.http import inputs
from holdfast.server.http.request import Handler


@dataclass(frozen=True, slots=True)
class Entry:
    """One method of one address: who may call it, what it takes, and what answers.

    `scope` None is for everybody, even unknown callers. `once`: an `Idempotency-Key` makes a repeat
    answer the same and do nothing again. `programs`: at the same address is a page, which is what
    a browser gets.
    """

    method: str
    path: str
    scope: str | None
    handler: Handler
    body: Any = None
    query: Any = None
    once: bool = False
    programs: bool = False

    @property
    def changes(self) -> bool:
        """Whether it changes something; the other dialect even leases by GET."""
        return self.method != "GET" or self.scope == "consume"


def get(path: str, scope: str | None, handler: Handler, query: Any = inputs.Empty) -> Entry:
    """Make an entry that only looks."""
    return Entry("GET", path, scope, handler, query=query)


def post(path: str, scope: str, handler: Handler, body: Any = inputs.Nothing) -> Entry:
    """Make an entry that changes something, once."""
    return Entry("POST", path, scope, handler, body=body, once=True)


def for_programs(path: str, handler: Handler, query: Any = inputs.Empty) -> Entry:
    """Make an entry that only looks, at the address of a page."""
    return Entry("GET", path, "read", handler, query=query, programs=True)
