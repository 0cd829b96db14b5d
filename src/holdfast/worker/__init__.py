"""The worker: claims jobs, runs their handlers, keeps their leases, settles how they ended."""

from holdfast.worker.worker import Worker

__all__ = ["Worker"]
