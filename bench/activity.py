"""What the activity log costs: one worker process drains the same queue at each of its levels."""

import json
from dataclasses import replace

from bench import measures, peers
from bench.harness import Options, Server
from bench.report import Figure

LEVELS = ("off", "failures", "all")
AT_LEAST = {"failures": 0.95, "all": 0.8}


def run(server: Server, options: Options) -> list[Figure]:
    """Drain at each level in turn, round after round; every other round in the opposite order."""
    peer = peers.here("holdfast")
    rates: dict[str, list[float]] = {level: [] for level in LEVELS}
    used: dict[str, list[float]] = {level: [] for level in LEVELS}
    with server.database("activity") as database:
        url = measures.url_of(database)
        for nth in range(options.rounds):
            for level in LEVELS if nth % 2 == 0 else reversed(LEVELS):
                database.reset()
                database.connection.execute(
                    "select from holdfast.queue_set('default', %s::jsonb)",
                    [json.dumps({"activity": level})],
                )
                peer.run("bulk", url, options.drain, "plain")
                found = measures.drain(peer, database, options.drain)
                assert not found["lost"], f"{found['lost']} jobs were lost at level {level}"
                told = database.value(
                    "select count(*) from holdfast.event where event in ('claimed', 'acked')"
                )
                assert told == (2 * options.drain if level == "all" else 0), told
                rates[level].append(found["rate"])
                used[level].append(found["server_cpu"])
    figures = []
    for unit, samples in (("jobs/s", rates), ("server µs/job", used)):
        base, *others = (
            Figure("activity", f"{options.drain:,} async handlers, {level}", unit, samples[level])
            for level in LEVELS
        )
        limits = AT_LEAST if unit == "jobs/s" else {}
        figures.append(base)
        figures += [
            replace(figure, base=base, at_least=limits.get(level))
            for level, figure in zip(LEVELS[1:], others, strict=True)
        ]
    return figures
