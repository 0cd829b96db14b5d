"""What an operator does to jobs from any node: it reaches the node where they are."""

from uuid import UUID, uuid4

import pytest

from holdfast import Client
from holdfast.client import ClusterClient
from holdfast.errors import Refused, Unavailable
from holdfast.records import Operation
from tests.nodes.conftest import Joined, Twins
from tests.protocol import Protocol


def dead(db: Protocol, queue: str, kind: str = "work") -> UUID:
    """Have a new job die."""
    id = db.put(kind, queue=queue, max_attempts=1)
    lease = next(one for one in db.claim(queue, max_jobs=100) if one.id == id)
    db.nack(lease, message="no paper")
    return id


def states(dbs: list[Protocol], ids: list[UUID]) -> list[str | None]:
    return [next((found for db in dbs if (found := db.state(id))), None) for id in ids]


def worked_off(cluster: ClusterClient, begun: Operation | None) -> Operation:
    """Run an operation to its end."""
    assert begun is not None
    for _ in range(200):
        cluster.operations.step()
        found = cluster.operations.get(begun.id)
        assert found is not None
        if found.state != "running":
            return found
    raise AssertionError(found)


@pytest.mark.parametrize(
    ("verb", "state"),
    [("retry", "queued"), ("archive", "archived"), ("delete", None)],
)
def test_jobs_of_both_nodes_are_changed_in_one_call_in_the_order_given(
    dbs: list[Protocol], joined: Joined, verb: str, state: str | None
) -> None:
    ids = [dead(dbs[1], "mail"), dead(dbs[0], "here"), dead(dbs[1], "mail")]
    unknown = uuid4()

    changes = getattr(joined(1).jobs, verb)([*ids, unknown], reason="ada", actor="ada")

    assert [one.id for one in changes] == [*ids, unknown]
    assert [one.changed for one in changes] == [True, True, True, False]
    assert states(dbs, ids) == [state] * 3


def test_a_queued_job_of_another_node_is_edited_and_cancelled(
    dbs: list[Protocol], cluster: ClusterClient
) -> None:
    id = dbs[1].put(queue="mail")

    [edited] = cluster.jobs.edit([id], priority=7)
    found = cluster.jobs.get(id)
    [cancelled] = cluster.jobs.cancel([id], reason="ada")

    assert (edited.changed, cancelled.changed) == (True, True)
    assert found is not None
    assert found.priority == 7
    assert dbs[1].state(id) == "cancelled"


def test_a_job_moves_to_a_queue_on_its_own_node(
    twins: Twins, dbs: list[Protocol], cluster: ClusterClient
) -> None:
    twins.place("mail2", 1)
    id = dbs[1].put(queue="mail")

    [moved] = cluster.jobs.move([id], "mail2")

    assert moved.changed
    found = cluster.jobs.get(moved.new_id or id)
    assert found is not None
    assert found.queue == "mail2"


def test_what_is_rolled_back_here_was_still_done_on_the_other_node(
    dbs: list[Protocol], cluster: ClusterClient
) -> None:
    here, there = dbs[0].put(queue="here"), dbs[1].put(queue="mail")
    connection = dbs[0].connection
    with connection.transaction(force_rollback=True):
        changes = cluster.on(connection).jobs.cancel([here, there])
        assert [one.changed for one in changes] == [True, True]

    assert states(dbs, [here, there]) == ["queued", "cancelled"]


@pytest.mark.parametrize("node", [0, 1])
def test_an_operation_is_previewed_run_followed_and_undone_as_one(
    dbs: list[Protocol], joined: Joined, node: int
) -> None:
    ids = [dead(dbs[n % 2], ("here", "mail")[n % 2]) for n in range(5)]
    cluster = joined(node)

    found = cluster.operations.preview("retry", "state:dead", reason="paper came", actor="ada")
    assert (found.total, set(found.sample)) == (5, set(ids))
    begun = cluster.operations.start(found.token, actor="ada")
    ended = worked_off(cluster, begun)
    assert (ended.state, ended.seen, ended.changed, ended.undoable) == ("done", 5, 5, 5)
    assert states(dbs, ids) == ["queued"] * 5
    [listed] = cluster.operations.list()
    assert listed == ended

    undone = worked_off(cluster, cluster.operations.undo(ended.id, actor="ada"))
    assert (undone.verb, undone.changed) == ("undo", 5)
    assert states(dbs, ids) == ["dead"] * 5
    assert len(cluster.operations.list()) == 2


def test_an_operation_of_which_this_node_has_nothing_is_undone_too(
    dbs: list[Protocol], cluster: ClusterClient
) -> None:
    ids = [dead(dbs[1], "mail") for _ in range(3)]
    found = cluster.operations.preview("retry", "queue:mail")
    ended = worked_off(cluster, cluster.operations.start(found.token))
    assert ended.undoable == 3

    undone = worked_off(cluster, cluster.operations.undo(ended.id))
    assert undone.changed == 3
    assert undone.id > 10**12  # only the other node has it
    assert cluster.operations.get(undone.id) == undone
    assert states(dbs, ids) == ["dead"] * 3


@pytest.mark.parametrize("most", [1, 2, 3, 4, 6, 9])
def test_of_a_limited_operation_the_newest_of_all_nodes_are_changed(
    dbs: list[Protocol], cluster: ClusterClient, most: int
) -> None:
    ids = [dead(dbs[place], ("here", "mail")[place]) for place in (0, 0, 1, 1, 1, 0)]

    found = cluster.operations.preview("archive", "state:dead", most=most)
    assert found.total == min(most, 6)
    ended = worked_off(cluster, cluster.operations.start(found.token))

    assert ended.changed == min(most, 6)
    kept = max(6 - most, 0)
    assert states(dbs, ids) == ["dead"] * kept + ["archived"] * (6 - kept)


def test_an_operation_is_stopped_on_all_nodes(dbs: list[Protocol], cluster: ClusterClient) -> None:
    ids = [dead(dbs[n % 2], ("here", "mail")[n % 2]) for n in range(4)]
    found = cluster.operations.preview("retry", "state:dead")
    begun = cluster.operations.start(found.token, rate=4.0)
    assert begun is not None
    assert begun.rate == 4.0

    stopped = cluster.operations.cancel(begun.id)
    assert stopped is not None
    assert stopped.state == "cancelled"
    assert cluster.operations.step() is None
    assert states(dbs, ids) == ["dead"] * 4


def test_a_strike_is_on_the_node_of_its_queue_and_one_of_all_queues_on_every_node(
    dbs: list[Protocol], joined: Joined
) -> None:
    cluster = joined(0)
    one = cluster.strikes.add(queue="mail", reason="broken")
    all_queues = cluster.strikes.add(kind="work")

    assert [len(joined(node).strikes.list()) for node in (0, 1)] == [3, 3]
    dbs[1].put("other", queue="mail")
    dbs[0].put("work", queue="here")
    assert [db.claim(queue) for db, queue in zip(dbs, ("here", "mail"), strict=True)] == [[], []]
    lifted = cluster.strikes.lift(one.number)
    assert lifted is not None
    assert lifted.queue == "mail"
    assert cluster.strikes.lift(all_queues.number) is not None
    assert len(dbs[1].claim("mail")) == 1


def test_a_workflow_of_another_node_is_shown_cancelled_and_retried(
    twins: Twins, dbs: list[Protocol], cluster: ClusterClient
) -> None:
    with Client(twins.urls[1]) as there:
        started = there.workflows.start("order")
        job = there.enqueue("work", queue="mail", workflow=started.id).id

    [listed] = cluster.workflows.list()
    assert listed.id == started.id
    found = cluster.workflows.get(job)
    assert found is not None
    assert [one.id for one in cluster.workflows.jobs(started.id)] == [job]
    assert cluster.workflows.within(started.id, ["mail"])
    assert not cluster.workflows.within(started.id, ["here"])
    worked_off(cluster, cluster.workflows.cancel(started.id))
    assert dbs[1].state(job) == "cancelled"
    worked_off(cluster, cluster.workflows.retry(started.id))
    assert dbs[1].state(job) == "queued"
    assert {one.name for one in cluster.workflows.tally()} == {"order"}


def test_a_silent_node_is_named_and_the_other_is_shown(
    twins: Twins, dbs: list[Protocol], cluster: ClusterClient
) -> None:
    here, there = dead(dbs[0], "here"), dead(dbs[1], "mail")
    twins.lose(1)

    assert [one.id for one in cluster.jobs.list()] == [here]
    assert [one.jobs for one in cluster.dead.groups()] == [1]
    assert {one.queue: one.dead for one in cluster.queues.list()} == {"here": 1, "mail": 0}
    [silent] = cluster.cluster.silent()
    assert (silent.node, silent.address) == (1, "127.0.0.1:1")
    assert silent.problem
    assert [one.changed for one in cluster.jobs.retry([here, there])] == [True, False]
    for call in (
        lambda: cluster.jobs.get(there),
        lambda: cluster.jobs.retry([there]),
        lambda: cluster.queues.set("mail", limit=2),
        lambda: cluster.strikes.add(kind="work"),
    ):
        with pytest.raises(Unavailable, match=r"node|nodes"):
            call()
    assert dbs[0].connection.execute("select count(*) from holdfast.strikes").fetchone() == (0,)


def test_what_may_be_on_a_node_that_is_away_is_not_called_unknown(
    twins: Twins, dbs: list[Protocol], cluster: ClusterClient
) -> None:
    with Client(twins.urls[1]) as there:
        workflow = there.workflows.start("order").id
        there.schedules.set("nightly", kind="work", cron="0 3 * * *")
        there.enqueue("work", queue="mail", workflow=workflow)
    [schedule] = cluster.schedules.list()
    assert cluster.schedules.get("nightly") == schedule
    unknown = "mail:unknown:1"
    assert cluster.anomalies.get(unknown) is None
    assert cluster.strikes.lift(7 * 10**12 + 1) is None
    assert cluster.operations.get(7 * 10**12 + 1) is None
    twins.lose(1)
    cluster.cluster._known.until = 0.0  # where the nodes are is asked again only after a while

    for call in (
        lambda: cluster.workflows.get(workflow),
        lambda: cluster.workflows.cancel(workflow),
        lambda: cluster.workflows.retry(workflow),
        lambda: cluster.schedules.get("nightly"),
        lambda: cluster.anomalies.get(unknown),
        lambda: cluster.anomalies.ack(unknown),
        lambda: cluster.queues.get("unheard"),
        lambda: cluster.lanes.release("mail", "ada"),
        lambda: cluster.operations.get(2 * 10**12 + 1),
    ):
        with pytest.raises(Unavailable, match="node 1"):
            call()


def test_a_lane_that_stayed_behind_is_released_where_it_is(
    twins: Twins, dbs: list[Protocol], joined: Joined
) -> None:
    twins.place("text", 0)
    dbs[0].connection.execute(
        "select from holdfast.queue_set('text', '{\"lane_on_failure\": \"halt\"}')"
    )
    dead_one, next_one = (dbs[0].put(queue="text", lane="ada", max_attempts=1) for _ in range(2))
    dbs[0].nack(dbs[0].take("text"), message="no")
    assert dbs[0].state(dead_one) == "dead"
    twins.place("text", 1)

    assert joined(1).lanes.release("text", "ada").outcome == "resumed"
    assert dbs[0].take("text").id == next_one


def test_jobs_of_the_node_that_answers_are_changed_by_an_operation(
    twins: Twins, dbs: list[Protocol], cluster: ClusterClient
) -> None:
    here, there = dead(dbs[0], "here"), dead(dbs[1], "mail")
    twins.lose(1)
    found = cluster.operations.preview("retry", "state:dead")
    ended = worked_off(cluster, cluster.operations.start(found.token))

    assert (found.total, ended.changed) == (1, 1)
    assert states(dbs, [here, there]) == ["queued", "dead"]


def test_a_role_that_may_only_read_may_not_change_jobs_of_another_node(
    twins: Twins, dbs: list[Protocol]
) -> None:
    there = dead(dbs[1], "mail")
    for db in dbs:
        db.connection.execute("create role looks login in role holdfast_reader")
    try:
        urls = [url.replace("user=postgres", "user=looks") for url in twins.urls]
        with ClusterClient(Client(urls[0])) as reader:
            assert [one.id for one in reader.jobs.list()] == [there]
            with pytest.raises(Refused):
                reader.jobs.retry([there])
    finally:
        for db in dbs:
            db.connection.execute("drop role looks")
    assert dbs[1].state(there) == "dead"
