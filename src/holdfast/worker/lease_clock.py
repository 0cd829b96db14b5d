"""How long a worker believes that a lease is its own: a little less than the database does."""

from holdfast.current import CurrentJob
from holdfast.records import defaults

# The local belief in a lease ends this share of it, at most a second, before the database's.
MARGIN = 0.1
# The lease of a queue without settings.
USUAL_LEASE = defaults.LEASE.total_seconds()


def believed(sent: float, length: float) -> tuple[float, float]:
    """Return until when to believe in a lease that was asked for at `sent`, and when to renew it.

    It counts from the moment before it was asked for, and is believed in a little less.
    """
    return sent + length - min(length * MARGIN, 1.0), sent + length / 3


def count_lease_from(job: CurrentJob, sent: float) -> None:
    """Count the lease of a job from a renewal that was asked for at `sent`."""
    job.deadline, job.renew_at = believed(sent, job.lease_seconds)
    if job.mirror is not None:
        job.mirror.value = job.deadline
