"""`client.jobs`: find and change jobs."""

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString
from uuid import UUID

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.statement import Statement
from holdfast.records import Attempt, Change, Count, Duration, Job, JobPage, Line, Receipt

# The types of what only one of the verbs takes.
_TYPES: dict[str, LiteralString] = {"delay": "interval", "changes": "jsonb", "fresh": "bool"}


class AsyncJobs(AsyncNoun):
    """Jobs by id or by filter. Verbs return one Change for each id, in order."""

    async def get(self, id: UUID) -> Job | None:
        """Return a job; None if it does not exist, or was deleted when done."""
        return await self._first(Job, "holdfast.get(id => %s::uuid)", [id], reads=True)

    async def await_end(
        self, ids: Sequence[UUID], *, waiter: str, patience: Duration = 60.0
    ) -> None:
        """Request a notification, within `patience`, of the end of these jobs.

        It is sent on the channel `holdfast_ended`, as the id, a line feed and the waiter, and once
        right away, which shows that it arrives. It is only a hint: poll as well, and ask
        `not_ending` when it has arrived.
        """
        await self._value(
            "holdfast.await_end(ids => %s::uuid[], waiter => %s, patience => %s::interval)",
            [list(ids), waiter, wire.interval(patience)],
        )

    async def not_ending(self, ids: Sequence[UUID]) -> list[UUID]:
        """Return which of these jobs are live and not being changed at this moment."""
        return list(await self._value("holdfast.not_ending(ids => %s::uuid[])", [list(ids)]))

    async def receipt(self, id: UUID) -> Receipt | None:
        """Return what is still known about a job that was done and deleted minutes ago."""
        return await self._first(Receipt, "holdfast.receipt(id => %s::uuid)", [id], reads=True)

    async def attempts(self, id: UUID) -> list[Attempt]:
        """Return a job's failed attempts, oldest first."""
        source: LiteralString = "holdfast.attempts(id => %s::uuid) order by ended_at, attempt"
        return await self._all(Attempt, source, [id], reads=True)

    async def lines(self, id: UUID, *, after: int = 0, newest: int = 1000) -> list[Line]:
        """Return what a job's handlers logged while they ran, oldest first.

        `after` continues behind the line of that number; only the `newest` ones are returned. The
        lines of a deleted job can be read for ten minutes.
        """
        source: LiteralString = (
            "holdfast.lines(id => %s::uuid, after => %s::int, newest => %s::int) order by nth"
        )
        return await self._all(Line, source, [id, after, newest], reads=True)

    async def last_lines(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        """Return the number of the last line of each of these jobs that has any."""
        sql: LiteralString = "select id, nth from holdfast.last_lines(ids => %s::uuid[])"
        statement = Statement("last_lines", sql, [wire.array(ids)], reads=True)
        rows = await self._door.run(statement)
        return {row[0]: row[1] for row in rows}

    async def explain(self, id: UUID) -> str:
        """Explain in one sentence why a job is not running."""
        return str(await self._value("holdfast.explain(id => %s::uuid)", [id], reads=True))

    async def find(
        self, filter: str = "", *, limit: int = 1000, before: UUID | None = None
    ) -> Sequence[UUID]:
        """Return the ids of jobs that match a filter, newest first.

        `before` continues a search after the last id of the previous one.
        """
        function: LiteralString = (
            "holdfast.find(filter => %s, max_jobs => %s::int, before => %s::uuid)"
        )
        found: Sequence[UUID] = await self._value(function, [filter, limit, before], reads=True)
        return found

    async def search(
        self,
        filter: str = "",
        *,
        limit: int = 50,
        before: UUID | None = None,
        patience: Duration = 0.05,
    ) -> JobPage:
        """Return a page of jobs that match a filter, newest first.

        The search ends after `patience` even if the page is not full: `searched_to` of the page
        is then the id to pass as `before` to continue.
        """
        sql: LiteralString = (
            f"select {wire.columns(Job)}, searched_to, searched "
            "from (select (s.job).*, s.searched_to, s.searched "
            "from holdfast.search(filter => %s, max_jobs => %s::int, before => %s::uuid, "
            "patience => %s::interval) s) j"
        )
        parameters = [filter, limit, before, wire.interval(patience)]
        rows = await self._door.run(Statement("search", sql, parameters, reads=True))
        jobs = [Job(*row[:-2]) for row in rows if row[0] is not None]
        return JobPage(jobs, *(rows[0][-2:] if rows else (None, 0)))

    async def count(
        self, filter: str = "", *, most: int = 10_000, patience: Duration = 0.05
    ) -> Count:
        """Count the jobs that match a filter, up to `most` and for about `patience`."""
        source: LiteralString = (
            "holdfast.count_jobs(filter => %s, most => %s::int, patience => %s::interval)"
        )
        return await self._one(Count, source, [filter, most, wire.interval(patience)], reads=True)

    async def cancel(
        self, ids: Iterable[UUID], *, reason: str | None = None, actor: str | None = None
    ) -> Sequence[Change]:
        """Cancel queued and leased jobs; the worker of a running job is notified."""
        return await self._change("cancel", ids, reason, actor)

    async def archive(
        self, ids: Iterable[UUID], *, reason: str | None = None, actor: str | None = None
    ) -> Sequence[Change]:
        """Archive ended jobs: they are kept, but no longer counted as dead."""
        return await self._change("archive", ids, reason, actor)

    async def delete(
        self, ids: Iterable[UUID], *, reason: str | None = None, actor: str | None = None
    ) -> Sequence[Change]:
        """Delete jobs permanently; leased jobs are refused."""
        return await self._change("delete", ids, reason, actor)

    async def retry(
        self,
        ids: Iterable[UUID],
        *,
        reason: str | None = None,
        actor: str | None = None,
        delay: Duration | None = None,
        fresh: bool = False,
    ) -> Sequence[Change]:
        """Queue ended jobs again, from attempt 1; their steps are kept, unless `fresh`."""
        more = {"delay": wire.interval(delay), "fresh": fresh}
        return await self._change("retry", ids, reason, actor, **more)

    async def edit(
        self,
        ids: Iterable[UUID],
        *,
        reason: str | None = None,
        actor: str | None = None,
        **changes: Any,
    ) -> Sequence[Change]:
        """Change queued or dead jobs: payload, priority, run_at, max_attempts, lease, headers."""
        encoded = wire.settings(changes, "changes")
        return await self._change("edit", ids, reason, actor, changes=encoded)

    async def move(
        self,
        ids: Iterable[UUID],
        queue: str,
        *,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Sequence[Change]:
        """Move jobs to another queue; each job gets a `new_id`.

        Not repeated after a lost reply, because the ids have changed.
        """
        source: LiteralString = (
            "holdfast.move(ids => %s::uuid[], queue => %s, reason => %s, actor => %s)"
        )
        parameters = [wire.array(ids), queue, reason, actor]
        return await self._all(Change, source, parameters, repeatable=False)

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(
        self, filter: str = "", *, limit: int = 100, before: UUID | None = None
    ) -> Sequence[Job]:
        """Return jobs that match a filter, newest first; `before` continues after an id."""
        source: LiteralString = (
            "holdfast.list(filter => %s, max_jobs => %s::int, before => %s::uuid)"
        )
        return await self._all(Job, source, [filter, limit, before], reads=True)

    async def _change(
        self,
        verb: LiteralString,
        ids: Iterable[UUID],
        reason: str | None,
        actor: str | None,
        **more: Any,
    ) -> Sequence[Change]:
        named = wire.array(ids)
        if named == "{}":
            return []
        further: LiteralString = "".join(f", {name} => %s::{_TYPES[name]}" for name in more)
        sql: LiteralString = (
            "select id, changed, state, detail "
            f"from holdfast.{verb}(ids => %s::uuid[], reason => %s, actor => %s{further})"
        )
        parameters = [named, reason, actor, *more.values()]
        return [Change(*row) for row in await self._door.run(Statement(verb, sql, parameters))]
