"""Ids of jobs: created anywhere, each containing the part of its queue."""

import secrets
import time
from collections.abc import Sequence
from functools import lru_cache
from hashlib import md5
from struct import unpack
from uuid import UUID

PARTS = 64


# Characters that names may not contain, for a character class: control characters, and those that
# are invisible or change the direction of text. Joiners of letters and of emoji are allowed.
UNSEEN = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb"
)


def is_reserved(queue: str) -> bool:
    """Whether a queue belongs to Holdfast itself; `holdfast.is_ours` in SQL answers the same."""
    return queue.startswith("holdfast.")


@lru_cache(1024)
def queue_part(queue: str) -> int:
    """Return the part of a queue; `holdfast.queue_part` in SQL returns the same."""
    return int(md5(queue.encode(), usedforsecurity=False).hexdigest()[:8], 16) % PARTS


def part_of(id: UUID) -> int:
    """Return the part in an id."""
    return (id.int >> 64) & 0xFFF


def stamp(id: UUID, part: int) -> UUID:
    """Return the same id with another part."""
    return UUID(int=id.int & ~(0xFFFF << 64) | ((8 << 12 | part) << 64))


def new_id(queue: str = "default") -> UUID:
    """Create the id of a new job: a UUIDv8 of the time, the queue's part and 62 random bits.

    With its own id, a caller can repeat an enqueue whose outcome is unknown.
    """
    return UUID(int=(_high(queue_part(queue)) << 64) | (0b10 << 62) | secrets.randbits(62))


def new_ids(queues: Sequence[str]) -> list[UUID]:
    """Create the ids of new jobs in these queues: randomness for all of them is drawn at once."""
    heads = {queue: _high(queue_part(queue)) << 64 | 0b10 << 62 for queue in set(queues)}
    drawn = unpack(f"!{len(queues)}Q", secrets.token_bytes(8 * len(queues)))
    return [UUID(int=heads[queue] | bits >> 2) for queue, bits in zip(queues, drawn, strict=True)]


def id_head(part: int) -> str:
    """Return the first half of ids that are made now for a part, in hexadecimal digits."""
    return f"{_high(part):016x}"


def _high(part: int) -> int:
    return (time.time_ns() // 1_000_000 << 16) | (8 << 12) | part
