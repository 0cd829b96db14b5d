"""What all records have in common: plain, frozen values that know no database.

JSON columns are kept as the text PostgreSQL gave and decoded on access, so that one payload that
cannot be decoded never spoils the batch it came with, and a handler can decode straight into its
types.
"""

import json
from typing import Any

import msgspec


class Record(msgspec.Struct, frozen=True):
    """A frozen value; compared by its fields."""


def decoded_object(text: str | None) -> dict[str, Any]:
    """Decode a JSON object; an empty one stands for None."""
    decoded: dict[str, Any] = json.loads(text) if text else {}
    return decoded
