"""How long a claim takes with few and with very many jobs waiting."""

import json
import time
from statistics import quantiles
from uuid import uuid4

import psycopg

from bench.harness import PAYLOAD, Database, Options, Server, items
from bench.proc import cpu
from bench.report import Figure

TAKE = 10
RARE = 10_000
WARM_UP = 20
CLAIM = (
    "select id from holdfast.claim(queue => %s::text, worker => 'bench', token => %s::uuid, "
    f"max_jobs => {TAKE}, kinds => %s::text[], durable => false)"
)
ACK = "select count(*) from holdfast.ack(ids => %s::uuid[], tokens => %s::uuid[])"
ENQUEUE = "select count(*) from holdfast.enqueue(items => %s::jsonb)"


def run(server: Server, options: Options) -> list[Figure]:
    """Claim ten, ack them and put ten back, from each queue in turn: its depth does not change."""
    queues: dict[str, tuple[str, str, bool]] = {}
    with server.database("backlog") as database:
        for waiting in options.waiting:
            fill(database, f"q{waiting}", "send_email", waiting)
            queues[f"{waiting:,} waiting"] = (f"q{waiting}", "send_email", False)
        ahead = options.waiting[:2][-1]
        database.connection.execute("select holdfast.queue_set('mixed', '{\"by_kind\": true}')")
        fill(database, "mixed", "common", ahead)
        fill(database, "mixed", "rare", min(RARE, ahead))
        queues[f"one kind, {ahead:,} others ahead"] = ("mixed", "rare", True)
        database.connection.execute("vacuum (analyze) holdfast.job")
        database.connection.execute("checkpoint")

        took: dict[str, list[tuple[float, float]]] = {what: [] for what in queues}
        with database.upkeep(), database.connect() as connection:
            for turn in range(WARM_UP + options.samples):
                for what, (queue, kind, filtered) in queues.items():
                    sample = _claim(connection, queue, kind, filtered)
                    if turn >= WARM_UP:
                        took[what].append(sample)
    return _figures(took)


def fill(database: Database, queue: str, kind: str, waiting: int) -> None:
    """Store many jobs at once, as a COPY into the table would."""
    with database.connection.transaction():
        database.connection.execute(
            """
            insert into holdfast.job (part, id, queue, kind, by_kind, payload)
            select p.part, holdfast.id_in(p.part), %(queue)s, %(kind)s,
                   coalesce((select by_kind from holdfast.queue where name = %(queue)s), false),
                   %(payload)s::jsonb
            from (select holdfast.queue_part(%(queue)s) as part) p
            cross join generate_series(1, %(waiting)s)
            """,
            {"queue": queue, "kind": kind, "waiting": waiting, "payload": json.dumps(PAYLOAD)},
        )
        database.connection.execute(
            "select holdfast.copied(%s, array[%s], array[%s])", [queue, kind, waiting]
        )


def _claim(
    connection: psycopg.Connection, queue: str, kind: str, filtered: bool
) -> tuple[float, float]:
    pid = connection.info.backend_pid
    token = uuid4()
    before, start = cpu(pid), time.perf_counter()
    rows = connection.execute(CLAIM, [queue, token, [kind] if filtered else None]).fetchall()
    took = time.perf_counter() - start, cpu(pid) - before
    assert len(rows) == TAKE, f"{queue} gave {len(rows)} jobs"
    connection.execute(ACK, [[id for (id,) in rows], [token]])
    connection.execute(ENQUEUE, [items(TAKE, queue=queue, kind=kind)])
    return took


def _figures(took: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    found: list[Figure] = []
    for nth, unit in enumerate(("ms", "backend ms")):
        for name, place in (("p50", 49), ("p99", 98)):
            base = None
            for what, samples in took.items():
                value = quantiles((sample[nth] * 1000 for sample in samples), n=100)[place]
                if not value:
                    continue  # the kernel does not tell
                bound = 3.0 if what.startswith("one kind") else 1.3
                judged = base is not None and (name, unit) == ("p99", "ms")
                figure = Figure(
                    "backlog",
                    f"claim of {TAKE}, {name}, {what}",
                    unit,
                    [value],
                    base,
                    at_most=bound if judged else None,
                )
                base = base or figure
                found.append(figure)
    return found
