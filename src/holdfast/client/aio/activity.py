"""`client.activity`: what happened, and numbers over time."""

from collections.abc import Sequence
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.statement import Statement
from holdfast.records import Duration, Event, EventPage, LogState, Watched


class AsyncActivity(AsyncNoun):
    """The log of events, and samples of counters."""

    async def list(
        self,
        *,
        queues: Sequence[str] | None = None,
        kind: str | None = None,
        event: str | None = None,
        actor: str | None = None,
        worker: str | None = None,
        job: UUID | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 100,
        patience: Duration = 0.1,
    ) -> EventPage:
        """Return events, newest first; with `after`, a position in the log, oldest first.

        The search ends after `patience`: if `searched_to` of the page is not None, pass it as
        `before`, or `after`, to continue.
        """
        sql: LiteralString = (
            f"select {wire.columns(Event)}, searched_to from (select (a.entry).*, a.searched_to "
            "from holdfast.activity(queues => %s::text[], kind => %s, event => %s, "
            "actor => %s, worker => %s, job => %s::uuid, since => %s::timestamptz, "
            "until => %s::timestamptz, before => %s::bigint, after => %s::bigint, "
            "max_events => %s::int, patience => %s::interval) a) e"
        )
        names = None if queues is None else [*queues]
        span = [since and wire.moment(since, "since"), until and wire.moment(until, "until")]
        place = [before, after, limit, wire.interval(patience)]
        parameters = [names, kind, event, actor, worker, job, *span, *place]
        rows = await self._door.run(Statement("activity", sql, parameters, reads=True))
        events = [Event(*row[:-1]) for row in rows if row[0] is not None]
        return EventPage(events, rows[0][-1] if rows else None)

    async def watch(
        self, queues: Sequence[str] | None = None, *, lasts: Duration = 30.0
    ) -> Sequence[Watched]:
        """Record every event of these queues for this long; None means all queues.

        If you repeat the call before the time is up, no event in between is missing.
        """
        source: LiteralString = "holdfast.watch(queues => %s::text[], lasts => %s::interval)"
        names = None if queues is None else [*queues]
        return await self._all(Watched, source, [names, wire.interval(lasts)])

    async def tail(
        self, after: int, *, missing: Sequence[tuple[int, int]] | None = None, limit: int = 1000
    ) -> Sequence[Event]:
        """Return events after a position in the log, and at positions that were `missing`.

        A position is missing while its transaction is open, and forever if that was rolled back.
        """
        source: LiteralString = (
            "holdfast.tail(after => %s::bigint, missing_from => %s::bigint[], "
            "missing_to => %s::bigint[], max_events => %s::int)"
        )
        first, last = [one for one, _ in missing or ()], [one for _, one in missing or ()]
        return await self._all(Event, source, [after, first, last, limit], reads=True)

    async def log_state(self) -> LogState:
        """Return where the log begins and ends, and which open transactions may write to it."""
        return await self._one(LogState, "holdfast.log_state()", reads=True)

    async def series(
        self,
        metric: str,
        *,
        queues: Sequence[str] | None = None,
        kind: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: Duration = 60.0,
    ) -> Sequence[tuple[datetime, float | None]]:
        """Return a metric over time, one value per `step`; None where nothing was sampled.

        Metrics are enqueued, done and failed, per second; queued, leased and dead; oldest, and
        p50, p95 and p99 of pickup and run, as in `run_p95`, in seconds.
        """
        sql: LiteralString = (
            "select at, value from holdfast.series(metric => %s, queues => %s::text[], "
            "kind => %s, since => %s::timestamptz, until => %s::timestamptz, step => %s::interval)"
        )
        names = None if queues is None else [*queues]
        span = [since and wire.moment(since, "since"), until and wire.moment(until, "until")]
        parameters = [metric, names, kind, *span, wire.interval(step)]
        rows = await self._door.run(Statement("series", sql, parameters, reads=True))
        return [(at, value) for at, value in rows]
