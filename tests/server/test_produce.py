"""Storing jobs over HTTP."""

import json
from datetime import UTC, datetime, timedelta
from threading import Barrier, Thread
from uuid import uuid4

import pytest

from holdfast import Client
from holdfast.records import NewStep, Suspended
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving


def test_who_enqueues_into_a_busy_lane_is_told_who_holds_it(api: Api, client: Client) -> None:
    first = client.enqueue("post", lane="bank")
    client.claim(worker="w1")

    answer = api.post("/v1/jobs", json={"kind": "post", "lane": "bank"}).json()
    free = api.post("/v1/jobs", json={"kind": "post"}).json()

    assert (answer["behind"], answer["holder"]) == (str(first.id), "w1")
    assert datetime.fromisoformat(answer["held_since"]) < datetime.now(UTC)
    assert not {"behind", "holder", "held_since"} & free.keys()


def test_a_job_is_stored_as_it_was_said(api: Api, client: Client) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)

    answer = api.post(
        "/v1/jobs",
        json={
            "kind": "send_email",
            "payload": {"to": "a@example.org", "price": 1.10},
            "queue": "mail",
            "priority": 5,
            "key": "welcome-17",
            "run_at": at.isoformat(),
            "max_attempts": 5,
            "tenant": "acme",
            "subject": "user/7",
            "headers": {"traceparent": "00-1"},
        },
    )

    job = client.jobs.get(answer.json()["id"])
    assert answer.status_code == 201
    assert answer.json() == {
        "id": str(job.id),
        "state": "queued",
        "created": True,
        "run_at": at.isoformat().replace("+00:00", "Z"),
    }
    assert (job.queue, job.kind, job.priority, job.key) == ("mail", "send_email", 5, "welcome-17")
    assert (job.run_at, job.max_attempts, job.tenant, job.subject) == (at, 5, "acme", "user/7")
    assert job.payload == {"to": "a@example.org", "price": 1.1}
    assert job.headers == {"traceparent": "00-1"}


def test_digits_of_a_payload_are_kept(api: Api, client: Client) -> None:
    body = b'{"kind": "pay", "payload": {"price": 1.10, "id": 12345678901234567890123}}'

    answer = api.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})

    stored = client.jobs.get(answer.json()["id"]).payload_json
    assert stored == '{"id": 12345678901234567890123, "price": 1.10}'


@pytest.mark.proves("S3.14")
def test_a_duplicate_is_200_and_names_the_live_job(api: Api) -> None:
    first = api.post("/v1/jobs", json={"kind": "a", "key": "k"})

    second = api.post("/v1/jobs", json={"kind": "a", "key": "k"})

    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["created"] is False
    assert second.json()["id"] == second.json()["duplicate_of"] == first.json()["id"]


@pytest.mark.parametrize(
    ("body", "status", "code", "told"),
    [
        (b"{", 400, "HF406", "not JSON"),
        (b'{"kind": "a", "payload": NaN}', 400, "HF406", "not JSON"),
        (b"\xff", 400, "HF406", "not JSON"),
        (b'{"kind": "a", "headers": {"a": ' + b"[" * 100_000, 400, "HF406", "nested too deeply"),
        (b"[]", 422, "HF406", "Expected `object`"),
        (b"{}", 422, "HF406", "missing required field `kind`"),
        (b'{"kind": ""}', 422, "HF406", "$.kind"),
        (b'{"kind": "a", "priorty": 3}', 422, "HF406", "priorty"),
        (b'{"kind": "a", "priority": 10}', 422, "HF406", "<= 9"),
        (b'{"kind": "a\\u0000"}', 422, "HF406", "$.kind"),
        (b'{"kind": "a", "payload": "\\u0000"}', 422, "HF204", "NUL"),
        (b'{"kind": "a", "run_at": "2030-01-01T00:00:00"}', 422, "HF406", "run_at"),
        (b'{"kind": "a", "id": "nonsense"}', 422, "HF205", "nonsense"),
        (b'{"kind": "a", "payload": "' + b"x" * 300_000 + b'"}', 413, "HF210", "262144"),
    ],
)
def test_what_is_no_job_is_refused_with_the_value(
    api: Api, body: bytes, status: int, code: str, told: str
) -> None:
    answer = api.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert told in answer.json()["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_unknown_field_brings_the_nearest_known(api: Api) -> None:
    answer = api.post("/v1/jobs", json={"kind": "a", "priorty": 3})

    assert answer.json()["fix"] == "Did you mean `priority`?"


def test_a_payload_nested_to_the_limit_of_the_database_is_no_failure_of_the_server(
    api: Api,
) -> None:
    depth = 20_000
    body = b'{"kind": "a", "payload": ' + b"[" * depth + b"]" * depth + b"}"

    answer = api.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code in (400, 413, 422)


def test_a_body_over_the_limit_is_refused_before_it_is_read(serve: Serve) -> None:
    with serve(body_limit=1000).client() as api:
        announced = api.post("/v1/jobs", json={"kind": "a", "payload": "x" * 2000})
        streamed = api.post(
            "/v1/jobs",
            content=(b"x" * 600 for _ in range(2)),
            headers={"Content-Type": "application/json"},
        )

    assert (announced.status_code, announced.json()["code"]) == (413, "HF413")
    assert (streamed.status_code, streamed.json()["code"]) == (413, "HF413")


def test_a_form_is_refused_and_the_fix_says_how_to_send_json(api: Api) -> None:
    answer = api.post("/v1/jobs", data={"kind": "a"})

    assert (answer.status_code, answer.json()["code"]) == (415, "HF406")
    assert "application/json" in answer.json()["fix"]


def test_lines_are_stored_and_bad_ones_told_by_their_index(api: Api, client: Client) -> None:
    lines = [
        '{"kind": "a", "queue": "bulk"}',
        "nonsense",
        '{"kind": "b", "queue": "bulk", "key": "k"}',
        '{"kind": "b", "queue": "bulk", "key": "k"}',
        json.dumps({"kind": "c", "payload": "x" * 300_000}),
        '{"kind": "d", "queue": "bulk", "priority": "high"}',
    ]

    answer = api.post(
        "/v1/jobs/bulk",
        content="\n".join(lines),
        headers={"Content-Type": "application/x-ndjson"},
    )

    told = answer.json()
    assert answer.status_code == 200
    assert (told["created"], told["skipped"]) == (2, 1)
    assert [(one["index"], one["code"]) for one in told["errors"]] == [
        (1, "HF406"),
        (4, "HF210"),
        (5, "HF406"),
    ]
    assert [(one["index"], one["created"]) for one in told["jobs"]] == [
        (0, True),
        (2, True),
        (3, False),
    ]
    assert client.queues.get("bulk").queued == 2


def test_an_array_of_thousands_is_stored_in_one_request(api: Api, client: Client) -> None:
    answer = api.post("/v1/jobs/bulk", json=[{"kind": "a", "queue": "many"}] * 3000)

    assert answer.json()["created"] == 3000
    assert client.queues.get("many").queued == 3000


def test_a_request_with_a_key_is_answered_the_same_and_done_once(api: Api, client: Client) -> None:
    headers = {"Idempotency-Key": "order-42"}

    first = api.post("/v1/jobs", json={"kind": "a"}, headers=headers)
    second = api.post("/v1/jobs", json={"kind": "a"}, headers=headers)

    assert first.status_code == second.status_code == 201
    assert first.content == second.content
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert client.queues.get("default").queued == 1


@pytest.mark.proves("S4.34")
def test_a_key_is_remembered_by_all_servers_of_a_database(serve: Serve, client: Client) -> None:
    headers = {"Idempotency-Key": "order-42"}
    with serve().client() as one, serve().client() as other:
        answers = [
            api.post("/v1/jobs", json={"kind": "a"}, headers=headers) for api in (one, other)
        ]

    assert answers[0].content == answers[1].content
    assert client.queues.get("default").queued == 1


def test_a_key_used_for_something_else_is_refused(api: Api, client: Client) -> None:
    headers = {"Idempotency-Key": "order-42"}
    api.post("/v1/jobs", json={"kind": "a"}, headers=headers)

    answer = api.post("/v1/jobs", json={"kind": "b"}, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (422, "HF411")
    assert client.queues.get("default").queued == 1


def test_a_refused_request_leaves_its_key_unused(api: Api) -> None:
    headers = {"Idempotency-Key": "order-42"}
    refused = api.post(
        "/v1/jobs",
        json={"kind": "a", "delay": 1, "run_at": "2030-01-01T00:00:00Z"},
        headers=headers,
    )

    answer = api.post("/v1/jobs", json={"kind": "a"}, headers=headers)

    assert (refused.status_code, answer.status_code) == (422, 201)


def test_many_requests_with_one_key_at_once_store_one_job(server: Serving, client: Client) -> None:
    key, start, answers = str(uuid4()), Barrier(8), []

    def ask() -> None:
        with server.client() as api:
            start.wait()
            answers.append(
                api.post("/v1/jobs", json={"kind": "a"}, headers={"Idempotency-Key": key})
            )

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {answer.content for answer in answers} == {answers[0].content}
    assert client.queues.get("default").queued == 1


def test_a_bulk_with_bad_lines_can_be_repeated_by_its_key(api: Api, client: Client) -> None:
    jobs = [{"kind": "a"}, {"kind": "a", "payload": "x" * 300_000}, {"kind": "a"}]
    headers = {"Idempotency-Key": "import-1"}

    first = api.post("/v1/jobs/bulk", json=jobs, headers=headers)
    second = api.post("/v1/jobs/bulk", json=jobs, headers=headers)

    assert first.content == second.content
    assert (first.json()["created"], len(first.json()["errors"])) == (2, 1)
    assert client.queues.get("default").queued == 2


def test_the_request_id_is_echoed(api: Api) -> None:
    given = api.post("/v1/jobs", json={}, headers={"X-Request-Id": "abc-1"})
    made = api.get("/healthz")

    assert given.headers["x-request-id"] == given.json()["request_id"] == "abc-1"
    assert len(made.headers["x-request-id"]) == 16


TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ({"traceparent": TRACE}, {"traceparent": TRACE}),
        (
            {"traceparent": TRACE, "tracestate": "a=b"},
            {"traceparent": TRACE, "tracestate": "a=b"},
        ),
        ({"traceparent": "nonsense"}, {}),
        ({"traceparent": TRACE.replace("ab", "00")}, {}),
        ({"tracestate": "a=b"}, {}),
    ],
)
def test_jobs_belong_to_the_trace_of_their_request(
    api: Api, client: Client, sent: dict[str, str], stored: dict[str, str]
) -> None:
    api.post("/v1/jobs", json={"kind": "a"}, headers=sent)
    api.post("/v1/jobs/bulk", json=[{"kind": "a", "headers": {"x": 1}}], headers=sent)

    one, another = client.claim(worker="w", limit=2)

    assert one.headers == stored
    assert another.headers == {"x": 1, **stored}


def test_a_job_may_name_a_trace_of_its_own(api: Api, client: Client) -> None:
    other = TRACE.replace("ab", "ef")
    job = {"kind": "a", "headers": {"traceparent": other}}
    api.post("/v1/jobs", json=job, headers={"traceparent": TRACE, "tracestate": "a=b"})

    [lease] = client.claim(worker="w")

    assert lease.headers == {"traceparent": other}


def test_jobs_of_one_request_wait_for_one_another(api: Api, client: Client) -> None:
    told = api.post(
        "/v1/jobs/bulk",
        json=[
            {"kind": "a"},
            {"kind": "b", "after": [1], "take": {"x": 1}, "if_failed": "run"},
        ],
    ).json()
    follower = told["jobs"][1]["id"]
    last = api.post("/v1/jobs", json={"kind": "c", "after": [follower]})

    assert (told["created"], last.status_code) == (2, 201)
    [first] = client.claim(worker="w", limit=9)
    assert (first.kind, first.followed) == ("a", True)
    client.ack([first], results=[7])
    [second] = client.claim(worker="w", limit=9)
    assert (second.kind, second.payload) == ("b", {"x": 7})


def test_of_jobs_that_wait_for_one_another_all_are_stored_or_none(api: Api, client: Client) -> None:
    broken = [{"kind": "a"}, {"kind": "b", "after": [1]}, {"kind": ""}]
    told = api.post("/v1/jobs/bulk", json=broken).json()
    backwards = api.post("/v1/jobs/bulk", json=[{"kind": "a", "after": [2]}, {"kind": "b"}])
    unknown = api.post("/v1/jobs", json={"kind": "a", "after": [str(uuid4())]})
    number = api.post("/v1/jobs", json={"kind": "a", "after": [1]})

    assert (told["created"], len(told["errors"])) == (0, 1)
    for refused in ({"kind": ""}, {"kind": "b", "id": "x"}, {"kind": 7}):
        some = [{"kind": "a"}, refused | {"after": [1]}, {"kind": "c"}]
        told = api.post("/v1/jobs/bulk", json=some).json()
        assert (told["created"], len(told["errors"])) == (0, 1)
    for answer in (backwards, unknown, number):
        assert (answer.status_code, answer.json()["code"]) == (422, "HF214")
    assert client.jobs.list() == []


def test_an_event_wakes_the_job_that_waits_and_its_steps_are_shown(
    api: Api, client: Client
) -> None:
    id = client.enqueue("refund").id
    [lease] = client.claim(worker="w1")
    client.steps.store([(lease, NewStep("charge", b'{"receipt": 7}', 1, 0.5))])
    client.settle([Suspended(lease, "approval", 2, event="approved", key="42")])

    answer = api.post("/v1/events", json={"name": "approved", "key": "42", "payload": {"by": 1}})

    assert (answer.status_code, answer.json()) == (202, {"sent": "approved"})
    assert [again.id for again in client.claim(worker="w1")] == [id]
    shown = api.get(f"/v1/jobs/{id}", params={"include": "steps"}).json()["steps"]
    assert [(one["name"], one["kind"], one["result"]) for one in shown] == [
        ("charge", "step", {"receipt": 7}),
        ("approval", "event", {"by": 1}),
    ]


def test_an_event_is_refused_to_who_may_use_only_some_queues(
    api: Api, client: Client, serve: Serve
) -> None:
    token = client.tokens.create("mail", ["produce"], queues=["mail"])
    with serve(ways=["token"]).client(headers={"Authorization": f"Bearer {token.secret}"}) as some:
        refused = some.post("/v1/events", json={"name": "approved"})

    assert (refused.status_code, refused.json()["code"]) == (403, "HF401")
    assert api.post("/v1/events", json={"name": ""}).status_code == 422
