"""`python -m bench [PART …]`: measure, print one table, keep it in bench/results."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from bench import (
    activity,
    backlog,
    compare,
    cycle,
    drain,
    enqueue,
    fanin,
    kit,
    lanes,
    middleware,
    notify,
    operation,
    over_http,
    peers,
    pinned,
    report,
    server,
    settings,
    settle,
    side_by_side,
    split,
    steps,
    upkeep,
    wal,
    workflow_peers,
)
from bench.harness import SETTINGS, Options, Server

PARTS = {
    "cycle": cycle,
    "wal": wal,
    "pinned": pinned,
    "backlog": backlog,
    "notify": notify,
    "enqueue": enqueue,
    "lanes": lanes,
    "drain": drain,
    "middleware": middleware,
    "server": server,
    "http": over_http,
    "operation": operation,
    "activity": activity,
    "upkeep": upkeep,
    "settle": settle,
    "steps": steps,
    "fanin": fanin,
    "settings": settings,
    "kit": kit,
    "compare": compare,
    "split": split,
    "peers": side_by_side,
    "workflows": workflow_peers,
}
# What installs from the registries runs only when it is named.
NAMED_ONLY = {"peers", "workflows"}
QUICK = Options(
    seconds=1,
    rounds=2,
    jobs=20_000,
    waiting=(1_000, 20_000),
    samples=200,
    lanes=500,
    drain=5_000,
    pickups=50,
    idle=3,
    rows=50_000,
    requests=6,
    dead=5_000,
    names=500,
    settled=1_000,
    singles=200,
    scheduled=10_000,
    tests=20,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts that are named, or all; print one table and keep it."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    asked = parser.parse_args(arguments)
    if unknown := set(asked.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    given = {field.name: getattr(asked, field.name) for field in fields(Options)}
    given = {name: value for name, value in given.items() if value is not None}
    options = replace(QUICK if asked.quick else Options(), **given)

    figures: list[report.Figure] = []
    with Server() as database_server:
        with psycopg.connect(database_server.url) as connection:
            about = report.conditions(connection, list(SETTINGS))
        _say(report.described(about))
        for part in asked.parts or [part for part in PARTS if part not in NAMED_ONLY]:
            _say(f"measuring {part} …")
            figures += PARTS[part].run(database_server, options)
    about["load average after"] = report.load_average()

    print(report.shown(figures))
    command = shlex.join(["python", "-m", "bench", *arguments])
    name = f"{datetime.now(UTC):%Y-%m-%d-%H%M}-{'-'.join(asked.parts) or 'all'}"
    _say(f"kept in {report.save(figures, about, command, asked.output, name)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    add = parser.add_argument
    add(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(PARTS)}; all but peers and workflows",
    )
    add("--quick", action="store_true", help="tiny sizes, to see that it runs; no figures to quote")
    add("--seconds", type=int, help="length of a timed run (8)")
    add("--rounds", type=int, help="how often each is repeated (5); half in pinned and lanes")
    add("--jobs", type=int, help="size of a pinned run (500000)")
    add("--waiting", type=_sizes, help="backlogs, compared to the first (10000,1000000)")
    add("--samples", type=int, help="claims from each backlog (2000)")
    add("--lanes", type=int, help="lanes with 5 jobs each (20000)")
    add("--drain", type=int, help="jobs that one worker process drains (50000)")
    add("--pickups", type=int, help="jobs enqueued one by one for an idle worker (200)")
    add("--idle", type=int, help="seconds an idle worker is watched (20)")
    add("--rows", type=int, help="server: rows spread over the tables (10000000)")
    add("--requests", type=int, help="server: requests for each page (60)")
    add("--dead", type=int, help="operation: dead jobs that are retried (1000000)")
    add("--names", type=int, help="upkeep: names of queues (10000)")
    add("--settled", type=int, help="settle: jobs in a batch (4000)")
    add("--scheduled", type=int, help="settings: jobs for later in the same queue (1000000)")
    add("--before", type=Path, help="compare, middleware, pinned: another checkout")
    add("--tests", type=int, help="kit: tests with a database each (100)")
    add("--singles", type=int, help="peers: jobs enqueued one by one (2000)")
    add("--peers", type=_names, help=f"peers: which of {', '.join(peers.NAMES)}; all by default")
    results = Path(__file__).parent / "results"
    add("--output", type=Path, default=results, help="where results are kept (bench/results)")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if unknown := set(names) - set(peers.NAMES):
        raise argparse.ArgumentTypeError(f"there is no adapter for {', '.join(sorted(unknown))}")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
