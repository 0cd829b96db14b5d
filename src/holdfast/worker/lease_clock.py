"""How long a worker believes that a lease is its own: a little less than the database does."""

from holdfast.current import CurrentJob
from holdfast.records import defaults

# The local belief in a lease ends this share of it, at most a second, before the database's.
MARGIN = 0.1
# The lease of a queue without settings.
USUAL_LEASE = defaults.LEASE.total_seconds()


def count_lease_from(job: CurrentJob, sent: float) -> None:
    """Count a lease from the moment before it was asked for, and believe in a little less of it."""
    length = job.lease_seconds
    job.deadline = sent + length - min(length * MARGIN, 1.0)
    job.renew_at = sent + length / 3
    if job.mirror is not None:
        job.mirror.value = job.deadline
