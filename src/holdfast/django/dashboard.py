"""The dashboard inside a Django site, for users that Django has signed in and permits."""

from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from time import monotonic
from typing import Any
from urllib.parse import quote

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.core.exceptions import DisallowedHost, ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.shortcuts import resolve_url
from django.utils.module_loading import import_string

from holdfast.django.database import address
from holdfast.server import Server, Settings
from holdfast.server.doors.access import User

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# What a permission makes of somebody, the most of it first.
ROLES = (
    ("holdfast.administer_dashboard", "admin"),
    ("holdfast.operate_dashboard", "operator"),
    ("holdfast.view_dashboard", "viewer"),
)
# For so many seconds it is believed who a session belongs to: a page asks several times a second.
BELIEVED = 2.0


def with_dashboard(
    application: Application | None = None,
    *,
    path: str = "/holdfast",
    database: str = "default",
    name: str = "",
) -> "Dashboard":
    """Return an ASGI application with the dashboard at `path`, and `application` elsewhere.

    Users need one of the permissions `holdfast.view_dashboard`, `operate_dashboard` and
    `administer_dashboard`; a superuser has all. Whoever is not signed in is sent to LOGIN_URL.
    """
    if not path.strip("/"):
        raise ImproperlyConfigured(
            f"with_dashboard: {path!r} would leave no address to Django. Give the dashboard one of "
            'its own:  path="/holdfast"'
        )
    return Dashboard(application, path, database, Settings(ways=(), name=name))


class Dashboard:
    """The dashboard beside Django's own application."""

    def __init__(
        self, application: Application | None, path: str, database: str, settings: Settings
    ) -> None:
        self._application = application
        self._path = "/" + path.strip("/")
        self._database = database
        self._settings = settings
        self._server: Server | None = None
        self._known: dict[str, tuple[float, User | str]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let Django answer it."""
        if scope["type"] == "lifespan":
            await self._served()(scope, receive, send)
        elif scope["type"] == "http" and self._is_ours(_path(scope)):
            await self._answer(scope, receive, send)
        elif self._application is not None:
            await self._application(scope, receive, send)
        elif scope["type"] == "http":
            await _say(send, 404, f"The dashboard is at {self._path}/.")
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def stop(self) -> None:
        """Close what the running event loop has open; the next request opens it again."""
        if self._server is not None:
            await self._server.stop()

    def _is_ours(self, path: str) -> bool:
        return path == self._path or path.startswith(f"{self._path}/")

    def _served(self) -> Server:
        if self._server is None:
            found = address(self._database)
            source = f"DATABASES[{self._database!r}]"
            self._server = Server(
                found,
                auth=self._signed_in,
                settings=self._settings,
                source=source,
            )
        return self._server

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _path(scope) == self._path:
            await _redirect(send, f"{scope.get('root_path', '')}{self._path}/")
            return
        user = await self._user(scope)
        if isinstance(user, User):
            below = {**scope, "root_path": scope.get("root_path", "") + self._path}
            await self._served()(below, receive, send)
        elif user == "stranger" and scope["method"] in ("GET", "HEAD") and _wants_page(scope):
            here = scope.get("root_path", "") + _path(scope)
            login = await sync_to_async(resolve_url)(settings.LOGIN_URL)
            await _redirect(send, f"{login}?next={quote(here)}")
        elif user == "stranger":
            await _say(send, 401, "Sign in first.")
        elif user == "host":
            await _say(send, 400, "This host is not in ALLOWED_HOSTS.")
        else:
            permission = ROLES[-1][0]
            await _say(send, 403, f"You are signed in, and lack the permission {permission}.")

    async def _signed_in(self, request: Any) -> User | None:
        """Return who calls, asked again while a stream is open: its user may sign out."""
        user = await self._user(request.scope)
        return user if isinstance(user, User) else None

    async def _user(self, scope: Scope) -> User | str:
        """Return who calls; or why nobody does: "stranger", "host" or "forbidden"."""
        headers = [(key, value) for key, value in scope["headers"] if key in (b"cookie", b"host")]
        known = repr(sorted(headers))
        until, user = self._known.get(known, (0.0, "stranger"))
        if monotonic() > until:
            async with ThreadSensitiveContext():
                user = await sync_to_async(_look_up)(scope)
            if len(self._known) > 1000:
                self._known.clear()
            self._known[known] = monotonic() + BELIEVED, user
        return user


def _look_up(scope: Scope) -> User | str:
    """Find the user of a request's session, as Django's middleware does."""
    try:
        request = ASGIRequest({**scope, "method": "GET"}, BytesIO())
        request.get_host()
    except DisallowedHost:
        return "host"
    engine = import_string(f"{settings.SESSION_ENGINE}.SessionStore")
    request.session = engine(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
    try:
        user = get_user(request)
        if not user.is_authenticated or not user.is_active:
            return "stranger"
        # A model of the project's own need not have permissions.
        may = getattr(user, "has_perm", lambda _: False)
        role = next((role for permission, role in ROLES if may(permission)), None)
        return User.of(user.get_username(), role) if role else "forbidden"
    finally:
        connections.close_all()  # the thread ends with the request


def _path(scope: Scope) -> str:
    """Return the path below the place where the whole site is mounted, if it is."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _wants_page(scope: Scope) -> bool:
    accepted = b",".join(value for key, value in scope["headers"] if key == b"accept")
    return b"text/html" in accepted


async def _redirect(send: Send, where: str) -> None:
    headers = [(b"location", where.encode("ascii", "ignore")), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 302, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _say(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{sentence}\n".encode()})
