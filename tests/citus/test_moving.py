"""Queues that are placed while others set, pause or enqueue into them, and nodes that stop."""

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.types.json import Jsonb

from holdfast import App, nodes
from holdfast.stores import ClaimCheck, TableStore
from holdfast.worker import Worker
from tests.citus.cluster import Cluster
from tests.citus.test_nodes import place, send, waiting
from tests.protocol import Protocol

PAUSED = "select paused_reason from holdfast.queues where queue = 'mail'"
BLOCKED = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = %s"


def until_somebody_waits(db: Protocol, *, known: int = 0) -> None:
    """Wait until a session of this node waits for a lock."""
    end = time.monotonic() + 60
    while db.connection.execute(BLOCKED, [db.connection.info.dbname]).fetchone() == (known,):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_pause_that_is_not_committed_yet_is_placed_with_its_queue(
    urls: list[str], dbs: list[Protocol]
) -> None:
    place(dbs[0], node=1)
    with psycopg.connect(urls[1]) as pausing, ThreadPoolExecutor(1) as pool:
        pausing.execute("select from holdfast.pause('mail', 'ada is away')")
        placed = pool.submit(place, dbs[0], "mail", 2)
        until_somebody_waits(dbs[1])
        pausing.commit()
        placed.result(60)

    assert dbs[2].connection.execute(PAUSED).fetchone() == ("ada is away",)


@pytest.mark.parametrize(
    "call",
    [
        "select from holdfast.pause('mail')",
        "select from holdfast.resume('mail')",
        "select from holdfast.queue_set('mail', '{\"limit\": 3}')",
    ],
)
def test_what_is_set_while_its_queue_is_placed_is_refused_and_not_forgotten(
    urls: list[str], dbs: list[Protocol], call: str
) -> None:
    place(dbs[0], node=1)
    with (
        psycopg.connect(urls[0]) as placing,
        psycopg.connect(urls[1], autocommit=True) as setting,
        ThreadPoolExecutor(1) as pool,
    ):
        placing.execute("select holdfast.place('mail', 2)")
        set = pool.submit(setting.execute, call.encode())
        until_somebody_waits(dbs[1])
        placing.commit()
        with pytest.raises(psycopg.Error) as refused:
            set.result(60)

    assert refused.value.sqlstate == "HF415"


def test_an_enqueue_between_nodes_that_disagree_is_to_be_repeated(dbs: list[Protocol]) -> None:
    place(dbs[0], node=1)
    # As it is for a moment while a placing commits: first on one node, then on the next.
    dbs[1].connection.execute("update holdfast.queue set node = 2 where name = 'mail'")
    with pytest.raises(psycopg.errors.SerializationFailure, match="moved away from node 1: mail"):
        dbs[0].put(queue="mail")

    assert [waiting(db) for db in dbs] == [0, 0, 0]


def test_a_queue_of_a_node_that_was_taken_away_is_placed_on_another(dbs: list[Protocol]) -> None:
    dbs[0].connection.execute("select from holdfast.queue_set('mail', '{\"limit\": 7}')")
    dbs[0].connection.execute("update holdfast.queue set node = 9 where name = 'mail'")
    place(dbs[0], node=1)
    dbs[2].put(queue="mail")

    assert [waiting(db) for db in dbs] == [0, 1, 0]
    query = "select \"limit\" from holdfast.queues where queue = 'mail'"
    assert dbs[1].connection.execute(query).fetchone() == (7,)


def test_a_job_of_a_session_that_is_older_than_the_cluster_is_sent_to_its_node(
    urls: list[str], dbs: list[Protocol]
) -> None:
    with psycopg.connect(urls[2], autocommit=True) as older:
        older.execute("set holdfast.unplaced = ''")  # a setting of the database reaches new ones
        id = Protocol(older).put(queue="mail")
    assert dbs[2].state(id) == "queued"

    assert send(dbs[2]) == 1
    assert dbs[0].take("mail").id == id


def test_a_node_that_stands_still_is_named_and_holds_up_no_look_at_the_others(
    cluster: Cluster,
) -> None:
    if not cluster.servers:
        pytest.skip("the nodes are not ours to stop")
    with cluster.database() as urls:
        nodes.shard(urls[0])
        with (
            psycopg.connect(urls[0], autocommit=True) as connection,
            ThreadPoolExecutor(2) as pool,
        ):
            db = Protocol(connection)
            db.put(queue="mail")
            db.put(queue="text")
            place(db, "mail", 1)
            place(db, "text", 2)
            nodes.nodes(urls[0])
            with cluster.servers[1].standing_still():
                looked = pool.submit(nodes.nodes, urls[0])
                sent = pool.submit(_sent, urls[0])
                found = looked.result(30)
                done = sent.result(30)
            assert [one.node for one in found if one.problem] == [1]
            # What goes to the other node went.
            assert done == 1
            assert (waiting(db, "mail"), waiting(db, "text")) == (1, 0)


def _sent(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        return send(Protocol(connection))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(("first", "then", "at"), [(0, 1, 0), (1, 2, 0), (1, 0, 0), (1, 2, 1)])
def test_what_was_sent_before_its_queue_moved_is_not_stored_again(
    dbs: list[Protocol], first: int, then: int, at: int, ended: bool
) -> None:
    place(dbs[0], node=1 - first)
    place(dbs[0], node=first)
    row = dbs[at].connection.execute("select holdfast.new_id('mail')").fetchone()
    assert row is not None
    item = {"id": str(row[0]), "kind": "work", "queue": "mail"}
    other = {"kind": "work", "queue": "mail"}
    enqueue = "select id, created from holdfast.enqueue(%s, true)"
    dbs[at].connection.execute(enqueue, [Jsonb([item])])
    if ended:
        dbs[first].ack(dbs[first].take("mail"))
    place(dbs[0], node=then)

    told = dbs[at].connection.execute(enqueue, [Jsonb([other, item])]).fetchall()

    assert told[1] == (row[0], True)
    assert sum(waiting(db) for db in dbs) == (1 if ended else 2)


def test_a_large_payload_goes_where_its_job_goes(urls: list[str], dbs: list[Protocol]) -> None:
    read: list[str] = []
    with App(urls[0]) as shop, App(urls[1]) as kitchen:
        large = ClaimCheck(TableStore(), above=100)

        def work(text: str) -> None:
            read.append(text)

        tasks = [
            app.task(kind="work", queue="mail", large_payloads=large)(work)
            for app in (shop, kitchen)
        ]
        place(dbs[0], node=0)
        tasks[0].enqueue("a" * 500)
        place(dbs[0], node=1)
        tasks[0].enqueue("b" * 500)
        assert send(dbs[0]) == 1
        Worker(kitchen, until_idle=True).run()

    assert sorted(read) == ["a" * 500, "b" * 500]


def test_the_settings_of_lanes_come_with_their_queue(dbs: list[Protocol]) -> None:
    query = "select name, lane_limit, on_failure, rate_limit from holdfast.lane order by name"
    set = "select holdfast.lane_set('mail', %s, %s)"
    for db in dbs:
        db.connection.execute("truncate holdfast.lane")
    dbs[0].connection.execute(set, ["ada", Jsonb({"limit": 3, "on_failure": "halt"})])
    dbs[0].connection.execute(set, ["bob", Jsonb({"rate_limit": 5, "rate_period": 60})])
    place(dbs[0], node=1)
    moved = dbs[1].connection.execute(query).fetchall()
    dbs[1].connection.execute(set, ["ada", Jsonb({"limit": 4})])
    dbs[1].connection.execute(set, ["bob", Jsonb({"rate_limit": None, "rate_period": None})])
    place(dbs[0], node=0)

    assert moved == [("ada", 3, "halt", None), ("bob", None, None, 5)]
    assert dbs[0].connection.execute(query).fetchall() == [
        ("ada", 4, "halt", None),
        ("bob", None, None, None),
    ]
