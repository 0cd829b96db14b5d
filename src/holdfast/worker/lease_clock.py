"""How long a worker trusts a lease: a little less than the database does."""

from holdfast.current import CurrentJob
from holdfast.records import defaults

# The local deadline of a lease is this share of it, at most a second, before the database's.
MARGIN = 0.1
# The lease of a queue without settings.
USUAL_LEASE = defaults.LEASE.total_seconds()


def believed(sent: float, length: float) -> tuple[float, float]:
    """Return the local deadline of a lease that was requested at `sent`, and when to renew it.

    It counts from before the request, and is a little shorter than the lease.
    """
    return sent + length - min(length * MARGIN, 1.0), sent + length / 3


def count_lease_from(job: CurrentJob, sent: float) -> None:
    """Count the lease of a job from a renewal that was requested at `sent`."""
    job.deadline, job.renew_at = believed(sent, job.lease_seconds)
    if job.mirror is not None:
        job.mirror.value = job.deadline
