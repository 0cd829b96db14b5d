"""Real workers on every node, killed with SIGKILL, while their queue moves and a node restarts."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from holdfast import nodes
from tests.citus.cluster import Cluster
from tests.citus.test_crashes import eventually, left

APP = """
import time
from holdfast import App, current

app = App()

@app.task(queue="mail", kind="serve")
def serve(order: str) -> None:
    with current().transaction() as connection:
        connection.execute("insert into served values (%s)", [order])
        time.sleep(0.02)
"""
ROUNDS = int(os.environ.get("HOLDFAST_TEST_CITUS_ROUNDS", "4"))


class Worker:
    """A process that is started again when it was killed."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url, self._directory = url, directory
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "holdfast", "worker", "shop:app"]
        environment = {**os.environ, "HOLDFAST_URL": self._url}
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self._directory, env=environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def selling(url: str) -> Iterator[Counter[str]]:
    """Have orders made on a node, each with its job, in one transaction; counts what was told."""
    told: Counter[str] = Counter()
    over = threading.Event()

    def sell() -> None:
        number = 0
        while not over.is_set():
            with (
                suppress(psycopg.Error),
                psycopg.connect(url, autocommit=True, connect_timeout=3) as connection,
            ):
                connection.execute("set statement_timeout = '20s'")
                while not over.is_set():
                    number += 1
                    name = f"order {number}"
                    item = {"kind": "serve", "queue": "mail", "payload": {"order": name}}
                    with connection.transaction():
                        connection.execute("insert into orders values (%s)", [name])
                        connection.execute("select from holdfast.enqueue(%s)", [Jsonb([item])])
                    told["orders"] += 1
                    time.sleep(0.01)
            time.sleep(0.05)

    thread = threading.Thread(target=sell)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()


def test_each_order_is_served_once_by_workers_that_are_killed_while_the_queue_moves(
    cluster: Cluster, tmp_path: Path
) -> None:
    if not cluster.servers:
        pytest.skip("the nodes are not ours to restart")
    (tmp_path / "shop.py").write_text(APP)
    with cluster.database() as urls, ExitStack() as stack:
        nodes.shard(urls[0])
        for url in urls:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("set citus.enable_ddl_propagation = off")
                connection.execute("create table orders (name text primary key)")
                connection.execute("create table served (name text)")
        with psycopg.connect(urls[0], autocommit=True) as connection:
            connection.execute("select from holdfast.queue_set('mail', '{\"lease\": 3}')")
        workers = [Worker(url, tmp_path) for url in urls]
        for worker in workers:
            stack.callback(lambda worker=worker: worker.kill())
        with selling(urls[0]) as told:
            for turn in range(ROUNDS):
                before = told["orders"]
                node = (turn + 1) % 3
                eventually(lambda node=node: nodes.place(urls[0], "mail", node) is None)
                for worker in workers:
                    # A program takes a second to start: it is to be killed at its work.
                    time.sleep(1.5)
                    assert worker.process.poll() is None, (tmp_path / "log").read_text()[-2000:]
                    worker.kill()
                    worker.start()
                if turn % 2:
                    cluster.servers[node].kill()
                    time.sleep(0.5)
                    cluster.servers[node].start()
                eventually(lambda before=before: told["orders"] > before + 30)
        eventually(lambda: left(urls) == 0)
        orders: set[str] = set()
        served: Counter[str] = Counter()
        places: Counter[int] = Counter()
        for node, url in enumerate(urls):
            with psycopg.connect(url) as connection:
                orders.update(name for (name,) in connection.execute("select name from orders"))
                names = [name for (name,) in connection.execute("select name from served")]
                served.update(names)
                places[node] += len(names)
                assert connection.execute("select * from holdfast.recount()").fetchall() == []
        lost, foreign = orders - set(served), set(served) - orders
        twice = {name for name, times in served.items() if times > 1}
        print(f"{len(orders)} orders, served on {dict(places)}: {len(lost)} lost, ", end="")
        print(f"{len(foreign)} foreign, {len(twice)} twice")
        assert len(orders) >= told["orders"] > 30 * ROUNDS
        assert (lost, foreign, twice) == (set(), set(), set())
        assert min(places.values()) > 0, (tmp_path / "log").read_text()[-2000:]
