"""Why the server refuses a request, by status, for the contract."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.records.fields import says

_OWN_CODE = r"^HF[0-9]{3}$"
_CODE = r"^(HF[0-9]{3}|LOCK_LOST|NOT_FOUND|INVALID_STATE|UPDATE_FAILED)$"


class Problem(msgspec.Struct, kw_only=True):
    """A problem as RFC 9457 describes it. Further fields hold facts, such as the id of a job."""

    type: Annotated[str, says("the address of a page about its code")]
    title: str
    status: int
    code: Annotated[
        str,
        Meta(pattern=_CODE),
        says("the error code; Relay's routes use Relay's codes, and ours is in `holdfast_code`"),
    ]
    detail: Annotated[str, says("what is wrong, with the value that caused it")]
    holdfast_code: Annotated[str, Meta(pattern=_OWN_CODE)] | UnsetType = UNSET
    why: str | UnsetType = UNSET
    fix: Annotated[str | UnsetType, says("what to do")] = UNSET
    request_id: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error status; `later`: the response has a `Retry-After`.

    `empty`: it is sent before the request is read, and has no problem document.
    """

    name: str
    status: int
    says: str
    later: bool = False
    empty: bool = False


UNREADABLE = Refusal("Unreadable", 400, "The body is not JSON.")
NOT_SIGNED_IN = Refusal("NotSignedIn", 401, "The request has no valid token or session.")
NOT_ALLOWED = Refusal(
    "NotAllowed",
    403,
    "The caller lacks the scope or the queue, the request comes from a page of another site, or "
    "the server is read-only.",
)
NOT_THERE = Refusal("NotThere", 404, "What the request names does not exist.")
LEASE_LOST = Refusal("LeaseLost", 409, "The lease is lost. Treat work done under it as not done.")
WRONG_STATE = Refusal("WrongState", 409, "Not possible in the current state, which is in `state`.")
PREVIEW_TOO_OLD = Refusal("PreviewTooOld", 409, "The preview is older than ten minutes.")
GONE = Refusal("Gone", 410, "The job was done and deleted; the response has what is still known.")
TOO_LARGE = Refusal("TooLarge", 413, "The body or a payload is too large.")
WRONG_TYPE = Refusal("WrongType", 415, "The Content-Type of the body is not application/json.")
WRONG_HOST = Refusal("WrongHost", 421, "The Host header does not name this server.")
MISFIT = Refusal(
    "Misfit", 422, "A value is not allowed; the response names it, and what is allowed."
)
TOO_MANY = Refusal("TooMany", 429, "Too many requests, or too many streams.", later=True)
HEAD_TOO_LARGE = Refusal(
    "HeadTooLarge", 431, "The address and the headers have more than 32 kB.", empty=True
)
UNAVAILABLE = Refusal(
    "Unavailable", 503, "The database cannot be used now, or the server is overloaded.", later=True
)

# Statuses of every address; and those of addresses that read a body or change something.
ALWAYS = (
    NOT_SIGNED_IN,
    NOT_ALLOWED,
    WRONG_HOST,
    MISFIT,
    TOO_MANY,
    HEAD_TOO_LARGE,
    UNAVAILABLE,
)
OF_CHANGES = (UNREADABLE, WRONG_TYPE)
