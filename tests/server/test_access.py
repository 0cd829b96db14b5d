"""Who gets in, what they may do, and what a foreign page cannot make a browser do."""

import asyncio
import base64
import os
import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from psycopg.conninfo import make_conninfo
from starlette.requests import Request

from holdfast import Client
from holdfast.errors import Misuse
from holdfast.server import Server, Settings, User
from holdfast.server.doors import access, local_user
from holdfast.server.http.route import Entry
from holdfast.server.routes import PAGES, ROUTES
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving, serving

NEEDED = [entry for entry in ROUTES if entry.scope is not None]


def name_of(entry: Entry) -> str:
    return f"{entry.method} {entry.path}"


@pytest.fixture(scope="module")
def closed(shared: str) -> Iterator[Serving]:
    """A server that lets nobody in without a token."""
    with serving(Server(shared, settings=Settings(ways=["token"]))) as started:
        yield started


@pytest.fixture(scope="module")
def secrets(shared: str) -> dict[str, str]:
    """A token for each single scope."""
    with Client(shared) as client:
        return {
            scope: client.tokens.create(scope, [scope]).secret
            for scope in ("read", "produce", "consume", "operate", "admin")
        }


def ask(server: Serving, entry: Entry, headers: dict[str, str] | None = None) -> httpx.Response:
    path = re.sub(r"\{[^}]+\}", "01990f3a-0000-8013-8000-00000000000a", entry.path)
    body = {} if entry.method in ("POST", "PUT", "PATCH") else None
    with server.client() as api:
        return api.request(entry.method, path, json=body, headers=headers)


# What is not an operator's alone although it changes nothing, and what needs more than one.
ODD = {
    "GET /v1/doctor": "operate",
    "GET /v1/tokens": "admin",
    "POST /v1/lanes/{lane:path}/release": "admin",
    "DELETE /queue/clear": "admin",
    "DELETE /activity/clear": "admin",
    "DELETE /queues/{queue:path}": "admin",
}
PRODUCES = {
    "enqueue",
    "bulk",
    "batch",
    "restore",
    "send_event",
    "create_link",
    "start_workflow",
}
CONSUMES = {"claim", "ack", "nack", "release", "touch", "settle", "dequeue", "dequeue_many"}


def scope_by_what_it_does(entry: Entry) -> str:
    path = re.sub("^/queue(?=/activity/)", "", entry.path.removeprefix("/api"))
    if odd := ODD.get(f"{entry.method} {path}"):
        return odd
    does, _, family = entry.handler.__name__, *entry.handler.__module__.rpartition(".")[1:]
    if family in ("produce", "consume", "messages"):
        if does in PRODUCES:
            return "produce"
        return "consume" if does.removesuffix("_many") in CONSUMES or does in CONSUMES else "?"
    if family == "replies":
        return "produce" if does in PRODUCES else "operate"
    if family == "sign_in":
        return "admin"
    return "read" if entry.method == "GET" else "operate"


def test_an_address_needs_the_scope_of_what_it_does() -> None:
    needed = {name_of(entry): entry.scope for entry in NEEDED}

    assert needed == {name_of(entry): scope_by_what_it_does(entry) for entry in NEEDED}


@pytest.mark.parametrize("entry", NEEDED, ids=name_of)
def test_every_address_is_closed_to_strangers(closed: Serving, entry: Entry) -> None:
    answer = ask(closed, entry)

    assert (answer.status_code, answer.json()["code"]) == (401, "HF402")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("entry", NEEDED, ids=name_of)
def test_every_address_is_closed_to_every_other_scope(
    closed: Serving, secrets: dict[str, str], entry: Entry
) -> None:
    others = [scope for scope in secrets if scope not in (entry.scope, "admin")]

    answers = [
        ask(closed, entry, {"Authorization": f"Bearer {secrets[scope]}"}) for scope in others
    ]

    assert {answer.status_code for answer in answers} == {403}
    assert {answer.json()["scope"] for answer in answers} == {entry.scope}


@pytest.mark.parametrize(
    "entry", [one for one in NEEDED if not one.path.endswith(("/stream", "/events"))], ids=name_of
)
def test_every_address_is_open_to_its_scope_and_to_admin(
    closed: Serving, secrets: dict[str, str], entry: Entry
) -> None:
    assert entry.scope is not None
    answers = [
        ask(closed, entry, {"Authorization": f"Bearer {secrets[scope]}"})
        for scope in (entry.scope, "admin")
    ]

    assert not {answer.status_code for answer in answers} & {401, 403, 500}


@pytest.mark.parametrize(
    "entry",
    [one for one in NEEDED if one.scope != "read" and one.path not in ("/v1/tokens", "/v1/doctor")],
    ids=name_of,
)
def test_a_read_only_server_changes_nothing_for_anybody(read_only: Serving, entry: Entry) -> None:
    answer = ask(read_only, entry)

    assert (answer.status_code, answer.json()["code"]) == (403, "HF401")
    assert answer.json()["detail"] == "this server is read-only"


@pytest.fixture(scope="module")
def read_only(shared: str) -> Iterator[Serving]:
    with serving(Server(shared, settings=Settings(read_only=True))) as started:
        yield started


def test_a_database_that_takes_no_changes_makes_the_server_read_only(
    serve: Serve, database: str, client: Client
) -> None:
    client.enqueue("a")
    standby = make_conninfo(database, options="-c default_transaction_read_only=on")
    with serve(standby, upkeep=False).client() as api:
        refused = api.post("/v1/jobs", json={"kind": "a"})
        seen = api.get("/v1/jobs")
        me = api.get("/v1/me").json()

    assert (refused.status_code, refused.json()["code"]) == (403, "HF401")
    assert len(seen.json()["jobs"]) == 1
    assert me["read_only"] is True


def test_addresses_that_need_nothing_are_few_and_known() -> None:
    open_to_all = {name_of(entry) for entry in ROUTES if entry.scope is None}
    pages = {f"GET {entry.path}" for entry in PAGES}

    assert open_to_all - pages == {
        "GET /healthz",
        "GET /health",
        "GET /docs",
        "POST /v1/session",
        "DELETE /v1/session",
        "GET /reply",
        "POST /reply",
        "GET /sign-in",
        "POST /sign-in",
        "GET /oidc/sign-in",
        "GET /oidc/callback",
        "GET /v1/me",
        "GET /readyz",
        "GET /errors/{code}",
        "GET /openapi.json",
        "GET /docs.css",
        "GET /api/health",
    }


def test_a_token_is_shown_once_and_kept_as_a_hash(api: Api, client: Client, connect: Any) -> None:
    made = api.post("/v1/tokens", json={"name": "php", "scopes": ["consume"], "expires": 3600})
    listed = api.get("/v1/tokens").json()["tokens"]
    rows = connect().execute("select t::text from holdfast.api_token t").fetchall()

    secret = made.json()["secret"]
    assert made.status_code == 201
    assert re.fullmatch(r"hf_[0-9a-f]{12}_[\w-]{43}", secret)
    assert "secret" not in listed[0]
    assert not any(secret in row for (row,) in rows)
    assert not any(secret.split("_", 2)[2] in row for (row,) in rows)


def test_a_wrong_an_expired_and_a_revoked_token_are_refused(
    serve: Serve, client: Client, clock: Any
) -> None:
    good = client.tokens.create("good", ["read"])
    short = client.tokens.create("short", ["read"], expires=timedelta(hours=1))
    gone = client.tokens.create("gone", ["read"])
    client.tokens.revoke(gone.token.id)
    clock.advance(hours=2)
    wrong = good.secret[:-1] + ("A" if good.secret[-1] != "A" else "B")
    with serve(ways=["token"]).client() as api:
        answers = [
            api.get("/v1/queues", headers={"Authorization": f"Bearer {secret}"}).status_code
            for secret in (good.secret, short.secret, gone.secret, wrong, "nonsense")
        ]
        by_key = api.get("/v1/queues", headers={"X-API-Key": good.secret}).status_code

    assert answers == [200, 401, 401, 401, 401]
    assert by_key == 200


def test_a_revoked_token_is_let_in_for_seconds_at_most(
    serve: Serve, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "BELIEVED", 0.0)
    token = client.tokens.create("php", ["read"])
    with serve(ways=["token"]).client(headers={"Authorization": f"Bearer {token.secret}"}) as api:
        before = api.get("/v1/queues").status_code
        client.tokens.revoke(token.token.id)
        after = api.get("/v1/queues").status_code

    assert (before, after) == (200, 401)


def test_a_token_of_some_queues_has_nothing_to_do_with_others(serve: Serve, client: Client) -> None:
    token = client.tokens.create("php", ["admin"], queues=["mail"])
    mine = client.enqueue("a", queue="mail", max_attempts=1)
    other = client.enqueue("a", queue="secret", max_attempts=1)
    client.schedules.set("nightly", kind="a", cron="0 3 * * *", queue="secret")
    for queue in ("mail", "secret"):
        client.nack(client.claim(queue, worker="w"))
    with serve(fresh=0.0, ways=["token"]).client(
        headers={"Authorization": f"Bearer {token.secret}"}
    ) as api:
        seen = {
            "jobs": [job["id"] for job in api.get("/v1/jobs").json()["jobs"]],
            "filtered": api.get("/v1/jobs", params={"q": "queue:secret"}).json()["jobs"],
            "queues": [one["queue"] for one in api.get("/v1/queues").json()["queues"]],
            "groups": [one["queue"] for one in api.get("/v1/dead/groups").json()["groups"]],
            "schedules": api.get("/v1/schedules").json()["schedules"],
        }
        preview = api.post("/v1/operations:preview", json={"op": "retry", "q": "state:dead"})
        statuses = {
            "mine": api.get(f"/v1/jobs/{mine.id}").status_code,
            "get": api.get(f"/v1/jobs/{other.id}").status_code,
            "retry": api.post(f"/v1/jobs/{other.id}/retry", json={}).status_code,
            "delete": api.delete(f"/v1/jobs/{other.id}").status_code,
            "queue": api.get("/v1/queues/secret").status_code,
            "pause": api.post("/v1/queues/secret/pause", json={}).status_code,
            "set": api.patch("/v1/queues/secret", json={"limit": 1}).status_code,
            "drain": api.post("/v1/queues/secret/drain", json={}).status_code,
            "enqueue": api.post("/v1/jobs", json={"kind": "a", "queue": "secret"}).status_code,
            "claim": api.post("/v1/claims", json={"worker": "w", "queues": ["secret"]}).status_code,
            "move": api.patch(f"/v1/jobs/{mine.id}", json={"queue": "secret"}).status_code,
            "schedule": api.delete("/v1/schedules/nightly").status_code,
            "stop": api.post("/v1/workers/w/stop", json={}).status_code,
        }

    assert seen == {
        "jobs": [str(mine.id)],
        "filtered": [],
        "queues": ["mail"],
        "groups": ["mail"],
        "schedules": [],
    }
    assert preview.json()["count"] == 1
    assert statuses == {
        "mine": 200,
        "get": 404,
        "retry": 404,
        "delete": 404,
        "queue": 404,
        "pause": 403,
        "set": 403,
        "drain": 403,
        "enqueue": 403,
        "claim": 403,
        "move": 403,
        "schedule": 403,
        "stop": 403,
    }
    assert client.jobs.get(other.id).state == "dead"


def test_names_and_passwords_get_in_by_role(serve: Serve) -> None:
    basic = {"ada": ("secret", "admin"), "bob": ("hunter2", "viewer")}
    with serve(ways=["basic"], basic=basic).client() as api:

        def as_user(name: str, password: str, method: str = "GET") -> int:
            return api.request(
                method,
                "/v1/queues" if method == "GET" else "/v1/jobs",
                json=None if method == "GET" else {"kind": "a"},
                auth=(name, password),
            ).status_code

        answers = [
            as_user("ada", "secret"),
            as_user("ada", "secret", "POST"),
            as_user("bob", "hunter2"),
            as_user("bob", "hunter2", "POST"),
            as_user("ada", "wrong"),
            as_user("nobody", ""),
        ]
        odd = api.get("/v1/queues", headers={"Authorization": "Basic %%%"})

    assert answers == [200, 201, 200, 403, 401, 401]
    assert odd.status_code == 401


def test_a_password_is_refused_where_passwords_are_no_way_in(serve: Serve) -> None:
    basic = {"ada": ("secret", "admin")}
    with serve(ways=["token"], basic=basic).client() as api:
        answer = api.get("/v1/queues", auth=("ada", "secret"))

    assert answer.status_code == 401


def test_wrong_secrets_are_counted_and_then_refused_for_a_while(serve: Serve) -> None:
    basic = {"ada": ("secret", "admin")}
    with serve(ways=["basic"], basic=basic).client() as api:
        tries = [api.get("/v1/queues", auth=("ada", f"guess {n}")).status_code for n in range(11)]
        right = api.get("/v1/queues", auth=("ada", "secret"))

    assert tries == [401] * 10 + [429]
    assert right.status_code == 429
    assert int(right.headers["retry-after"]) <= 61


def test_a_proxy_that_is_trusted_names_the_user(serve: Serve) -> None:
    roles = {"ada": "admin", "*": "viewer"}
    trusted = serve(ways=["proxy"], proxies=["127.0.0.0/8"], proxy_roles=roles)
    foreign = serve(ways=["proxy"], proxies=["10.0.0.0/8"], proxy_roles=roles)
    with trusted.client() as near, foreign.client() as far:
        ada, bob = ({"X-Forwarded-User": name} for name in ("ada", "bob"))
        answers = [
            near.post("/v1/jobs", json={"kind": "a"}, headers=ada).status_code,
            near.post("/v1/jobs", json={"kind": "a"}, headers=bob).status_code,
            near.get("/v1/queues", headers=bob).status_code,
            near.get("/v1/queues").status_code,
            far.get("/v1/queues", headers=ada).status_code,
        ]

    assert answers == [201, 403, 200, 401, 401]


@pytest.mark.parametrize("awaited", [False, True])
def test_an_application_says_who_calls(serve: Serve, awaited: bool) -> None:
    def found(request: Any) -> User | None:
        name = request.headers.get("x-user")
        return User.of(name, "operator", queues=["mail"]) if name else None

    async def found_later(request: Any) -> User | None:
        return found(request)

    with serve(auth=found_later if awaited else found).client() as api:
        nobody = api.get("/v1/queues")
        me = api.get("/v1/me", headers={"X-User": "ada"}).json()
        other = api.post("/v1/jobs", json={"kind": "a"}, headers={"X-User": "ada"})

    assert nobody.status_code == 401
    assert (me["user"], me["via"], me["queues"]) == ("ada", "application", ["mail"])
    assert me["scopes"] == ["operate", "produce", "read"]
    assert other.status_code == 403


def test_a_link_signs_in_once(serve: Serve, client: Client) -> None:
    link = client.tokens.create("link", ["admin"], sort="link", expires=600).secret
    server = serve(ways=["token"])
    with server.client() as browser, server.client() as other:
        looked = [
            browser.head("/sign-in", params={"link": link}),
            browser.get("/sign-in", params={"link": link}, headers={"Sec-Purpose": "prefetch"}),
            browser.get("/sign-in", params={"link": link}),
        ]
        first = browser.post("/sign-in", params={"link": link})
        inside = browser.get("/v1/me").json()
        second = other.post("/sign-in", params={"link": link})
        as_token = other.get("/v1/queues", headers={"Authorization": f"Bearer {link}"})

    assert [(one.status_code, "set-cookie" in one.headers) for one in looked] == [(200, False)] * 3
    assert '<form method="post"' in looked[-1].text
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(re.split(r"; ", cookie))
    assert (inside["user"], inside["via"]) == ("link", "session")
    assert second.status_code == 401
    assert as_token.status_code == 401


def test_a_browser_signs_in_with_a_token_and_out_again(serve: Serve, client: Client) -> None:
    token = client.tokens.create("ada", ["read", "operate"])
    with serve(ways=["token"]).client() as browser:
        wrong = browser.post("/v1/session", json={"token": "hf_wrong"})
        signed_in = browser.post("/v1/session", json={"token": token.secret})
        inside = browser.get("/v1/queues").status_code
        cookie = browser.cookies["holdfast_session"]
        out = browser.delete("/v1/session")
        outside = browser.get("/v1/queues").status_code
        replayed = browser.get(
            "/v1/queues", headers={"Cookie": f"holdfast_session={cookie}"}
        ).status_code

    assert (wrong.status_code, signed_in.status_code, out.status_code) == (401, 200, 204)
    assert (inside, outside, replayed) == (200, 401, 401)


def test_a_session_ends_with_the_token_it_was_got_by(
    serve: Serve, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "BELIEVED", 0.0)
    token = client.tokens.create("ada", ["read"])
    with serve(ways=["token"]).client() as browser:
        browser.post("/v1/session", json={"token": token.secret})
        before = browser.get("/v1/queues").status_code
        client.tokens.revoke(token.token.id)
        after = browser.get("/v1/queues").status_code

    assert (before, after) == (200, 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_a_page_of_another_site_can_change_nothing(
    api: Api, client: Client, headers: dict[str, str]
) -> None:
    client.enqueue("a")

    answers = [
        api.post("/v1/jobs", json={"kind": "a"}, headers=headers),
        api.post("/v1/queues/default/pause", headers=headers),
        api.get("/queue/message", headers=headers),
        api.delete("/v1/session", headers=headers),
    ]

    assert [(one.status_code, one.json()["code"]) for one in answers] == [(403, "HF403")] * 4
    assert client.queues.get("default").queued == 1


def test_a_page_of_its_own_can(server: Serving, api: Api) -> None:
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    old = {"Origin": server.url}

    assert api.post("/v1/jobs", json={"kind": "a"}, headers=own).status_code == 201
    assert api.post("/v1/jobs", json={"kind": "a"}, headers=old).status_code == 201


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7717", "localhost.evil.example", ""]
)
def test_a_foreign_host_is_refused(api: Api, host: str) -> None:
    answer = api.get("/v1/jobs", headers={"Host": host})

    assert (answer.status_code, answer.json()["code"]) == (421, "HF403")


def test_hosts_can_be_named(serve: Serve) -> None:
    with serve(hosts=["queue.example"]).client() as api:
        answers = [
            api.get("/healthz", headers={"Host": host}).status_code
            for host in ("queue.example", "QUEUE.example:443", "127.0.0.1")
        ]

    assert answers == [200, 200, 421]


def test_only_whoever_runs_it_on_this_machine_is_let_in_where_nobody_signs_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_user, "KNOWN", True)

    def user_from(
        address: str | None, owner: int | None = os.geteuid(), **settings: Any
    ) -> User | None:
        monkeypatch.setattr(local_user, "owner", lambda caller, server: owner)
        client = None if address is None else (address, 1)
        scope = {"type": "http", "headers": [(b"host", b"localhost")], "client": client}
        gate = access.Gate(Settings(**settings), None)
        found: User | None = asyncio.run(gate.user(Request(scope), None))  # type: ignore[arg-type]
        return found

    assert user_from("127.0.0.1") is not None
    assert user_from("::1") is not None
    assert user_from("127.0.0.1", os.geteuid() + 1) is None
    assert user_from("127.0.0.1", None) is None
    assert user_from("10.0.0.7") is None
    assert user_from(None) is None
    assert user_from("10.0.0.7", insecure=True) is not None


def test_every_answer_tells_browsers_to_be_careful(api: Api) -> None:
    for answer in (api.get("/healthz"), api.get("/nosuch"), api.get("/docs"), api.get("/v1/jobs")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe-inline" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers


def test_a_basic_header_of_odd_bytes_is_only_wrong(serve: Serve) -> None:
    basic = {"ada": ("secret", "admin")}
    with serve(ways=["basic"], basic=basic).client() as api:
        header = "Basic " + base64.b64encode(b"\xff\xfe:x").decode()
        answer = api.get("/v1/queues", headers={"Authorization": header})

    assert answer.status_code == 401


def test_the_id_of_a_token_alone_ends_nothing(serve: Serve, client: Client) -> None:
    token = client.tokens.create("ada", ["read"])
    with serve(ways=["token"]).client() as browser, serve(ways=["token"]).client() as stranger:
        browser.post("/v1/session", json={"token": token.secret})
        session = browser.cookies["holdfast_session"]
        for id in (token.token.id, session.split("_")[1]):
            wrong = f"hf_{id}_{'x' * 43}"
            stranger.delete("/v1/session", headers={"Cookie": f"holdfast_session={wrong}"})
        inside = browser.get("/v1/queues").status_code

    assert inside == 200
    assert client.tokens.check(token.secret) is not None
    assert client.tokens.check(session) is not None


def test_an_admin_of_some_queues_makes_nobody_admin_of_all(serve: Serve, client: Client) -> None:
    token = client.tokens.create("mail admin", ["admin"], queues=["mail"])
    other = client.tokens.create("other", ["read"])
    with serve(ways=["token"]).client(headers={"Authorization": f"Bearer {token.secret}"}) as api:
        answers = [
            api.post("/v1/tokens", json={"name": "all", "scopes": ["admin"]}),
            api.get("/v1/tokens"),
            api.delete(f"/v1/tokens/{other.token.id}"),
            api.get("/v1/system"),
        ]

    assert [(one.status_code, one.json()["code"]) for one in answers] == [(403, "HF401")] * 4
    assert client.tokens.check(other.secret) is not None


def test_callers_of_one_name_do_not_share_keys(serve: Serve, client: Client) -> None:
    one, other = (client.tokens.create("php", ["consume", "produce"]) for _ in range(2))
    for _ in range(2):
        client.enqueue("a")
    ids, leases = [], []
    with serve(ways=["token"]).client() as api:
        for token in (one, other, one):
            headers = {"Authorization": f"Bearer {token.secret}", "Idempotency-Key": "k"}
            claimed = api.post("/v1/claims", json={"worker": "w"}, headers=headers)
            leases.append(claimed.json()["leases"][0]["id"])
            stored = api.post("/v1/jobs", json={"kind": "b", "queue": "b"}, headers=headers)
            ids.append(stored.json()["id"])

    assert ids[0] == ids[2] != ids[1]
    assert leases[0] == leases[2] != leases[1]


def test_a_token_of_some_queues_takes_no_results_of_jobs_of_others(
    serve: Serve, client: Client
) -> None:
    token = client.tokens.create("php", ["produce", "consume"], queues=["mail"])
    near, far = client.enqueue("a", queue="mail"), client.enqueue("a", queue="secret")
    job = {"kind": "b", "queue": "mail", "take": {"x": 1}}
    with serve(ways=["token"]).client(headers={"Authorization": f"Bearer {token.secret}"}) as api:
        answers = [
            api.post("/v1/jobs", json=job | {"after": [str(far.id)]}),
            api.post("/v1/jobs", json=job | {"after": [str(uuid4())]}),
            api.post("/v1/jobs/bulk", json=[job | {"after": [str(far.id)]}]),
        ]
        allowed = api.post("/v1/jobs", json=job | {"after": [str(near.id)]})

    # whether it exists or not
    assert [(one.status_code, one.json()["code"]) for one in answers] == [(422, "HF214")] * 3
    assert allowed.status_code == 201


def test_a_token_of_some_queues_learns_nothing_of_others_by_trying(
    serve: Serve, client: Client
) -> None:
    token = client.tokens.create("php", ["admin"], queues=["mail"])
    for name, queue in (("near", "mail"), ("far", "secret")):
        client.workers.beat(name, queues=[queue], kinds=["a"])
    client.enqueue("a", queue="secret")
    [lease] = client.claim("secret", worker="far")
    mine, theirs = (
        client.operations.start(
            client.operations.preview("cancel", f"kind:nothing {own}", actor="php").token
        )
        for own in ("queue:mail", "queue:secret")
    )
    assert mine is not None
    assert theirs is not None
    with serve(ways=["token"], fresh=0.0).client(
        headers={"Authorization": f"Bearer {token.secret}"}
    ) as api:
        wrong = {"token": "wrong"}
        acked = api.post(f"/v1/jobs/{lease.id}/ack", json=wrong)
        touched = api.put(f"/v1/jobs/{lease.id}/touch", json=wrong)
        items = [{"id": str(lease.id), "verb": "ack", **wrong}]
        [settled] = api.post("/v1/settle", json={"items": items}).json()["results"]
        found = api.get(f"/v1/jobs/{str(lease.id)[-8:]}")
        workers = [one["worker"] for one in api.get("/v1/workers").json()["workers"]]
        operations = [one["id"] for one in api.get("/v1/operations").json()["operations"]]
        stopped = api.delete(f"/v1/operations/{theirs.id}")

    assert [one.status_code for one in (acked, touched, found, stopped)] == [404] * 4
    assert settled["detail"] is None
    assert workers == ["near"]
    assert operations == [str(mine.id)]


def test_a_head_leases_nothing(api: Api, client: Client) -> None:
    client.enqueue("a")

    answers = [api.head("/queue/message"), api.head("/v1/jobs")]

    assert [one.status_code for one in answers] == [405, 200]
    assert client.queues.get("default").leased == 0


@pytest.mark.parametrize("odd", ["[", "]:1", "[::1", "a b", "http://["])
def test_hosts_and_origins_that_are_none_are_refused(api: Api, odd: str) -> None:
    host = api.get("/v1/jobs", headers={"Host": odd})
    origin = api.post("/v1/jobs", json={"kind": "a"}, headers={"Origin": odd})

    assert (host.status_code, origin.status_code) == (421, 403)


@pytest.mark.parametrize(
    "header",
    [
        *("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Forwarded"),
        *("Via", "CF-Connecting-IP", "True-Client-IP", "X-Original-Forwarded-For"),
    ],
)
def test_what_a_proxy_forwards_is_not_this_machine_asking(
    serve: Serve, api: Api, header: str
) -> None:
    with serve(insecure=True).client() as open_to_all:
        answers = [
            asked.get("/v1/jobs", headers={header: "10.0.0.7"}).status_code
            for asked in (api, open_to_all)
        ]

    assert answers == [401, 200]


def test_nobody_is_told_where_the_database_is(serve: Serve) -> None:
    with serve("postgresql://holdfast:secret@127.0.0.1:1/production").client() as api:
        answers = [api.get("/readyz"), api.get("/v1/queues")]

    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "HF100")
        assert not re.search("127.0.0.1|secret|production", answer.text)


@pytest.mark.parametrize("queues", [["*"], ["a,b"], ['a"'], ["mail x"], []])
def test_a_user_has_no_queues_that_would_be_more_in_a_filter(queues: list[str]) -> None:
    with pytest.raises(Misuse):
        User.of("ada", "viewer", queues=queues)


def test_a_head_without_end_is_cut_off(server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as flood:
        flood.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            flood.sendall(b"x" * 50_000_000)


@pytest.mark.parametrize(
    ("headers", "secure"),
    [
        ({"X-Forwarded-Proto": "https"}, True),
        ({"Forwarded": 'for=10.0.0.7;proto="https"'}, True),
        ({"X-Forwarded-Ssl": "on"}, True),
        ({"X-Forwarded-Proto": "http"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("proxies", [["127.0.0.0/8"], []])
def test_a_cookie_got_by_tls_is_sent_by_tls_only(
    serve: Serve, client: Client, proxies: list[str], headers: dict[str, str], secure: bool
) -> None:
    token = client.tokens.create("ada", ["read"])
    with serve(ways=["token"], proxies=proxies).client(headers=headers) as browser:
        answer = browser.post("/v1/session", json={"token": token.secret})

    assert ("Secure" in answer.headers["set-cookie"]) == secure


def test_pages_of_named_origins_may_call_and_others_may_not(serve: Serve) -> None:
    shop, other = "https://shop.example.org", "https://evil.example.org"
    allowed = "access-control-allow-origin"
    asked = {"Access-Control-Request-Method": "POST"}
    with serve(cors=[shop]).client() as api:
        before = api.options("/queue/message", headers={"Origin": shop, **asked})
        sent, foreign = (
            api.post(
                "/queue/message",
                json={"payload": 1},
                headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"},
            )
            for origin in (shop, other)
        )
        looked = api.get("/queue/status", headers={"Origin": other})
        refused = api.options("/queue/message", headers={"Origin": other, **asked})

    assert (before.status_code, before.headers[allowed]) == (204, shop)
    assert "POST" in before.headers["access-control-allow-methods"]
    assert (sent.status_code, sent.headers[allowed], sent.headers["vary"]) == (201, shop, "Origin")
    assert foreign.status_code == 403
    assert [allowed in one.headers for one in (foreign, looked, refused)] == [False] * 3


def test_pages_of_any_origin_may_call_only_with_a_token(serve: Serve, client: Client) -> None:
    secret = client.tokens.create("page", ["produce"]).secret
    page = {"Origin": "https://any.example.org", "Sec-Fetch-Site": "cross-site"}
    with serve(cors=["*"]).client(headers=page) as api:
        without = api.post("/queue/message", json={"payload": 1})
        shown = api.post("/queue/message", json={"payload": 1}, headers={"X-API-Key": secret})

    assert (without.status_code, shown.status_code) == (403, 201)
    assert shown.headers["access-control-allow-origin"] == "*"
