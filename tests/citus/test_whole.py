"""The whole cluster as an operator sees it, from any of its nodes."""

import json
import time
from uuid import UUID

import pytest

from holdfast import Client
from holdfast.client import ClusterClient
from holdfast.errors import HoldfastError, Unavailable
from holdfast.server import Server, Settings
from tests.citus.cluster import Cluster
from tests.citus.test_commands import holdfast
from tests.citus.test_nodes import place, send
from tests.protocol import Protocol
from tests.server.serving import serving

QUEUES = ("here", "mail", "text")


def kill(db: Protocol, queue: str) -> UUID:
    """Have a new job die on the node of its queue."""
    id = db.put(queue=queue, max_attempts=1)
    lease = next(one for one in db.claim(queue, max_jobs=100) if one.id == id)
    db.nack(lease, message="no paper")
    return id


@pytest.fixture
def dead(dbs: list[Protocol]) -> list[UUID]:
    """Two dead jobs on each of three nodes, in the order in which they died."""
    place(dbs[0], "mail", 1)
    place(dbs[0], "text", 2)
    return [kill(dbs[n % 3], QUEUES[n % 3]) for n in range(6)]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_lists_search_and_counters_are_of_all_nodes(
    urls: list[str], dbs: list[Protocol], dead: list[UUID], at: int
) -> None:
    with ClusterClient(Client(urls[at])) as client:
        newest = sorted(dead, reverse=True)
        assert [one.id for one in client.jobs.list()] == newest
        assert [one.id for one in client.jobs.search("error:no*", patience=5).jobs] == newest
        first = client.jobs.list(limit=4)
        rest = client.jobs.list(before=first[-1].id)
        assert [one.id for one in [*first, *rest]] == newest
        assert client.jobs.count("state:dead").jobs == 6
        assert [one.id for one in client.dead.list()] == dead[::-1]
        assert sum(one.jobs for one in client.dead.groups()) == 6
        found = {one.queue: one.dead for one in client.queues.list()}
        assert found == dict.fromkeys(QUEUES, 2)
        assert sum(one.jobs for one in client.queues.depth() if one.state == "dead") == 6
        for id, queue in zip(dead, QUEUES, strict=False):
            job = client.jobs.get(id)
            assert job is not None
            assert job.queue == queue
            assert [one.message for one in client.jobs.attempts(id)] == ["no paper"]
            assert client.jobs.explain(id)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_operators_verbs_reach_the_node_of_each_job(
    urls: list[str], dbs: list[Protocol], dead: list[UUID], at: int
) -> None:
    with ClusterClient(Client(urls[at])) as client:
        assert [one.changed for one in client.jobs.retry(dead[:3])] == [True] * 3
        assert [one.changed for one in client.jobs.edit(dead[:3], priority=5)] == [True] * 3
        assert [one.changed for one in client.jobs.cancel(dead[:3])] == [True] * 3
        assert [one.changed for one in client.jobs.archive(dead[:3])] == [True] * 3
        assert [one.changed for one in client.jobs.delete(dead[:3])] == [True] * 3
        client.queues.set("text", limit=2)
        client.queues.pause("mail", reason="ada")
        seen = client.operations.preview("retry", "state:dead", most=2)
        assert set(seen.sample) == set(sorted(dead[3:], reverse=True)[:2])
        begun = client.operations.start(seen.token)
        assert begun is not None
        while (found := client.operations.get(begun.id)) and found.state == "running":
            client.operations.step()
        assert found is not None
        assert (found.changed, found.undoable) == (2, 2)

    states = [dbs[n % 3].state(id) for n, id in enumerate(dead)]
    assert states[:3] == [None] * 3
    assert sorted(states[3:], key=str) == ["dead", "queued", "queued"]
    queue = 'select "limit", paused_reason from holdfast.queues where queue = %s'
    assert dbs[2].connection.execute(queue, ["text"]).fetchone() == (2, None)
    assert dbs[1].connection.execute(queue, ["mail"]).fetchone() == (None, "ada")


def test_a_job_is_found_where_it_is_while_its_queue_moves(
    urls: list[str], dbs: list[Protocol]
) -> None:
    ids = [dbs[0].put(queue="mail") for _ in range(6)]
    running = dbs[0].claim("mail", max_jobs=2)
    place(dbs[0])
    ids += [dbs[2].put(queue="mail") for _ in range(2)]
    with ClusterClient(Client(urls[2])) as client:
        before = [one.id for one in client.jobs.list("queue:mail")]
        assert send(dbs[0]) == 4
        after = [one.id for one in client.jobs.list("queue:mail")]
        [queue] = client.queues.list()
        assert (queue.queued, queue.leased) == (6, 2)
        [change] = client.jobs.cancel([running[0].id])
        assert change.changed

    assert before == after == sorted(ids, reverse=True)


def test_a_move_to_a_queue_of_another_node_is_refused(urls: list[str], dbs: list[Protocol]) -> None:
    place(dbs[0])
    id = dbs[0].put(queue="mail")
    with ClusterClient(Client(urls[0])) as client:
        with pytest.raises(HoldfastError) as refused:
            client.jobs.move([id], "here")
        assert refused.value.code == "HF415"
        [moved] = client.jobs.move([id], "mail")
        assert not moved.changed
    assert dbs[1].state(id) == "queued"


@pytest.mark.parametrize("at", [0, 2])
def test_the_server_shows_and_changes_all_nodes(
    urls: list[str], dbs: list[Protocol], dead: list[UUID], at: int
) -> None:
    settings = Settings(fresh=0.0, upkeep=False)
    with serving(Server(urls[at], settings=settings)) as server, server.client() as api:
        queues = {one["queue"]: one["dead"] for one in api.get("/v1/queues").json()["queues"]}
        assert queues == dict.fromkeys(QUEUES, 2)
        listed = [one["id"] for one in api.get("/v1/jobs").json()["jobs"]]
        assert listed == sorted(map(str, dead), reverse=True)
        for id in dead[:3]:
            assert api.post(f"/v1/jobs/{id}/retry", json={}).status_code == 200
        nodes = api.get("/v1/nodes").json()["nodes"]
        assert [(one["node"], one["here"], one["problem"]) for one in nodes] == [
            (node, node == at, None) for node in (0, 1, 2)
        ]
    assert [dbs[n].state(id) for n, id in enumerate(dead[:3])] == ["queued"] * 3


def test_commands_are_of_all_nodes(urls: list[str], dead: list[UUID]) -> None:
    code, out, told = holdfast(urls[1], "job", "list", "--json")
    assert (code, {one["id"] for one in json.loads(out)}) == (0, set(map(str, dead))), told
    code, out, told = holdfast(urls[1], "job", "retry", "state:dead", "--yes")
    assert (code, "6 jobs retried" in out) == (0, True), told
    assert holdfast(urls[1], "job", "cancel", str(dead[2]))[0] == 0
    code, out, told = holdfast(urls[2], "queue", "list", "--json")
    assert {one["queue"]: one["queued"] for one in json.loads(out)} == {
        "here": 2,
        "mail": 2,
        "text": 1,
    }


def test_a_node_that_is_away_is_named_and_back_when_it_is_back(cluster: Cluster) -> None:
    if not cluster.servers:
        pytest.skip("the nodes are not ours to kill")
    from holdfast import nodes

    with cluster.database() as urls:
        nodes.shard(urls[0])
        nodes.place(urls[0], "mail", 1)
        nodes.place(urls[0], "text", 2)
        with Client(urls[0]) as home:
            ids = [home.enqueue("work", queue=queue).id for queue in QUEUES]
        with ClusterClient(Client(urls[0])) as client:
            assert len(client.jobs.list()) == 3
            cluster.servers[2].kill()
            try:
                started = time.monotonic()
                assert {one.id for one in client.jobs.list()} == set(ids[:2])
                assert time.monotonic() - started < 5
                assert [one.node for one in client.cluster.silent()] == [2]
                with pytest.raises(Unavailable, match=r"node 2|nodes that answer"):
                    client.jobs.cancel([ids[2]])
                assert client.jobs.cancel([ids[1]])[0].changed
            finally:
                cluster.servers[2].start()
            deadline = time.monotonic() + 30
            while client.cluster.silent() and time.monotonic() < deadline:
                time.sleep(0.2)
                found = {one.id for one in client.jobs.list()}
            assert found == set(ids)
            assert client.jobs.cancel([ids[2]])[0].changed
