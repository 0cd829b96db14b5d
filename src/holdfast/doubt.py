"""Whether a job is still held although its local deadline has passed: the database says."""

from typing import TYPE_CHECKING

from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from holdfast.current import CurrentJob
    from holdfast.records import Settled


def make_certain(job: "CurrentJob") -> None:
    """Raise LeaseLost unless the lease is held; past the local deadline the database says so.

    Leases are extended by an outage: whoever waited for the database may still hold the job.
    """
    if not job.held():
        assert_not_lost(job)
        [touched] = job.app.client.touch([job.lease])
        _refuse_lost(job, touched)


async def amake_certain(job: "CurrentJob") -> None:
    """Like `make_certain`, for async handlers."""
    if not job.held():
        assert_not_lost(job)
        [touched] = await job.app.aclient.touch([job.lease])
        _refuse_lost(job, touched)


def assert_not_lost(job: "CurrentJob") -> None:
    """Raise LeaseLost if the lease is known to be lost, before the database decides."""
    if not job._may_be_held():
        job.assert_held()


def _refuse_lost(job: "CurrentJob", touched: "Settled") -> None:
    if not touched.held:
        raise LeaseLost(job.id, touched.detail or "")
