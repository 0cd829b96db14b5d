"""The common base of records: plain, frozen values without a database connection.

JSON columns are kept as PostgreSQL's text and decoded on access, so that one payload that cannot be
decoded does not affect its batch, and a handler can decode directly into its types.
"""

import json
from typing import Any

import msgspec


class Record(msgspec.Struct, frozen=True):
    """A frozen value; compared by its fields."""


def decoded_object(text: str | None) -> dict[str, Any]:
    """Decode a JSON object; None becomes an empty one."""
    decoded: dict[str, Any] = json.loads(text) if text else {}
    return decoded
