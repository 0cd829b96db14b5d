"""Names and texts that mean something elsewhere mean nothing here: they come back as they went."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import Client
from holdfast.server import Server, Settings
from tests.server.conftest import Api
from tests.server.serving import serving

CORPUS = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "'; drop table holdfast.job; --",
    '"; drop schema holdfast cascade; --',
    "' or '1'='1",
    'a" or ""="',
    "$$; select pg_sleep(10); $$",
    "%s %(name)s %%",
    "{{7*7}} ${7*7} #{7*7}",
    "../../etc/passwd",
    "pg_temp.x",
    "a.b.c",
    "\\",
    "*",
    "😀" * 20,
    "a" * 100,
    "न\u200dम",
]
TEXTS = pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))


@pytest.fixture(scope="module")
def api(shared: str) -> Iterator[Api]:
    """A client of one server for all these tests."""
    with (
        serving(Server(shared, settings=Settings(fresh=0.0))) as server,
        server.client() as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(shared: str) -> Iterator[Client]:
    """Its database without the server in between."""
    with Client(shared) as opened:
        yield opened


@TEXTS
def test_a_text_in_every_field_is_only_a_text(api: Api, client: Client, text: str) -> None:
    before = _tables(client)

    stored = api.post(
        "/v1/jobs",
        json={
            "kind": text,
            "queue": text,
            "payload": {text: text},
            "tenant": text,
            "key": text,
            "lane": text,
            "subject": text,
            "headers": {text: text},
        },
    )
    [lease] = api.post(
        "/v1/claims", json={"worker": text, "queues": [text], "kinds": [text]}
    ).json()["leases"]
    failed = api.post(
        f"/v1/jobs/{lease['id']}/nack",
        json={
            "token": lease["token"],
            "error": {"kind": text, "message": text, "traceback": text},
            "final": True,
        },
    )
    job = api.get(f"/v1/jobs/{lease['id']}", params={"include": "attempts"})
    path = f"/v1/queues/{quote(text, safe='')}"
    queue = api.get(path)
    paused = api.post(f"{path}/pause", json={"reason": text})
    scheduled = api.put(
        f"/v1/schedules/{quote(text, safe='')}", json={"kind": text, "every": 60, "queue": text}
    )
    drained = api.post(f"{path}/drain", json={"reason": text})
    token = api.post("/v1/tokens", json={"name": text, "scopes": ["read"]})

    assert (stored.status_code, failed.status_code) == (201, 200)
    told = job.json()
    assert (told["kind"], told["queue"], told["payload"]) == (text, text, {text: text})
    assert (told["tenant"], told["key"], told["lane"], told["subject"]) == (text,) * 4
    assert told["attempts"][0]["traceback"] == text
    assert queue.json()["queue"] == text
    assert paused.json()["paused_reason"] == text
    assert scheduled.json()["name"] == text
    assert drained.status_code == 202
    assert token.json()["name"] == text
    assert _tables(client) == before
    for answer in (stored, failed, job, queue, paused, scheduled, token):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"


@TEXTS
def test_a_text_in_a_filter_finds_or_is_refused(api: Api, client: Client, text: str) -> None:
    before = _tables(client)
    client.enqueue("a")
    filters = [text, f"kind:{text}", f"payload.{text}:x", f'error:"{text}"', f"id:{text}"]

    statuses = {api.get("/v1/jobs", params={"q": filter}).status_code for filter in filters}

    assert statuses <= {200, 422}
    assert _tables(client) == before


@pytest.mark.parametrize(
    "text", ["a\x00b", "a\nb", "\x1b[31m", "", "x" * 300, "\x85", "\u202egnp.exe", "a\ufeff"]
)
@pytest.mark.parametrize("field", ["kind", "queue", "tenant", "lane"])
def test_a_name_that_cannot_be_shown_is_refused(api: Api, field: str, text: str) -> None:
    answer = api.post("/v1/jobs", json={"kind": "a", field: text})

    assert answer.status_code == 422
    assert field in answer.json()["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/%00",
        "/v1/jobs/..%2f..%2f",
        "/v1/queues/%00",
        "/v1/queues/%0a",
        "/v1/schedules/%00",
        "/v1/operations/99999999999999999999",
        "/v1/operations/-1",
        "/v1/tokens/%00",
        "/errors/%3Cscript%3E",
        "/assets/..%2f..%2fasgi.py",
    ],
)
def test_an_odd_address_is_no_failure(api: Api, path: str) -> None:
    for method in ("GET", "DELETE", "PATCH"):
        answer = api.request(method, path, json={"limit": 1} if method == "PATCH" else None)
        assert answer.status_code in (404, 405, 409, 422), answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def _tables(client: Client) -> Any:
    import psycopg

    with psycopg.connect(client.url) as connection:
        return connection.execute(
            "select c.relname from pg_class c "
            "where c.relnamespace = 'holdfast'::regnamespace and c.relname !~ '_\\d{8}' order by 1"
        ).fetchall()
