"""A job and message queue that lives in your PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, InvalidJob, LeaseLost, NotMigrated, UnknownOutcome
from holdfast.model import Enqueued, Job, Lease, NewJob, Settled

if TYPE_CHECKING:
    from holdfast.client import AsyncClient, Client

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "Enqueued",
    "HoldfastError",
    "InvalidJob",
    "Job",
    "Lease",
    "LeaseLost",
    "NewJob",
    "NotMigrated",
    "Settled",
    "UnknownOutcome",
]


def __getattr__(name: str) -> Any:
    # The driver is loaded by whoever connects, not by whoever only catches LeaseLost.
    if name in ("AsyncClient", "Client"):
        return getattr(import_module("holdfast.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
