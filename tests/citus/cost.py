"""What a queue on a node costs beside one PostgreSQL: enqueue, claim and ack in batches.

    python -m tests.citus.cost [--seconds 3] [--rounds 5] [--connections 4]

Three ways by turns, on the same servers: all three verbs on one PostgreSQL; all on the queue's
node; and the enqueue on the coordinator, the others on the queue's node. Prints jobs a second, the
median of the rounds, and the ratio to the first.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

from holdfast import nodes
from tests.citus import cluster as citus

ENQUEUE = "select count(*) from holdfast.enqueue(%s)"
CLAIM = "select array_agg(id) from holdfast.claim(%s, 'w', %s, %s, durable => false)"
ACK = "select count(*) from holdfast.ack(%s::uuid[], array_fill(%s::uuid, array[%s]))"


def cycle(producer: str, worker: str, queue: str, batch: int, until: float) -> int:
    """Have jobs go through all three verbs, one batch after the other; returns how many."""
    items = Jsonb([{"kind": "k", "queue": queue, "payload": {"pad": "x" * 100}}] * batch)
    done = 0
    with (
        psycopg.connect(producer, autocommit=True) as here,
        psycopg.connect(worker, autocommit=True) as there,
    ):
        while time.monotonic() < until:
            token = uuid4()
            here.execute(ENQUEUE, [items])
            row = there.execute(CLAIM, [queue, token, batch]).fetchone()
            assert row is not None
            there.execute(ACK, [row[0], token, len(row[0])])
            done += len(row[0])
    return done


def rate(way: tuple[str, str, str], batch: int, connections: int, seconds: float) -> float:
    """Return jobs a second of so many connections, each with a queue of its own."""
    producer, worker, queue = way
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(connections) as pool:
        turns = [
            pool.submit(cycle, producer, worker, f"{queue}{n}", batch, until)
            for n in range(connections)
        ]
        return sum(turn.result() for turn in turns) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4)
    options = parser.parse_args()
    with citus.running() as cluster:
        if cluster is None:
            print(f"skipped: {citus.WHY_NOT}")
            return
        with cluster.database() as urls:
            nodes.shard(urls[0])
            for n in range(options.connections):
                nodes.place(urls[0], f"there{n}", 1)
            ways = {
                "one PostgreSQL": (urls[0], urls[0], "here"),
                "all on the node": (urls[1], urls[1], "there"),
                "enqueued elsewhere": (urls[0], urls[1], "there"),
            }
            for batch in (1, 10, 100):
                rates: dict[str, list[float]] = {name: [] for name in ways}
                for _ in range(options.rounds):
                    for name, way in ways.items():
                        found = rate(way, batch, options.connections, options.seconds)
                        rates[name].append(found)
                first = median(rates["one PostgreSQL"])
                for name, several in rates.items():
                    typical = median(several)
                    print(f"batch {batch:3}  {name:20} {typical:8.0f}/s  {typical / first:.2f}")


if __name__ == "__main__":
    main()
