"""Leases as rows that are read only where somebody asks: what a worker claims by the thousand.

A row comes in PostgreSQL's binary format: ids stay sixteen bytes, times are microseconds, lengths
are read once for each that occurs. Most jobs end without anybody having looked at the rest.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Any
from uuid import UUID

from msgspec.structs import fields

from holdfast.records import Claim, Lease

_PLACES = {field.name: nth for nth, field in enumerate(fields(Lease))}
ID, KIND, PAYLOAD = _PLACES["id"], _PLACES["kind"], _PLACES["payload_json"]
RUN_AT, LEASE_UNTIL = _PLACES["run_at"], _PLACES["lease_until"]
LENGTH, FOLLOWED = _PLACES["length"], _PLACES["followed"]

_TIMES = (RUN_AT, _PLACES["created_at"], LEASE_UNTIL)
_LENGTHS = (_PLACES["lease"], LENGTH)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_INTERVAL = Struct("!qii")


def lease_of(row: Sequence[Any], claim: Claim) -> Lease:
    """Return the lease that a row of a claim stands for."""
    values = [*row]
    values[ID] = UUID(bytes=row[ID])
    for nth in _TIMES:
        values[nth] = _EPOCH + timedelta(microseconds=row[nth])
    for nth in _LENGTHS:
        values[nth] = None if row[nth] is None else length_of(row[nth])
    return Lease(*(*values, claim.token, claim.queue, claim.worker))


@lru_cache(256)
def microseconds_of(interval: bytes) -> int:
    """Return the length that an interval stands for, in microseconds."""
    return length_of(interval) // timedelta(microseconds=1)


@lru_cache(256)
def length_of(interval: bytes) -> timedelta:
    """Return the length that an interval stands for; a month is 30 days, as psycopg says."""
    microseconds, days, months = _INTERVAL.unpack(interval)
    return timedelta(days=days + 30 * months, microseconds=microseconds)
