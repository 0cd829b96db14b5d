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
        """Return one anomaly; None if no anomaly has this id."""
        return self._first(Anomaly, "holdfast.anomalies where id = %s", [id], reads=True)

    def ack(self, id: str, *, note: str | None = None, actor: str | None = None) -> Anomaly | None:
        """Acknowledge an anomaly; None if no anomaly has this id."""
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
        """Stop notifications of a detector, in all queues or one, forever or `until` a time."""
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
        """Start notifications again; False if it was not muted."""
        function: LiteralString = (
            "holdfast.anomaly_unmute(code => %s, queue => %s, subject => %s, actor => %s)"
        )
        return bool(self._value(function, [code, queue, subject, actor]))

    def mutes(self) -> Sequence[Mute]:
        """Return what is muted."""
        return self._all(Mute, "holdfast.mutes order by code, queue, subject", reads=True)

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self, *, over: bool = False, limit: int = 500) -> Sequence[Anomaly]:
        """Return current anomalies, the worst and newest first; `over`: those of the last week."""
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
        """Return whether your own detector should run now: true once in each span."""
        function: LiteralString = "holdfast.detector_due(code => %s, every => %s::interval)"
        return bool(self._value(function, [code, wire.interval(every)]))

    def report(self, code: str, findings: Iterable[Finding]) -> Sequence[AnomalyChange]:
        """Report everything your own detector finds now; its other anomalies are resolved."""
        sql: LiteralString = (
            "select id, %s::text, change, severity, queue, subject, title, muted "
            "from holdfast.report(code => %s, findings => %s::jsonb)"
        )
        parameters = [code, code, wire.findings(findings)]
        rows = self._door.run(Statement("report", sql, parameters))
        return [AnomalyChange(*row) for row in rows]

    def set(
        self, code: str, *, queue: str | None = None, actor: str | None = None, **settings: Any
    ) -> Detector:
        """Change a detector for all queues or for one: `enabled`, thresholds.

        Thresholds are numbers; None restores the default.
        """
        source: LiteralString = (
            "holdfast.detector_set(code => %s, settings => %s::jsonb, queue => %s, actor => %s)"
        )
        parameters = [code, wire.settings(settings, "settings"), queue, actor]
        return self._one(Detector, source, parameters)

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self) -> Sequence[Detector]:
        """Return every detector, by its code."""
        return self._all(Detector, "holdfast.detectors order by code", reads=True)
