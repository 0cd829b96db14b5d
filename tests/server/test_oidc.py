"""Signing in at an identity provider, over HTTPS, and what may be wrong with its answer."""

import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from click.testing import CliRunner

from holdfast import Client
from holdfast.cli import main
from holdfast.cli.serve import grant
from holdfast.errors import Misuse
from holdfast.server import Server, Settings
from holdfast.server.doors.access import COOKIE
from holdfast.server.doors.oidc import COOKIE as FLOW
from holdfast.server.doors.oidc import Flow, granted, inside
from holdfast.server.settings import Oidc
from tests.server.conftest import Serve
from tests.server.provider import CLIENT, SECRET, Provider, key_of, provider
from tests.server.serving import Serving, serving

GROUPS = ("admins=admin", "ops=operate:mail,billing", "viewers=viewer")
Claims = dict[str, Any]
FIRST, SECOND, FOREIGN = key_of("first"), key_of("second"), key_of("foreign")
IMPOSTOR = key_of("first")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with provider(tmp_path_factory.mktemp("provider")) as made:
        yield made


@pytest.fixture
def idp(running: Provider) -> Provider:
    """The provider as it should be, which has forgotten the tests before."""
    fresh = Provider(running.ca, issuer=running.issuer, key=FIRST)
    fresh.claims["groups"] = ["staff", "ops"]
    for one in fields(Provider):
        setattr(running, one.name, getattr(fresh, one.name))
    return running


@pytest.fixture(scope="module")
def oidc(running: Provider) -> Oidc:
    return Oidc(
        issuer=running.issuer,
        client_id=CLIENT,
        client_secret=SECRET,
        public_url="http://localhost:1",
        groups=[grant(one) for one in GROUPS],
        name="Example ID",
        ca=str(running.ca),
    )


@pytest.fixture(scope="module")
def served(shared: str, oidc: Oidc) -> Iterator[Serving]:
    with serving(Server(shared, settings=Settings(ways=("oidc",), oidc=oidc, fresh=0.0))) as made:
        yield made


@pytest.fixture
def client(shared: str) -> Iterator[Client]:
    with Client(shared) as opened:
        yield opened


@pytest.fixture
def browser(served: Serving) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def at_provider(idp: Provider, url: str) -> dict[str, str]:
    """Go to the provider as a browser does, and return what it sends back."""
    context = ssl.create_default_context(cafile=str(idp.ca))
    with httpx.Client(verify=context) as client:
        back = urlsplit(client.get(url).headers["location"])
    return {name: values[0] for name, values in parse_qs(back.query).items()}


def sign_in(browser: httpx.Client, idp: Provider, next: str = "", **changed: str) -> httpx.Response:
    """Sign in, with something changed in what comes back."""
    begun = browser.get("/oidc/sign-in", params={"next": next} if next else {})
    assert begun.status_code == 303, begun.text
    answer = at_provider(idp, begun.headers["location"])
    return browser.get("/oidc/callback", params=answer | changed)


def nobody(browser: httpx.Client) -> bool:
    return COOKIE not in browser.cookies and browser.get("/v1/jobs").status_code == 401


def test_a_group_signs_in_with_its_scopes_in_its_queues(
    browser: httpx.Client, idp: Provider, client: Client
) -> None:
    client.enqueue("send", {}, queue="mail")
    client.enqueue("send", {}, queue="other")

    back = sign_in(browser, idp, "/jobs?q=state:dead")
    me = browser.get("/v1/me").json()
    [asked] = idp.asked

    assert (back.status_code, back.headers["location"]) == (303, "/jobs?q=state:dead")
    assert (me["user"], me["scopes"]) == ("ada", ["operate", "read"])
    assert sorted(me["queues"]) == ["billing", "mail"]
    assert [job["queue"] for job in browser.get("/v1/jobs").json()["jobs"]] == ["mail"]
    assert browser.post("/v1/queues/mail/pause", json={}).status_code == 200
    assert browser.post("/v1/queues/other/pause", json={}).status_code in (403, 404)
    assert browser.post("/v1/jobs", json={"kind": "x", "queue": "mail"}).status_code == 403
    assert asked["code_challenge_method"] == "S256"
    assert asked["response_type"] == "code"
    assert asked["redirect_uri"] == "http://localhost:1/oidc/callback"
    assert FLOW not in browser.cookies


def test_the_cookies_are_for_this_server_only_and_for_tls_where_it_is_reached_so(
    serve: Serve, oidc: Oidc, idp: Provider
) -> None:
    served = serve(ways=("oidc",), oidc=replace(oidc, public_url="https://jobs.example.com/"))

    with served.client() as browser:
        begun = browser.get("/oidc/sign-in")
        answer = at_provider(idp, begun.headers["location"])
        # The cookie is not sent without TLS, so it is put there by hand.
        flow = begun.headers["set-cookie"].partition(";")[0].partition("=")[2]
        back = browser.get("/oidc/callback", params=answer, headers={"Cookie": f"{FLOW}={flow}"})

    assert idp.asked[0]["redirect_uri"] == "https://jobs.example.com/oidc/callback"
    for answered in (begun, back):
        told = answered.headers.get_list("set-cookie")[0]
        assert {"secure", "httponly", "samesite=lax"} <= set(told.lower().split("; "))


def test_signing_out_ends_the_session(browser: httpx.Client, idp: Provider) -> None:
    sign_in(browser, idp)
    kept = browser.cookies[COOKIE]
    assert browser.get("/v1/jobs").status_code == 200

    assert browser.delete("/v1/session").status_code == 204

    assert browser.get("/v1/jobs", headers={"Cookie": f"{COOKIE}={kept}"}).status_code == 401


def test_tokens_work_beside_it_and_strangers_do_not(browser: httpx.Client, client: Client) -> None:
    made = client.tokens.create("php", ["read"])
    bearer = {"Authorization": f"Bearer {made.secret}"}

    assert browser.get("/v1/jobs").status_code == 401
    assert browser.get("/v1/jobs", headers=bearer).status_code == 200
    assert browser.get("/v1/me").json()["oidc"] == "Example ID"


def without(name: str) -> Callable[[Claims], None]:
    return lambda claims: claims.pop(name)


def put(**values: Any) -> Callable[[Claims], None]:
    return lambda claims: claims.update(values)


@pytest.mark.parametrize(
    ("bend", "told"),
    [
        (put(nonce="another"), "nonce"),
        (without("nonce"), "nonce"),
        (put(aud="another"), "aud"),
        (without("aud"), "aud"),
        (put(aud=[CLIENT, "another"]), "azp"),
        (put(aud=[CLIENT, "another"], azp="another"), "azp"),
        (put(iss="https://elsewhere.example"), "iss"),
        (put(exp=int(time.time()) - 3600, iat=int(time.time()) - 7200), "expired"),
        (without("exp"), "exp"),
        (put(exp="soon"), "exp"),
        (put(nbf=int(time.time()) + 36000), "not valid"),
        (put(iat=int(time.time()) + 36000), "not valid"),
        (without("sub"), "sub"),
    ],
)
def test_an_id_token_that_is_not_for_this_sign_in_is_refused(
    browser: httpx.Client, idp: Provider, bend: Callable[[Claims], None], told: str
) -> None:
    idp.bend = bend

    refused = sign_in(browser, idp)

    assert (refused.status_code, refused.json()["code"]) == (401, "HF402")
    assert told in refused.json()["detail"]
    assert nobody(browser)


@pytest.mark.parametrize("how", ["none", "secret", "foreign key", "its key by another", "rubbish"])
def test_an_id_token_that_the_provider_did_not_sign_is_refused(
    browser: httpx.Client, idp: Provider, how: str
) -> None:
    forgers: dict[str, Callable[[Claims], str]] = {
        "none": idp.unsigned,
        "secret": idp.signed_by_secret,
        "foreign key": lambda claims: replace(idp, key=FOREIGN).signed(claims),
        "its key by another": lambda claims: replace(idp, key=IMPOSTOR).signed(claims),
        "rubbish": lambda claims: "a.b.c",
    }
    idp.forge = forgers[how]

    refused = sign_in(browser, idp)

    assert (refused.status_code, refused.json()["code"]) == (401, "HF402")
    assert nobody(browser)


def test_a_provider_may_change_its_keys(browser: httpx.Client, idp: Provider) -> None:
    assert sign_in(browser, idp).status_code == 303
    assert sign_in(browser, idp).status_code == 303
    known = idp.fetched_keys

    idp.key = SECOND

    assert sign_in(browser, idp).status_code == 303
    assert sign_in(browser, idp).status_code == 303
    assert (known <= 1, idp.fetched_keys) == (True, known + 1)


def test_a_sign_in_that_this_browser_did_not_start_is_refused(
    served: Serving, browser: httpx.Client, idp: Provider
) -> None:
    with served.client() as attacker:
        answer = at_provider(idp, attacker.get("/oidc/sign-in").headers["location"])

    unknown = browser.get("/oidc/callback", params=answer)
    started = browser.get("/oidc/sign-in")
    mixed = browser.get("/oidc/callback", params=answer)

    assert started.status_code == 303
    assert [unknown.status_code, mixed.status_code] == [401, 401]
    assert "not started in this browser" in mixed.json()["detail"]
    assert idp.exchanged == 0
    assert nobody(browser)


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "another"},
        {"state": ""},
        {"state": "é"},
        {"iss": "https://elsewhere.example"},
        {"code": ""},
    ],
)
def test_what_comes_back_changed_is_refused_before_the_provider_is_asked(
    browser: httpx.Client, idp: Provider, changed: dict[str, str]
) -> None:
    refused = sign_in(browser, idp, **changed)

    assert (refused.status_code, idp.exchanged) == (401, 0)
    assert nobody(browser)


def test_a_code_is_good_once(served: Serving, idp: Provider) -> None:
    with served.client() as browser:
        begun = browser.get("/oidc/sign-in")
        flow = browser.cookies[FLOW]
        answer = at_provider(idp, begun.headers["location"])
        assert browser.get("/oidc/callback", params=answer).status_code == 303

    with served.client() as thief:
        alone = thief.get("/oidc/callback", params=answer)
        again = thief.get("/oidc/callback", params=answer, headers={"Cookie": f"{FLOW}={flow}"})

    assert [alone.status_code, again.status_code] == [401, 401]
    assert "the code was used" in again.json()["detail"]


def test_a_code_is_of_no_use_without_the_verifier_of_its_browser(
    served: Serving, idp: Provider
) -> None:
    with served.client() as browser:
        answer = at_provider(idp, browser.get("/oidc/sign-in").headers["location"])
        flow = Flow.of(browser.cookies[FLOW])
        assert flow is not None
    flow.verifier = "x" * 64

    with served.client() as thief:
        cookie = {"Cookie": f"{FLOW}={flow.cookie()}"}
        refused = thief.get("/oidc/callback", params=answer, headers=cookie)

    assert refused.status_code == 401
    assert "the verifier is wrong" in refused.json()["detail"]


def asked_for_groups(serve: Serve, oidc: Oidc, idp: Provider) -> httpx.Response:
    """Sign in at a provider whose ID tokens have no groups, as it is said of in `userinfo`."""
    idp.claims["groups"] = None
    idp.discovery["userinfo_endpoint"] = f"{idp.issuer}/userinfo"
    with serve(ways=("oidc",), oidc=oidc).client() as browser:
        back = sign_in(browser, idp)
        return back if back.status_code != 303 else browser.get("/v1/me")


def test_groups_may_be_told_by_userinfo(serve: Serve, oidc: Oidc, idp: Provider) -> None:
    idp.userinfo = {"sub": "u-1", "groups": ["ops"], "preferred_username": "mallory"}

    me = asked_for_groups(serve, oidc, idp).json()

    # What is signed counts before what is only told.
    assert (me["user"], me["scopes"], me["queues"]) == (
        "ada",
        ["operate", "read"],
        ["mail", "billing"],
    )


@pytest.mark.parametrize(
    ("userinfo", "status", "told"),
    [
        ({"sub": "u-2", "groups": ["admins"]}, 401, "userinfo is for another user"),
        ({"groups": ["admins"]}, 401, "userinfo is for another user"),
        ({"sub": "u-1"}, 403, "does not report the groups"),
        ({"sub": "u-1", "groups": {"admins": True}}, 403, "does not report the groups"),
        ({"sub": "u-1", "groups": ["staff"]}, 403, "no group of ada"),
    ],
)
def test_userinfo_of_others_or_without_groups_lets_nobody_in(
    serve: Serve, oidc: Oidc, idp: Provider, userinfo: Claims, status: int, told: str
) -> None:
    idp.userinfo = userinfo

    refused = asked_for_groups(serve, oidc, idp)

    assert refused.status_code == status
    assert told in refused.json()["detail"]


@pytest.mark.parametrize("cookie", ["x", "e30=", "bnVsbA==", "%00", "é", "A" * 3000])
def test_a_cookie_of_rubbish_is_no_sign_in(browser: httpx.Client, cookie: str) -> None:
    headers = {b"Cookie": f"{FLOW}={cookie}".encode()}

    refused = browser.get("/oidc/callback?code=a&state=b", headers=headers)  # type: ignore[arg-type]

    assert refused.status_code == 401


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"groups": ["staff"]}, "no group of ada"),
        ({"groups": []}, "no group of ada"),
        ({"groups": [["admins"], 7, None]}, "no group of ada"),
        ({"groups": None}, "does not report the groups"),
        ({"groups": {"admins": True}}, "does not report the groups"),
    ],
)
def test_whoever_is_in_no_group_that_may_does_not_get_in(
    browser: httpx.Client, idp: Provider, claims: Claims, told: str
) -> None:
    idp.claims |= claims

    refused = sign_in(browser, idp)

    assert (refused.status_code, refused.json()["code"]) == (403, "HF401")
    assert told in refused.json()["detail"]
    assert nobody(browser)


AWAY = [
    "https://evil.example/",
    "//evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/jobs//evil.example",
    "javascript:alert(1)",
    "/\t/evil.example",
    "/\n/evil.example",
    "/../..//evil.example",
    "http:evil.example",
    "evil.example",
    "//[",
    "/%0d%0aSet-Cookie: a=b\r\nX: y",
]


@pytest.mark.parametrize("next", AWAY)
def test_nobody_is_sent_elsewhere_after_signing_in(
    browser: httpx.Client, idp: Provider, next: str
) -> None:
    back = sign_in(browser, idp, next)
    assert (back.status_code, back.headers["location"]) == (303, "/")

    # Nor by a cookie that somebody else wrote.
    begun = browser.get("/oidc/sign-in")
    flow = Flow.of(browser.cookies[FLOW])
    assert flow is not None
    flow.next = next
    answer = at_provider(idp, begun.headers["location"])
    browser.cookies.clear()
    back = browser.get(
        "/oidc/callback", params=answer, headers={"Cookie": f"{FLOW}={flow.cookie()}"}
    )
    assert (back.status_code, back.headers["location"]) == (303, "/")


def test_a_mounted_server_sends_nobody_out_of_its_path() -> None:
    assert inside("/queue/jobs?q=a b", "/queue/") == "/queue/jobs?q=a%20b"
    assert inside("/admin", "/queue/") == "/queue/"
    assert inside("/queue/../admin", "/queue/") == "/queue/"


def test_what_the_provider_refuses_is_told_to_people_without_markup(browser: httpx.Client) -> None:
    told = {"error": "access_denied", "error_description": "<script>alert(1)</script>"}

    page = browser.get("/oidc/callback", params=told, headers={"Accept": "text/html"})
    problem = browser.get("/oidc/callback", params=told)

    assert (page.status_code, problem.status_code) == (401, 401)
    assert page.headers["content-type"].startswith("text/html")
    assert "access_denied: &lt;script&gt;" in page.text
    assert "<script>" not in page.text
    assert "Try again" in page.text
    assert problem.json()["detail"].startswith("the provider refused the sign-in: access_denied")


@pytest.mark.parametrize(
    ("discovery", "told"),
    [
        ({"issuer": "https://elsewhere.example"}, "elsewhere"),
        ({"token_endpoint": "http://elsewhere.example/token"}, "token_endpoint"),
        ({"jwks_uri": None}, "jwks_uri"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint"),
    ],
)
def test_a_provider_that_is_another_or_not_safe_is_not_used(
    shared: str, serve: Serve, oidc: Oidc, idp: Provider, discovery: Claims, told: str
) -> None:
    idp.discovery = discovery

    with serve(shared, ways=("oidc",), oidc=oidc).client() as browser:
        refused = browser.get("/oidc/sign-in")

    assert (refused.status_code, refused.json()["code"]) == (503, "HF414")
    assert told in refused.json()["detail"]
    assert "retry-after" in refused.headers


def test_a_provider_whose_certificate_is_not_trusted_is_not_used(serve: Serve, oidc: Oidc) -> None:
    served = serve(ways=("oidc",), oidc=replace(oidc, ca=""))

    with served.client() as browser:
        refused = browser.get("/oidc/sign-in")

    assert (refused.status_code, refused.json()["code"]) == (503, "HF414")


def test_a_wrong_client_secret_is_said(serve: Serve, oidc: Oidc, idp: Provider) -> None:
    served = serve(ways=("oidc",), oidc=replace(oidc, client_secret="wrong"))

    with served.client() as browser:
        refused = sign_in(browser, idp)

    assert refused.status_code == 401
    assert "invalid_client" in refused.json()["detail"]


def test_without_a_provider_there_is_nothing_to_sign_in_at(api: httpx.Client) -> None:
    assert api.get("/oidc/sign-in").status_code == 404
    assert api.get("/oidc/callback").status_code == 404
    assert api.get("/v1/me").json()["oidc"] is None


def test_groups_can_be_in_a_claim_within_another(serve: Serve, oidc: Oidc, idp: Provider) -> None:
    served = serve(ways=("oidc",), oidc=replace(oidc, claim="realm_access.roles"))
    idp.claims = {"realm_access": {"roles": ["admins"]}}

    with served.client() as browser:
        sign_in(browser, idp)
        me = browser.get("/v1/me").json()

    assert "admin" in me["scopes"]
    assert me["queues"] is None


def test_several_groups_give_no_scope_where_none_of_them_has_it() -> None:
    mapping = [
        grant(one)
        for one in ("ops=operate:mail", "bills=operate:billing", "put=produce:mail", "all=viewer")
    ]

    def of(*groups: str) -> tuple[list[str], tuple[str, ...] | None] | None:
        found = granted(mapping, groups)
        return found and (sorted(found.scopes), found.queues)

    assert of("nobody") is None
    assert of("all", "ops") == (["operate", "read"], ("mail",))
    assert of("ops", "bills") == (["operate", "read"], ("mail", "billing"))
    assert of("put", "ops") == (["operate", "produce", "read"], ("mail",))
    assert of("put", "bills") == (["operate", "read"], ("billing",))
    assert of("all") == (["read"], None)


def test_what_a_group_may_do_is_read_as_it_is_written() -> None:
    name, found = grant("cn=ops,dc=example=produce+consume:mail, billing")

    assert name == "cn=ops,dc=example"
    assert found.scopes == {"read", "produce", "consume"}
    assert found.queues == ("mail", "billing")
    for wrong in ("ops", "=admin", "ops=", "ops=root", "ops=operate:", "ops=operate:a*"):
        with pytest.raises(Misuse):
            grant(wrong)


@pytest.mark.parametrize("way", ["file", "stdin", "variable", "nosuch"])
def test_the_client_secret_need_not_stand_on_the_command_line(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    made: list[Server] = []
    serving = import_module("holdfast.cli.serve")
    monkeypatch.setattr(serving, "_run", lambda server, host, port: made.append(server))
    (tmp_path / "secret").write_text("s3cret\n")
    options = {
        "--oidc-issuer": "https://id.example.com",
        "--oidc-client": "holdfast",
        "--oidc-group": "admins=admin",
        "--public-url": "https://jobs.example.com",
    }
    environment = {"HOLDFAST_URL": database}
    if way == "variable":
        environment["HOLDFAST_OIDC_SECRET"] = "s3cret"
    else:
        places = {"stdin": "-", "file": str(tmp_path / "secret"), "nosuch": "/nosuch"}
        options["--oidc-secret-file"] = places[way]
    words = [word for pair in options.items() for word in pair]

    done = CliRunner().invoke(
        main, ["serve", "--auth", "oidc", *words], env=environment, input="s3cret\n"
    )

    assert "s3cret" not in done.output + done.stderr
    if way == "nosuch":
        assert done.exit_code == 2
        assert "/nosuch: No such file" in done.stderr
    else:
        assert done.exit_code == 0, done.stderr
        assert made[0].settings.oidc is not None
        assert made[0].settings.oidc.client_secret == "s3cret"


@pytest.mark.parametrize(
    ("without", "told"),
    [
        ("--oidc-issuer", "--oidc-issuer URL"),
        ("--oidc-client", "--oidc-client ID"),
        ("--oidc-group", "--oidc-group"),
        ("--public-url", "--public-url"),
        ("HOLDFAST_OIDC_SECRET", "--oidc-secret-file"),
        ("https", "not an https address"),
    ],
)
def test_serve_says_what_the_provider_needs(database: str, without: str, told: str) -> None:
    options = {
        "--oidc-issuer": "https://id.example.com",
        "--oidc-client": "holdfast",
        "--oidc-group": "admins=admin",
        "--public-url": "https://jobs.example.com",
    }
    environment = {"HOLDFAST_OIDC_SECRET": "x", "HOLDFAST_URL": database}
    options.pop(without, None)
    environment.pop(without, None)
    if without == "https":
        options["--oidc-issuer"] = "http://id.example.com"
    words = [word for pair in options.items() for word in pair]

    done = CliRunner().invoke(main, ["serve", "--auth", "oidc", *words], env=environment)

    assert done.exit_code != 0
    assert told in done.output + done.stderr
