"""A worker process with handlers that do nothing: drain, pick-up, and what it costs to wait."""

from dataclasses import replace

from bench import measures, peers
from bench.harness import Options, Server
from bench.report import Figure

# Name of the sample, what it is, unit and limit.
FIGURES: tuple[tuple[str, str, str, dict[str, float]], ...] = (
    ("rate", "{jobs:,} async handlers", "jobs/s", {"at_least": 15_000}),
    ("def rate", "{jobs:,} def handlers", "jobs/s", {"at_least": 0.8}),
    ("worker_cpu", "worker's CPU, async", "µs/job", {"at_most": 12}),
    ("server_cpu", "server's CPU, async", "µs/job", {}),
    ("p50", "pick-up, idle worker, p50", "ms", {"at_most": 3}),
    ("p99", "pick-up, idle worker, p99", "ms", {}),
    ("transactions", "idle worker", "tx/s", {"at_most": 1}),
    ("idle memory", "idle worker", "MB", {"at_most": 50}),
    ("memory", "draining worker", "MB", {"at_most": 70}),
    ("lost", "jobs lost", "jobs", {"at_most": 0}),
    ("doubled", "jobs doubled", "jobs", {"at_most": 0}),
)


def run(server: Server, options: Options) -> list[Figure]:
    """Measure one worker process in turn, round after round."""
    peer = peers.here("holdfast")
    rounds: list[dict[str, float]] = []
    with server.database("drain") as database:
        url = measures.url_of(database)
        for _ in range(options.rounds):
            samples: dict[str, float] = {}
            for style, prefix in (("async", ""), ("def", "def ")):
                database.reset()
                peer.run("bulk", url, options.drain, "plain")
                found = measures.drain(peer, database, options.drain, style=style)
                samples |= {prefix + name: value for name, value in found.items()}
            database.reset()
            samples |= measures.pick_up(peer, database, options.pickups)
            database.reset()
            with measures.waiting(peer, database, 1) as (_, workers):
                seen = measures.idle(server, {"": (database, workers)}, options.idle)[""]
            samples |= {"transactions": seen["transactions"], "idle memory": seen["memory"]}
            samples["lost"] += samples["def lost"]
            samples["doubled"] += samples["def doubled"]
            rounds.append(samples)
    figures = {
        name: Figure(
            "drain",
            what.format(jobs=options.drain),
            unit,
            [samples[name] for samples in rounds],
            **limits,
        )
        for name, what, unit, limits in FIGURES
    }
    figures["def rate"] = replace(figures["def rate"], base=figures["rate"])
    return list(figures.values())
