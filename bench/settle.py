"""Settling a large batch by one call: what each verb costs beside an ack that deletes the jobs.

An ack leaves nothing behind. One that keeps the job writes it into the history; a nack writes it
once more into the hot table, with the attempt that failed and the event that says so; a release
writes the job alone.
"""

from uuid import uuid4

from bench.harness import Database, Options, Server, cpu, items
from bench.report import Figure

VERBS = {
    "ack": "select count(*) from holdfast.ack(ids => %s::uuid[], tokens => array[%s::uuid])",
    "ack, jobs kept": (
        "select count(*) from holdfast.ack(ids => %s::uuid[], tokens => array[%s::uuid], "
        "keep => true)"
    ),
    "nack": (
        "select count(*) from holdfast.nack(ids => %s::uuid[], tokens => array[%s::uuid], "
        "error_kind => 'Oops', message => 'it did not work', delay => '1 hour')"
    ),
    "release": (
        "select count(*) from holdfast.release(ids => %s::uuid[], tokens => array[%s::uuid], "
        "delay => '1 hour')"
    ),
}


def run(server: Server, options: Options) -> list[Figure]:
    """Settle a batch by each verb in turn, round after round; CPU of the session that does it."""
    spent: dict[str, list[float]] = {verb: [] for verb in VERBS}
    with server.database("settle") as database:
        for rehearsal in (True, *[False] * options.rounds):
            for verb in VERBS:
                used = _settle(database, verb, options.settled)
                if not rehearsal:
                    spent[verb].append(used)
    figures: dict[str, Figure] = {}
    for verb, samples in spent.items():
        what = f"{verb} of {options.settled:,} jobs"
        at_most = 2.0 if verb == "nack" else None
        base = figures.get("ack")
        figures[verb] = Figure("settle", what, "ms CPU", samples, base, at_most=at_most)
    kept = figures["ack, jobs kept"]
    for verb in ("nack", "release"):
        what = f"{verb} of {options.settled:,} jobs, beside an ack that keeps them"
        figures[f"{verb} beside kept"] = Figure("settle", what, "ms CPU", spent[verb], kept)
    return list(figures.values())


def _settle(database: Database, verb: str, jobs: int) -> float:
    database.reset()
    for start in range(0, jobs, 1000):
        batch = items(min(1000, jobs - start))
        database.connection.execute(
            "select count(*) from holdfast.enqueue(items => %s::jsonb)", [batch]
        )
    token = uuid4()
    ids = database.value(
        "select array_agg(id)::text from holdfast.claim(queue => 'default', worker => 'bench', "
        "token => %s::uuid, max_jobs => %s)",
        token,
        jobs,
    )
    database.connection.execute("checkpoint")
    pid = database.connection.info.backend_pid
    before = cpu(pid)
    database.connection.execute(VERBS[verb], [ids, token])
    return 1000 * (cpu(pid) - before)
