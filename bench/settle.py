"""Settling a large batch by one call: what each verb costs beside an ack that deletes the jobs.

An ack leaves nothing behind. One that keeps the job writes it into the history; a nack writes it
once more into the hot table, with the attempt that failed and the event that says so; a release
writes the job alone. What a nack writes is measured by bare statements too: its floor.

A busy worker settles batches, and one call a second keeps a few of its jobs. That is measured in
calls of a hundred jobs, of which each keeps five: the difference for one call is that of a second.
"""

from uuid import uuid4

from bench.harness import Database, Options, Server, items
from bench.proc import cpu
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
    "the rows of a nack, bare": """
        with fresh as (
          update holdfast.job j
          set token = null, lease_until = null, worker = null, error = 'Oops: it did not work',
              run_at = statement_timestamp() + interval '1 hour', pos = null
          from (
            select holdfast.part_of(i) as part, i as id from unnest(%s::uuid[]) i order by i
          ) u
          where j.part = any(array[u.part]) and j.id = u.id
          returning j.part, j.id, j.queue, j.kind, j.attempt
        ), noted as (
          insert into holdfast.attempt (
            part, id, attempt, token, outcome, worker, started_at, ended_at, error_kind, message,
            fingerprint)
          select part, id, attempt, %s::uuid, 'failed', 'bench', statement_timestamp(),
                 statement_timestamp(), 'Oops', 'it did not work', '0123456789abcdef'
          from fresh
        ), told as (
          insert into holdfast.event (
            at, slot, part, job, event, state, queue, kind, attempt, worker, reason, detail)
          select statement_timestamp(), holdfast.event_slot(statement_timestamp()), part, id,
                 'nacked', 'queued', queue, kind, attempt, 'bench', 'Oops: it did not work',
                 '{"group": "0123456789abcdef"}'
          from fresh
        )
        select count(*) from fresh
    """,
    "the job's row of a nack, bare": """
        with fresh as (
          update holdfast.job j
          set token = null, lease_until = null, worker = null, error = 'Oops: it did not work',
              run_at = statement_timestamp() + interval '1 hour', pos = null
          from (
            select holdfast.part_of(i) as part, i as id from unnest(%s::uuid[]) i order by i
          ) u
          where j.part = any(array[u.part]) and j.id = u.id
          returning j.id
        )
        select count(*) from fresh where %s::uuid is not null
    """,
    "release": (
        "select count(*) from holdfast.release(ids => %s::uuid[], tokens => array[%s::uuid], "
        "delay => '1 hour')"
    ),
}

# Settled in calls of so many jobs, not by one.
SOME = 100
PLAIN, RECENT = f"calls of {SOME}: ack", f"calls of {SOME}: ack, 5 of each kept as recent,"
VERBS |= {PLAIN: VERBS["ack"], RECENT: VERBS["ack"].replace("])", "], recent => 5)")}


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
    floor = figures["the rows of a nack, bare"]
    what = f"nack of {options.settled:,} jobs, beside the rows it writes"
    figures["nack beside its rows"] = Figure("settle", what, "ms CPU", spent["nack"], floor)
    what = f"{RECENT} of {options.settled:,} jobs, beside calls that keep none"
    figures["recent"] = Figure("settle", what, "ms CPU", spent[RECENT], figures[PLAIN])
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
    ids: list[str] = database.value(
        "select array_agg(id)::text[] from holdfast.claim(queue => 'default', worker => 'bench', "
        "token => %s::uuid, max_jobs => %s)",
        token,
        jobs,
    )
    database.connection.execute("checkpoint")
    # for the bare statements: no plan that only stale statistics could choose
    database.connection.execute(
        "set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off"
    )
    pid = database.connection.info.backend_pid
    size = SOME if verb in (PLAIN, RECENT) else jobs
    calls = [ids[start : start + size] for start in range(0, jobs, size)]
    before = cpu(pid)
    for some in calls:
        database.connection.execute(VERBS[verb], ["{" + ",".join(some) + "}", token])
    return 1000 * (cpu(pid) - before)
