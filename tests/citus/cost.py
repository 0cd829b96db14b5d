"""What a queue on a node costs beside one PostgreSQL: enqueue, claim and ack in batches.

    python -m tests.citus.cost [--seconds 3] [--rounds 5] [--connections 4]

Five ways by turns, on the same servers: all three verbs on one PostgreSQL; all on the queue's
node; the enqueue on the coordinator, the others on the queue's node; and both of these with half of
the queues on each of two nodes, at once. Prints the table of docs/how-to/citus.md: jobs a second,
the median of the rounds; the ratio to the first; and the CPU that the processes of each server
spent on a job, which is known of servers that this program has started.

On one host, two nodes share the cores that one has: see from the CPU what two hosts would do. Exits
with 1 if batches of 100 that are enqueued elsewhere are less than 0.6 of one PostgreSQL.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

from bench.proc import family_cpu
from holdfast import nodes
from tests.citus import cluster as citus

ENQUEUE = "select count(*) from holdfast.enqueue(%s)"
CLAIM = "select array_agg(id) from holdfast.claim(%s, 'w', %s, %s, durable => false)"
ACK = "select count(*) from holdfast.ack(%s::uuid[], array_fill(%s::uuid, array[%s]))"

BATCHES = (1, 10, 100)
LEAST = 0.6
"""Of one PostgreSQL, in the largest batches, if they are enqueued elsewhere."""
ONE = "one PostgreSQL"
ELSEWHERE = "enqueued on the coordinator, claimed and acked on the queue's node"


@dataclass
class Way:
    """Where it is enqueued, where it is claimed and acked, and in which queue, by turns."""

    lanes: Sequence[tuple[str, str, str]]
    rates: list[float] = field(default_factory=list)
    cpu: list[Sequence[float]] = field(default_factory=list)
    """Of each server, in microseconds for each job."""


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


class Options(argparse.Namespace):
    """What was asked for."""

    seconds: float
    rounds: int
    connections: int


def jobs_of(way: Way, batch: int, connections: int, seconds: float) -> int:
    """Return how many jobs so many connections did, each with a queue of its own."""
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(connections) as pool:
        turns = []
        for n in range(connections):
            producer, worker, queue = way.lanes[n % len(way.lanes)]
            turns.append(pool.submit(cycle, producer, worker, f"{queue}{n}", batch, until))
        return sum(turn.result() for turn in turns)


def measure(way: Way, batch: int, servers: Sequence[citus.Server], options: Options) -> None:
    """Have it run once more, and keep what came of it."""
    before = [family_cpu(server.pid) for server in servers]
    done = jobs_of(way, batch, options.connections, options.seconds)
    way.rates.append(done / options.seconds)
    after = [family_cpu(server.pid) for server in servers]
    spent = zip(before, after, strict=True)
    way.cpu.append([(late - early) / done * 1e6 for early, late in spent])


def told(batch: int, name: str, way: Way, ratio: float) -> str:
    """Return a row of the table."""
    servers = [f"{median(values):.0f}" for values in zip(*way.cpu, strict=True)]
    speed = f"{median(way.rates):,.0f}"
    return f"| {' | '.join([str(batch), name, speed, f'{ratio:.2f}', *servers])} |"


def ways_of(urls: Sequence[str]) -> dict[str, Way]:
    zero, one, two = urls
    return {
        ONE: Way([(zero, zero, "here")]),
        "all on the queue's node": Way([(one, one, "first")]),
        ELSEWHERE: Way([(zero, one, "first")]),
        "all on its node, half of the queues on each of two": Way(
            [(one, one, "first"), (two, two, "second")]
        ),
        "enqueued on the coordinator, half of the queues on each of two": Way(
            [(zero, one, "first"), (zero, two, "second")]
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4)
    options = parser.parse_args(namespace=Options())
    ratio = 0.0
    with citus.running() as cluster:
        if cluster is None:
            print(f"skipped: {citus.WHY_NOT}")
            return 0
        with cluster.database() as urls:
            nodes.shard(urls[0])
            for n in range(options.connections):
                nodes.place(urls[0], f"first{n}", 1)
                nodes.place(urls[0], f"second{n}", 2)
            servers = [f"CPU of node {n}, µs/job" for n in range(len(cluster.servers))]
            headings = ["batch", "where", "jobs/s", "ratio", *servers]
            print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
            for batch in BATCHES:
                ways = ways_of(urls)
                for _ in range(options.rounds):
                    for way in ways.values():
                        measure(way, batch, cluster.servers, options)
                first = median(ways[ONE].rates)
                for name, way in ways.items():
                    print(told(batch, name, way, median(way.rates) / first), flush=True)
                ratio = median(ways[ELSEWHERE].rates) / first
    if ratio < LEAST:
        print(f"{ELSEWHERE}: {ratio:.2f}, and must be at least {LEAST}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
