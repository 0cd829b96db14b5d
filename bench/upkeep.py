"""A turn of upkeep where very many names of queues are known and nothing has changed."""

import statistics
import time

from bench.harness import Database, Options, Server
from bench.report import Figure

TURNS = 20


def run(server: Server, options: Options) -> list[Figure]:
    """Time turns over few names and over many: used and empty, and each with a job that waits."""
    figures = []
    for what, waiting in (("empty", False), ("each with a job that waits", True)):
        few = _turns(server, min(10, options.names), waiting, options.rounds)
        base = Figure("upkeep", f"a turn, 10 names, {what}", "ms", few)
        many = _turns(server, options.names, waiting, options.rounds)
        figures += [
            base,
            Figure("upkeep", f"a turn, {options.names:,} names, {what}", "ms", many, at_most=50),
        ]
    return figures


def _turns(server: Server, names: int, waiting: bool, rounds: int) -> list[float]:
    with server.database("upkeep") as database:
        _fill(database, names, waiting)
        while _turn(database)[1] or database.value(
            "select count(*) from holdfast.stir where not raised"
        ):
            pass
        return [statistics.median(_turn(database)[0] for _ in range(TURNS)) for _ in range(rounds)]


def _fill(database: Database, names: int, waiting: bool) -> None:
    database.connection.execute(
        "insert into holdfast.job (part, id, queue, kind, max_attempts)"
        " select p.part, holdfast.stamp(gen_random_uuid(), p.part), p.name, 'send_email', 3"
        " from (select 'queue-' || n as name, holdfast.queue_part('queue-' || n) as part"
        " from generate_series(1, %s) n) p",
        [names],
    )
    database.connection.execute("select count(*) from holdfast.recount()")
    if not waiting:
        database.connection.execute("delete from holdfast.job")
        database.connection.execute("select count(*) from holdfast.recount()")
    database.connection.execute("vacuum (analyze) holdfast.job, holdfast.total")


def _turn(database: Database) -> tuple[float, bool]:
    """Have a turn done as the leader does; its milliseconds, and whether there is more to do."""
    start = time.perf_counter()
    done = database.value("select done from holdfast.tend(holder => 'bench')")
    return 1000 * (time.perf_counter() - start), "more" in done
