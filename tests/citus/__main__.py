"""The tests of the protocol on a node of a cluster, with what they enqueue sent from another.

    python -m tests.citus tests/sql/test_verbs_ack.py …
    python -m tests.citus --at 0 tests/sql/test_verbs_claim.py …
    python -m tests.citus --here

All queues live on node 1, or on the one given by --at, which the tests are connected to; an enqueue
that is no part of a test's own transaction is made on another node, and goes there. With --here it
is not: for tests that set the time of their own session, or look at what it waits for. Where no
tests are named, these are tests/races and tests/model, and otherwise tests/sql. Short forms of this
are in test_verbs.py.

Tests that wait to be notified by an enqueue from elsewhere wait forever, as what is prepared cannot
notify: leave them out as `make test-citus` does, with

    -k "not woken and not wake and not idle and not notif"

Tests that plant a fault in the database skip themselves: all tests share that of the node, so the
fault would stay there, and the next one would be planted on top of it. Left out unless they are
named: what is true of a database without a cluster (test_nodes.py) or with a table that is split
(test_split.py); what a session may do that the enqueue does not use (test_roles.py); and what
counts the rows and pages that are read (test_plans.py, test_million.py), which others leave behind
in a database that is shared.
"""

import os
import subprocess
import sys

import psycopg
from psycopg import sql

from holdfast import nodes
from tests import protocol
from tests.citus import cluster as citus

LEFT_OUT = (
    "test_nodes.py",
    "test_split.py",
    "test_roles.py",
    "test_plans.py",
    "test_million.py",
)
ELSEWHERE = ("tests/sql", *(f"--ignore=tests/sql/{name}" for name in LEFT_OUT))
# Its own database is not on the server on which it would be seen to wait.
NEW_PAGE = "tests/races/test_upkeep_races.py::test_a_settle_that_meets_a_new_page_is_written"
HERE = ("tests/races", "tests/model", f"--deselect={NEW_PAGE}")


def main(arguments: list[str]) -> int:
    at = 1
    if "--at" in arguments:
        place = arguments.index("--at")
        _, number = arguments[place : place + 2]
        at = int(number)
        del arguments[place : place + 2]
    here = "--here" in arguments
    with citus.running() as cluster:
        if cluster is None:
            print(f"skipped: {citus.WHY_NOT}")
            return 0
        with cluster.database() as urls:
            nodes.shard(urls[0])
            told = on_node(urls, at, here=here)
            chosen = [one for one in arguments if one != "--here"]
            # Options alone, such as -k, choose among the usual ones.
            if not any(one.startswith("tests") for one in chosen):
                chosen = [*(HERE if here else ELSEWHERE), *chosen]
            command = [sys.executable, "-m", "pytest", "-n0", *chosen]
            return subprocess.run(command, env={**os.environ, **told}, check=False).returncode


def on_node(urls: list[str], at: int, *, here: bool = False) -> dict[str, str]:
    """Have all queues live on a node; returns what tells the tests of the protocol to use it."""
    for node, url in enumerate(urls):
        # A queue that nobody placed lives here, or there. What tests make on a node is for it.
        unplaced = "" if node == at else str(at)
        settings = {"holdfast.unplaced": unplaced, "citus.enable_ddl_propagation": "off"}
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set citus.enable_ddl_propagation = off")
            name = sql.Identifier(connection.info.dbname)
            for setting, value in settings.items():
                change = sql.SQL("alter database {} set {} = {}")
                parts = sql.Identifier(*setting.split(".")), value
                connection.execute(change.format(name, *parts))
    told = {protocol.NODE: urls[at]}
    return told if here else {**told, protocol.ELSEWHERE: urls[1 if at == 0 else 0]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
