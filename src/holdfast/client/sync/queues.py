"""Generated from aio/queues.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import LiteralString, Unpack
from uuid import UUID

from holdfast.client import wire
from holdfast.client.sync.noun import Noun
from holdfast.records import Declared, Depth, Duration, Forecast, Job, Queue, QueueOptions, Success


class Queues(Noun):
    """Queues by name. You do not have to create one: the first job does."""

    def get(self, queue: str) -> Queue | None:
        """Return one queue; None if it has no jobs and no settings."""
        return self._first(Queue, "holdfast.queues where queue = %s", [queue], reads=True)

    def set(
        self, queue: str, *, actor: str | None = None, **settings: Unpack[QueueOptions]
    ) -> Queue:
        """Change settings of a queue, as in `limit=10, keep_done=timedelta(days=7)`."""
        source: LiteralString = (
            "holdfast.queue_set(queue => %s, settings => %s::jsonb, actor => %s)"
        )
        return self._one(Queue, source, [queue, wire.settings(settings, "settings"), actor])

    def declare(self, queues: Mapping[str, QueueOptions]) -> Sequence[Declared]:
        """Store the settings that a program declares for its queues; one result for each, in order.

        A setting is changed only if its declaration differs from the last one: an operator's change
        stays until then. One that is no longer declared goes back to its default.
        """
        source: LiteralString = "holdfast.queue_declare(items => %s::jsonb) order by ord"
        return self._all(Declared, source, [wire.declared_queues(queues)])

    def pause(
        self,
        queue: str,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> Queue:
        """Start no new jobs of a queue, until it is resumed or `until` a time.

        Running jobs finish.
        """
        source: LiteralString = (
            "holdfast.pause(queue => %s, reason => %s, until => %s::timestamptz, actor => %s)"
        )
        end = until and wire.moment(until, "until")
        return self._one(Queue, source, [queue, reason, end, actor])

    def resume(self, queue: str, *, actor: str | None = None) -> Queue:
        """Start jobs of a paused queue again."""
        return self._one(Queue, "holdfast.resume(queue => %s, actor => %s)", [queue, actor])

    def explain(self, queue: str) -> str:
        """Explain in one sentence the state of a queue, and what holds it up."""
        return str(self._value("holdfast.explain_queue(queue => %s)", [queue], reads=True))

    def upcoming(self, queue: str = "default", *, limit: int = 100) -> Sequence[Job]:
        """Return the waiting jobs of a queue, in the order in which they will run."""
        source: LiteralString = "holdfast.upcoming(queue => %s, max_jobs => %s::int)"
        return self._all(Job, source, [queue, limit], reads=True)

    def sort_some(self, queue: str, *, after: UUID | None = None, limit: int = 2000) -> UUID | None:
        """Prepare a queue for `by_kind`, some of its jobs at a time, after those up to `after`.

        Returns where to continue, or None at the end; `set` has little left to do then.
        """
        function: LiteralString = (
            "holdfast.sort_some(queue => %s, after => %s::uuid, max_jobs => %s::int)"
        )
        last: UUID | None = self._value(function, [queue, after, limit])
        return last

    def depth(self) -> Sequence[Depth]:
        """Return how many jobs there are by queue, kind and state, from counters."""
        return self._all(Depth, "holdfast.depth order by queue, kind, state", reads=True)

    def forecast(
        self,
        queue: str | None = None,
        *,
        target: Duration | None = None,
        span: Duration = 300.0,
    ) -> Sequence[Forecast]:
        """Return for each queue, or one, when it will be empty at the pace of the last `span`.

        With a `target`, how many slots would have to work to empty it within that time.
        """
        source: LiteralString = (
            "holdfast.forecast(only_queue => %s, target => %s::interval, span => %s::interval)"
        )
        parameters = [queue, wire.interval(target), wire.interval(span)]
        return self._all(Forecast, source, parameters, reads=True)

    def success(self, queue: str | None = None, *, span: Duration = 3600.0) -> Sequence[Success]:
        """Return which share of attempts succeeded in the last `span`, by queue and kind.

        A row without a kind covers the whole queue. Queues without a finished attempt are left out.
        """
        source: LiteralString = "holdfast.success(only_queue => %s, span => %s::interval)"
        return self._all(Success, source, [queue, wire.interval(span)], reads=True)

    # Last of the public methods: after it, `list` in this class is the method.
    def list(self) -> Sequence[Queue]:
        """Return every queue with its settings and counts, by name."""
        return self._all(Queue, "holdfast.queues order by queue", reads=True)
