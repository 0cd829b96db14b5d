"""One request: its contents, its caller, and the database client for its handler."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from holdfast.client import AsyncClient
from holdfast.errors import UnknownJob
from holdfast.server.doors.access import User
from holdfast.server.http.direct import JSON as JSON
from holdfast.server.http.problems import SOON, Problem

if TYPE_CHECKING:
    from holdfast.server.running import Live

NDJSON = "application/x-ndjson"
# A body that its handler reads item by item: a JSON array, or one per line.
MANY = bytes
# A client that takes longer than this for its body is refused.
BODY_PATIENCE = 30.0
# Bytes that a caller who is not signed in may send.
UNKNOWN_BODY = 4096
# … and in the form of a page that everybody may open who has its link.
FORM = "application/x-www-form-urlencoded"
FORM_BODY = 65_536

_HEX = re.compile(r"[0-9a-f]{8,32}")


@dataclass(slots=True)
class Answer:
    """What a handler returns: a document for JSON, a status, and headers."""

    document: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Request:
    """A request on its way through a handler.

    `http` is the raw request; `body` and `query` are decoded and checked. `client` writes, inside
    the transaction of the request if it can be repeated; `reads` only reads, on a standby if there
    is one.
    """

    http: HttpRequest
    live: "Live"
    user: User
    client: AsyncClient
    body: Any = None
    query: Any = None

    @property
    def reads(self) -> AsyncClient:
        """The client for reading."""
        return self.live.reads

    @property
    def is_single(self) -> bool:
        """Whether it has no transaction of its own, so that it may share a call with others."""
        return self.client is self.live.client

    @property
    def actor(self) -> str:
        """Who is recorded for a change."""
        return self.user.name

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.http.path_params[name])

    async def job_id(self) -> UUID:
        """Return the id in the path: a whole UUID, or its last eight digits or more."""
        text = self.part("id").lower()
        digits = text.replace("-", "")
        if not _HEX.fullmatch(digits):
            raise UnknownJob(text)
        if len(digits) == 32:
            return UUID(digits)
        found = await self.reads.jobs.find(f"id:{text} {self.user.filter}".strip(), limit=2)
        if len(found) == 1:
            return found[0]
        if found:
            raise Problem(404, "HF310", f"several jobs end in {text}", fix="Give the whole id.")
        raise UnknownJob(text)


Handler = Callable[[Request], Awaitable[Answer | Response]]


class Bodies:
    """Bytes of bodies being read, in total and per caller: no caller can use up the limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all = 0
        self._each: Counter[str] = Counter()

    def check(self, caller: str, size: int) -> None:
        """Refuse a body that would exceed the limit of its caller, or of the server."""
        if self._all + size > self._most or self._each[caller] + size > self._most // 2:
            raise Problem(503, "HF429", "too many large requests at once", headers=SOON)

    @contextmanager
    def of(self, caller: str) -> Iterator[Callable[[int], None]]:
        """Count what is read for a caller while the block lasts."""
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            self.check(caller, size)
            mine += size
            self._all += size
            self._each[caller] += size

        try:
            yield take
        finally:
            self._all -= mine
            self._each[caller] -= mine
            if not self._each[caller]:
                del self._each[caller]


async def read_body(http: HttpRequest, limit: int, take: Callable[[int], None]) -> bytes:
    """Read a body that is neither too large nor too slow; `take` is called with each piece."""
    length = http.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large(limit)
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_PATIENCE):
            while (message := await http.receive())["type"] != "http.disconnect":
                parts.append(message.get("body", b""))
                take(len(parts[-1]))
                size += len(parts[-1])
                if size > limit:
                    raise too_large(limit)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Problem(408, "HF406", f"the body did not arrive in {BODY_PATIENCE:g} s") from None
    raise Problem(400, "HF406", "the body ended early")


def media_type(http: HttpRequest) -> str:
    """Return the type of the body, without its parameters."""
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


def decoded(body: bytes, wanted: Any, *, where: str = "body") -> Any:
    """Decode JSON into a type; refuse invalid JSON (400) or invalid values (422)."""
    try:
        return _decoder(wanted).decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise misfit(error, wanted, where) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, "HF406", f"the {where} is not JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "HF406", f"the {where} is nested too deeply") from None


def converted(values: Mapping[str, Any], wanted: Any, *, where: str) -> Any:
    """Convert texts, such as a query, into a type."""
    try:
        return msgspec.convert(values, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error, wanted, where) from None


def misfit(error: Exception, wanted: Any, where: str) -> Problem:
    """Return the error for an invalid value; for an unknown name, it suggests the nearest."""
    told = str(error)
    known = []
    if _is_struct(wanted):
        known = [one.encode_name for one in msgspec.structs.fields(wanted)]
    fix = ""
    if unknown := re.search(r"unknown field `(.+?)`", told):
        near = get_close_matches(unknown[1], known, n=1)
        fix = f"Did you mean `{near[0]}`?" if near else f"Fields are: {', '.join(known)}."
    missing = re.search(r"missing required field `(token|lock_token)`", told)
    code = "HF207" if missing else "HF406"
    return Problem(422, code, f"{where}: {told}", fix=fix)


_DECODERS: dict[Any, "msgspec.json.Decoder[Any]"] = {}


def _decoder(wanted: Any) -> "msgspec.json.Decoder[Any]":
    if (known := _DECODERS.get(wanted)) is None:
        known = _DECODERS[wanted] = msgspec.json.Decoder(wanted)
    return known


def _is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)


def too_large(limit: int) -> Problem:
    """Return the refusal of a body that is too large."""
    return Problem(
        413,
        "HF413",
        f"the body is larger than {limit // 1024} kB",
        fix="Send it in several requests, or store the data elsewhere and pass its address.",
    )
