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


