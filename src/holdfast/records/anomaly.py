"""What looks wrong, what looks for it, and who is told."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from holdfast.records.record import Record, decoded_object

Severity = Literal["info", "warning", "critical"]


class Finding(Record, frozen=True):
    """Something that looks wrong, as a detector of one's own says it.

    `subject` tells findings of one detector apart: what has the same queue and subject is the same
    anomaly. `suggestion` is what to type.
    """

    title: str
    subject: str = ""
    queue: str | None = None
    severity: Severity = "warning"
    since: datetime | None = None
    detail: str | None = None
    suggestion: str | None = None
    evidence: Mapping[str, Any] | None = None


class Anomaly(Record, frozen=True):
    """Something that looks or looked wrong: what, since when, by what evidence, and what to type.

    `times` says how often it came back soon after it was over. It is `muted` if nobody is told.
    """

    id: str
    code: str
    severity: Severity
    queue: str | None
    subject: str
    title: str
    detail: str | None
    suggestion: str | None
    evidence_json: str
    since: datetime
    raised_at: datetime
    seen_at: datetime
    times: int
    resolved_at: datetime | None
    acked_at: datetime | None
    acked_by: str | None
    note: str | None
    muted: bool

    @property
    def evidence(self) -> dict[str, Any]:
        """The numbers and names it was told by, decoded anew at each access."""
        return decoded_object(self.evidence_json)


class AnomalyChange(Record, frozen=True):
    """What became of an anomaly; `failed` is a detector that broke, and its title says how."""

    id: str | None
    code: str
    change: Literal["raised", "worsened", "resolved", "failed"]
    severity: Severity
    queue: str | None
    subject: str
    title: str
    muted: bool


class Detector(Record, frozen=True):
    """A detector: how closely it looks, and how its last look went.

    `queues` has the settings of queues that are looked at in another way.
    """

    code: str
    enabled: bool
    severity: Severity | None
    every: timedelta | None
    thresholds_json: str
    about: str | None
    queues_json: str | None
    run_at: datetime | None
    took: timedelta | None
    problem: str | None

    @property
    def thresholds(self) -> dict[str, Any]:
        """Its thresholds by name, decoded anew at each access."""
        return decoded_object(self.thresholds_json)

    @property
    def queues(self) -> dict[str, Any]:
        """Settings by queue, decoded anew at each access."""
        return decoded_object(self.queues_json)


class Mute(Record, frozen=True):
    """What nobody is told of; an empty queue or subject means all of them."""

    code: str
    queue: str
    subject: str
    until: datetime | None
    muted_at: datetime
    muted_by: str | None
    reason: str | None


class Webhook(Record, frozen=True):
    """Who is told of anomalies by HTTP: of this severity and worse, of some codes and queues."""

    name: str
    url: str
    severity: Severity
    codes: list[str] | None
    queues: list[str] | None
    created_at: datetime
    created_by: str | None
