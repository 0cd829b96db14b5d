"""A statement of the protocol, and what its failure means: misuse, a refusal, or unknown."""

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

import psycopg

from holdfast.errors import (
    HoldfastError,
    InvalidFilter,
    InvalidJob,
    InvalidSchedule,
    InvalidSetting,
    Misuse,
    NotMigrated,
    PayloadTooLarge,
    Refused,
    SchemaError,
    UnknownSchedule,
)
from holdfast.records import Record

Row = tuple[Any, ...]

# Databases that cannot be reached, by address, and since when: for all clients of a process.
AWAY: dict[str, float] = {}
# Addresses where a database has answered this process: it is waited for if it is away.
REACHED: set[str] = set()


class Statement(Record, frozen=True):
    """One statement of the protocol, and what may be done when its outcome is unknown.

    `again` is asked first after an unknown outcome: its rows, if there are any, are the answer.
    One that is not `repeatable` is never sent twice unless the first surely came to nothing. The
    values of a `raw` one travel in PostgreSQL's binary format; those of one of `texts`, and what it
    returns, are texts or None.
    """

    name: str
    sql: LiteralString
    parameters: Sequence[Any] = ()
    again: "Statement | None" = None
    reads: bool = False
    repeatable: bool = True
    ids: Sequence[UUID] = ()
    raw: bool = False
    texts: bool = False


def translate(error: Exception, database: str) -> HoldfastError | None:
    """Return our own error for an error of any driver, if there is one."""
    state, told, detail, hint = _told(error)
    if state.startswith("HF"):
        return _MISUSE.get(state, Misuse)(told, why=detail, fix=hint, code=state)
    # A missing schema is reported as such only for functions; for a view, the view is missing.
    if state in ("3F000", "42P01"):
        return NotMigrated(database, found=None)
    if state in ("42883", "42703"):
        return SchemaError(
            "the holdfast schema"
            + (f' in database "{database}"' if database else "")
            + f" is of another version: {told}",
            fix="Run:  holdfast migrate",
        )
    if state == "42501":
        return Refused(told, why=detail, fix=hint or (_NO_ROLE if told == _NO_SCHEMA else ""))
    # 54001: JSON that is nested deeper than the server can read.
    if state.startswith("22") or state == "54001" or isinstance(error, psycopg.DataError):
        return Misuse(told, why=detail, fix=hint)
    return None


def _told(error: Exception) -> tuple[str, str, str, str]:
    """Return the state, message, detail and hint that the server sent, or the error's own words."""
    inner: Any = error
    # Libraries wrap the error of their driver: SQLAlchemy as `orig`, Django as its cause.
    while not _state(inner) or _state(inner.__cause__):
        wrapped = getattr(inner, "orig", None) or inner.__cause__
        if wrapped is None:
            return "", str(error), "", ""
        inner = wrapped
    # psycopg has the parts of a message in `diag`, asyncpg in the error itself.
    told = getattr(inner, "diag", None)
    if told is None:
        return _state(inner), inner.message, inner.detail or "", inner.hint or ""
    message, detail, hint = told.message_primary, told.message_detail, told.message_hint
    return _state(inner), message or str(inner), detail or "", hint or ""


def _state(error: Any) -> str:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


_NO_SCHEMA = "permission denied for schema holdfast"
_NO_ROLE = (
    "Grant the user one of the roles that `holdfast migrate` made, for example\n"
    "grant holdfast_worker to shop.  If the transaction has `set role`, end that first: reset role"
)

_MISUSE: dict[str, type[HoldfastError]] = {
    "HF201": InvalidJob,
    "HF202": InvalidJob,
    "HF203": InvalidJob,
    "HF204": InvalidJob,
    "HF205": InvalidJob,
    "HF206": InvalidJob,
    "HF210": PayloadTooLarge,
    "HF211": InvalidJob,
    "HF214": InvalidJob,
    "HF215": InvalidJob,
    "HF218": InvalidJob,
    "HF220": InvalidFilter,
    "HF221": InvalidSetting,
    "HF222": InvalidSetting,
    "HF223": InvalidSchedule,
    "HF312": UnknownSchedule,
}

# Surely not committed, and worth another try: serialisation failure, deadlock, a node that was
# demoted or is starting, no free slot.
_REFUSED = {"40001", "40P01", "25006", "57P03", "53300"}
# The connection ended while the statement was under way.
_CUT = {"57P01", "57P02", "57P05"}


def may_retry(error: psycopg.Error) -> bool:
    """Whether the same call may succeed on another connection or later."""
    return error.sqlstate in _REFUSED or was_cut(error) or is_outdated(error)


def is_outdated(error: psycopg.Error) -> bool:
    """Whether nothing was run because the session can no longer use a prepared statement.

    A migration has changed its columns, or the session was told to forget it.
    """
    # The message may be in any language; the name of the server's function is not.
    changed = error.sqlstate == "0A000" and error.diag.source_function == "RevalidateCachedQuery"
    return changed or error.sqlstate == "26000"


def was_cut(error: psycopg.Error) -> bool:
    """Whether the connection was lost under way, so that it is unknown whether it was committed."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state in _CUT or state.startswith("08")


def speaks_for_the_server(error: psycopg.Error) -> bool:
    """Whether other connections to the same server will fail too: it is gone, or was demoted."""
    return error.sqlstate in ("25006", "57P03") or was_cut(error)
