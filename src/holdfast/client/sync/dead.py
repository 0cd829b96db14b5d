"""Generated from aio/dead.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import LiteralString
from uuid import UUID

from holdfast.client.statement import Statement
from holdfast.client.sync.noun import Noun
from holdfast.records import DeadGroup, Job


class Dead(Noun):
    """Jobs that used up their attempts. `client.jobs` retries, edits or deletes them."""

    def groups(self) -> Sequence[DeadGroup]:
        """Return dead jobs grouped by how they failed, the largest group first."""
        source: LiteralString = "holdfast.dead_groups order by jobs desc, last_at desc"
        return self._all(DeadGroup, source, reads=True)

    def list(
        self,
        filter: str = "",
        *,
        limit: int = 100,
        before: Job | tuple[datetime, UUID] | None = None,
    ) -> Sequence[Job]:
        """Return dead jobs that match a filter, the most recent failure first.

        `before` is the last job of the previous page, or when it ended and its id.
        """
        source: LiteralString = (
            "holdfast.died(filter => %s, max_jobs => %s::int, "
            "before => %s::timestamptz, before_id => %s::uuid)"
        )
        if isinstance(before, Job):
            before = (before.ended_at or datetime.max, before.id)
        place = before or (None, None)
        return self._all(Job, source, [filter, limit, *place], reads=True)

    def oldest(self) -> dict[str, timedelta]:
        """Return how long ago the oldest dead job died, for each queue that has dead jobs."""
        sql: LiteralString = "select queue, oldest from holdfast.dead_ages"
        return dict(self._door.run(Statement("dead_oldest", sql, reads=True)))
