"""Generated from aio/anomalies.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.statement import Statement
from holdfast.client.sync.noun import Noun
from holdfast.records import Anomaly, AnomalyChange, Detector, Duration, Finding, Mute


class Anomalies(Noun):
    """Anomalies by id."""

    def get(self, id: str) -> Anomaly | None:
        """Return one anomaly; None if there is none of that id."""
        return self._first(Anomaly, "holdfast.anomalies where id = %s", [id], reads=True)

    def ack(self, id: str, *, note: str | None = None, actor: str | None = None) -> Anomaly | None:
        """Record that somebody takes care of it; None if there is none of that id."""
        source: LiteralString = "holdfast.anomaly_ack(id => %s, note => %s, actor => %s)"
        return self._first(Anomaly, source, [id, note, actor])

    def mute(
        self,
        code: str,
        *,
        until: datetime | None = None,
        queue: str | None = None,
        subject: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Alert nobody of what a detector finds, in all queues or one, for good or `until` then."""
        function: LiteralString = (
            "holdfast.anomaly_mute(code => %s, until => %s::timestamptz, queue => %s, "
            "subject => %s, reason => %s, actor => %s)"
        )
        end = until and wire.moment(until, "until")
        self._value(function, [code, end, queue, subject, reason, actor])

    def unmute(
        self,
        code: str,
        *,
        queue: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Alert again of what was muted; False if it was not."""
        function: LiteralString = (
            "holdfast.anomaly_unmute(code => %s, queue => %s, subject => %s, actor => %s)"
        )
        return bool(self._value(function, [code, queue, subject, actor]))

    def mutes(self) -> Sequence[Mute]:
        """Return what is muted."""
        return self._all(Mute, "holdfast.mutes order by code, queue, subject", reads=True)

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self, *, over: bool = False, limit: int = 500) -> Sequence[Anomaly]:
        """Return what looks wrong, the worst and newest first; `over`: what did within a week."""
        source: LiteralString = (
            "holdfast.anomalies where (resolved_at is not null) = %s "
            "order by muted, array_position(array['critical', 'warning', 'info'], severity), "
            "raised_at desc, id limit %s::int"
        )
        return self._all(Anomaly, source, [over, limit], reads=True)


class Detectors(Noun):
    """Detectors by code: those of Holdfast, and your own."""

    def run(self, codes: Sequence[str] | None = None) -> Sequence[AnomalyChange]:
        """Run the detectors that are due, or those named; returns what changed."""
        source: LiteralString = "holdfast.detect(codes => %s::text[])"
        return self._all(AnomalyChange, source, [None if codes is None else [*codes]])

    def due(self, code: str, *, every: Duration = 60.0) -> bool:
        """Return whether a detector of your own should look now: true once in each span."""
        function: LiteralString = "holdfast.detector_due(code => %s, every => %s)"
        return bool(self._value(function, [code, wire.interval(every)]))

    def report(self, code: str, findings: Iterable[Finding]) -> Sequence[AnomalyChange]:
        """Report all that a detector of your own finds now; what it no longer finds is over."""
        sql: LiteralString = (
            "select id, %s::text, change, severity, queue, subject, title, muted "
            "from holdfast.report(code => %s, findings => %s)"
        )
        parameters = [code, code, wire.findings(findings)]
        rows = self._door.run(Statement("report", sql, parameters))
        return [AnomalyChange(*row) for row in rows]

    def set(
        self, code: str, *, queue: str | None = None, actor: str | None = None, **settings: Any
    ) -> Detector:
        """Change how closely a detector looks, at all queues or one: `enabled`, thresholds.

        Thresholds are numbers; None restores the default.
        """
        source: LiteralString = (
            "holdfast.detector_set(code => %s, settings => %s, queue => %s, actor => %s)"
        )
        parameters = [code, wire.settings(settings, "settings"), queue, actor]
        return self._one(Detector, source, parameters)

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self) -> Sequence[Detector]:
        """Return every detector, by its code."""
        return self._all(Detector, "holdfast.detectors order by code", reads=True)
