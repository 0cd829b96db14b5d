"""The tests of the protocol on a node of a cluster, with what they enqueue sent from another.

    python -m tests.citus tests/sql/test_verbs_ack.py …
    python -m tests.citus --here tests/model

All queues live on node 1, which the tests are connected to; an enqueue that is no part of a test's
own transaction is made on the coordinator, and goes to node 1 from there. With --here it is not:
for tests that set the time of their own session.

Tests that wait to be notified by an enqueue wait forever, as what is prepared cannot notify:
leave them out with  -k "not woken and not wake and not idle".
"""

import os
import subprocess
import sys

import psycopg
from psycopg import sql

from holdfast import nodes
from tests import protocol
from tests.citus import cluster as citus

USUAL = ("tests/sql", "tests/races")


def main(arguments: list[str]) -> int:
    with citus.running() as cluster:
        if cluster is None:
            print(f"skipped: {citus.WHY_NOT}")
            return 0
        with cluster.database() as urls:
            nodes.shard(urls[0])
            for url, unplaced in zip(urls, ("1", "", "1"), strict=True):
                # What tests make on a node is for that node.
                settings = {"holdfast.unplaced": unplaced, "citus.enable_ddl_propagation": "off"}
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("set citus.enable_ddl_propagation = off")
                    name = sql.Identifier(connection.info.dbname)
                    for setting, value in settings.items():
                        change = sql.SQL("alter database {} set {} = {}")
                        parts = sql.Identifier(*setting.split(".")), value
                        connection.execute(change.format(name, *parts))
            told = {protocol.NODE: urls[1]}
            if "--here" in arguments:
                arguments.remove("--here")
            else:
                told[protocol.ELSEWHERE] = urls[0]
            command = [sys.executable, "-m", "pytest", "-n0", *(arguments or USUAL)]
            return subprocess.run(command, env={**os.environ, **told}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
