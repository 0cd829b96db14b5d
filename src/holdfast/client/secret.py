"""Secrets of callers: their format, and what is stored.

A secret is `hf_<id>_<random>`. The id finds its row; only a hash of the whole is stored. One round
of SHA-256 is enough for 256 random bits, which cannot be guessed.
"""

import hmac
import re
import secrets
from hashlib import sha256

_SECRET = re.compile(r"hf_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


def make() -> tuple[str, str, bytes]:
    """Make a secret; returns its id, its text and the hash to keep."""
    id = secrets.token_hex(6)
    text = f"hf_{id}_{secrets.token_urlsafe(32)}"
    return id, text, digest(text)


def id_in(text: str) -> str | None:
    """Return the id in a secret; None if it does not look like one."""
    found = _SECRET.fullmatch(text)
    return found[1] if found else None


def digest(text: str) -> bytes:
    """Return what is kept of a secret."""
    return sha256(text.encode()).digest()


def fits(text: str, kept: bytes) -> bool:
    """Whether a secret is the one that was kept, in the same time for every wrong one."""
    return hmac.compare_digest(digest(text), kept)
