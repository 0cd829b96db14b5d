"""Storing jobs: one by one, a thousand at a time, with keys, and from Python."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from bench.harness import PAYLOAD, Database, Options, Server, items
from bench.report import Figure
from holdfast import Client, NewJob

MANY = 1_000
BARE = f"""
    insert into bare (
      part, id, queue, kind, key, priority, run_at, created_at, max_attempts, by_kind, payload)
    select 0, gen_random_uuid(), 'default', 'send_email', j.key, 0, now(), now(), 3, false,
           %(payload)s::jsonb
    from (
      select case when %(keys)s then 'message-' || n end as key
      from generate_series(%(first)s::int, %(first)s::int + {MANY} - 1) n
    ) j
    order by j.key collate "C"
"""


def run(server: Server, options: Options) -> list[Figure]:
    """Measure each way in turn, round after round."""
    speed: dict[str, list[float]] = {}
    with server.database("enqueue") as database, Client(database.url) as client:
        database.connection.execute("create table bare (like holdfast.job including all)")
        seconds = options.seconds / 3
        ways: dict[str, Callable[[], float]] = {
            "one by one, one client": lambda: _single(database, options.seconds),
            f"SQL, {MANY:,} a call": lambda: _sql(database, seconds, keys=False),
            f"SQL, {MANY:,} a call, keys": lambda: _sql(database, seconds, keys=True),
            f"enqueue_many, {MANY:,} a call": lambda: _repeat(
                lambda: len(client.enqueue_many(_jobs(MANY))), seconds
            ),
            f"copy, {20 * MANY:,} a call": lambda: _repeat(
                lambda: client.copy(_jobs(20 * MANY)), seconds
            ),
            f"bare rows, {MANY:,} a statement": lambda: _bare(database, seconds, keys=False),
            f"bare rows, {MANY:,} a statement, keys": lambda: _bare(database, seconds, keys=True),
        }
        for _ in range(options.rounds):
            for what, way in ways.items():
                database.reset()
                database.connection.execute("truncate bare")
                with database.upkeep():
                    speed.setdefault(what, []).append(way())
    single, plain, keyed, many, copied, bare, bare_keyed = (
        Figure("enqueue", what, "jobs/s", samples) for what, samples in speed.items()
    )
    keyed, bare_keyed = replace(keyed, base=plain, at_least=0.8), replace(bare_keyed, base=bare)
    return [single, plain, keyed, many, copied, bare, bare_keyed]


def _single(database: Database, seconds: int) -> float:
    script = "select id from holdfast.enqueue(items => :item::jsonb);"
    load = database.pgbench(script, clients=1, seconds=seconds, item=items(1))
    return load.transactions / load.seconds


def _sql(database: Database, seconds: float, *, keys: bool) -> float:
    """Time the server alone: the JSON is made before the clock starts."""
    numbers = count()
    took = 0.0
    jobs = 0
    with database.connect() as connection:
        while not jobs or took < seconds:
            batch = [{"kind": "send_email", "payload": PAYLOAD} for _ in range(MANY)]
            if keys:
                batch = [item | {"key": f"message-{next(numbers)}"} for item in batch]
            text = json.dumps(batch)
            start = time.perf_counter()
            [(stored,)] = connection.execute(
                "select count(*) filter (where created) from holdfast.enqueue(%s::jsonb)", [text]
            )
            took += time.perf_counter() - start
            jobs += stored
    return jobs / took


def _bare(database: Database, seconds: float, *, keys: bool) -> float:
    """Store rows of the same shape, in the order of their keys, with nothing decided or counted."""
    given = {"payload": json.dumps(PAYLOAD), "keys": keys}
    firsts = count(0, MANY)
    with database.connect() as connection:
        return _repeat(
            lambda: connection.execute(BARE, {**given, "first": next(firsts)}).rowcount, seconds
        )


def _repeat(put: Callable[[], int], seconds: float) -> float:
    jobs = 0
    start = time.perf_counter()
    while True:
        jobs += put()
        if (took := time.perf_counter() - start) > seconds:
            return jobs / took


def _jobs(number: int) -> Iterator[NewJob]:
    return (NewJob(kind="send_email", payload=PAYLOAD) for _ in range(number))
