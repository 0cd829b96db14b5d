"""The short way between our own listener and the server: a whole body in, a whole answer out.

ASGI has a message for each part of a request and of an answer, whatever their size. Most of ours
are small and complete: they take this way, at half the cost. Under another listener there is none,
and everything goes by messages.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Protocol

from starlette.responses import Response

# Where the listener leaves its part of the way, in the scope of a request.
DIRECT = "holdfast.direct"
JSON = "application/json"


class Direct(Protocol):
    """What the listener offers for a request."""

    def body(self) -> bytes | None:
        """Take the body; None if it has not all arrived."""

    def gone(self) -> bool:
        """Whether the client has hung up."""

    def answer(self, message: bytes) -> bool:
        """Send a whole answer, with its head; False if it must go by messages."""


class Document:
    """An answer of JSON: its text, its status, and headers of its own."""

    __slots__ = ("body", "headers", "status_code")

    def __init__(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None):
        self.body = body
        self.status_code = status
        self.headers = headers

    def response(self) -> Response:
        """Return it for ASGI."""
        return Response(self.body, self.status_code, headers=self.headers, media_type=JSON)

    def message(self, every: bytes, request_id: str) -> bytes:
        """Return it as it is sent, with the headers that all answers have."""
        return b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            _FIRST_LINES[self.status_code],
            every,
            request_id.encode("ascii"),
            len(self.body),
            self.body,
        )


_FIRST_LINES = {
    status.value: (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"content-type: {JSON}\r\ncache-control: no-store\r\n"
    ).encode()
    for status in HTTPStatus
}
