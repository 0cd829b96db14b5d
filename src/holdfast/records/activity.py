"""The activity log."""

from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.records.job import State
from holdfast.records.record import Record, decoded_object


class Event(Record, frozen=True):
    """One event of the activity log: the past tense of a verb, or an action of an operator.

    `state` is the state of the job after it. `jobs` is how many jobs it is about if `job` is None;
    0 if it is not about jobs. `seq` is its position in the log.
    """

    seq: int
    at: datetime
    event: str
    job: UUID | None
    queue: str | None
    kind: str | None
    state: State | None
    attempt: int | None
    jobs: int
    worker: str | None
    actor: str | None
    reason: str | None
    detail_json: str | None

    @property
    def detail(self) -> dict[str, Any]:
        """Further facts, decoded at each access."""
        return decoded_object(self.detail_json)


class EventPage(Record, frozen=True):
    """A page of events. `searched_to`: the search stopped at this position for lack of time."""

    events: list[Event]
    searched_to: int | None


class Watched(Record, frozen=True):
    """A queue (None: all queues) whose events are all recorded until then.

    They have been recorded without a break since `since`, when the log was at `place`.
    """

    queue: str | None
    since: datetime
    place: int
    until: datetime


class LogState(Record, frozen=True):
    """Where the activity log begins and ends, and which open transactions may write to it."""

    first: int | None
    last: int
    writers: list[str]
