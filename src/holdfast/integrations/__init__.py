"""Middleware for tools that watch over programs: `App(middleware=[integrations.sentry()])`.

A tool is imported when its function is called, not before.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.integrations._sentry import Sentry
    from holdfast.integrations._structlog import Structlog

__all__ = ["sentry", "structlog"]


def sentry() -> "Sentry":
    """Report failed attempts to Sentry, one transaction for each run. Call `sentry_sdk.init` first.

    An error is reported once for each attempt that fails, as a warning while attempts are left.
    """
    from holdfast.integrations._sentry import Sentry

    return Sentry()


def structlog(*, carry: Iterable[str] = ()) -> "Structlog":
    """Bind the job to the log context of its handler: `job`, `kind`, `queue` and `attempt`.

    `carry` names what is carried over from where a job is enqueued, as in `carry=["request_id"]`.
    """
    from holdfast.integrations._structlog import Structlog

    return Structlog(carry)
