"""The verbs with the hot table split by part, as a sharded cluster has it, beside one table.

Both live in one server, and are called by turns, as in `compare`.
"""

import psycopg
from psycopg.conninfo import make_conninfo

from bench.compare import by_turns
from bench.harness import Options, Server
from bench.report import Figure
from tests import partitioned


def run(server: Server, options: Options) -> list[Figure]:
    """Call each verb by turns; splitting may cost a ninth."""
    url = make_conninfo(server.url, dbname="split")
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("create database split template template0")
        try:
            partitioned.install(url)
            with (
                server.database("whole") as database,
                database.connect() as whole,
                psycopg.connect(url, autocommit=True, prepare_threshold=0) as split,
            ):
                sides = {"one table": whole, "split": split}
                return by_turns("split", sides, options, at_most=lambda _: 1 / 0.9)
        finally:
            admin.execute("drop database split with (force)")
