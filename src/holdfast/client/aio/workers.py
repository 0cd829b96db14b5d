"""`client.workers`: the processes that run jobs, and how they are notified."""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.statement import Statement
from holdfast.records import Duration, WorkerRow


class AsyncWorkers(AsyncNoun):
    """Workers by name. Workers call the methods other than `list` and `stop` themselves."""

    async def stop(self, worker: str, *, actor: str | None = None) -> bool:
        """Request a worker to finish its jobs and exit; False if no worker has this name."""
        function: LiteralString = "holdfast.stop_worker(worker => %s, actor => %s)"
        return bool(await self._value(function, [worker, actor]))

    async def beat(
        self, worker: str, *, measured: Mapping[str, Any] | None = None, **facts: Any
    ) -> bool:
        """Report that a worker is alive, and facts about it; returns whether it should stop.

        Facts that are left out stay the same: host, pid, version, python, started_at, queues,
        kinds, slots, busy, rss, loop_lag, claimed, acked, failed, lost, busy_time, claimed_at,
        acked_at, claims, shapes. `measured` is what it measured since the last time, and is not
        repeated.
        """
        sql: LiteralString = (
            "select stop from holdfast.beat("
            "worker => %s, facts => %s::jsonb, measured => %s::jsonb)"
        )
        sent = None if measured is None else wire.settings(measured, "measured")
        parameters = [worker, wire.settings(facts, "facts"), sent]
        statement = Statement("beat", sql, parameters, repeatable=measured is None)
        [(stop,)] = await self._door.run(statement)
        return bool(stop)

    async def tell(
        self,
        worker: str,
        facts: Mapping[str, Any],
        counts: Mapping[str, float],
        measured: Mapping[str, Any] | None = None,
    ) -> bool:
        """Report that an HTTP consumer is alive, and its counts; returns whether it should stop.

        Facts and `measured` are those of `beat`; counts (claimed, acked, failed, lost, busy_time)
        are summed over all servers that report.
        """
        sql: LiteralString = (
            "select stop from holdfast.tell("
            "worker => %s, facts => %s::jsonb, counts => %s::jsonb, measured => %s::jsonb)"
        )
        parameters = [
            worker,
            wire.settings(facts, "facts"),
            wire.settings(counts, "counts"),
            None if measured is None else wire.settings(measured, "measured"),
        ]
        [(stop,)] = await self._door.run(Statement("tell", sql, parameters, repeatable=False))
        return bool(stop)

    async def leave(self, worker: str) -> bool:
        """Remove a worker from the list; returns whether it was in it. Its leases stay the same."""
        return bool(await self._value("holdfast.leave(worker => %s)", [worker]))

    async def await_work(
        self,
        queues: Sequence[str],
        *,
        worker: str,
        patience: Duration = 60.0,
        kinds: Sequence[str] | None = None,
        ear: int | None = None,
    ) -> None:
        """Request a notification, within `patience`, of the next job in one of these queues.

        A notification is only a hint: poll as well. `kinds` are those the worker handles, if not
        all. `ear` is what `holdfast.hear()` returned to the session that listens: without it the
        worker is assumed to listen until its patience ends.
        """
        function: LiteralString = (
            "holdfast.await_work(queues => %s::text[], worker => %s, patience => %s::interval, "
            "kinds => %s::text[], ear => %s::int)"
        )
        known = None if kinds is None else [*kinds]
        await self._value(function, [[*queues], worker, wire.interval(patience), known, ear])

    async def pass_on(self, queue: str) -> None:
        """Pass a notification that this worker cannot use on to another waiting worker."""
        await self._value("holdfast.pass_on(queue => %s)", [queue])

    async def ping(self, worker: str) -> None:
        """Notify a worker, for example to test whether notifications reach it."""
        await self._value("holdfast.ping(worker => %s)", [worker])

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self) -> Sequence[WorkerRow]:
        """Return the workers of the last day, last seen first."""
        return await self._all(
            WorkerRow, "holdfast.workers order by seen_at desc, worker", reads=True
        )
