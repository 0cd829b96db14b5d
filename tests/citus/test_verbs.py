"""Every verb of the client on a cluster: on each sort of node, and an operator's from another."""

import os
import subprocess
import sys

import pytest

from holdfast import Client, nodes
from holdfast.client import ClusterClient
from tests import story
from tests.citus.__main__ import on_node
from tests.citus.cluster import Cluster


@pytest.mark.parametrize(("lives", "seen_from"), [(0, 0), (1, 1), (1, 0), (0, 2)])
def test_every_verb_works_wherever_the_queue_lives_and_the_operator_is(
    cluster: Cluster, lives: int, seen_from: int
) -> None:
    with cluster.database() as urls:
        nodes.shard(urls[0])
        if lives:
            nodes.place(urls[0], "mail", lives)
        with Client(urls[lives]) as client, ClusterClient(Client(urls[seen_from])) as operator:
            assert story.tell(client, operator, "mail") == set()


@pytest.mark.parametrize("at", [0, 1])
def test_the_lease_machine_finds_nothing_on_a_node(cluster: Cluster, at: int) -> None:
    with cluster.database() as urls:
        nodes.shard(urls[0])
        told = {**os.environ, **on_node(urls, at, here=True), "HOLDFAST_TEST_AGAIN": "1"}
        machine = "tests/model/test_lease_machine.py"
        command = [sys.executable, "-m", "pytest", "-n0", "-q", machine]
        ended = subprocess.run(command, env=told, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout[-3000:]
