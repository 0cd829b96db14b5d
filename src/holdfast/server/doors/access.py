"""Authentication and authorisation: users, their scopes, roles and queues, and ways to sign in."""

import base64
import binascii
import hmac
import inspect
import ipaddress
import re
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.requests import Request

from holdfast.errors import Misuse
from holdfast.records import ROLES, Caller, Scope
from holdfast.server.doors import local_user
from holdfast.server.http.problems import Problem

if TYPE_CHECKING:
    from holdfast.client import AsyncClient
    from holdfast.server.settings import Settings

__all__ = ["COOKIE", "Auth", "Gate", "User"]

COOKIE = "holdfast_session"
# What is known about the connection of a request.
CONNECTION = "holdfast.connection"
# A queue name must be usable in a filter, which selects the user's jobs.
_QUEUE = re.compile(r'[^\s,"*]{1,120}')

# How long a checked secret is cached: a revoked one still works for that long.
BELIEVED = 2.0
REMEMBERED = 10_000
# Wrong secrets that one address may send in a minute.
WRONG = 10


@dataclass(frozen=True, slots=True)
class User:
    """A caller: a name for the log, what they may do, and in which queues (None: all)."""

    name: str
    scopes: frozenset[Scope]
    queues: tuple[str, ...] | None = None
    via: str = ""
    token: str | None = None

    def __post_init__(self) -> None:
        for queue in self.queues or ():
            if not _QUEUE.fullmatch(queue):
                raise Misuse(
                    f"queue {queue!r} cannot be used for a user",
                    fix="Use names without spaces, commas, quotes and stars; None means all.",
                )
        if self.queues is not None and not self.queues:
            raise Misuse(f"{self.name} has no queue", fix="None means all.")

    @classmethod
    def of(cls, name: str, role: str, *, queues: Sequence[str] | None = None) -> "User":
        """Create a user with a role: viewer, operator or admin."""
        if role not in ROLES:
            raise Misuse(f"role {role!r} is unknown", fix=f"Roles are: {', '.join(ROLES)}.")
        return cls(name, ROLES[role], None if queues is None else tuple(queues))

    def may(self, scope: str) -> bool:
        """Whether a scope is among the user's; admin includes all."""
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, queue: str) -> bool:
        """Whether the user may use a queue."""
        return self.queues is None or queue in self.queues

    def check_queues(self, queues: Iterable[str]) -> None:
        """Refuse queues that the user may not use."""
        for queue in queues:
            if not self.sees(queue):
                raise Problem(
                    403,
                    "HF401",
                    f"{self.name} may not use queue {queue[:120]!r}",
                    fix=f"Its queues are: {', '.join(self.queues or ())}.",
                )

    def check_everywhere(self) -> None:
        """Refuse a user of some queues what concerns all queues."""
        if self.queues is not None:
            raise Problem(
                403,
                "HF401",
                f"this concerns all queues; {self.name} may use only {', '.join(self.queues)}",
                fix="Use a token without a list of queues.",
            )

    @property
    def caller(self) -> str:
        """A unique identity: tokens may have the same name, but not the same id."""
        return f"{self.via} {self.token or self.name}"

    @property
    def shares_as(self) -> str:
        """Whose share of waits and streams is used; empty for users on this machine."""
        return "" if self.via == "open" else self.caller

    @property
    def filter(self) -> str:
        """The filter term that selects the user's jobs."""
        return "" if self.queues is None else f"queue:{','.join(self.queues)}"


Auth = Callable[[Request], User | Awaitable[User | None] | None]
"""Finds out who calls, for a server inside another application; None if nobody is signed in."""


def shows_token(request: Request) -> bool:
    """Whether a request has a secret that browsers do not add automatically."""
    bearer = str(request.headers.get("authorization", "")).lower().startswith("bearer ")
    return bearer or bool(request.headers.get("x-api-key"))


class Gate:
    """The ways to sign in to a server, tried in turn.

    A wrong secret is refused, even if another way would have worked.
    """

    def __init__(self, settings: "Settings", auth: Auth | None) -> None:
        self._settings = settings
        self._auth = auth
        self._open = "open" in settings.ways and auth is None
        self._proxies = [ipaddress.ip_network(one) for one in settings.proxies]
        self._known: OrderedDict[bytes, tuple[float, User | None]] = OrderedDict()
        self._wrong = Attempts(WRONG)

    def hosts(self) -> Sequence[str]:
        """Return the host names the server accepts; without sign-in, only this machine's."""
        if self._settings.hosts:
            return self._settings.hosts
        return LOOPBACK if self._open and not self._settings.insecure else ("*",)

    async def user(self, request: Request, client: "AsyncClient") -> User | None:
        """Return the caller; None if the request has no credentials."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._bearer(request, client, given.strip())
        if key := request.headers.get("x-api-key"):
            return await self._bearer(request, client, key)
        if scheme.lower() == "basic":
            return self._basic(request, given)
        if request.headers.get("cookie") and (secret := request.cookies.get(COOKIE)):
            user = await self._secret(client, secret, "session")
            if user is not None:
                return user
        if user := self._proxied(request):
            return user
        if self._auth is not None:
            found = self._auth(request)
            user = await found if inspect.isawaitable(found) else found
            return user and (user if user.via else replace(user, via="application"))
        if self._open and (self._settings.insecure or self._is_local(request)):
            return _LOCAL
        return None

    def _is_local(self, request: Request) -> bool:
        """Whether it comes from the user who runs this server, and not through a proxy.

        A proxy is recognised by the headers it adds, by the host name, by HTTP/1.0 (the default of
        nginx for upstream servers), or by its user.
        """
        added = any(name.lower().startswith(_FORWARDED) for name, _ in request.scope["headers"])
        old = request.scope.get("http_version") == "1.0"
        here = is_loopback(peer(request)) and is_local_host(request) and not added and not old
        return here and is_own(request)

    def stranger(self, request: Request) -> str:
        """Return why a caller is not signed in."""
        if self._open and is_loopback(peer(request)) and not is_own(request):
            return "this comes from another user's process on this machine, or through a proxy"
        return "you are not signed in"

    def is_ambient(self, request: Request) -> bool:
        """Whether a page of another site could have made a browser send this request.

        A browser sends cookies automatically, but no secret in a header; and to this machine or
        over TLS it sends the origin of the page.
        """
        if any(request.headers.get(name) for name in _DELIBERATE):
            return False
        tells = is_local_host(request) or self.is_encrypted(request)
        return not tells and "sec-fetch-site" not in request.headers

    async def check_secret(
        self, request: Request, client: "AsyncClient", secret: str
    ) -> User | None:
        """Return the user of a token, for signing in; wrong tokens are counted."""
        user = await self._secret(client, secret, "token")
        if user is None:
            # Only wrong ones are refused: others at the same address must not lock a user out.
            self._wrong.check(self.address(request))
            self._wrong.note(self.address(request))
        return user

    def note_wrong(self, request: Request) -> None:
        """Count a wrong secret against its address."""
        self._wrong.note(self.address(request))

    def check_address(self, request: Request) -> None:
        """Refuse an address that has sent too many wrong secrets."""
        self._wrong.check(self.address(request))

    def address(self, request: Request) -> str:
        """Return the client's address, as reported by trusted proxies."""
        address = peer(request)
        forwarded = request.headers.get("x-forwarded-for", "")
        for hop in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
            if not self._trusts(address):
                break
            address = hop
        return address

    def is_encrypted(self, request: Request) -> bool:
        """Whether the client uses TLS, to this server or to a proxy.

        A client can forge this, but then only its own cookie becomes useless.
        """
        headers = request.headers
        told = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        forwarded = headers.get("forwarded", "").partition(",")[0].lower().replace('"', "")
        tls = told == "https" or "proto=https" in forwarded or request.url.scheme == "https"
        return tls or headers.get("x-forwarded-ssl", "").lower() == "on"

    def forget(self) -> None:
        """Check every secret again."""
        self._known.clear()

    async def _bearer(self, request: Request, client: "AsyncClient", secret: str) -> User:
        user = await self._secret(client, secret, "token")
        if user is None:
            self._wrong.check(self.address(request))
            self._wrong.note(self.address(request))
            raise not_signed_in("the token is wrong, has expired or was revoked")
        return user

    async def _secret(self, client: "AsyncClient", secret: str, sort: str) -> User | None:
        known = sha256(f"{sort} {secret}".encode()).digest()
        until, user = self._known.get(known, (0.0, None))
        if until < monotonic():
            user = _user(await client.tokens.check(secret), sort)
            self._known[known] = monotonic() + BELIEVED, user
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return user

    def _basic(self, request: Request, given: str) -> User:
        self._wrong.check(self.address(request))
        try:
            name, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            name, password = "", ""
        known, role = self._settings.basic.get(name, ("", ""))
        # Compared even for an unknown name, so that both take the same time.
        fits = hmac.compare_digest(_hashed(password), _hashed(known))
        if not (fits and role and "basic" in self._settings.ways):
            self._wrong.note(self.address(request))
            raise not_signed_in("the name or the password is wrong")
        return User(name, ROLES[role], via="basic")

    def _proxied(self, request: Request) -> User | None:
        if "proxy" not in self._settings.ways or not self._trusts(peer(request)):
            return None
        name = request.headers.get(self._settings.proxy_header, "")
        roles = self._settings.proxy_roles
        role = roles.get(name) or roles.get("*")
        return User(name, ROLES[role], via="proxy") if name and role else None

    def _trusts(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._proxies)


class Attempts:
    """Counts what an address does in a minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, address: str) -> None:
        """Count one."""
        times = self._times.setdefault(address, deque(maxlen=self._most))
        times.append(monotonic())
        self._times.move_to_end(address)
        while len(self._times) > REMEMBERED:
            self._times.popitem(last=False)

    def check(self, address: str) -> None:
        """Refuse the address if there were too many."""
        times = self._times.get(address) or deque()
        if len(times) == self._most and (left := times[0] + 60 - monotonic()) > 0:
            raise Problem(
                429,
                "HF429",
                "too many wrong secrets from this address",
                headers={"Retry-After": str(int(left) + 1)},
            )


def not_signed_in(what: str) -> Problem:
    """Return the refusal of a caller who is not signed in."""
    return Problem(
        401,
        "HF402",
        what,
        headers={"WWW-Authenticate": 'Bearer realm="holdfast"'},
        fix="Send  Authorization: Bearer hf_…     Create one:  holdfast token create",
    )


# Headers that proxies add; prefixes of names.
_FORWARDED = (
    b"forwarded",
    b"via",
    b"x-forwarded",
    b"x-real-ip",
    b"x-original-",
    b"x-client-ip",
    b"x-envoy-",
    b"cf-connecting-ip",
    b"true-client-ip",
)
# What a page of another site cannot make a browser send.
_DELIBERATE = ("authorization", "x-api-key", "x-requested-with", "idempotency-key")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@lru_cache(1000)
def is_loopback(address: str) -> bool:
    """Whether an address belongs to this machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_local_host(request: Request) -> bool:
    """Whether the requested host name is one of this machine."""
    return _is_local_name(request.headers.get("host", ""))


@lru_cache(1000)
def _is_local_name(given: str) -> bool:
    try:
        host = urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return False
    return host in LOOPBACK or is_loopback(host)


def is_own(request: Request) -> bool:
    """Whether a connection on this machine comes from the user who runs this server."""
    if not local_user.KNOWN:
        return True
    # Our own listener caches this per connection; other servers do not.
    known: dict[str, bool] = request.scope.get(CONNECTION, {})
    if "own" not in known:
        found = local_user.owner(request.scope.get("client"), request.scope.get("server"))
        known["own"] = found in local_user.trusted()
    return known["own"]


def peer(request: Request) -> str:
    """Return the address at the other end of the connection."""
    client = request.scope.get("client")
    return str(client[0]) if client else ""


_LOCAL = User("local", ROLES["admin"], via="open")


def _user(caller: Caller | None, sort: str) -> User | None:
    if caller is None or caller.sort != sort:
        return None
    return of_caller(caller)


def of_caller(caller: Caller) -> User:
    """Return the user of a secret."""
    queues = None if caller.queues is None else tuple(caller.queues)
    return User(caller.name, frozenset(caller.scopes), queues, via=caller.sort, token=caller.id)


def _hashed(text: str) -> bytes:
    return sha256(text.encode()).digest()
