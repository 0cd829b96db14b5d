"""A cluster for all tests of a run, and in it one database with Holdfast on every node."""

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from holdfast import nodes
from tests.citus import cluster as citus
from tests.citus.cluster import Cluster
from tests.protocol import Protocol


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with citus.running() as found:
        if found is None:
            pytest.skip(citus.WHY_NOT)
        yield found


@pytest.fixture(scope="session")
def urls(cluster: Cluster) -> Iterator[list[str]]:
    """The addresses of one database on the nodes, the coordinator's first."""
    with cluster.database() as made:
        nodes.shard(made[0])
        yield made


@pytest.fixture
def dbs(urls: list[str]) -> Iterator[list[Protocol]]:
    """The protocol on each node, empty; afterwards the counters of each are those of its rows."""
    with ExitStack() as stack:
        found = [
            Protocol(stack.enter_context(psycopg.connect(url, autocommit=True))) for url in urls
        ]
        for db in found:
            _wipe(db)
        yield found
        for db in found:
            assert db.recount() == []


def _wipe(db: Protocol) -> None:
    tables = "job, ended, attempt, lease, queue, tally, total, floor, dead_tally, redo, bell"
    named = ", ".join(f"holdfast.{name}" for name in tables.split(", "))
    db.connection.execute(f"truncate {named}".encode())
