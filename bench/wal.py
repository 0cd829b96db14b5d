"""Where the log of a job's cycle goes: bytes for each job, by what wrote them.

A checkpoint and a few cycles come first, so that images of whole pages, which depend on how often
there are checkpoints, are few; they are told apart. Needs pg_walinspect; without it, no figures.
"""

from dataclasses import replace

from psycopg import errors

from bench.harness import BATCH, Database, Options, Server, items, take
from bench.report import Figure

# What is less than this is told together.
LEAST = 2.0
BY_RECORD = """
    select resource_manager || ' ' || record_type, coalesce(r.relname, ''),
           sum(record_length - fpi_length)::float8, sum(fpi_length)::float8
    from pg_get_wal_records_info(%s::pg_lsn, %s::pg_lsn) w
    left join pg_class r
      on r.relfilenode = (regexp_match(w.block_ref, 'rel \\d+/\\d+/(\\d+)'))[1]::oid
    group by 1, 2
    order by 3 desc
"""


def run(server: Server, options: Options) -> list[Figure]:
    """Read back what some cycles have logged."""
    cycles = 10 * options.rounds
    with server.database("wal") as database:
        try:
            database.connection.execute("create extension pg_walinspect")
        except (errors.FeatureNotSupported, errors.UndefinedFile):
            return []
        _cycles(database, 20)
        database.connection.execute("checkpoint")
        _cycles(database, 10)
        began = database.value("select pg_current_wal_insert_lsn()::text")
        _cycles(database, cycles)
        ended = database.value("select pg_current_wal_insert_lsn()::text")
        # Only what is on the disk can be read back.
        database.connection.execute("select pg_log_standby_snapshot()")
        database.connection.execute("checkpoint")
        rows = database.connection.execute(BY_RECORD, [began, ended]).fetchall()
    jobs = cycles * BATCH
    whole = Figure("wal", "a job's cycle", "B/job", [sum(size for *_, size, _ in rows) / jobs])
    shares = [(f"{what} {table}".strip(), size / jobs) for what, table, size, _ in rows]
    told = [(what, size) for what, size in shares if size >= LEAST]
    rest = whole.value - sum(size for _, size in told)
    return [
        replace(whole, at_most=700),
        *(Figure("wal", what, "B/job", [size], whole) for what, size in told),
        Figure("wal", "all else", "B/job", [rest], whole),
        Figure("wal", "images of pages", "B/job", [sum(image for *_, image in rows) / jobs]),
    ]


def _cycles(database: Database, number: int) -> None:
    batch = items(BATCH)
    for _ in range(number):
        database.connection.execute("select count(*) from holdfast.enqueue(%s::jsonb)", [batch])
        assert take(database.connection) == BATCH
