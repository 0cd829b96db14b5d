"""The least that could be done: the rows of Holdfast's jobs, put and taken by bare statements.

The same driver copies the same bytes into a table of the same shape, inserts the same row, and
deletes the oldest rows. There are no leases, and a row that was taken is gone whatever happens.
Jobs that sleep do so in a bare event loop, whose timers end late by up to a millisecond.
"""

import asyncio
import itertools
import json
from uuid import uuid4

from bench.peers.contract import AT_ONCE, SLEEP, Clock, Ledger, Pace, Queue, main

BATCH = 100
QUEUE = Queue(
    name="floor",
    version="",
    about="bare statements by psycopg in a table of the same shape; bulk: COPY of the same bytes; "
    f"single: a prepared INSERT of the same row; drain: DELETE of the oldest {BATCH}; "
    f"{SLEEP * 1000:.0f} ms: asyncio.sleep, {AT_ONCE} at once",
    remaining="select count(*) from bench.floor",
    styles=("async", "sleep"),
)
INSERT = """
insert into bench.floor (part, id, queue, kind, payload)
values (%s, %s, 'default', 'noop', %s::jsonb)
"""
OLDEST = f"""
delete from bench.floor where ctid = any(array(
  select ctid from bench.floor
  where part = %s and queue = 'default' and priority = 0 and pos is not null
  order by pos limit {BATCH} for update skip locked))
returning payload
"""
PART = "select holdfast.queue_part('default')"


def setup(url: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select array_to_string(reloptions, ', ') from pg_class "
            "where oid = 'holdfast.job'::regclass"
        ).fetchone()
        assert row is not None
        connection.execute(
            "create schema bench; "
            f"create table bench.floor (like holdfast.job including all) with ({row[0]})"
        )


def bulk(url: str, jobs: int, keys: bool, clock: Clock) -> None:
    import psycopg

    from holdfast import Client, NewJob

    with Client(url) as client:
        client.copy(NewJob(kind="noop", payload={"n": n}) for n in range(jobs))
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.cursor().copy("copy holdfast.job to stdout") as out:
            rows = b"".join(bytes(data) for data in out)
        connection.execute("truncate holdfast.job")
        connection.execute("checkpoint")
        with clock, connection.cursor().copy("copy bench.floor from stdin") as into:
            into.write(rows)


def feed(url: str, pace: Pace) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        [(part,)] = connection.execute(PART).fetchall()
        cursor = connection.cursor()
        pace.run(lambda n: cursor.execute(INSERT, [part, uuid4(), json.dumps({"n": n})]))


def work(url: str, ledger: Ledger, style: str) -> None:
    import time

    import psycopg

    options = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
    with psycopg.connect(url, autocommit=True, prepare_threshold=0, options=options) as connection:
        [(part,)] = connection.execute(PART).fetchall()
        if style == "sleep":
            asyncio.run(_sleep(ledger))
            connection.execute("truncate bench.floor")
        for _ in itertools.count():
            rows = connection.execute(OLDEST, [part]).fetchall()
            for (payload,) in rows:
                ledger.hit(payload["n"])
            if not rows:
                time.sleep(0.1)


async def _sleep(ledger: Ledger) -> None:
    jobs = iter(range(ledger.jobs))

    async def one_by_one() -> None:
        for job in jobs:
            ledger.hit(job)
            await asyncio.sleep(SLEEP)

    await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    main(setup=setup, bulk=bulk, feed=feed, work=work)
