"""Anomalies, the detectors that find them, and where they are sent."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from holdfast.records.record import Record, decoded_object

Severity = Literal["info", "warning", "critical"]


class Finding(Record, frozen=True):
    """A problem that a user's own detector reports.

    `subject` distinguishes findings of one detector: the same queue and subject mean the same
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
    """A detected problem: what, since when, with evidence, and what to type.

    `times` is how often it came back soon after it was resolved. If it is `muted`, notifications
    are off.
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
        """The numbers and names that prove it, decoded at each access."""
        return decoded_object(self.evidence_json)


class AnomalyChange(Record, frozen=True):
    """A change of an anomaly; `failed` means that its detector failed, with the error as title."""

    id: str | None
    code: str
    change: Literal["raised", "worsened", "resolved", "failed"]
    severity: Severity
    queue: str | None
    subject: str
    title: str
    muted: bool


class Detector(Record, frozen=True):
    """A detector: its thresholds, and the result of its last run.

    `queues` has the settings of queues that differ.
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
        """Its thresholds by name, decoded at each access."""
        return decoded_object(self.thresholds_json)

    @property
    def queues(self) -> dict[str, Any]:
        """Settings by queue, decoded at each access."""
        return decoded_object(self.queues_json)


class Mute(Record, frozen=True):
    """A detector without notifications; an empty queue or subject means all of them."""

    code: str
    queue: str
    subject: str
    until: datetime | None
    muted_at: datetime
    muted_by: str | None
    reason: str | None


class Webhook(Record, frozen=True):
    """Where anomalies are sent by HTTP: of this severity and worse, of some codes and queues."""

    name: str
    url: str
    severity: Severity
    codes: list[str] | None
    queues: list[str] | None
    created_at: datetime
    created_by: str | None
