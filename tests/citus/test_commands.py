"""The commands of a cluster: set up, place, list, and the address of a node."""

import json
import subprocess
import sys

import psycopg

from tests.citus.cluster import Cluster
from tests.protocol import Protocol


def holdfast(url: str, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "holdfast", *words, "--url", url]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout.strip(), answer.stderr.strip()


def test_a_cluster_is_set_up_and_used_by_commands(cluster: Cluster) -> None:
    with cluster.database() as urls:
        code, _, told = holdfast(urls[0], "migrate", "--shard")
        assert (code, "Holdfast is on 3 nodes" in told) == (0, True), told
        code, again, _ = holdfast(urls[0], "migrate", "--shard", "--json")
        assert (code, json.loads(again)["applied"]) == (0, [])
        code, _, told = holdfast(urls[0], "queue", "place", "mail", "2")
        assert (code, "queue mail lives on node 2" in told) == (0, True), told

        code, there, _ = holdfast(urls[0], "node", "url", "--queue", "mail")
        assert code == 0
        holdfast(urls[1], "job", "enqueue", "greet", "--queue", "mail")
        with psycopg.connect(there, autocommit=True) as connection:
            assert len(Protocol(connection).claim("mail")) == 1
        code, listed, _ = holdfast(urls[0], "node", "list", "--json")
        assert [(one["node"], one["placed"], one["leased"]) for one in json.loads(listed)] == [
            (0, 0, 0),
            (1, 0, 0),
            (2, 1, 1),
        ]

        code, _, told = holdfast(urls[0], "queue", "place", "mail", "9")
        assert (code, told.startswith("HF415 no node has the number 9")) == (2, True), told
        code, _, told = holdfast(urls[0], "node", "url", "9")
        assert (code, told.startswith("HF415 no node has the number 9")) == (5, True), told
        code, _, told = holdfast(urls[1], "migrate", "--shard")
        assert (code, told.startswith("HF415 this is not the coordinator")) == (5, True), told
