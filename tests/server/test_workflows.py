"""Workflows over HTTP."""

from threading import Barrier, Thread
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Client, NewJob
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving

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


ALBUM = [
    {"kind": "resize", "queue": "images", "payload": {"file": "a"}},
    {"kind": "resize", "queue": "images", "payload": {"file": "b"}},
    {"kind": "publish", "queue": "web", "after": [1, 2], "take": {"files": "all"}},
]


def nothing_stored(client: Client) -> bool:
    return client.jobs.list() == [] and client.workflows.list() == []


def test_a_workflow_is_started_with_jobs_of_several_queues_in_order(
    api: Api, client: Client
) -> None:
    body = {"name": "album", "key": "17", "deadline": 3600, "jobs": ALBUM}
    answer = api.post("/v1/workflows", json=body)
    told = answer.json()
    shown = api.get(f"/v1/workflows/{told['id']}").json()

    assert (answer.status_code, told["created"]) == (201, True)
    assert [(one["index"], one["created"]) for one in told["jobs"]] == [
        (0, True),
        (1, True),
        (2, True),
    ]
    assert (shown["name"], shown["key"], shown["state"]) == ("album", "17", "running")
    assert shown["created_by"] == "local"
    assert (shown["jobs"]["queued"], shown["jobs"]["waiting"]) == (2, 1)
    kept = client.workflows.get(told["id"])
    assert kept is not None
    assert kept.deadline is not None
    assert (kept.deadline - kept.created_at).total_seconds() == 3600
    client.ack(client.claim("images", worker="w", limit=2), results=["a-small", "b-small"])
    [last] = client.claim("web", worker="w")
    assert str(last.id) == told["jobs"][2]["id"]
    assert last.payload == {"files": ["a-small", "b-small"]}


def test_a_workflow_whose_key_is_in_use_is_not_stored_and_the_live_one_is_named(
    api: Api, client: Client
) -> None:
    body = {"name": "album", "key": "17", "jobs": ALBUM}
    first = api.post("/v1/workflows", json=body)
    second = api.post("/v1/workflows", json=body | {"jobs": [{"kind": "other"}]})
    elsewhere = api.post("/v1/workflows", json=body | {"name": "book"})

    assert (second.status_code, second.json()) == (
        200,
        {"id": first.json()["id"], "created": False, "jobs": []},
    )
    assert elsewhere.status_code == 201
    assert client.jobs.list("kind:other") == []


def test_a_job_of_a_workflow_whose_key_is_in_use_stands_for_the_live_one(
    api: Api, client: Client
) -> None:
    live = client.enqueue("fetch", key="k").id
    jobs = [{"kind": "fetch", "key": "k"}, {"kind": "sum", "after": [1]}]
    told = api.post("/v1/workflows", json={"name": "sum", "jobs": jobs}).json()

    assert told["jobs"][0] == {
        "index": 0,
        "id": str(live),
        "created": False,
        "duplicate_of": str(live),
    }
    assert client.workflows.jobs(told["id"])[0].after == [live]


def test_a_start_with_an_idempotency_key_is_answered_the_same_and_done_once(
    server: Serving, client: Client
) -> None:
    body = {"name": "album", "jobs": ALBUM}
    start, answers = Barrier(4), []

    def ask() -> None:
        with server.client() as api:
            start.wait()
            answers.append(
                api.post("/v1/workflows", json=body, headers={"Idempotency-Key": "album-17"})
            )

    threads = [Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {answer.status_code for answer in answers} == {201}
    assert {answer.content for answer in answers} == {answers[0].content}
    assert len(client.workflows.list()) == 1
    assert len(client.jobs.list()) == 3


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "many"}], ids=["plain", "keyed"])
def test_a_workflow_of_thousands_is_started_in_one_request(
    api: Api, client: Client, key: dict[str, str]
) -> None:
    jobs = [
        {"kind": "split"},
        *({"kind": "part", "after": [1]} for _ in range(5998)),
        {"kind": "sum", "after": list(range(2, 6000))},
    ]
    told = api.post("/v1/workflows", json={"name": "import", "jobs": jobs}, headers=key).json()

    assert [one["index"] for one in told["jobs"]] == list(range(6000))
    found = client.workflows.get(told["id"])
    assert found is not None
    assert (found.jobs.total, found.jobs.waiting) == (6000, 5999)


@pytest.mark.parametrize(
    ("body", "status", "code", "said", "fix"),
    [
        ({}, 422, "HF406", "`name`", ""),
        ({"name": ""}, 422, "HF406", "$.name", ""),
        ({"name": "a", "deadlin": 9}, 422, "HF406", "`deadlin`", "Did you mean `deadline`?"),
        ({"name": "a", "jobs": None}, 422, "HF406", "$.jobs", ""),
        ({"name": "a", "deadline": -1}, 422, "HF406", "$.deadline", ""),
        ({"name": "a", "key": "a" * 501}, 422, "HF406", "$.key", ""),
        ({"name": "a", "key": "€" * 500}, 422, "HF202", "1500 bytes", "at most 1000 bytes"),
        ({"name": "a", "child_of": str(uuid4())}, 422, "HF215", "is not in a workflow", "children"),
        (
            {"name": "a", "jobs": [{"kind": "a"}, {"kind": "b", "child_of": str(uuid4())}]},
            422,
            "HF215",
            "is not in a workflow",
            "children",
        ),
        (
            {"name": "a", "jobs": [{"kind": "a", "after": [2]}, {"kind": "b"}]},
            422,
            "HF214",
            "waits for 2",
            "1 is the first job of this call",
        ),
        (
            {"name": "a", "jobs": [{"kind": "a"}, {"kind": "a", "after": [str(uuid4())]}]},
            422,
            "HF214",
            "is not known",
            "",
        ),
        (
            {"name": "a", "jobs": [{"kind": "a"}, {"kind": "a", "payload": "x" * 300_000}]},
            413,
            "HF210",
            "item 2",
            "payload_limit",
        ),
        ({"name": "a", "jobs": [{"kind": "a"}] * 10_001}, 413, "HF413", "10001 jobs", ""),
    ],
)
def test_what_is_no_workflow_is_refused_whole_with_the_value_and_the_fix(
    api: Api, client: Client, body: Any, status: int, code: str, said: str, fix: str
) -> None:
    answer = api.post("/v1/workflows", json=body)

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert said in problem["detail"]
    assert fix in problem.get("fix", "")
    assert nothing_stored(client)


def test_every_job_that_cannot_be_stored_is_named_and_none_is_stored(
    api: Api, client: Client
) -> None:
    other = client.workflows.start("other").id
    jobs = [
        {"kind": "a"},
        {"kind": "a", "priorty": 3},
        {"kind": "a", "id": "x"},
        {"kind": "a", "workflow": str(other)},
        7,
    ]
    answer = api.post("/v1/workflows", json={"name": "a", "jobs": jobs})
    problem = answer.json()

    assert (answer.status_code, problem["code"]) == (422, "HF406")
    assert problem["detail"].startswith("job 2: ")
    assert problem["fix"] == "Did you mean `priority`?"
    assert [(one["index"], one["code"]) for one in problem["errors"]] == [
        (1, "HF406"),
        (2, "HF205"),
        (3, "HF406"),
        (4, "HF406"),
    ]
    assert problem["errors"][2]["fix"].startswith("Leave it out")
    assert client.jobs.list() == []
    assert [one.id for one in client.workflows.list()] == [other]


def test_a_body_over_the_limit_is_refused(serve: Serve, client: Client) -> None:
    with serve(body_limit=10_000).client() as api:
        jobs = [{"kind": "a", "payload": "x" * 9_000}] * 2
        answer = api.post("/v1/workflows", json={"name": "a", "jobs": jobs})

    assert (answer.status_code, answer.json()["code"]) == (413, "HF413")
    assert nothing_stored(client)


def test_a_token_for_some_queues_starts_a_workflow_only_within_them(
    serve: Serve, client: Client
) -> None:
    token = client.tokens.create("php", ["produce"], queues=["mail", "web"])
    secret = client.enqueue("a", queue="secret").id
    parent = client.workflows.start("outer", [NewJob(kind="a", queue="secret")]).jobs[0].id
    taken = client.workflows.start("taken", [NewJob(kind="a", queue="secret")], key="k").id
    before = len(client.jobs.list())
    within = [{"kind": "a", "queue": "mail"}, {"kind": "b", "queue": "web", "after": [1]}]
    with serve(ways=["token"]).client(headers={"Authorization": f"Bearer {token.secret}"}) as api:

        def start(**more: Any) -> Any:
            return api.post("/v1/workflows", json={"name": "a", "jobs": within} | more)

        outside = start(jobs=[*within, {"kind": "c", "queue": "secret", "after": [1]}])
        default = start(jobs=[*within, {"kind": "c"}])
        after = start(jobs=[{"kind": "c", "queue": "mail", "after": [str(secret)]}])
        child = start(child_of=str(parent))
        part = start(jobs=[{"kind": "c", "queue": "mail", "child_of": str(parent)}])
        in_use = start(name="taken", key="k")
        refused = len(client.jobs.list()) - before
        fine, again = start(key="k"), start(key="k")

    assert [(one.status_code, one.json()["code"]) for one in (outside, default)] == [
        (403, "HF401")
    ] * 2
    assert outside.json()["errors"] == [
        {
            "index": 2,
            "code": "HF401",
            "detail": "php may not use queue 'secret'",
            "fix": "Its queues are: mail, web.",
        }
    ]
    assert (after.status_code, after.json()["code"]) == (422, "HF214")
    assert [one.status_code for one in (child, part, in_use)] == [403] * 3
    assert "'taken'" in in_use.json()["detail"]
    assert str(taken) not in in_use.text
    assert refused == 0
    assert (fine.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == fine.json()["id"]


def test_a_token_for_some_queues_adds_to_workflows_within_them_and_to_no_others(
    serve: Serve, client: Client
) -> None:
    token = client.tokens.create("php", ["produce"], queues=["mail", "web"])
    within = client.workflows.start("in", [NewJob(kind="a", queue="mail")])
    parent = str(within.jobs[0].id)
    both = [NewJob(kind="a", queue="mail"), NewJob(kind="a", queue="secret")]
    outside = client.workflows.start("out", both)
    empty = client.workflows.start("empty")
    alone = client.enqueue("a", queue="mail").id
    job = {"kind": "b", "queue": "mail"}
    with serve(ways=["token"]).client(headers={"Authorization": f"Bearer {token.secret}"}) as api:

        def added(**more: Any) -> Any:
            return api.post("/v1/jobs", json=job | {name: str(id) for name, id in more.items()})

        fine = [added(workflow=within.id), added(workflow=parent), added(child_of=parent)]
        whole = {"name": "c", "child_of": parent, "jobs": [job]}
        fine.append(api.post("/v1/workflows", json=whole))
        child = {"name": "d", "jobs": [job | {"child_of": parent}]}
        fine.append(api.post("/v1/workflows", json=child))
        refused = [
            added(workflow=id) for id in (outside.id, outside.jobs[0].id, empty.id, alone, uuid4())
        ]
        refused += [added(child_of=outside.jobs[0].id), added(child_of=alone)]
        child = {"name": "e", "jobs": [job, job | {"child_of": str(outside.jobs[0].id)}]}
        refused.append(api.post("/v1/workflows", json=child))
        child = {"name": "f", "child_of": str(outside.jobs[0].id), "jobs": [job]}
        refused.append(api.post("/v1/workflows", json=child))
        jobs = [job | {"workflow": str(id)} for id in (within.id, outside.id)]
        some = api.post("/v1/jobs/bulk", json=jobs).json()
        jobs[0]["after"] = [parent]
        none = api.post("/v1/jobs/bulk", json=jobs).json()

    assert [one.status_code for one in fine] == [201] * 5
    assert [(one.status_code, one.json()["code"]) for one in refused] == [(403, "HF401")] * 9
    assert refused[-2].json()["errors"][0]["index"] == 1
    assert "secret" not in refused[0].text
    assert (some["created"], some["errors"][0]["index"]) == (1, 1)
    assert (none["created"], none["errors"][0]["index"]) == (0, 1)
    assert client.workflows.get(outside.id).jobs.total == 2
    assert client.workflows.get(within.id).jobs.total == 5


def test_a_workflow_can_be_started_without_jobs_and_get_them_later_by_its_id(
    api: Api, client: Client
) -> None:
    flow = api.post("/v1/workflows", json={"name": "import"}).json()
    one = api.post("/v1/jobs", json={"kind": "a", "workflow": flow["id"]}).json()
    many = [{"kind": "b", "workflow": flow["id"], "after": [one["id"]]}] * 2
    api.post("/v1/jobs/bulk", json=many)
    whole = api.post(
        "/v1/workflows",
        json={"name": "import", "jobs": [{"kind": "a"}, *[{"kind": "b", "after": [1]}] * 2]},
    ).json()

    shapes = [
        [
            (group["kind"], group["group"], group["after"], group["jobs"]["total"])
            for group in api.get(f"/v1/workflows/{id}").json()["groups"]
        ]
        for id in (flow["id"], whole["id"])
    ]

    assert flow["jobs"] == []
    # Whichever way they came, they are the same groups.
    assert shapes[0] == shapes[1]


def test_a_child_goes_with_its_parent_whichever_way_it_came(api: Api, client: Client) -> None:
    outer = client.workflows.start("outer", [NewJob(kind="a")])
    parent = str(outer.jobs[0].id)
    told = api.post(
        "/v1/workflows", json={"name": "inner", "child_of": parent, "jobs": [{"kind": "b"}]}
    ).json()
    joined = api.post("/v1/jobs", json={"kind": "c", "child_of": parent}).json()["id"]

    api.post(f"/v1/jobs/{parent}/cancel", json={})
    client.upkeep.run()
    while client.operations.step():
        pass

    assert client.jobs.get(joined).state == "cancelled"
    assert api.get(f"/v1/workflows/{told['id']}").json()["state"] == "cancelled"


def test_jobs_of_a_workflow_belong_to_the_trace_of_their_request(api: Api, client: Client) -> None:
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    body = {"name": "a", "jobs": [{"kind": "a"}]}
    api.post("/v1/workflows", json=body, headers={"traceparent": trace})

    [lease] = client.claim(worker="w")

    assert lease.headers == {"traceparent": trace}
