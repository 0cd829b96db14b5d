"""The worker: claims jobs, runs their handlers, renews their leases, and settles them."""

from holdfast.worker.worker import Worker

__all__ = ["Worker"]
