"""The verbs of this tree beside those of another, by turns: what changed in their price.

`--before PATH` names a checkout. Both schemas live in one server, each in
a database of its own; one connection to each calls the same verbs, a few times and then the other,
and the CPU of its session is compared. A busy machine disturbs both alike.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from bench.harness import BATCH, Database, Options, Server, items
from bench.proc import cpu
from bench.report import Figure

MIGRATE = """
import sys
from holdfast import schema
assert schema.__file__.startswith(sys.argv[2]), schema.__file__
schema.migrate(sys.argv[1])
"""
# One job after the other, from Python; says how long each of a turn took, in microseconds.
CALLS = """
import sys, time
from holdfast import Client
with Client(sys.argv[1]) as client:
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(100):
            client.enqueue("send_email", {"to": "ada@example.org"}, queue="python")
        print((time.perf_counter() - began) * 1e4, flush=True)
"""
ENQUEUE = "select count(*) from holdfast.enqueue(items => %s::jsonb)"
CLAIM = (
    "select array_agg(id)::text from holdfast.claim(queue => 'default', worker => 'bench', "
    "token => %s::uuid, max_jobs => %s, durable => false)"
)
ACK = "select count(*) from holdfast.ack(ids => %s::uuid[], tokens => array[%s::uuid])"
NACK = (
    "select count(*) from holdfast.nack(ids => %s::uuid[], tokens => array[%s::uuid], "
    "error_kind => 'Oops', message => 'it did not work', delay => '1 hour')"
)
TURN = 5
"""So many calls of one side, and then of the other."""


def run(server: Server, options: Options) -> list[Figure]:
    """Call each verb by turns; nothing without a tree to compare with."""
    if options.before is None:
        return []
    with (
        server.database("now") as database,
        database.connect() as now,
        other_tree(server, options.before) as other,
        other.connect() as before,
    ):
        figures = by_turns("compare", {"before": before, "now": now}, options, at_most=_price)
        return [*_from_python(database.url, other.url, options), *figures]


def by_turns(
    part: str,
    sides: dict[str, psycopg.Connection],
    options: Options,
    *,
    at_most: Callable[[str], float],
) -> list[Figure]:
    """Call each verb in two databases by turns; the second is measured by the first."""
    spent: dict[str, tuple[list[float], list[float]]] = {}
    callers = [_Side(connection, spent, nth) for nth, connection in enumerate(sides.values())]
    for turn in range(options.samples // 10 + 2):
        for caller in callers if turn % 2 else reversed(callers):
            caller.turn(rehearsal=turn < 2)
        if turn % 20 == 0:
            for caller in callers:
                caller.tidy()
    for size in ("of one", f"of {BATCH}"):
        verbs = [spent[f"{verb} {size}"] for verb in ("enqueue", "claim", "ack")]
        first, second = (
            [sum(calls) for calls in zip(*side, strict=True)] for side in zip(*verbs, strict=True)
        )
        spent[f"cycle {size}"] = (first, second)
    figures = []
    for what, halves in spent.items():
        # in rounds of many calls: a single one is too short for the kernel's clock
        calls = max(len(halves[0]) // max(options.rounds, 1), 1)
        rounds = [
            [median(half[n : n + calls]) for n in range(0, calls * options.rounds, calls)]
            for half in halves
        ]
        base, other = (
            Figure(part, f"{what}, {name}", "CPU µs/call", samples)
            for name, samples in zip(sides, rounds, strict=True)
        )
        figures += [base, replace(other, base=base, at_most=at_most(what))]
    return figures


def _price(verb: str) -> float:
    """What a verb may cost beside the other tree: a cycle and an enqueue less than the rest."""
    return 1 / (0.98 if verb.startswith(("cycle", "enqueue")) else 0.97)


def _from_python(now: str, before: str, options: Options) -> list[Figure]:
    """Time `client.enqueue` of both trees by turns."""
    assert options.before is not None
    took: tuple[list[float], list[float]] = ([], [])
    sources = (options.before.resolve() / "src", Path(__file__).parents[1] / "src")
    with ExitStack() as stack:
        callers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", CALLS, url],
                    env={**os.environ, "PYTHONPATH": str(source)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for url, source in zip((before, now), sources, strict=True)
        ]
        for turn in range(options.rounds + 1):
            sides = list(zip(callers, took, strict=True))
            for caller, samples in sides if turn % 2 else reversed(sides):
                assert caller.stdin
                assert caller.stdout
                print("go", file=caller.stdin, flush=True)
                each = float(caller.stdout.readline())
                if turn:  # the first is a rehearsal
                    samples.append(each)
        for caller in callers:
            caller.communicate()
    what = "client.enqueue of one"
    base = Figure("compare", f"{what}, before", "µs/call", took[0])
    return [
        base,
        Figure("compare", f"{what}, now", "µs/call", took[1], base, at_most=_price("enqueue")),
    ]


@contextmanager
def other_tree(server: Server, tree: Path) -> Iterator[Database]:
    """Make a database with the schema of another checkout."""
    url = make_conninfo(server.url, dbname="before")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create database before template template0")
    try:
        # by this interpreter, with the other tree's modules: what it needs is installed here
        source = str(tree.resolve() / "src")
        environment = {**os.environ, "PYTHONPATH": source}
        subprocess.run([sys.executable, "-c", MIGRATE, url, source], check=True, env=environment)
        with psycopg.connect(url, autocommit=True) as connection:
            yield Database(url, connection, server.programs)
    finally:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("drop database before with (force)")


class _Side:
    def __init__(
        self,
        connection: psycopg.Connection,
        spent: dict[str, tuple[list[float], list[float]]],
        nth: int,
    ) -> None:
        self._connection = connection
        self._pid = connection.info.backend_pid
        self._spent = spent
        self._nth = nth
        self._rehearsal = True

    def turn(self, *, rehearsal: bool) -> None:
        self._rehearsal = rehearsal
        for size, name in ((1, "of one"), (BATCH, f"of {BATCH}")):
            for _ in range(TURN):
                self._call(f"enqueue {name}", ENQUEUE, items(size))
                token = uuid4()
                ids = self._call(f"claim {name}", CLAIM, token, size)
                self._call(f"ack {name}", ACK, ids, token)
        for _ in range(TURN):
            self._call("claim that finds nothing", CLAIM, uuid4(), 1)
        for _ in range(TURN):
            self._call("enqueue of one with a key", ENQUEUE, items(1, key=str(uuid4())))
            token = uuid4()
            ids = self._call("claim of one with a key", CLAIM, token, 1)
            self._call("nack of one", NACK, ids, token)

    def tidy(self) -> None:
        self._connection.execute("delete from holdfast.job")
        for _ in range(2):
            self._connection.execute("select holdfast.upkeep()")

    def _call(self, what: str, query: str, *parameters: Any) -> Any:
        began = cpu(self._pid)
        cursor = self._connection.execute(query, parameters)
        used = (cpu(self._pid) - began) * 1e6
        if not self._rehearsal:
            self._spent.setdefault(what, ([], []))[self._nth].append(used)
        return cursor.fetchall()[0][0]
