"""Workers, the kinds they run, and the upkeep they do."""

from datetime import datetime, timedelta
from typing import Any

from msgspec import field

from holdfast.records.record import Record, decoded_object


class WorkerRow(Record, frozen=True):
    """A worker as it described itself by its last beat; `alive` if that was within a minute.

    The four counts and `busy_time` are of its life so far, `rss` is in bytes, `loop_lag` and
    `busy_time` in seconds. `claims` are the times of its last claims, the newest first. `skew` is
    how many seconds its clock is ahead; `listens`, whether notifications reach it.
    """

    worker: str
    alive: bool
    seen_at: datetime
    started_at: datetime
    host: str | None
    pid: int | None
    version: str | None
    python: str | None
    queues: list[str]
    kinds: list[str]
    slots: int
    busy: int
    rss: int | None
    loop_lag: float | None
    claimed: int
    acked: int
    failed: int
    lost: int
    stop_at: datetime | None
    stop_by: str | None
    busy_time: float = 0.0
    claimed_at: datetime | None = None
    acked_at: datetime | None = None
    claims: list[datetime] = field(default_factory=list)
    skew: float | None = None
    listens: bool | None = None


class Tended(Record, frozen=True):
    """A turn of upkeep: whether it was the caller's, what was done, how long till the next slot.

    `doubtful`: jobs wait for somebody to look whether they are done. `operating`: an operation
    waits for its next step. `detecting`: detectors are due. `delivering`: anomalies wait to be
    told. `empty`: none of the caller's queues has a job that a claim could take.
    """

    leads: bool
    done: dict[str, Any] | None
    next_slot: timedelta | None
    doubtful: bool
    operating: bool = False
    detecting: bool = False
    delivering: bool = False
    empty: bool | None = None


class Kind(Record, frozen=True):
    """A kind as its workers declared it; `about` has its queue, doc, JSON schema, and more."""

    kind: str
    done_when: bool
    about_json: str
    declared_at: datetime

    @property
    def about(self) -> dict[str, Any]:
        """What was declared of it, decoded anew at each access."""
        return decoded_object(self.about_json)
