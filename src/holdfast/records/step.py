"""What a job has done so far, and what it waits for."""

import json
from datetime import datetime
from typing import Any, Literal

from holdfast.records.record import Record, decoded_object


class Step(Record, frozen=True):
    """A step of a job that is done, a sleep, or an event that it waits for or received.

    `nth` is its place among those that the handler itself called; 0 if something beside it did.
    `ended_at` of a sleep is when it is over; None: it still waits for its event, whose payload has
    to fit `schema`, if its handler gave a type.
    """

    name: str
    kind: Literal["step", "sleep", "event"]
    nth: int
    attempt: int
    began_at: datetime
    ended_at: datetime | None
    until: datetime | None
    event: str | None
    key: str | None
    timed_out: bool
    result_json: str | None
    schema_json: str | None = None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the event's payload; decoded anew at each access."""
        return None if self.schema_json is None else decoded_object(self.schema_json)

    @property
    def result(self) -> Any:
        """What the step returned, or the payload of the event; decoded anew at each access."""
        return None if self.result_json is None else json.loads(self.result_json)


class NewStep(Record, frozen=True):
    """The result of a step that is to be stored; `result_json` is JSON already."""

    name: str
    result_json: bytes
    nth: int = 0
    seconds: float = 0.0


class Awaited(Record, frozen=True):
    """What has become of an event that a job waits for; `until` is how long it waits at most."""

    outcome: Literal["received", "timed_out", "waiting", "lost"]
    result_json: str | None
    until: datetime | None
    detail: str | None
