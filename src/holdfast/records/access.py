"""Who may call the server."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from holdfast.records.record import Record

Scope = Literal["read", "produce", "consume", "operate", "admin"]
ROLES: Mapping[str, frozenset[Scope]] = {
    "viewer": frozenset({"read"}),
    "operator": frozenset({"read", "produce", "operate"}),
    "admin": frozenset({"read", "produce", "consume", "operate", "admin"}),
}


class ApiToken(Record, frozen=True):
    """A token: its holder, what they may do, and in which queues (None: all)."""

    id: str
    sort: Literal["token", "link", "session"]
    name: str
    scopes: list[Scope]
    queues: list[str] | None
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class NewToken(Record, frozen=True):
    """A new token. `secret` is returned only once; only its hash is stored."""

    token: ApiToken
    secret: str


class Caller(Record, frozen=True):
    """The caller that a secret belongs to; `id` is the id of the token."""

    id: str
    name: str
    scopes: list[Scope]
    queues: list[str] | None
    sort: Literal["token", "link", "session"]
    expires_at: datetime | None = None
