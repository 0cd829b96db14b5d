"""Orders and their jobs, while queues move and nodes crash: each order has its job, done once."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from holdfast import nodes
from tests.citus.cluster import Cluster

QUEUES = ("mail", "text", "here")
DONE = "select id from holdfast.ack(%s::uuid[], %s::uuid[]) where outcome = 'done'"


class Shop:
    """Producers and workers on all nodes, each in a thread that comes back after every crash."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.told = 0
        self._selling = threading.Event()
        self._open = threading.Event()

    @contextmanager
    def open(self) -> Iterator[None]:
        self._selling.set()
        self._open.set()
        tills = [(at, till) for at in (0, 2) for till in (1, 2)]
        threads = [threading.Thread(target=self._sell, args=till) for till in tills]
        threads += [threading.Thread(target=self._work, args=[at]) for at in (0, 1, 2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.close()
            self._open.clear()
            for thread in threads:
                thread.join()

    def close(self) -> None:
        self._selling.clear()

    def _sell(self, at: int, till: int) -> None:
        number = 0

        def sell(connection: psycopg.Connection) -> None:
            nonlocal number
            number += 1
            name = f"{at}.{till}.{number}"
            with connection.transaction():
                connection.execute("insert into orders values (%s)", [name])
                items = [{"kind": "k", "queue": QUEUES[number % 3], "payload": {"order": name}}]
                if number % 7 == 0:
                    items[0]["key"] = name
                connection.execute("select from holdfast.enqueue(%s)", [Jsonb(items)])
            self.told += 1

        self._repeat(at, self._selling, sell)

    def _work(self, at: int) -> None:
        def work(connection: psycopg.Connection) -> None:
            found = 0
            for queue in QUEUES:
                token = uuid4()
                rows = connection.execute(
                    "select id, payload ->> 'order' from holdfast.claim(%s, 'w', %s, 20)",
                    [queue, token],
                ).fetchall()
                found += len(rows)
                if rows:
                    ids = [id for id, _ in rows]
                    orders = dict(rows)
                    with connection.transaction():
                        gone = connection.execute(DONE, [ids, [token] * len(ids)]).fetchall()
                        served = [orders[id] for (id,) in gone]
                        connection.execute("insert into served select unnest(%s::text[])", [served])
            connection.execute("select holdfast.upkeep('{reaped,promoted,strays,folded}')")
            if not found:
                time.sleep(0.05)

        self._repeat(at, self._open, work)

    def _repeat(
        self, at: int, while_set: threading.Event, act: Callable[[psycopg.Connection], None]
    ) -> None:
        while while_set.is_set():
            with (
                suppress(psycopg.Error),
                psycopg.connect(self.urls[at], autocommit=True, connect_timeout=3) as connection,
            ):
                connection.execute("set statement_timeout = '20s'")
                while while_set.is_set():
                    act(connection)
            time.sleep(0.05)


def left(urls: list[str]) -> int:
    """How many jobs and unfinished transactions there are, on all nodes."""
    count = 0
    for url in urls:
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "select (select count(*) from holdfast.job) +"
                " (select count(*) from pg_prepared_xacts where database = current_database())"
            ).fetchone()
            assert row is not None
            count += row[0]
    return count


def eventually(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while True:
        with suppress(psycopg.Error):
            if what():
                return
        assert time.monotonic() < end
        time.sleep(0.2)


def test_an_order_has_its_job_and_a_job_its_order_whatever_crashes_or_moves(
    cluster: Cluster,
) -> None:
    if not cluster.servers:
        pytest.skip("the nodes are not ours to kill")
    with cluster.database() as urls:
        nodes.shard(urls[0])
        for url in urls:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("set citus.enable_ddl_propagation = off")
                connection.execute("create table orders (name text primary key)")
                connection.execute("create table served (name text)")
        with psycopg.connect(urls[0], autocommit=True) as connection:
            for queue in QUEUES:
                connection.execute("select from holdfast.queue_set(%s, '{\"lease\": 3}')", [queue])
        nodes.place(urls[0], "mail", 1)
        nodes.place(urls[0], "text", 2)
        shop = Shop(urls)
        with shop.open():
            sold: list[int] = []

            def business() -> bool:
                return shop.told > sold[-1] + 40

            def some_business() -> None:
                sold.append(shop.told)
                eventually(business)

            some_business()
            eventually(lambda: nodes.place(urls[0], "mail", 2) is None)
            some_business()
            for victim in (1, 0, 2):
                cluster.servers[victim].kill()
                time.sleep(0.5)
                cluster.servers[victim].start()
                some_business()
            eventually(lambda: nodes.place(urls[0], "mail", 0) is None)
            eventually(lambda: nodes.place(urls[0], "text", 1) is None)
            some_business()
            shop.close()
            eventually(lambda: left(urls) == 0)
        orders: set[str] = set()
        served: Counter[str] = Counter()
        for url in urls:
            with psycopg.connect(url) as connection:
                orders.update(name for (name,) in connection.execute("select name from orders"))
                served.update(name for (name,) in connection.execute("select name from served"))
                assert connection.execute("select * from holdfast.recount()").fetchall() == []
        assert len(orders) >= shop.told > 200
        lost, foreign = orders - set(served), set(served) - orders
        twice = {name for name, times in served.items() if times > 1}
        print(f"{len(orders)} orders: {len(lost)} lost, {len(foreign)} foreign, {len(twice)} twice")
        assert (lost, foreign, twice) == (set(), set(), set())
