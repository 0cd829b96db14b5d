"""Queues on the nodes of a Citus cluster: each lives on one, and whoever enqueues finds it."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from holdfast import NewJob, nodes
from holdfast.client import Client
from holdfast.errors import Misuse, Refused
from tests.citus.cluster import Cluster
from tests.protocol import Protocol

ONE = 1


def waiting(db: Protocol, queue: str = "mail") -> int:
    query = "select count(*) from holdfast.job where queue = %s and token is null"
    row = db.connection.execute(query, [queue]).fetchone()
    assert row is not None
    return int(row[0])


def place(db: Protocol, queue: str = "mail", node: int = ONE) -> None:
    db.connection.execute("select holdfast.place(%s, %s)", [queue, node])


def send(db: Protocol) -> int:
    row = db.connection.execute("select holdfast.upkeep('{strays}')").fetchone()
    assert row is not None
    assert "failed" not in row[0]
    return int(row[0]["promoted"])


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_job_is_stored_where_its_queue_lives_whoever_enqueues_it(
    dbs: list[Protocol], at: int
) -> None:
    place(dbs[0])

    dbs[at].put(queue="mail", payload={"n": 1})
    dbs[at].enqueue(*[{"kind": "work", "queue": "mail", "key": f"k{n}"} for n in range(20)])

    assert [waiting(db) for db in dbs] == [0, 21, 0]
    assert len(dbs[1].claim("mail", max_jobs=30)) == 21


def test_a_queue_that_nobody_placed_lives_on_the_coordinator(dbs: list[Protocol]) -> None:
    for db in dbs:
        db.put(queue="mail")

    assert [waiting(db) for db in dbs] == [3, 0, 0]


def test_one_call_for_queues_of_several_nodes_answers_in_order(dbs: list[Protocol]) -> None:
    place(dbs[0], "mail", 1)
    place(dbs[0], "text", 2)
    queues = ["text", "here", "mail", "text", "here", "mail"]

    told = dbs[0].enqueue(*[{"kind": "work", "queue": queue, "key": "same"} for queue in queues])

    assert [one.ord for one in told] == [1, 2, 3, 4, 5, 6]
    assert [one.created for one in told] == [True] * 3 + [False] * 3
    assert [one.duplicate_of for one in told[3:]] == [told[0].id, told[1].id, told[2].id]
    assert [
        waiting(db, queue) for db, queue in zip(dbs, ("here", "mail", "text"), strict=True)
    ] == [
        1,
        1,
        1,
    ]


def test_a_caller_that_rolls_back_has_enqueued_nothing_anywhere(dbs: list[Protocol]) -> None:
    place(dbs[0])
    with dbs[0].connection.transaction(force_rollback=True):
        dbs[0].put(queue="mail")
        dbs[0].put(queue="here")

    assert [waiting(db) for db in dbs] == [0, 0, 0]


@pytest.mark.parametrize("at", [0, 2])
def test_an_enqueue_on_another_node_is_committed_in_two_phases(
    dbs: list[Protocol], at: int
) -> None:
    place(dbs[0])
    connection = dbs[at].connection
    said: list[str] = []
    connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    connection.execute("set citus.log_remote_commands = on")
    with connection.transaction():
        connection.execute("create table if not exists orders (n integer)") if at == 0 else None
        dbs[at].put(queue="mail")

    assert [line for line in said if "PREPARE TRANSACTION" in line]
    assert not [line for line in said if line.startswith("issuing COMMIT on")]


def test_two_transactions_that_enqueue_into_one_queue_do_not_wait_for_each_other(
    urls: list[str], dbs: list[Protocol]
) -> None:
    place(dbs[0])
    with (
        psycopg.connect(urls[0]) as one,
        psycopg.connect(urls[0]) as two,
        psycopg.connect(urls[2]) as three,
    ):
        for connection in (one, two, three):
            connection.execute("set statement_timeout = '20s'")
            Protocol(connection).put(queue="mail")
        for connection in (three, one, two):
            connection.commit()

    assert waiting(dbs[1]) == 3


def test_a_client_on_the_coordinator_enqueues_as_ever(urls: list[str], dbs: list[Protocol]) -> None:
    place(dbs[0])
    with Client(urls[0]) as client:
        one = client.enqueue("work", queue="mail")
        many = client.enqueue_many([NewJob(kind="work", queue="mail") for _ in range(50)])
        again = (
            client.enqueue("work", queue="mail", key="k"),
            client.enqueue("work", queue="mail", key="k"),
        )

    assert one.created
    assert all(told.created for told in many)
    assert [told.created for told in again] == [True, False]
    assert waiting(dbs[1]) == 52


def test_an_idle_worker_is_woken_by_an_enqueue_on_another_node(dbs: list[Protocol]) -> None:
    place(dbs[0])
    connection = dbs[1].connection
    connection.execute("listen holdfast")
    connection.execute("select holdfast.await_work(array['mail'], 'ada')")

    dbs[0].put(queue="mail")
    # What is prepared cannot notify: upkeep does, once it is committed.
    connection.execute("select holdfast.upkeep('{promoted}')")

    [told] = connection.notifies(timeout=30, stop_after=1)
    assert told.payload == "mail\nada"


def test_what_a_node_refuses_is_told_as_if_it_were_here(dbs: list[Protocol]) -> None:
    place(dbs[0])
    dbs[1].connection.execute(
        "select from holdfast.queue_set('mail', %s)", [Jsonb({"payload_limit": 20})]
    )
    with pytest.raises(psycopg.Error) as refused:
        dbs[0].put(queue="mail", payload={"name": "Ada Lovelace"})

    assert refused.value.sqlstate == "HF210"
    assert refused.value.diag.message_hint


def test_waiting_jobs_follow_their_queue_and_running_ones_end_where_they_are(
    dbs: list[Protocol],
) -> None:
    for n in range(5):
        dbs[0].put(queue="mail", payload={"n": n})
    dbs[0].put(queue="mail", delay=3600, payload={"n": 9})
    first = dbs[0].take("mail")
    place(dbs[0])
    dbs[0].put(queue="mail", payload={"n": 5})

    assert send(dbs[0]) == 5
    assert [waiting(db) for db in dbs] == [0, 6, 0]
    assert dbs[0].ack(first)[0].outcome == "done"
    found = dbs[1].claim("mail", max_jobs=9)
    # What was enqueued after the placing is before what followed by upkeep.
    assert [one.payload["n"] for one in found] == [5, 1, 2, 3, 4]


def test_a_job_that_moved_has_its_attempts_and_its_id(dbs: list[Protocol]) -> None:
    id = dbs[0].put(queue="mail", max_attempts=5)
    dbs[0].nack(dbs[0].take("mail"), message="no")
    place(dbs[0])

    assert send(dbs[0]) == 1
    [attempt] = dbs[1].attempts(id)
    assert attempt.message == "no"
    assert dbs[0].attempts(id) == []
    row = dbs[1].connection.execute("select attempt from holdfast.job where id = %s", [id])
    assert row.fetchone() == (1,)


def test_a_job_whose_key_is_taken_there_stays(dbs: list[Protocol]) -> None:
    dbs[0].put(queue="mail", key="k")
    place(dbs[0])
    dbs[0].put(queue="mail", key="k")

    assert send(dbs[0]) == 0
    assert [waiting(db) for db in dbs] == [1, 1, 0]


def test_a_queue_brings_its_settings_and_goes_back(dbs: list[Protocol]) -> None:
    settings = Jsonb({"limit": 2, "lease": 77})
    dbs[0].connection.execute("select from holdfast.queue_set('mail', %s)", [settings])
    place(dbs[0], node=1)
    place(dbs[0], node=2)
    place(dbs[0], node=0)
    for _ in range(5):
        dbs[2].put(queue="mail")

    assert [waiting(db) for db in dbs] == [5, 0, 0]
    assert len(dbs[0].claim("mail", max_jobs=5)) == 2


@pytest.mark.parametrize(
    "call",
    [
        "select from holdfast.queue_set('mail', '{\"limit\": 2}')",
        "select from holdfast.pause('mail')",
        "select from holdfast.resume('mail')",
        "select holdfast.lane_set('mail', 'a', '{\"limit\": 2}')",
        "select holdfast.copied('mail', array['work'], array[1]::bigint[])",
        "select from holdfast.move(array[holdfast.new_id('x')], 'mail')",
    ],
)
def test_what_only_the_other_node_can_do_is_refused_with_its_address(
    dbs: list[Protocol], call: str
) -> None:
    place(dbs[0])
    with pytest.raises(psycopg.Error) as refused:
        dbs[0].connection.execute(call.encode())

    assert refused.value.sqlstate == "HF415"
    assert "127.0.0.1:" in (refused.value.diag.message_hint or "")


def test_jobs_that_wait_for_each_other_on_two_nodes_are_refused(dbs: list[Protocol]) -> None:
    place(dbs[0])
    linked = [{"kind": "a", "queue": "here"}, {"kind": "b", "queue": "mail", "after": [1]}]
    with pytest.raises(psycopg.Error) as refused:
        dbs[0].enqueue(*linked)
    assert refused.value.sqlstate == "HF415"

    told = dbs[0].enqueue(*[{**item, "queue": "mail"} for item in linked])
    assert [one.created for one in told] == [True, True]
    assert [lease.kind for lease in dbs[1].claim("mail", max_jobs=5)] == ["a"]


@pytest.mark.parametrize(
    ("at", "call"),
    [
        (0, "select holdfast.place('mail', 7)"),
        (0, "select holdfast.place('mail', null)"),
        (1, "select holdfast.place('mail', 2)"),
        (0, "select holdfast.place('', 1)"),
        (0, "select holdfast.place('holdfast.alerts', 1)"),
    ],
)
def test_a_placing_that_cannot_be_is_refused(dbs: list[Protocol], at: int, call: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        dbs[at].connection.execute(call.encode())
    assert (refused.value.sqlstate or "").startswith("HF")


def test_a_table_that_citus_moved_is_noticed_and_brought_back(
    urls: list[str], dbs: list[Protocol]
) -> None:
    place(dbs[0])
    move = """
    select citus_move_shard_placement(s.shardid, a.nodename, a.nodeport, b.nodename, b.nodeport,
      'block_writes')
    from pg_dist_shard s, pg_dist_node a, pg_dist_node b
    where s.logicalrelid = 'holdfast_nodes.node_1'::regclass and a.groupid = 1 and b.groupid = 2
    """
    dbs[0].connection.execute(move)
    with pytest.raises(psycopg.Error) as refused:
        dbs[0].put(queue="mail")
    assert refused.value.sqlstate == "HF415"
    assert [waiting(db) for db in dbs] == [0, 0, 0]

    nodes.shard(urls[0])
    dbs[0].put(queue="mail")
    assert waiting(dbs[1]) == 1


def test_the_nodes_and_the_doctor_say_what_is_where(urls: list[str], dbs: list[Protocol]) -> None:
    dbs[0].put(queue="mail")
    place(dbs[0])
    dbs[2].put(queue="mail")

    found = nodes.nodes(urls[2])
    assert [(one.node, one.queued, one.strays, one.problem) for one in found] == [
        (0, 1, 1, None),
        (1, 1, 0, None),
        (2, 0, 0, None),
    ]
    assert nodes.home(urls[0], "mail") == 1
    assert nodes.home(urls[1], "mail") == 1
    assert nodes.home(urls[1], "other") == 0
    with psycopg.connect(nodes.address(urls[0], 1)) as connection:
        assert connection.execute("select holdfast.here()").fetchone() == (1,)
    query = "select level, what from holdfast.doctor() where name = 'nodes'"
    assert dbs[0].connection.execute(query).fetchone() == (
        "warn",
        "1 waiting jobs are not on the node where their queue lives",
    )
    send(dbs[0])
    assert dbs[0].connection.execute(query).fetchone() == ("ok", "3 nodes, 1 queues placed")


def test_a_node_that_is_added_to_the_cluster_has_queues_after_another_shard(
    cluster: Cluster,
) -> None:
    with cluster.database() as urls:
        third = conninfo_to_dict(urls[2])
        at = [third["host"], int(third["port"])]
        with psycopg.connect(urls[0], autocommit=True) as connection:
            connection.execute("select citus_remove_node(%s, %s)", at)
            nodes.shard(urls[0])
            nodes.place(urls[0], "mail", ONE)
            connection.execute("select citus_add_node(%s, %s)", at)
            query = "select groupid from pg_dist_node where nodename = %s and nodeport = %s"
            row = connection.execute(query, at).fetchone()
        assert row is not None
        [number] = row

        done = nodes.shard(urls[0])
        nodes.place(urls[0], "text", number)

        assert any(one.startswith(f"node {number} ") for one in done)
        assert nodes.shard(urls[0]) == []
        told = [(one.node, one.problem) for one in nodes.nodes(urls[0])]
        assert told == [(0, None), (ONE, None), (number, None)]
        for url in urls:
            with Client(url) as client:
                client.enqueue_many(NewJob(kind="work", queue=queue) for queue in ("mail", "text"))
        for url, queue in ((urls[1], "mail"), (urls[2], "text")):
            with Client(url) as client:
                assert len(client.claim(queue, worker="w", limit=9)) == 3


def test_only_the_coordinator_of_a_cluster_is_sharded(urls: list[str], database: str) -> None:
    with pytest.raises(Refused, match="not the coordinator"):
        nodes.shard(urls[1])
    with pytest.raises(Refused, match="not in a Citus cluster"):
        nodes.shard(database)
    with pytest.raises(Misuse, match="not the coordinator of a Citus cluster"):
        nodes.place(database, "mail", 1)
    assert nodes.nodes(database) == []
