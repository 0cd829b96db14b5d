"""The server as an ASGI application: what happens before and after a request's handler."""

import asyncio
import logging
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast import conninfo
from holdfast.app import SOURCES, App
from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.server.doors.access import Auth, Gate, User, not_signed_in, shows_token
from holdfast.server.http import problems, render
from holdfast.server.http.direct import DIRECT, Direct, Document
from holdfast.server.http.problems import SOON, Problem
from holdfast.server.http.redaction import Redaction
from holdfast.server.http.request import (
    FORM,
    FORM_BODY,
    JSON,
    MANY,
    NDJSON,
    UNKNOWN_BODY,
    Answer,
    Bodies,
    Request,
    converted,
    decoded,
    media_type,
    read_body,
    too_large,
)
from holdfast.server.http.route import Entry
from holdfast.server.http.table import Table
from holdfast.server.routes import ROUTES
from holdfast.server.running import Live
from holdfast.server.settings import Settings

log = logging.getLogger("holdfast.server")

# A response is sent in pieces of this many bytes.
PIECE = 16 * 1024
_NOBODY = User("", frozenset())
# Ids only tell requests apart: they need not be secret, and the system's own cost more.
_IDS = Random()
_KEPT = tuple[int, dict[str, str], msgspec.Raw]


class Server:
    """The HTTP API as an ASGI application: `uvicorn module:server`, or mounted in another one.

    The database is a url, an App, or HOLDFAST_URL. `auth` finds out who calls; without one, and
    without other settings, everybody may do everything, but only from this machine. It starts with
    the first request and needs no lifespan.
    """

    def __init__(
        self,
        database: str | App | None = None,
        *,
        auth: Auth | None = None,
        settings: Settings | None = None,
        source: str = "",
    ) -> None:
        self.settings = settings or Settings()
        self._database = database if isinstance(database, App) else None
        # That of an app is asked for when it is needed: asking may start the embedded server.
        if self._database:
            self._database._ends_too.append(self.stop)
        else:
            self._url, self._source = conninfo.locate(cast("str | None", database), source)
        self._gate = Gate(self.settings, auth)
        self._redaction = Redaction(self.settings.redact)
        self._live: dict[asyncio.AbstractEventLoop, Live] = {}
        self._busy = 0
        self._bodies = Bodies(settings.bodies if settings else Settings().bodies)
        self.table = Table(ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        http = _Request(scope, receive)
        request_id = _request_id(http)
        self._busy += 1
        try:
            response = await self._respond(http)
        except Exception as error:
            root = scope.get("root_path", "")
            response = problems.answer(error, root=root, request_id=request_id)
            # Errors of a caller are in the response; they do not need a traceback in the log.
            if not isinstance(error, HoldfastError) and response.status_code >= 500:
                log.exception(
                    "request failed", extra={"path": scope["path"], "request_id": request_id}
                )
        try:
            shared = self._shared_with(http)
            if isinstance(response, Document):
                if not (shared or response.headers) and len(response.body) <= PIECE:
                    direct = scope.get(DIRECT)
                    if direct and direct.answer(response.message(_EVERY_LINES, request_id)):
                        return
                response = response.response()
            await response(scope, receive, _Reply(send, request_id, shared))
        finally:
            self._busy -= 1

    def _shared_with(self, http: HttpRequest) -> str:
        """Return the origin of a request, if its pages may read the response."""
        origin = http.headers.get("origin")
        if not origin or origin == "null":
            return ""
        if str(origin).lower() in map(str.lower, self.settings.cors):
            return str(origin)
        return "*" if "*" in self.settings.cors else ""

    async def stop(self) -> None:
        """Close what the running event loop has open; the next request opens it again."""
        if live := self._live.pop(asyncio.get_running_loop(), None):
            await live.stop()

    def hang_up(self) -> None:
        """End streams and waiting claims, so that a shutdown does not wait for them."""
        for live in self._live.values():
            live.hang_up()

    async def _respond(self, http: HttpRequest) -> Response | Document:
        settings = self.settings
        if self._busy > settings.requests + settings.waits + settings.streams:
            raise Problem(503, "HF429", "the server is overloaded", headers=SOON)
        _check_host(http, self._gate.hosts())
        shared = self._shared_with(http)
        if shared and http.method == "OPTIONS":
            return Response(status_code=204, headers=_PREFLIGHT)
        entry, http.scope["path_params"] = self._find(http)
        if entry.changes:
            # If pages of any origin are allowed, a change needs a token.
            if not shared or (shared == "*" and not shows_token(http)):
                _check_origin(http, settings)
            if http.method == "GET" and self._gate.is_ambient(http):
                raise Problem(
                    403,
                    "HF403",
                    "a page of another site could send this request",
                    fix="Send a token, or  -H 'X-Requested-With: curl'",
                )
        live = self._running()
        user = await self._user(http, entry, live)
        request = Request(http, live, user or _NOBODY, live.client)
        if entry.changes and entry.scope is not None and await live.read_only():
            raise Problem(403, "HF401", "this server is read-only", scope=entry.scope)
        request.query = _query(http, entry)
        body = await self._body(http, entry, request.user)
        if entry.body is not None:
            request.body = body if entry.body is MANY else decoded(body, entry.body)
        elif entry.form:
            request.body = body
        if entry.changes:
            try:
                response = await _handled(entry, request, body)
            finally:
                live.wrote(request.user.caller)
        else:
            live.look_as(request.user.caller)
            response = await _handled(entry, request, body)
        if entry.changes and log.isEnabledFor(logging.INFO):
            told = f"{entry.method} {http.url.path}"
            facts = {"actor": request.user.name, "request": told, "status": response.status_code}
            log.info("changed", extra=facts)
        return response

    async def _user(self, http: HttpRequest, entry: Entry, live: Live) -> User | None:
        if entry.scope is None and entry.path != "/v1/me":
            return None
        user = await self._gate.user(http, live.client)
        if entry.scope is None:
            return user
        if user is None:
            raise not_signed_in(self._gate.stranger(http))
        if not user.may(entry.scope):
            raise Problem(
                403,
                "HF401",
                f"{user.name} lacks the scope {entry.scope!r}",
                fix=f"It has: {', '.join(sorted(user.scopes)) or 'none'}.",
                scope=entry.scope,
            )
        return user

    def _find(self, http: HttpRequest) -> tuple[Entry, dict[str, Any]]:
        allowed: set[str] = set()
        method = "GET" if http.method == "HEAD" else http.method
        for entries, parts in self.table.fits(get_route_path(http.scope)):
            entry = entries.get(method)
            if entry and entry.programs and _is_browser(http):
                continue
            # A HEAD must not lease, as some GETs do.
            if entry and not (http.method == "HEAD" and entry.changes):
                return entry, parts
            allowed |= entries.keys()
        path = http.url.path
        if allowed:
            raise Problem(
                405,
                "HF404",
                f"{http.method} is not allowed for {path}",
                headers={"Allow": ", ".join(sorted(allowed))},
            )
        raise Problem(404, "HF404", f"no resource has the address {path}")

    async def _body(self, http: HttpRequest, entry: Entry, user: User) -> bytes:
        if entry.method in ("GET", "DELETE"):
            return b""
        # A caller who is not signed in may send only a small body.
        unknown = FORM_BODY if entry.form else UNKNOWN_BODY
        limit = self.settings.body_limit if entry.scope else unknown
        limit = min(limit, self.settings.body_limit)
        direct: Direct | None = http.scope.get(DIRECT)
        body = direct.body() if direct else None
        if body is None:
            with self._bodies.of(user.caller) as taken:
                body = await read_body(http, limit, taken)
        elif len(body) > limit:
            raise too_large(limit)
        else:
            self._bodies.check(user.caller, len(body))
        sort = media_type(http)
        if entry.form:
            if body and sort != FORM:
                raise Problem(415, "HF406", f"the body is {sort or 'of no type'}, not {FORM}")
            return body
        if body and sort != JSON and not (entry.body is MANY and sort == NDJSON):
            raise Problem(
                415,
                "HF406",
                f"the body is {sort or 'of no type'}, not {JSON}",
                fix=f"Send  -H 'Content-Type: {JSON}'",
            )
        return body

    def _running(self) -> Live:
        loop = asyncio.get_running_loop()
        if (live := self._live.get(loop)) is None:
            for other in [other for other in self._live if other.is_closed()]:
                self._live.pop(other).abandon()
            if self._database:
                found = self._database.database
                self._url, self._source = found.url, SOURCES[found.origin]
            live = Live(self._url, self.settings, self._gate, self._redaction, source=self._source)
            self._live[loop] = live
        return live

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._running()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _is_browser(http: HttpRequest) -> bool:
    return str(http.headers.get("accept", "")).startswith("text/html")


def _query(http: HttpRequest, entry: Entry) -> Any:
    if entry.query is None:
        return None
    values: dict[str, str] = {}
    for name, value in http.query_params.multi_items():
        if name in values:
            raise Problem(422, "HF406", f"query: {name} is given twice")
        values[name] = value
    return converted(values, entry.query, where="query")


async def _handled(entry: Entry, request: Request, body: bytes) -> Response | Document:
    key = request.http.headers.get("idempotency-key")
    if key and entry.once:
        return await _once(entry, request, body, key)
    answer = await entry.handler(request)
    if isinstance(answer, Response):
        return answer
    if not entry.changes and entry.scope is not None:
        return _tagged(request.http, answer)
    return _document(answer)


async def _once(entry: Entry, request: Request, body: bytes, key: str) -> Document:
    """Handle the request in one transaction with the record that it was handled."""
    asked = f"{entry.method} {request.http.url.path}?{request.http.url.query}\n".encode() + body
    digest = blake2b(asked, digest_size=16).hexdigest()

    async def work(bound: AsyncClient) -> str:
        request.client = bound
        answer = await entry.handler(request)
        assert isinstance(answer, Answer)
        kept = [answer.status, dict(answer.headers), answer.document]
        return render.encode(kept).decode()

    kept, again = await request.live.client.idempotent(
        key, work, caller=request.user.caller, digest=digest
    )
    if kept is None:
        raise Problem(
            422,
            "HF411",
            f"the Idempotency-Key {key!r} was used for another request",
            fix="Use a new key for each request, and the same body if you repeat one.",
        )
    status, headers, document = msgspec.json.decode(kept, type=_KEPT)
    if again:
        headers["Idempotent-Replayed"] = "true"
    return Document(bytes(document), status, headers)


def _document(answer: Answer) -> Document:
    return Document(render.encode(answer.document), answer.status, answer.headers)


def _tagged(http: HttpRequest, answer: Answer) -> Response | Document:
    document = _document(answer)
    tag = f'"{blake2b(document.body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in http.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    document.headers = {**answer.headers, **headers}
    return document


def _check_host(http: HttpRequest, hosts: Iterable[str]) -> None:
    """Refuse host names that are not this server's, because of DNS rebinding."""
    given = http.headers.get("host", "")
    if "*" not in hosts and not _is_one_of(given, tuple(hosts)):
        raise Problem(
            421,
            "HF403",
            f"this server is not {given!r}",
            fix="Add the name:  holdfast serve --allow-host NAME",
        )


@lru_cache(1000)
def _is_one_of(given: str, hosts: tuple[str, ...]) -> bool:
    return _host_of(f"//{given}") in map(str.lower, hosts)


def _check_origin(http: HttpRequest, settings: Settings) -> None:
    """Refuse changes that a page of another site makes a browser send."""
    site = http.headers.get("sec-fetch-site")
    origin = http.headers.get("origin")
    foreign = site not in (None, "same-origin", "none")
    if site is None and origin is not None:
        own = origin.partition("://")[2] == http.headers.get("host")
        foreign = not own and _host_of(origin) not in map(str.lower, settings.hosts)
    if foreign:
        raise Problem(403, "HF403", f"a page of another site sent this request: {origin or site}")


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _request_id(http: HttpRequest) -> str:
    given = http.headers.get("x-request-id", "")
    usable = given.isascii() and given.isprintable() and 0 < len(given) <= 200
    return given if usable else f"{_IDS.getrandbits(64):016x}"


class _Request(HttpRequest):
    """A request with its headers in a dict, because they are read a dozen times."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self._headers = _Headers(raw=scope["headers"])

    @property
    def headers(self) -> Headers:
        """The headers."""
        return self._headers


class _Headers(Headers):
    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        # If a header is given twice, the first counts.
        self._first = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)
        }

    def get(self, key: str, default: Any = None) -> Any:
        return self._first.get(key.lower(), default)


class _Reply:
    """Sends a response with the headers that all responses have."""

    def __init__(self, send: Send, request_id: str, shared: str) -> None:
        self._send = send
        self._shared = shared
        self._request_id = request_id

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message["headers"], *_EVERY]
            headers.append((b"x-request-id", self._request_id.encode()))
            if self._shared:
                headers += [
                    (b"access-control-allow-origin", self._shared.encode("latin-1")),
                    *_SHARED,
                ]
            if not any(name == b"cache-control" for name, _ in message["headers"]):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        body = message.get("body", b"")
        # In pieces; the next one waits until the client has read the last, so that unread data does
        # not pile up here.
        for start in range(0, len(body) - PIECE, PIECE):
            part = body[start : start + PIECE]
            await self._send({"type": message["type"], "body": part, "more_body": True})
        if len(body) > PIECE:
            rest = body[(len(body) - 1) // PIECE * PIECE :]
            message = {**message, "body": rest}
        await self._send(message)


# Headers that a page of another site may send, if the server allows its origin.
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": (
        "Authorization, X-API-Key, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, "
        "X-Request-ID, X-Requested-With"
    ),
    "Access-Control-Max-Age": "600",
}
_SHARED = [
    (b"vary", b"Origin"),
    (
        b"access-control-expose-headers",
        b"ETag, Location, Retry-After, Idempotent-Replayed, X-Request-ID",
    ),
]
_EVERY = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        (
            b"default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            b"connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
            b"frame-ancestors 'none'"
        ),
    ),
]
_EVERY_LINES = b"".join(b"%b: %b\r\n" % header for header in _EVERY)
