"""The server and the command line on two nodes: one dashboard and one terminal for both."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from holdfast import Client
from holdfast.cli import main
from holdfast.client import ClusterClient
from holdfast.server import Server, Settings
from tests.nodes.conftest import Twins
from tests.nodes.test_lists import kill
from tests.protocol import Protocol
from tests.server.serving import serving

Api = httpx.Client
Open = Callable[..., Api]


@pytest.fixture
def opened(twins: Twins) -> Iterator[Open]:
    """Starts a server on one of the nodes, and returns a client of it."""
    with ExitStack() as stack:

        def start(node: int = 0, **settings: Any) -> Api:
            about = Settings(fresh=0.0, upkeep=False, **settings)
            server = stack.enter_context(serving(Server(twins.urls[node], settings=about)))
            return stack.enter_context(server.client())

        yield start


@pytest.fixture
def api(opened: Open) -> Api:
    return opened()


def holdfast(url: str, *words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [*words, "--url", url])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("node", [0, 1])
def test_every_page_of_the_dashboard_shows_both_nodes(
    twins: Twins, dbs: list[Protocol], opened: Open, node: int
) -> None:
    api = opened(node)
    died = {str(kill(dbs[0], "here")), str(kill(dbs[1], "mail"))}
    waits = str(dbs[1].put(queue="mail"))

    queues = {one["queue"]: one for one in api.get("/v1/queues").json()["queues"]}
    assert {name: (one["queued"], one["dead"]) for name, one in queues.items()} == {
        "here": (0, 1),
        "mail": (1, 1),
    }
    listed = api.get("/v1/jobs", params={"count": True}).json()
    assert {one["id"] for one in listed["jobs"]} == died | {waits}
    assert listed["count"] == 3
    assert {one["id"] for one in api.get("/v1/dead").json()["jobs"]} == died
    assert sum(one["jobs"] for one in api.get("/v1/dead/groups").json()["groups"]) == 2
    shown = api.get(f"/v1/jobs/{waits}").json()
    assert (shown["queue"], bool(shown["explain"])) == ("mail", True)
    assert api.get(f"/v1/jobs/{waits[-8:]}").json()["id"] == waits
    assert [one["here"] for one in api.get("/v1/nodes").json()["nodes"]] == [node == 0, node == 1]


def test_a_cursor_of_the_job_list_misses_nothing(dbs: list[Protocol], api: Api) -> None:
    ids = [str(dbs[n % 2].put(queue=("here", "mail")[n % 2])) for n in range(9)]
    found: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(9):
        page = api.get("/v1/jobs", params={"limit": 2, **cursor}).json()
        found += [one["id"] for one in page["jobs"]]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}

    assert found == sorted(ids, reverse=True)


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "once"}])
def test_a_job_of_the_other_node_is_retried_edited_and_cancelled(
    dbs: list[Protocol], api: Api, headers: dict[str, str]
) -> None:
    id = kill(dbs[1], "mail")

    assert api.post(f"/v1/jobs/{id}/retry", json={}, headers=headers).status_code == 200
    assert dbs[1].state(id) == "queued"
    again = api.post(f"/v1/jobs/{id}/retry", json={}, headers=headers)
    assert again.status_code == (200 if headers else 409)
    assert api.patch(f"/v1/jobs/{id}", json={"priority": 8}).status_code == 200
    assert api.get(f"/v1/jobs/{id}").json()["priority"] == 8
    assert api.post(f"/v1/jobs/{id}/cancel", json={"reason": "ada"}).status_code == 200
    assert dbs[1].state(id) == "cancelled"


def test_an_operation_on_a_filter_is_followed_by_one_number(dbs: list[Protocol], api: Api) -> None:
    ids = [kill(dbs[0], "here"), kill(dbs[1], "mail")]
    seen = api.post("/v1/operations:preview", json={"op": "archive", "q": "state:dead"}).json()
    begun = api.post("/v1/operations", json={"preview_token": seen["preview_token"]}).json()
    for db in dbs:
        db.connection.execute("select holdfast.operation_step()")
        db.connection.execute("select holdfast.operation_step()")

    found = api.get(f"/v1/operations/{begun['id']}").json()
    assert (seen["count"], found["changed"], found["state"]) == (2, 2, "done")
    assert [db.state(id) for db, id in zip(dbs, ids, strict=True)] == ["archived"] * 2
    assert len(api.get("/v1/operations").json()["operations"]) == 1


def test_a_token_for_some_queues_sees_only_those_on_every_node(
    twins: Twins, dbs: list[Protocol], opened: Open
) -> None:
    twins.place("text", 1)
    mine, others = kill(dbs[1], "mail"), kill(dbs[1], "text")
    kill(dbs[0], "here")
    with Client(twins.urls[0]) as client:
        made = client.tokens.create("ada", ["read", "operate"], queues=["mail"])
    api = opened(0, ways=("token",))
    api.headers["Authorization"] = f"Bearer {made.secret}"

    assert [one["queue"] for one in api.get("/v1/queues").json()["queues"]] == ["mail"]
    assert [one["id"] for one in api.get("/v1/jobs").json()["jobs"]] == [str(mine)]
    assert [one["id"] for one in api.get("/v1/dead").json()["jobs"]] == [str(mine)]
    assert [one["queue"] for one in api.get("/v1/dead/groups").json()["groups"]] == ["mail"]
    assert api.get(f"/v1/jobs/{others}").status_code == 404
    assert api.post(f"/v1/jobs/{others}/retry", json={}).status_code == 404
    seen = api.post("/v1/operations:preview", json={"op": "retry", "q": "state:dead"}).json()
    assert (seen["count"], seen["sample"]) == (1, [str(mine)])
    assert api.post(f"/v1/jobs/{mine}/retry", json={}).status_code == 200
    assert dbs[1].state(others) == "dead"
    assert {one["address"] for one in api.get("/v1/nodes").json()["nodes"]} == {None}


def test_a_node_that_does_not_answer_is_named_and_holds_up_nobody(
    twins: Twins, dbs: list[Protocol], opened: Open
) -> None:
    here, there = kill(dbs[0], "here"), kill(dbs[1], "mail")
    with socket.create_server(("127.0.0.1", 0)) as standing_still:
        # It takes connections, and says nothing.
        twins.lose(1, port=standing_still.getsockname()[1])
        api = opened()
        started = time.monotonic()
        listed = api.get("/v1/jobs").json()["jobs"]
        first = time.monotonic() - started
        for path in ("jobs", "queues", "dead", "dead/groups", "workers"):
            assert api.get(f"/v1/{path}").status_code == 200
        # It is asked again only after a while.
        rest = time.monotonic() - started - first

        assert [one["id"] for one in listed] == [str(here)]
        assert first < 4
        assert rest < 2
        [one] = [one for one in api.get("/v1/nodes").json()["nodes"] if one["problem"]]
        assert one["node"] == 1
        answer = api.get(f"/v1/jobs/{there}")
        assert (answer.status_code, "node 1" in answer.text) == (503, True)


def test_a_node_that_is_back_is_shown_again(twins: Twins, dbs: list[Protocol]) -> None:
    there = dbs[1].put(queue="mail")
    with ClusterClient(Client(twins.urls[0])) as client:
        assert len(client.jobs.list()) == 1
        [node] = client.cluster._known.others
        reads, node.reads = node.reads, Client("host=127.0.0.1 port=1", timeout=0.2)
        assert client.jobs.list() == []
        assert [one.node for one in client.cluster.silent()] == [1]
        node.reads, node.rests_until = reads, 0.0
        assert [one.id for one in client.jobs.list()] == [there]
        assert client.cluster.silent() == []


def test_commands_show_and_change_both_nodes(twins: Twins, dbs: list[Protocol]) -> None:
    url = twins.urls[0]
    died = [kill(dbs[0], "here"), kill(dbs[1], "mail")]

    code, out, err = holdfast(url, "job", "list", "--json")
    assert (code, {one["id"] for one in json.loads(out)}) == (0, {str(id) for id in died}), err
    _, out, _ = holdfast(url, "queue", "list", "--json")
    assert {one["queue"]: one["dead"] for one in json.loads(out)} == {"here": 1, "mail": 1}
    _, out, _ = holdfast(url, "job", "show", str(died[1])[-8:], "--json")
    assert json.loads(out)["queue"] == "mail"
    code, out, err = holdfast(url, "job", "retry", "state:dead", "--yes")
    assert (code, "2 jobs retried" in out) == (0, True), (out, err)
    assert [db.state(id) for db, id in zip(dbs, died, strict=True)] == ["queued", "queued"]
    code, _, err = holdfast(url, "job", "cancel", str(died[1]))
    assert (code, dbs[1].state(died[1])) == (0, "cancelled"), err
    code, _, err = holdfast(url, "queue", "pause", "mail")
    assert code == 0, err
    _, out, _ = holdfast(url, "queue", "list", "--json")
    assert [bool(one["paused_at"]) for one in json.loads(out)] == [False, True]


def test_a_command_names_the_node_that_did_not_answer(twins: Twins, dbs: list[Protocol]) -> None:
    here = kill(dbs[0], "here")
    kill(dbs[1], "mail")
    twins.lose(1)

    code, out, err = holdfast(twins.urls[0], "job", "list", "--json")

    assert (code, [one["id"] for one in json.loads(out)]) == (0, [str(here)])
    assert "node 1 (127.0.0.1:1) does not answer, its jobs are missing: connection refused" in err
