"""pgmq: tables and functions alone. It has no worker, so this is the loop its documentation shows.

Its client ships the SQL, so that nothing has to be installed beside PostgreSQL.
"""

from typing import Any

from bench.peers.contract import Clock, Ledger, Pace, Queue, main

VERSION = "1.1.4"
CHUNK = 10_000
BATCH = 500
QUEUE = Queue(
    name="pgmq",
    version=f"1.13 (client {VERSION})",
    about=f"no worker, no retries: a loop of read_with_poll, {BATCH} at a time with its poll of "
    f"100 ms, and delete_batch; bulk: send_batch in chunks of {CHUNK:,}; single: send",
    remaining="select count(*) from pgmq.q_jobs",
    requirements=(f"pgmq=={VERSION}", "psycopg[binary,pool]==3.3.8"),
    styles=("async",),
)


def setup(url: str) -> None:
    from pgmq.install import install_pgmq_from_sql

    install_pgmq_from_sql(dsn=_conninfo(url))
    _client(url).create_queue("jobs")


def bulk(url: str, jobs: int, keys: bool, clock: Clock) -> None:
    client = _client(url)
    client.list_queues()
    with clock:
        for start in range(0, jobs, CHUNK):
            some = range(start, min(jobs, start + CHUNK))
            client.send_batch("jobs", [{"n": n} for n in some])


def feed(url: str, pace: Pace) -> None:
    client = _client(url)
    pace.run(lambda n: client.send("jobs", {"n": n}))


def work(url: str, ledger: Ledger, style: str) -> None:
    client = _client(url)
    while True:
        batch = client.read_with_poll("jobs", vt=30, qty=BATCH, max_poll_seconds=5)
        if batch:
            for message in batch:
                ledger.hit(message.message["n"])
            client.delete_batch("jobs", [message.msg_id for message in batch])


def _client(url: str) -> Any:
    from pgmq import PGMQueue

    return PGMQueue(conn_string=_conninfo(url), init_extension=False)


def _conninfo(url: str) -> str:
    # Of a URL it would read no more than host, port and names in front of the question mark.
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    return make_conninfo(**conninfo_to_dict(url))


if __name__ == "__main__":
    main(setup=setup, bulk=bulk, feed=feed, work=work)
