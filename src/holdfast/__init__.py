"""A job and message queue that lives in your PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# At once: a module that is loaded later would take the place of the function it is named for.
from holdfast.current import aonce, current, once
from holdfast.errors import HoldfastError, InvalidJob, LeaseLost, NotMigrated, UnknownOutcome
from holdfast.outcome import Cancel, Release, Retry
from holdfast.records import Enqueued, Finding, Job, Lease, NewJob, Settled

if TYPE_CHECKING:
    from holdfast import integrations
    from holdfast.app import App
    from holdfast.client import AsyncClient, Client
    from holdfast.flow import chain, group
    from holdfast.resources import resource
    from holdfast.worker.background import start_processor

__version__ = "0.1.0"

__all__ = [
    "App",
    "AsyncClient",
    "Cancel",
    "Client",
    "Enqueued",
    "Finding",
    "HoldfastError",
    "InvalidJob",
    "Job",
    "Lease",
    "LeaseLost",
    "NewJob",
    "NotMigrated",
    "Release",
    "Retry",
    "Settled",
    "UnknownOutcome",
    "aonce",
    "chain",
    "current",
    "group",
    "integrations",
    "once",
    "resource",
    "start_processor",
]


def __getattr__(name: str) -> Any:
    # The driver is loaded when a program connects, not when it only catches LeaseLost.
    if module := _LATE.get(name):
        return getattr(import_module(module), name)
    if name == "integrations":
        return import_module("holdfast.integrations")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_LATE = {
    "App": "holdfast.app",
    "AsyncClient": "holdfast.client",
    "Client": "holdfast.client",
    "chain": "holdfast.flow",
    "group": "holdfast.flow",
    "resource": "holdfast.resources",
    "start_processor": "holdfast.worker.background",
}
