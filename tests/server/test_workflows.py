"""Workflows over HTTP."""

from typing import Any

import pytest

from holdfast import Client, NewJob
from tests.server.conftest import Api

FAN = [
    NewJob(kind="split"),
    *(NewJob(kind="part", after=[1]) for _ in range(3)),
    NewJob(kind="sum", after=[2, 3, 4]),
]


def test_a_workflow_is_listed_and_shown_in_groups_and_job_by_job(api: Api, client: Client) -> None:
    old = client.workflows.start("export", [NewJob(kind="x")]).id
    new = client.workflows.start("import", FAN, key="7", actor="ada").id

    page = api.get("/v1/workflows", params={"limit": 1}).json()
    rest = api.get("/v1/workflows", params={"limit": 1, "cursor": page["cursor"]}).json()
    shown = api.get(f"/v1/workflows/{new}").json()
    [part] = [one for one in shown["groups"] if one["kind"] == "part"]
    jobs = api.get(f"/v1/workflows/{new}/jobs", params={"group": part["group"], "limit": 2}).json()
    more = api.get(f"/v1/workflows/{new}/jobs", params={"cursor": jobs["cursor"]}).json()

    listed = [page["workflows"][0]["id"], rest["workflows"][0]["id"]]
    assert listed == sorted((str(new), str(old)), reverse=True)
    assert rest["cursor"] is None
    assert (shown["state"], shown["key"], shown["created_by"]) == ("running", "7", "ada")
    assert shown["jobs"] == {
        "total": 5,
        "waiting": 4,
        "queued": 1,
        **dict.fromkeys(("leased", "done", "dead", "cancelled"), 0),
    }
    assert [one["kind"] for one in shown["groups"]] == ["split", "part", "sum"]
    assert part["after"] == [shown["groups"][0]["group"]]
    assert [one["kind"] for one in (*jobs["jobs"], *more["jobs"])] == ["part"] * 3 + ["sum"]
    assert more["jobs"][-1]["waits_for"] == 3


def test_a_job_names_its_workflow_and_lists_can_be_filtered_by_it(api: Api, client: Client) -> None:
    client.enqueue("other")
    started = client.workflows.start("import", FAN)

    listed = api.get("/v1/jobs", params={"q": f"workflow:{started.id} kind:part"}).json()["jobs"]
    shown = api.get(f"/v1/jobs/{started.jobs[0].id}").json()
    by_job = api.get(f"/v1/workflows/{started.jobs[4].id}").json()

    assert len(listed) == 3
    assert shown["workflow"] == by_job["id"] == str(started.id)


def test_a_token_for_some_queues_sees_only_workflows_within_them(api: Api, client: Client) -> None:
    mine = client.workflows.start("import", [NewJob(kind="x", queue="mail")]).id
    other = client.workflows.start("import", [NewJob(kind="x"), NewJob(kind="x", queue="mail")]).id
    body = {"name": "php", "scopes": ["read", "produce"], "queues": ["mail"]}
    token = api.post("/v1/tokens", json=body).json()["secret"]
    headers = {"Authorization": f"Bearer {token}"}

    listed = api.get("/v1/workflows", headers=headers).json()["workflows"]
    hidden = api.get(f"/v1/workflows/{other}", headers=headers)
    joined = api.post(
        "/v1/jobs",
        headers=headers,
        json={"kind": "x", "queue": "mail", "workflow": str(other)},
    )

    assert [one["id"] for one in listed] == [str(mine)]
    assert (hidden.status_code, hidden.json()["code"]) == (404, "HF320")
    assert joined.status_code == 403


def of_mail(api: Api, *scopes: str) -> dict[str, str]:
    """The headers of a user who may use the queue mail only."""
    body = {"name": "php", "scopes": list(scopes), "queues": ["mail"]}
    return {"Authorization": f"Bearer {api.post('/v1/tokens', json=body).json()['secret']}"}


@pytest.mark.parametrize("state", ["queued", "dead"])
def test_what_was_moved_to_a_queue_of_others_is_no_longer_the_users(
    api: Api, client: Client, state: str
) -> None:
    headers = of_mail(api, "read", "operate")
    started = client.workflows.start("import", [NewJob(kind="x", queue="mail", max_attempts=1)])
    place = f"/v1/workflows/{started.id}"
    if state == "dead":
        client.nack(client.claim("mail", worker="w"), error_kind="x", message="m")
    before = api.get(place, headers=headers).status_code
    client.jobs.move([started.jobs[0].id], "secret")

    answers = [
        api.get(place, headers=headers),
        api.get(f"{place}/jobs", headers=headers),
        api.post(f"{place}/cancel", json={}, headers=headers),
        api.post(f"{place}/retry", json={}, headers=headers),
    ]

    assert before == 200
    assert [one.status_code for one in answers] == [404] * 4
    assert api.get("/v1/workflows", headers=headers).json()["workflows"] == []
    assert [job.state for job in client.jobs.list("queue:secret")] == [state]


def test_a_user_of_some_queues_sees_and_undoes_the_cancel_that_they_began(
    api: Api, client: Client
) -> None:
    headers = of_mail(api, "read", "operate")
    started = client.workflows.start("import", [NewJob(kind="x", queue="mail")])

    begun = api.post(f"/v1/workflows/{started.id}/cancel", json={}, headers=headers)
    place = begun.headers["Location"]
    ended(api, begun.json()["id"])
    seen = api.get(place, headers=headers)
    undo = api.post(f"{place}/undo", json={}, headers=headers)
    ended(api, undo.json()["id"])

    assert (seen.status_code, seen.json()["changed"]) == (200, 1)
    assert undo.status_code == 202
    assert [job.state for job in client.jobs.list("queue:mail")] == ["queued"]


def test_a_workflow_without_jobs_is_not_for_a_user_of_some_queues(api: Api, client: Client) -> None:
    headers = of_mail(api, "read", "operate")
    empty = client.workflows.start("import").id

    listed = api.get("/v1/workflows", headers=headers).json()["workflows"]
    cancelled = api.post(f"/v1/workflows/{empty}/cancel", json={}, headers=headers)

    assert (listed, cancelled.status_code) == ([], 404)


def test_an_unknown_workflow_is_not_found(api: Api) -> None:
    for id in ("01a1ddb2-de2b-801b-9129-ff06521fdfc7", "nosuch", "4711f00d"):
        answer = api.get(f"/v1/workflows/{id}")
        assert (answer.status_code, answer.json()["code"]) == (404, "HF320")
    assert api.get("/v1/workflows", params={"cursor": "x"}).status_code == 422


def test_a_workflow_is_cancelled_and_retried_as_an_operation(api: Api, client: Client) -> None:
    started = client.workflows.start("import", FAN)
    place = f"/v1/workflows/{started.id}"
    outside = str(client.enqueue("other").id)

    cancelled = api.post(f"{place}/cancel", json={"reason": "wrong file"})
    ended(api, cancelled.json()["id"])
    state = api.get(place).json()["state"]
    again = api.post(f"{place}/cancel", json={})
    foreign = api.post(f"{place}/retry", json={"from_job": outside})
    retried = api.post(f"{place}/retry", json={"from_job": str(started.jobs[4].id)})
    last = ended(api, retried.json()["id"])

    assert (cancelled.status_code, state) == (202, "cancelled")
    assert (again.status_code, again.json()["code"]) == (409, "HF409")
    assert (foreign.status_code, foreign.json()["code"]) == (422, "HF215")
    assert (retried.status_code, last["changed"]) == (202, 1)
    assert api.post("/v1/workflows/4711f00d/cancel", json={}).status_code == 404


def ended(api: Api, id: str) -> Any:
    while True:
        told = api.get(f"/v1/operations/{id}").json()
        if told["state"] != "running":
            return told
