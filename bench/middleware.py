"""What middleware costs a worker that drains: none, and one that does nothing, by turns.

With `--before PATH` a worker of that checkout, which has no middleware at all, takes its turns too.
Beside the drain stands the worker's own share of it, without a database: on a busy machine that can
still be compared.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import measures, peers
from bench.harness import Options, Server
from bench.peers import Peer
from bench.report import Figure

SIDES = {"before": "async", "none": "async", "one": "middleware"}
WHAT = {"before": "another checkout", "none": "without middleware", "one": "with one, of nothing"}


def run(server: Server, options: Options) -> list[Figure]:
    """Drain the same backlog by each side, in an order that turns round after round."""
    here = peers.here("holdfast")
    sides = {"none": here, "one": here}
    if options.before is not None:
        variables = {"PYTHONPATH": f"{options.before.resolve() / 'src'}:{Path.cwd()}"}
        sides = {
            "before": replace(here, environment=replace(here.environment, variables=variables)),
            **sides,
        }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    spent: dict[str, list[float]] = {name: [] for name in sides}
    with server.database("middleware") as database:
        for turn in range(options.rounds):
            names = list(sides)
            for name in names if turn % 2 else reversed(names):
                database.reset()
                here.run("bulk", measures.url_of(database), options.drain, "plain")
                found = measures.drain(sides[name], database, options.drain, style=SIDES[name])
                rates[name].append(found["rate"])
                spent[name].append(found["worker_cpu"])
    most = {"none": 1 / 0.99, "one": 1 / 0.95}
    return [
        *_figures(rates, "jobs/s", {"none": 0.99, "one": 0.95}, "at_least"),
        *_figures(spent, "µs/job", most, "at_most"),
        *_figures(_inside(sides, options.rounds), "µs/job", most, "at_most", ", no database"),
    ]


def _inside(sides: dict[str, Peer], rounds: int) -> dict[str, list[float]]:
    """Measure what the worker itself does, by turns."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            done = subprocess.run(
                [sys.executable, "-m", "bench.inner", "one" if name == "one" else "none"],
                env={**os.environ, **side.environment.variables},
                capture_output=True,
                text=True,
                check=True,
            )
            spent[name].append(float(done.stdout))
    return spent


def _figures(
    samples: dict[str, list[float]],
    unit: str,
    limits: dict[str, float],
    limit: str,
    where: str = "",
) -> list[Figure]:
    figures: list[Figure] = []
    base: Figure | None = None
    for name, values in samples.items():
        bound: dict[str, Any] = {limit: limits[name]} if base and name in limits else {}
        figures.append(Figure("middleware", WHAT[name] + where, unit, values, base, **bound))
        base = base or figures[0]
    return figures
