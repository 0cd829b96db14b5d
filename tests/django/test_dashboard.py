"""The dashboard inside a Django site: who comes in, and what they may do there."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test import Client as Browser
from django.test import override_settings

from holdfast.django import dashboard
from holdfast.django.dashboard import with_dashboard
from holdfast.server.live import stream

HTML = {"accept": "text/html"}


def sign_out(name: str) -> None:
    """Take the permissions of a user away."""
    from django.contrib.auth.models import User

    User.objects.get(username=name).user_permissions.clear()
    connections.close_all()


Answers = list[httpx.Response]


@pytest.fixture
def cookies_of(django_database: None) -> Callable[..., dict[str, str]]:
    """Signs a user in with permissions of Holdfast; returns the cookies."""
    from django.contrib.auth.models import Permission, User

    def cookies(name: str, *permissions: str, **more: Any) -> dict[str, str]:
        user = User.objects.create_user(name, **more)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        browser = Browser()
        browser.force_login(user)
        return {key: morsel.value for key, morsel in browser.cookies.items()}

    return cookies


def ask(*requests: dict[str, Any]) -> Answers:
    """Send requests to a site with the dashboard; returns the answers."""

    async def django(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"from Django"})

    async def asked() -> Answers:
        site = with_dashboard(django, path="/holdfast")
        transport: Any = httpx.ASGITransport(site)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as http:
            answers = []
            for request in requests:
                http.cookies = httpx.Cookies(request.pop("cookies", {}))
                answers.append(await http.request(**request))
        await site.stop()
        return answers

    return asyncio.run(asked())


def get(path: str, **more: Any) -> dict[str, Any]:
    """A request for an address."""
    return {"method": "GET", "url": path, **more}


def test_only_users_with_a_permission_come_in(cookies_of: Callable[..., dict[str, str]]) -> None:
    nobody = cookies_of("bob", is_staff=True)
    gone = cookies_of("eve", is_superuser=True, is_active=False)
    viewer = cookies_of("ada", "view_dashboard")
    with override_settings(LOGIN_URL="/admin/login/"):
        elsewhere, login, api, token, forbidden, inactive, page, seen, asset = ask(
            get("/orders/"),
            get("/holdfast/", headers=HTML),
            get("/holdfast/v1/me"),
            get("/holdfast/v1/me", headers={"authorization": "Bearer hf_wrong"}),
            get("/holdfast/v1/me", cookies=nobody),
            get("/holdfast/v1/me", cookies=gone),
            get("/holdfast/", headers=HTML, cookies=viewer),
            get("/holdfast/v1/me", cookies=viewer),
            get("/holdfast", cookies=viewer),
        )

    assert elsewhere.text == "from Django"
    assert (login.status_code, login.headers["location"]) == (
        302,
        "/admin/login/?next=/holdfast/",
    )
    assert [one.status_code for one in (api, token, forbidden, inactive)] == [401, 401, 403, 401]
    assert "holdfast.view_dashboard" in forbidden.text
    assert page.status_code == 200
    assert "<html" in page.text
    assert (seen.json()["user"], seen.json()["scopes"]) == ("ada", ["read"])
    assert asset.headers["location"] == "/holdfast/"


def test_what_somebody_may_do_is_what_the_permission_says(
    cookies_of: Callable[..., dict[str, str]],
) -> None:
    enqueue = {
        "method": "POST",
        "url": "/holdfast/v1/jobs",
        "json": {"kind": "a"},
        "headers": {"origin": "http://testserver"},
    }
    foreign = {**enqueue, "headers": {"origin": "http://evil.example"}}
    viewer, operator = cookies_of("ada", "view_dashboard"), cookies_of("bob", "operate_dashboard")
    root = cookies_of("root", is_superuser=True)
    refused, done, cross_site, tokens, all_tokens = ask(
        {**enqueue, "cookies": viewer},
        {**enqueue, "cookies": operator},
        {**foreign, "cookies": operator},
        get("/holdfast/v1/tokens", cookies=operator),
        get("/holdfast/v1/tokens", cookies=root),
    )

    assert [one.status_code for one in (refused, cross_site, tokens)] == [403, 403, 403]
    assert done.is_success
    assert all_tokens.status_code == 200


def test_a_stream_ends_when_its_user_may_no_longer_see_it(
    cookies_of: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ALLOWED_EVERY", 0.01)
    monkeypatch.setattr(dashboard, "BELIEVED", 0.0)
    cookies = cookies_of("ada", "view_dashboard")

    async def watch() -> list[str]:
        site = with_dashboard(None)
        begun, told = asyncio.Event(), list[str]()

        async def send(message: Any) -> None:
            told.append(str(message.get("status", message["type"])))
            begun.set()

        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/holdfast/v1/events/stream",
            "query_string": b"",
            "headers": [(b"host", b"testserver"), (b"cookie", cookie.encode())],
        }
        watching = asyncio.create_task(site(scope, asyncio.Event().wait, send))
        await begun.wait()
        await sync_to_async(sign_out)("ada")
        async with asyncio.timeout(60):
            await watching
        await site.stop()
        return told

    assert asyncio.run(watch())[0] == "200"


def test_the_dashboard_needs_a_path_of_its_own() -> None:
    for path in ("/", "", "//"):
        with pytest.raises(ImproperlyConfigured, match=r'with_dashboard.*path="/holdfast"'):
            with_dashboard(None, path=path)


def test_a_user_of_a_model_without_permissions_is_refused(
    cookies_of: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plain:
        is_authenticated = is_active = True

    monkeypatch.setattr(dashboard, "get_user", lambda request: Plain())
    [answer] = ask(get("/holdfast/v1/me", cookies=cookies_of("ada")))
    assert answer.status_code == 403


def test_a_host_that_django_does_not_allow_is_refused(
    cookies_of: Callable[..., dict[str, str]],
) -> None:
    with override_settings(ALLOWED_HOSTS=["shop.example"]):
        [answer] = ask(get("/holdfast/v1/me", cookies=cookies_of("ada", "view_dashboard")))

    assert (answer.status_code, answer.text) == (400, "This host is not in ALLOWED_HOSTS.\n")
