"""What an operator sees of two nodes: every list, as if all jobs were in one database."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast import Client
from holdfast.client import ClusterClient
from holdfast.client.statement import Statement
from holdfast.records import Job
from tests.nodes.conftest import Joined, Twins
from tests.protocol import Protocol


def fill(dbs: list[Protocol], count: int = 12) -> list[UUID]:
    """Enqueue jobs on both in turns of changing length; returns their ids, newest first."""
    ids = []
    for n in range(count):
        db, queue = (dbs[1], "mail") if n % 5 in (1, 2) else (dbs[0], "here")
        ids.append(db.put(f"kind{n % 3}", queue=queue, payload={"n": n}))
    return sorted(ids, reverse=True)


def kill(db: Protocol, queue: str, error: str = "Timeout of 3 s") -> UUID:
    """Have a new job die."""
    id = db.put(queue=queue, max_attempts=1)
    lease = next(one for one in db.claim(queue, max_jobs=100) if one.id == id)
    db.nack(lease, message=error)
    return id


def pages(client: ClusterClient, verb: str, filter: str, size: int) -> list[UUID]:
    """Page through a list to its end."""
    found: list[UUID] = []
    before = None
    while page := list(getattr(client.jobs, verb)(filter, limit=size, before=before)):
        ids = [one.id if isinstance(one, Job) else one for one in page]
        assert len(ids) <= size
        found += ids
        before = ids[-1]
    return found


@pytest.mark.parametrize("size", [1, 3, 5, 12, 50])
@pytest.mark.parametrize("verb", ["list", "find"])
def test_pages_of_a_list_have_each_job_of_all_nodes_once_and_in_order(
    dbs: list[Protocol], joined: Joined, verb: str, size: int
) -> None:
    ids = fill(dbs)

    for node in (0, 1):
        assert pages(joined(node), verb, "", size) == ids
        assert pages(joined(node), verb, "queue:mail", size) == [
            id for id in ids if dbs[1].state(id) == "queued"
        ]


@pytest.mark.parametrize(
    "filter",
    [
        "", "state:queued", "state:dead", "queue:mail", "-queue:mail", "kind:kind1", "kind:kind*",
        "payload.n:4", "age:<1h", "attempt:0", "queue:mail,here kind:kind0,kind2", "error:nothing",
        "subject:s", "tenant:t", "priority:0", "state:queued,leased -kind:kind0",
    ],
)  # fmt: skip
def test_a_filter_finds_in_a_cluster_what_it_finds_on_each_node(
    twins: Twins, dbs: list[Protocol], cluster: ClusterClient, filter: str
) -> None:
    fill(dbs)
    each = [list(client.jobs.find(filter)) for client in (cluster.cluster.home, other(cluster))]

    wanted = sorted(each[0] + each[1], reverse=True)
    assert list(cluster.jobs.find(filter)) == wanted
    assert [one.id for one in cluster.jobs.list(filter)] == wanted
    assert [one.id for one in cluster.jobs.search(filter, patience=5).jobs] == wanted
    assert cluster.jobs.count(filter).jobs == len(wanted)


def other(cluster: ClusterClient):  # type: ignore[no-untyped-def]
    """The client of the node that the cluster's client is not connected to."""
    cluster.cluster.members()
    return cluster.cluster.reader(1)


def test_a_search_goes_on_where_the_slowest_node_stopped(
    dbs: list[Protocol], cluster: ClusterClient
) -> None:
    ids = fill(dbs, 40)
    found: list[UUID] = []
    before = None
    for _ in range(200):
        # So little time that a node stops after its first look.
        page = cluster.jobs.search("kind:kind1", limit=3, before=before, patience=0)
        found += [one.id for one in page.jobs]
        if len(page.jobs) == 3:
            before = page.jobs[-1].id
        elif page.searched_to is None:
            break
        else:
            before = page.searched_to

    wanted = [one.id for one in cluster.jobs.list("kind:kind1")]
    assert len(wanted) > 10
    assert found == wanted
    assert set(wanted) < set(ids)


def test_counters_add_up_and_settings_are_those_of_the_queues_node(
    dbs: list[Protocol], joined: Joined
) -> None:
    dbs[1].connection.execute("select from holdfast.queue_set('mail', '{\"limit\": 7}')")
    fill(dbs)
    # A stray: it was enqueued before the queue was placed.
    dbs[0].connection.execute("update holdfast.queue set node = null where name = 'mail'")
    dbs[0].put("kind9", queue="mail")
    dbs[0].connection.execute("update holdfast.queue set node = 1 where name = 'mail'")

    for node in (0, 1):
        client = joined(node)
        found = {one.queue: one for one in client.queues.list()}
        assert {name: one.queued for name, one in found.items()} == {"here": 7, "mail": 6}
        assert found["mail"].limit == 7
        mail = client.queues.get("mail")
        assert mail is not None
        assert (mail.queued, mail.limit) == (6, 7)
        depth = {(one.queue, one.kind): one.jobs for one in client.queues.depth()}
        assert depth["mail", "kind9"] == 1
        assert sum(depth.values()) == 13


def test_a_queue_is_set_paused_and_explained_on_its_node(
    dbs: list[Protocol], cluster: ClusterClient
) -> None:
    dbs[1].put(queue="mail")
    cluster.queues.set("mail", limit=3)
    cluster.queues.pause("mail", reason="ada is away")

    assert "ada is away" in cluster.queues.explain("mail")
    assert [one.queue for one in cluster.queues.upcoming("mail")] == ["mail"]
    row = (
        dbs[1]
        .connection.execute(
            "select \"limit\", paused_reason from holdfast.queues where queue = 'mail'"
        )
        .fetchone()
    )
    assert row == (3, "ada is away")
    assert cluster.queues.resume("mail").paused_at is None


def test_dead_jobs_are_grouped_over_nodes_and_listed_by_their_failure(
    dbs: list[Protocol], cluster: ClusterClient
) -> None:
    order = [kill(dbs[n % 2], ("here", "mail")[n % 2]) for n in range(6)]
    order.append(kill(dbs[1], "mail", "out of paper"))

    assert [one.id for one in cluster.dead.list()] == order[::-1]
    first = cluster.dead.list(limit=3)
    second = cluster.dead.list(limit=9, before=first[-1])
    assert [one.id for one in [*first, *second]] == order[::-1]
    assert [(one.queue, one.jobs) for one in cluster.dead.groups()] == [
        ("mail", 3),
        ("here", 3),
        ("mail", 1),
    ]
    assert cluster.dead.oldest().keys() == {"here", "mail"}


def test_groups_of_one_queue_on_two_nodes_are_one_group(
    dbs: list[Protocol], cluster: ClusterClient
) -> None:
    dbs[0].connection.execute("update holdfast.queue set node = null where name = 'mail'")
    first = kill(dbs[0], "mail", "Timeout of 3 s")
    dbs[0].connection.execute("update holdfast.queue set node = 1 where name = 'mail'")
    kill(dbs[1], "mail", "Timeout of 4 s")

    [group] = cluster.dead.groups()
    assert (group.jobs, group.error) == (2, "Timeout of 4 s")
    died = cluster.jobs.get(first)
    assert died is not None
    assert group.first_at == died.ended_at


def test_a_job_is_shown_with_all_that_its_node_knows(
    dbs: list[Protocol], cluster: ClusterClient
) -> None:
    dbs[1].connection.execute("select from holdfast.queue_set('mail', '{\"activity\": \"all\"}')")
    id = dbs[1].put(queue="mail", max_attempts=3)
    dbs[1].nack(dbs[1].take("mail"), message="no paper", delay=timedelta(hours=1))

    found = cluster.jobs.get(id)
    assert found is not None
    assert (found.queue, found.error) == ("mail", "no paper")
    assert [one.message for one in cluster.jobs.attempts(id)] == ["no paper"]
    assert "Attempt 1 of 3 failed (no paper)" in cluster.jobs.explain(id)
    assert {one.event for one in cluster.activity.list(job=id).events} >= {"enqueued"}
    assert cluster.steps.list(id) == []
    assert cluster.jobs.get(uuid4()) is None


def test_workers_schedules_kinds_and_lanes_of_all_nodes_are_listed(
    twins: Twins, dbs: list[Protocol], cluster: ClusterClient
) -> None:
    there = other(cluster)
    cluster.cluster.home.workers.beat("ada", queues=["here"], kinds=["a"])
    there.workers.beat("bob", queues=["mail"], kinds=["b"])
    there.kinds.declare([{"kind": "b"}])
    there.schedules.set("nightly", kind="b", cron="0 3 * * *", queue="mail")
    for _ in range(2):
        dbs[1].put("b", queue="mail", lane="one")
    dbs[1].claim("mail")

    assert {one.worker for one in cluster.workers.list()} == {"ada", "bob"}
    assert [one.kind for one in cluster.kinds.list()] == ["b"]
    assert [one.name for one in cluster.schedules.list()] == ["nightly"]
    assert [(one.queue, one.lane) for one in cluster.lanes.list()] == [("mail", "one")]
    assert cluster.schedules.pause("nightly").paused_at is not None
    assert cluster.schedules.run("nightly").job is not None
    assert cluster.schedules.delete("nightly")
    assert cluster.workers.stop("bob")
    assert not cluster.workers.stop("cyd")


def test_metrics_of_all_nodes_add_up(dbs: list[Protocol], cluster: ClusterClient) -> None:
    fill(dbs)
    for db in dbs:
        db.connection.execute("select holdfast.upkeep()")

    points = cluster.activity.series("queued", step=timedelta(minutes=1))
    each = [
        one.activity.series("queued", step=60.0) for one in (cluster.cluster.home, other(cluster))
    ]
    wanted = {at: 0.0 for some in each for at, _ in some}
    for some in each:
        for at, value in some:
            wanted[at] += value or 0.0
    assert {at: value or 0.0 for at, value in points}.items() <= wanted.items()


def test_a_database_in_no_cluster_is_asked_only_once_whether_it_is(database: str) -> None:
    with ClusterClient(Client(database)) as client:
        door = client.cluster.home._door
        sent: list[Statement] = []
        run = door.run
        door.run = lambda statement: (sent.append(statement), run(statement))[1]  # type: ignore[method-assign]
        client.queues.list()
        client.jobs.list()
        client.jobs.search("kind:a")
        client.jobs.retry([uuid4()])
        client.operations.list()

    assert [one.name for one in sent].count("members") == 1
    assert len(sent) == 6
