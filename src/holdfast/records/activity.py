"""What happened."""

from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.records.job import State
from holdfast.records.record import Record, decoded_object


class Event(Record, frozen=True):
    """One fact of the activity log: the past tense of a verb, or a deed of an operator.

    `state` is that of the job since. `jobs` is how many it speaks of where `job` names none; 0 for
    what concerns no job. `seq` is its place in the log.
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
        """What else there is to say, decoded anew at each access."""
        return decoded_object(self.detail_json)


class EventPage(Record, frozen=True):
    """A page of events. `searched_to`: nothing beyond this place was looked at in time."""

    events: list[Event]
    searched_to: int | None


class Watched(Record, frozen=True):
    """A queue (None: every one) whose every event is noted until then.

    It has been without a break since `since`, when the log had come to `place`.
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
