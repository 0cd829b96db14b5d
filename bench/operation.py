"""An operation on very many jobs, carried by a server, beside a worker that has others to run."""

import json
import time

from bench import measures, peers
from bench.harness import PAYLOAD, Database, Options, Server
from bench.report import Figure
from bench.server import serving

FILTER = "group:f queue:later"
# The retried jobs wait for a worker that this machine does not have.
OTHERS = "select count(*) from holdfast.job where queue <> 'later'"


def run(server: Server, options: Options) -> list[Figure]:
    """Drain while a server retries all dead jobs of another queue, and while that stands still."""
    alone, beside, seconds = [], [], 0.0
    with server.database("operation") as database, serving(database):
        _die(database, options.dead)
        canary = _retry(database, most=10)
        while not _ended(database, canary):
            time.sleep(0.1)
        operation = _retry(database)
        while not _ended(database, operation):
            _due(database, operation, "infinity")
            alone.append(_drain(database, options.drain))
            _due(database, operation, "now")
            start = time.monotonic()
            beside.append(_drain(database, options.drain))
            seconds += time.monotonic() - start
        left = database.value("select count(*) from holdfast.dead")
        tried, retried = _changed(database, canary), _changed(database, operation)
    base = Figure("operation", "a worker alone", "jobs/s", alone)
    what = f"a worker while {retried:,} dead jobs are retried"
    return [
        base,
        Figure("operation", what, "jobs/s", beside, base, at_least=0.8),
        Figure("operation", "retried a second meanwhile", "jobs/s", [retried / seconds]),
        Figure("operation", "retried by a canary of 10", "jobs", [tried], at_least=10, at_most=10),
        Figure("operation", "dead jobs left", "jobs", [left], at_most=0),
    ]


def _drain(database: Database, jobs: int) -> float:
    peer = peers.here("holdfast")
    peer.run("bulk", measures.url_of(database), jobs, "plain")
    return measures.drain(peer, database, jobs, remaining=OTHERS)["rate"]


def _die(database: Database, many: int) -> None:
    database.connection.execute(
        """
        insert into holdfast.dead (
          part, id, state, queue, kind, priority, attempt, max_attempts,
          run_at, created_at, ended_at, worker, error, fingerprint, payload)
        select p.part, holdfast.id_in(p.part), 'dead', 'later', 'k', 0, 3, 3, now(), now(), now(),
               'w', 'TimeoutError: timed out', 'f', %s::jsonb
        from (select holdfast.queue_part('later') as part) p cross join generate_series(1, %s)
        """,
        [json.dumps(PAYLOAD), many],
    )
    database.connection.execute("select holdfast.recount()")
    database.connection.execute("vacuum analyze")


def _retry(database: Database, most: int | None = None) -> int:
    preview = "select token from holdfast.operation_preview('retry', %s, most => %s)"
    token = database.value(preview, FILTER, most)
    return int(database.value("select id from holdfast.operation_start(%s)", token))


def _due(database: Database, operation: int, at: str) -> None:
    """Say when the next chunk may be done: never, or now."""
    database.connection.execute(
        "update holdfast.operation set next_at = %s where id = %s", [at, operation]
    )


def _ended(database: Database, operation: int) -> bool:
    state = database.value("select state from holdfast.operations where id = %s", operation)
    if state == "failed":
        raise RuntimeError(
            database.value("select problem from holdfast.operations where id = %s", operation)
        )
    return bool(state == "done")


def _changed(database: Database, operation: int) -> int:
    return int(database.value("select changed from holdfast.operations where id = %s", operation))
