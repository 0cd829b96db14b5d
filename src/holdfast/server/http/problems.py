# ruff: noqa: N818 - a problem is what RFC 9457 calls it
"""Errors as RFC 9457 problems: the one place that turns errors into statuses.

Every error response has a code of the error catalogue; its `type` is the address of a page about
that code.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import psycopg
from starlette.responses import Response

from holdfast.errors import (
    CannotConnect,
    HoldfastError,
    LeaseLost,
    Misuse,
    PayloadTooLarge,
    Refused,
    SchemaError,
    Unavailable,
    UnknownAnomaly,
    UnknownJob,
    UnknownOutcome,
    UnknownQueue,
    UnknownSchedule,
    UnknownStrike,
    UnknownWorker,
    UnknownWorkflow,
)

MEDIA_TYPE = "application/problem+json"

# How long a client should wait before it tries again.
SOON = {"Retry-After": "2"}


class Problem(HoldfastError):
    """An error of the server itself: a status, a code, and facts that help the client."""

    def __init__(
        self,
        status: int,
        code: str,
        what: str,
        *,
        fix: str = "",
        headers: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(what, fix=fix, code=code)
        self.status = status
        self.headers = headers or {}
        self.facts: dict[str, Any] = facts


def answer(error: Exception, *, root: str = "", request_id: str = "") -> Response:
    """Return the response for an error; for an unexpected one, it contains only its name."""
    problem = problem_of(error)
    document = {
        "type": f"{root}/errors/{problem.code}",
        "title": TITLES.get(problem.code, "Not possible"),
        "status": problem.status,
        "code": problem.code,
        "detail": problem.what,
        "why": problem.why or None,
        "fix": problem.fix or None,
        "request_id": request_id or None,
        **problem.facts,
    }
    told = {name: value for name, value in document.items() if value is not None}
    return Response(
        msgspec.json.encode(told),
        problem.status,
        headers=dict(problem.headers),
        media_type=MEDIA_TYPE,
    )


def problem_of(error: Exception) -> Problem:
    """Return the problem that the caller gets for an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, LeaseLost | UnknownJob):
        status = 409 if isinstance(error, LeaseLost) else 404
        return _as(error, status, job=str(error.id))
    if isinstance(error, CannotConnect):
        # The caller does not get the address and the reason; they are in the log.
        return Problem(503, error.code, "the database cannot be reached", headers=SOON)
    if isinstance(error, HoldfastError):
        statuses = (status for kind, status in _STATUSES.items() if isinstance(error, kind))
        status = _CODES.get(error.code) or next(statuses, 500)
        return _as(error, status, headers=SOON if status == 503 else {})
    if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("54"):
        return Problem(422, "HF204", "a value is nested too deeply, or too long")
    if isinstance(error, psycopg.DataError | OverflowError):
        # Our types accepted it, but the database cannot store this number or time.
        return Problem(422, "HF204", "a number or a time is out of range")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Problem(503, "HF102", "the database cannot be used now", headers=SOON)
    return Problem(500, "HF000", f"the server failed: {type(error).__name__}")


def _as(error: HoldfastError, status: int, **facts: Any) -> Problem:
    problem = Problem(status, error.code, error.what, fix=error.fix, **facts)
    problem.why = error.why
    return problem


_CODES = {"HF409": 409, "HF412": 409, "HF227": 404}
# The first match counts, so narrower classes come before wider ones.
_STATUSES: dict[type[HoldfastError], int] = {
    Unavailable: 503,
    SchemaError: 503,
    UnknownOutcome: 503,
    PayloadTooLarge: 413,
    UnknownQueue: 404,
    UnknownSchedule: 404,
    UnknownWorker: 404,
    UnknownAnomaly: 404,
    UnknownStrike: 404,
    UnknownWorkflow: 404,
    Misuse: 422,
    Refused: 403,
}

TITLES = {
    "HF000": "The server failed",
    "HF100": "Database unreachable",
    "HF102": "Database unavailable",
    "HF110": "Not migrated",
    "HF111": "Schema too new",
    "HF112": "Schema of another version",
    "HF120": "Outcome unknown",
    "HF200": "Bad value",
    "HF201": "Not a job",
    "HF202": "Bad name",
    "HF203": "Bad priority",
    "HF204": "Bad value",
    "HF207": "Token missing",
    "HF210": "Payload too large",
    "HF211": "Reserved name",
    "HF214": "Unknown job to wait for",
    "HF215": "Unknown workflow to join",
    "HF216": "Workflow is cancelled",
    "HF217": "Key of workflow in use",
    "HF218": "Nothing to reply to",
    "HF219": "Bad finding",
    "HF220": "Bad filter",
    "HF221": "Bad setting",
    "HF222": "Cannot be edited",
    "HF223": "Bad schedule",
    "HF224": "Bad token",
    "HF225": "Bad operation",
    "HF227": "No such detector",
    "HF228": "Bad strike",
    "HF229": "Bad metric",
    "HF300": "Lease lost",
    "HF310": "No such job",
    "HF311": "No such queue",
    "HF312": "No such schedule",
    "HF313": "No such worker",
    "HF314": "No such operation",
    "HF315": "No such token",
    "HF316": "No such lane",
    "HF317": "No message",
    "HF318": "No such strike",
    "HF319": "No such anomaly",
    "HF320": "No such workflow",
    "HF400": "Refusing to listen",
    "HF401": "Not allowed",
    "HF402": "Not signed in",
    "HF403": "Not from here",
    "HF404": "No such address",
    "HF405": "Cannot listen",
    "HF406": "Cannot be read",
    "HF409": "Wrong state",
    "HF410": "Deleted when done",
    "HF411": "Idempotency key in use",
    "HF412": "Preview too old",
    "HF413": "Request too large",
    "HF414": "Identity provider unusable",
    "HF429": "Too many",
}
