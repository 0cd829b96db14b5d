"""The responses about links for replies."""

from msgspec import Struct

from holdfast.records.fields import Moment


class ReplyLinkMade(Struct, kw_only=True):
    """A link for a reply; the secret in its path is shown only here."""

    id: str
    path: str
    expires_at: Moment


class ReplyLinkRevoked(Struct, kw_only=True):
    """A link for a reply opens nothing any more."""

    id: str
    revoked: bool
