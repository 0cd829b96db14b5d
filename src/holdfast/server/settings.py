"""The settings of a server; all have a default that is safe on one machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.records import Scope

__all__ = ["Grant", "Oidc", "Settings"]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a group may do, and in which queues (None: all)."""

    scopes: frozenset[Scope]
    queues: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Oidc:
    """An identity provider, and what its groups may do here.

    `public_url` is where browsers reach this server; `<public_url>/oidc/callback` is the redirect
    address to register. `ca` is a file of certificates for a provider of a private authority.
    """

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    public_url: str
    groups: Sequence[tuple[str, Grant]]
    claim: str = "groups"
    scopes: Sequence[str] = ("openid", "profile", "email")
    name: str = "single sign-on"
    ca: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a server.

    `ways` are the ways in: `open` (whoever runs it may do everything), `token`, `basic`, `proxy`,
    `oidc`; tokens work always. `basic` maps names to (password, role), `proxy_roles` names to
    roles, with `*` for anybody else, for requests from `proxies`. `insecure` opens `open` to
    everyone.
    `hosts` are the names it answers to, `("*",)` to any. `read_url` is a standby for looking.
    `redact` are paths whose values nobody sees: `payload.password`, `send_sms:payload.to`.
    """

    name: str = ""
    color: str = ""
    read_only: bool = False
    read_url: str | None = None
    listen_url: str | None = None
    pool_size: int = 10
    read_pool_size: int = 4
    ways: Sequence[str] = ("open",)
    basic: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    proxies: Sequence[str] = ()
    proxy_header: str = "X-Forwarded-User"
    proxy_roles: Mapping[str, str] = field(default_factory=lambda: {"*": "viewer"})
    oidc: Oidc | None = None
    insecure: bool = False
    hosts: Sequence[str] = ()
    redact: Sequence[str] = ()
    # Origins whose pages may call it from a browser, such as https://shop.example.org; `*` is any,
    # for callers that show a token.
    cors: Sequence[str] = ()
    # Seconds that a message of Relay is locked, unless it or its queue has its own setting.
    ack_timeout: float | None = None
    upkeep: bool = True
    # Seconds between two turns of housekeeping; twice that while there is nothing to do.
    upkeep_every: float = 1.0
    body_limit: int = 16 * 1024 * 1024
    # Bytes of all bodies that are being read at once; half of it is for one caller.
    bodies: int = 128 * 1024 * 1024
    requests: int = 1000
    waits: int = 1000
    streams: int = 500
    streams_per_address: int = 100
    # Seconds: how long a look may take, how old an answer may be that several share, and how long a
    # browser stays signed in.
    look: float = 2.0
    fresh: float = 1.0
    session: float = 12 * 3600.0
