"""River with as many workers as its own benchmark has."""

from dataclasses import replace

from bench.peers import river

QUEUE = replace(
    river.QUEUE,
    name="river_2000",
    about=river.QUEUE.about.replace("100 workers", "2,000 workers"),
    home="river",
    flags=("-workers=2000",),
    # These two say nothing of the workers.
    keys=False,
    styles=("async",),
)
