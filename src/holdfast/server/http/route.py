"""One address of the server: who may call it, its parameters, its handler, and its responses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.server.http import inputs, refusals
from holdfast.server.http.refusals import Refusal
from holdfast.server.http.request import JSON, Handler

STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Told:
    """One response of the contract: its type, what it means, and its links.

    A type that is None has no body; a media type other than JSON is text. Without a sentence it is
    described by the first line of its type.
    """

    kind: Any = None
    says: str = ""
    links: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    media: tuple[str, ...] = (JSON,)


@dataclass(frozen=True, slots=True)
class Entry:
    """One method of one address: who may call it, what it takes, and what answers.

    `scope` None is for everybody, even unknown callers. `once`: an `Idempotency-Key` makes a repeat
    answer the same and do nothing again. `programs`: at the same address is a page, which is what
    a browser gets.

    The rest is for the contract, which tools/generate_contract.py makes of it; summary and
    description are the docstring of the handler. `items` is what a handler itself reads the body
    as, or each item of it. `refuses` are refusals beside those of every address of its sort.
    `takes_key`: the handler has a way of its own to answer a repeat. `form`: the body is what a
    page's form sends, as bytes.
    """

    method: str
    path: str
    scope: str | None
    handler: Handler
    body: Any = None
    query: Any = None
    once: bool = False
    programs: bool = False
    id: str = ""
    tag: str = ""
    answers: Mapping[int, Told] = field(default_factory=dict)
    refuses: tuple[Refusal, ...] = ()
    items: Any = None
    example: Any = None
    takes_key: bool = False
    form: bool = False

    # Whether it changes something, like a GET that leases jobs.
    changes: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "changes", self.method != "GET" or self.scope == "consume")

    @property
    def tagged(self) -> bool:
        """Whether its responses have an ETag."""
        media = [told.media for told in self.answers.values()]
        return not self.changes and self.scope is not None and media == [(JSON,)]

    @property
    def refusals(self) -> list[Refusal]:
        """Every error that it may return."""
        found = [*self.refuses, *refusals.ALWAYS]
        if "{" in self.path and refusals.NOT_THERE not in found:
            found.append(refusals.NOT_THERE)
        if self.changes:
            found += refusals.OF_CHANGES
        if self.body is not None:
            found.append(refusals.TOO_LARGE)
        return sorted(found, key=lambda one: one.status)


def get(
    path: str, scope: str | None, handler: Handler, query: Any = inputs.Empty, **more: Any
) -> Entry:
    """Create an entry that only reads."""
    return Entry("GET", path, scope, handler, query=query, **more)


def post(path: str, scope: str, handler: Handler, body: Any = inputs.Nothing, **more: Any) -> Entry:
    """Create an entry that changes something, once."""
    return Entry("POST", path, scope, handler, body=body, once=True, **more)


def for_programs(path: str, handler: Handler, query: Any = inputs.Empty, **more: Any) -> Entry:
    """Create an entry that only reads, at the address of a page."""
    return Entry("GET", path, "read", handler, query=query, programs=True, **more)


def ok(kind: Any = None, says: str = "", *, status: int = 200, **more: Any) -> dict[int, Told]:
    """Return the responses of an address with one type."""
    return {status: Told(kind, says, **more)}


def text(says: str, *media: str, status: int = 200) -> dict[int, Told]:
    """Return the responses of an address that returns text of one of these media types."""
    return {status: Told(str, says, media=media)}


def to(operation: str, *, body: Mapping[str, str] | None = None, **parts: str) -> dict[str, Any]:
    """Return a link to another address, whose parts and fields are taken from the response."""
    link: dict[str, Any] = {"operationId": operation}
    if parts:
        link["parameters"] = {name: f"$response.body#{at}" for name, at in parts.items()}
    if body:
        link["requestBody"] = {name: f"$response.body#{at}" for name, at in body.items()}
    return link
