"""Values that travel to and from PostgreSQL as they are, in its binary format.

What comes is read by `holdfast.leased`, where somebody asks for it; JSON by the records.
"""

from collections.abc import Sequence
from struct import Struct
from typing import LiteralString

from psycopg import postgres
from psycopg.abc import AdaptContext
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader

from holdfast.client import wire
from holdfast.records import Lease

# The columns of a raw lease; those of JSON as text, so that the driver knows their encoding.
CLAIMED = ("token", "queue", "worker")
COLUMNS: LiteralString = wire.columns(Lease, without=CLAIMED, names={"lease": "lease_for"})
COLUMNS = COLUMNS.replace('"payload"', '"payload"::text').replace('"headers"', '"headers"::text')

_UUID_ARRAY = Struct("!iiIii")
_UUID = postgres.types["uuid"]
_SIXTEEN = (16).to_bytes(4, "big")


class Ids(bytes):
    """Ids or tokens as an array of PostgreSQL's binary format."""

    __slots__ = ()

    @classmethod
    def of(cls, ids: Sequence[bytes]) -> "Ids":
        """Make the array of ids of sixteen bytes each; there is at least one."""
        head = _UUID_ARRAY.pack(1, 0, _UUID.oid, len(ids), 1)
        return cls(head + _SIXTEEN + _SIXTEEN.join(ids))


class _IdsDumper(Dumper):
    format = Format.BINARY
    oid = _UUID.array_oid

    def dump(self, obj: Ids) -> bytes:
        return obj


def adapt(context: AdaptContext) -> None:
    """Have a cursor give and take values raw."""
    adapters = context.adapters
    adapters.register_loader("uuid", ByteaBinaryLoader)
    adapters.register_loader("interval", ByteaBinaryLoader)
    adapters.register_loader("timestamptz", Int8BinaryLoader)
    adapters.register_dumper(Ids, _IdsDumper)


class _Jsonb(TextBinaryLoader):
    def load(self, data: Buffer) -> bytes | str:
        return super().load(data[1:])  # without the number of its version


def adapt_json(context: AdaptContext) -> None:
    """Have JSON in the binary format stay the text that it is, whatever the caller has chosen."""
    context.adapters.register_loader("json", TextBinaryLoader)
    context.adapters.register_loader("jsonb", _Jsonb)
