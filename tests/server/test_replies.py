"""Links for replies over HTTP: somebody without an account answers one wait of one job, once."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from holdfast import Client
from holdfast.records import Lease, Suspended
from tests.server.conftest import Serve
from tests.server.serving import Serving

SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "note": {"type": "string"}},
    "required": ["approved"],
}


@pytest.fixture
def closed(serve: Serve) -> Serving:
    """A server that lets nobody in without a token."""
    return serve(fresh=0.0, upkeep=False, ways=("token",))


@pytest.fixture
def person(closed: Serving) -> Iterator[httpx.Client]:
    """Somebody without an account."""
    with closed.client() as opened:
        yield opened


def waiting(client: Client, schema: Any = SCHEMA) -> Lease:
    client.enqueue("refund")
    [lease] = client.claim("default", worker="w")
    client.settle([Suspended(lease, "event approved", event="approved", schema=schema)])
    return lease


def address(client: Client, lease: Lease, **more: str) -> str:
    return client.replies.link(lease.id, "event approved", **more).url("")


def test_somebody_without_an_account_answers_one_wait_once(
    person: httpx.Client, client: Client
) -> None:
    lease = waiting(client)
    url = address(client, lease, question="Refund 42 €?")

    shown = [person.get(url) for _ in range(3)]
    sent = person.post(url, data={"approved": "true", "note": "fine"})
    again = person.post(url, data={"approved": "false"})
    later = person.get(url)

    assert {one.status_code for one in shown} == {200}
    assert "Refund 42 €?" in shown[0].text
    assert 'name="approved"' in shown[0].text
    assert (sent.status_code, again.status_code, later.status_code) == (200, 410, 410)
    [step] = client.steps.list(lease.id)
    assert step.result == {"approved": True, "note": "fine"}
    assert len(client.claim("default", worker="w")) == 1


def test_the_page_sets_no_cookie_and_is_kept_nowhere(person: httpx.Client, client: Client) -> None:
    shown = person.get(address(client, waiting(client)))

    assert "set-cookie" not in shown.headers
    assert shown.headers["cache-control"] == "no-store"
    assert shown.headers["x-frame-options"] == "DENY"
    assert "form-action 'self'" in shown.headers["content-security-policy"]
    assert "<script" not in shown.text


def test_a_link_opens_nothing_else(person: httpx.Client, client: Client) -> None:
    lease = waiting(client)
    secret = client.replies.link(lease.id, "event approved").secret

    by_header = person.get("/v1/jobs", headers={"Authorization": f"Bearer {secret}"})
    by_cookie = person.get("/v1/jobs", headers={"Cookie": f"holdfast_session={secret}"})
    signed_in = person.post("/v1/session", json={"token": secret})
    by_link = person.post(f"/sign-in?link={secret}")

    for answer in (by_header, by_cookie, signed_in, by_link):
        assert answer.status_code in (401, 429)


def test_what_does_not_fit_is_shown_again_and_the_link_still_works(
    person: httpx.Client, client: Client
) -> None:
    url = address(client, waiting(client))

    refused = person.post(url, data={"approved": "perhaps", "note": "<b>so</b>"})
    sent = person.post(url, data={"approved": "false"})

    assert refused.status_code == 422
    assert "approved is not yes or no" in refused.text
    assert "&lt;b&gt;so&lt;/b&gt;" in refused.text
    assert sent.status_code == 200


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"answer": True}},
        {"type": "object", "properties": {"answer": {"pattern": "(?<x>a"}}, "required": 5},
        {"type": "string", "pattern": r"^\p{L}+$"},
        {"anyOf": [True]},
        {"enum": 5, "type": {}},
        {"type": "string", "minLength": "x", "format": ["date"]},
        {"default": msgspec.Raw(b"[" * 600 + b"]" * 600)},
        {"minimum": msgspec.Raw(b"1e9000")},
    ],
)
def test_a_schema_of_another_language_is_shown_and_left_to_the_job(
    person: httpx.Client, client: Client, schema: Any
) -> None:
    lease = waiting(client, schema)
    url = address(client, lease)

    shown = person.get(url)
    sent = person.post(url, data={"answer": '"x"'})

    assert (shown.status_code, sent.status_code) == (200, 200)
    assert 'name="answer"' in shown.text
    [step] = client.steps.list(lease.id)
    assert "x" in str(step.result)


def test_a_pattern_does_not_stop_the_server(person: httpx.Client, client: Client) -> None:
    field = {"type": "string", "pattern": "^(a+)+$"}
    url = address(client, waiting(client, {"type": "object", "properties": {"code": field}}))

    refused = person.post(url, data={"code": "a" * 200 + "!"})
    sent = person.post(url, data={"code": "a" * 200})

    assert refused.status_code == 422
    assert "code does not have the right form" in refused.text
    assert sent.status_code == 200


@pytest.mark.parametrize("text", ["1e999", '"\\ud800"', '["\\u0000"]', "[" * 5000 + "]" * 5000])
def test_an_answer_that_cannot_be_stored_is_refused(
    person: httpx.Client, client: Client, text: str
) -> None:
    url = address(client, waiting(client, {"title": "Anything"}))

    assert person.post(url, data={"answer": text}).status_code == 422
    assert person.post(url, data={"answer": "1"}).status_code == 200


def test_a_page_of_another_site_cannot_send_the_form(person: httpx.Client, client: Client) -> None:
    url = address(client, waiting(client))

    foreign = person.post(url, data={"approved": "true"}, headers={"Origin": "https://evil.test"})
    told = person.post(url, data={"approved": "true"}, headers={"Sec-Fetch-Site": "cross-site"})

    assert (foreign.status_code, told.status_code) == (403, 403)
    assert person.get(url).status_code == 200


@pytest.mark.parametrize("secret", ["", "x", "hf_" + "0" * 12 + "_" + "A" * 43, "<script>", "\0"])
def test_a_wrong_link_says_no_more_than_that(person: httpx.Client, secret: str) -> None:
    shown = person.get("/reply", params={"link": secret})
    sent = person.post("/reply", params={"link": secret}, data={"approved": "true"})

    assert (shown.status_code, sent.status_code) == (404, 404)
    assert shown.text == sent.text
    assert "<script" not in shown.text


def test_a_question_is_text_whatever_it_contains(person: httpx.Client, client: Client) -> None:
    url = address(client, waiting(client), question="<img src=x onerror=alert(1)>\nSecond line")

    shown = person.get(url).text

    assert "<img" not in shown
    assert "<p>Second line</p>" in shown


def test_a_form_is_neither_huge_nor_of_another_type(person: httpx.Client, client: Client) -> None:
    url = address(client, waiting(client))

    huge = person.post(url, data={"approved": "true", "note": "x" * 70_000})
    typed = person.post(url, json={"approved": True})

    assert (huge.status_code, typed.status_code) == (413, 415)


def test_a_program_makes_and_revokes_a_link(serve: Serve, client: Client) -> None:
    lease = waiting(client)
    server = serve(fresh=0.0, upkeep=False)
    with server.client() as api:
        body = {"step": "event approved", "question": "May we?", "expires": 60}
        made = api.post(f"/v1/jobs/{lease.id}/reply-links", json=body)
        shown = api.get(made.json()["path"])
        revoked = api.delete(f"/v1/reply-links/{made.json()['id']}")
        after = api.get(made.json()["path"])
        unknown = api.delete("/v1/reply-links/nothing")

    assert made.status_code == 201
    assert re.fullmatch(r"/reply\?link=hf_[0-9a-f]{12}_[\w-]{43}", made.json()["path"])
    assert (shown.status_code, revoked.status_code) == (200, 200)
    assert (after.status_code, unknown.status_code) == (404, 404)


def test_a_token_for_other_queues_makes_no_link(serve: Serve, client: Client) -> None:
    lease = waiting(client)
    server = serve(fresh=0.0, upkeep=False, ways=("token",))
    token = client.tokens.create("php", ["produce"], queues=["mail"]).secret
    with server.client() as api:
        body = {"step": "event approved"}
        headers = {"Authorization": f"Bearer {token}"}
        refused = api.post(f"/v1/jobs/{lease.id}/reply-links", json=body, headers=headers)

    assert refused.status_code == 404


def test_before_the_job_waits_the_page_says_so(person: httpx.Client, client: Client) -> None:
    client.enqueue("refund")
    [lease] = client.claim("default", worker="w")

    shown = person.get(address(client, lease))

    assert shown.status_code == 409
    assert urlsplit(str(shown.url)).path == "/reply"
