"""A node that stands still: what it has to do with the others waits, and nothing else does."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import Client
from holdfast.upkeep.loop import Upkeep
from tests.nodes.conftest import Twins
from tests.protocol import Protocol
from tests.test_upkeep import eventually, running

# Without Citus the tables by which nodes are reached are here, and whoever holds one stands for a
# node that has stopped in the middle of a call.
TABLES = """
create schema holdfast_nodes;
create table holdfast_nodes.node_0 (never boolean);
create table holdfast_nodes.node_1 (never boolean);
"""


@pytest.fixture
def stopped(twins: Twins, dbs: list[Protocol]) -> Iterator[psycopg.Connection[Any]]:
    """Who holds up every call of the first node to the second."""
    dbs[0].connection.execute(TABLES)
    with ExitStack() as stack:
        holder = stack.enter_context(psycopg.connect(twins.urls[0]))
        holder.execute("lock table holdfast_nodes.node_1")
        yield holder
        holder.rollback()


def stray(db: Protocol) -> None:
    """Leave a job on the first node whose queue lives on the second."""
    db.connection.execute("update holdfast.queue set node = null where name = 'mail'")
    db.put(queue="mail")
    db.connection.execute("update holdfast.queue set node = 1 where name = 'mail'")


def test_leases_are_taken_back_while_strays_wait_for_a_node_that_stands_still(
    twins: Twins, dbs: list[Protocol], stopped: psycopg.Connection[Any]
) -> None:
    stray(dbs[0])
    dbs[0].put(queue="here")
    lease = dbs[0].take("here", lease=timedelta(seconds=1))
    with (
        Client(twins.urls[0], timeout=20) as client,
        running(Upkeep(client, holder="ada", every=0.05)),
    ):
        eventually(lambda: dbs[0].state(lease.id) == "queued")
        sender = next(one for one in threading.enumerate() if one.name == "holdfast-strays")
        stopped.rollback()
        sender.join()
