"""Generated from aio/lanes.py by tools/generate_sync_client.py: edit that."""

from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.sync.noun import Noun
from holdfast.records import Lane, LaneReleased


class Lanes(Noun):
    """Lanes by queue and name."""

    def list(self, *, limit: int = 500) -> list[Lane]:
        """Return lanes that are in use or have settings, the longest waiting first."""
        source: LiteralString = (
            "holdfast.lanes order by oldest desc nulls last, queue, lane limit %s::int"
        )
        return self._all(Lane, source, [limit], reads=True)

    def set(self, queue: str, lane: str, *, actor: str | None = None, **settings: Any) -> None:
        """Change settings of one lane: limit, on_failure, rate_limit, rate_period."""
        function: LiteralString = (
            "holdfast.lane_set(queue => %s, lane => %s, settings => %s::jsonb, actor => %s)"
        )
        parameters = [queue, lane, wire.settings(settings, "settings"), actor]
        self._value(function, parameters)

    def release(self, queue: str, lane: str, *, actor: str | None = None) -> LaneReleased:
        """Unblock a lane that is halted, or whose worker has not been seen for a minute."""
        source: LiteralString = "holdfast.lane_release(queue => %s, lane => %s, actor => %s)"
        return self._one(LaneReleased, source, [queue, lane, actor])

    def explain(self, queue: str, lane: str) -> str:
        """Explain in one sentence which job holds a lane, and which is next."""
        function: LiteralString = "holdfast.explain_lane(queue => %s, lane => %s)"
        return str(self._value(function, [queue, lane], reads=True))
