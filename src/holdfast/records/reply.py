"""Links by which a person without an account answers one wait of one job."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from holdfast.records.record import Record, decoded_object

ReplyState = Literal["open", "not_yet", "closed"]


class ReplyLink(Record, frozen=True):
    """A new link. `secret` is returned only once; only its hash is stored."""

    id: str
    secret: str
    expires_at: datetime

    def url(self, server: str) -> str:
        """Return the link as an address of this server: https://jobs.example.org."""
        return f"{server.rstrip('/')}/reply?link={self.secret}"


class ReplyAsked(Record, frozen=True):
    """What a link asks.

    `open`: the job waits for the answer. `not_yet`: it does not wait for it now. `closed`: it was
    answered, its time was up, or the job has ended.
    """

    state: ReplyState
    job: UUID
    kind: str | None
    queue: str | None
    step: str
    event: str | None
    question: str | None
    schema_json: str | None
    expires_at: datetime

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the answer; decoded anew at each access."""
        return None if self.schema_json is None else decoded_object(self.schema_json)
