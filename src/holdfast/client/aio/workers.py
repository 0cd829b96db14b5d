"""`client.workers`: who runs jobs, and how they are woken."""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.statement import Statement
from holdfast.records import Duration, WorkerRow


class AsyncWorkers(AsyncNoun):
    """Workers by name. All but `list` and `stop` are for the workers themselves."""

    async def stop(self, worker: str, *, actor: str | None = None) -> bool:
        """Ask a worker to finish what it runs and exit; False if there is none of that name."""
        function: LiteralString = "holdfast.stop_worker(worker => %s, actor => %s)"
        return bool(await self._value(function, [worker, actor]))

    async def beat(
        self, worker: str, *, measured: Mapping[str, Any] | None = None, **facts: Any
    ) -> bool:
        """Report that a worker is alive, and facts about it; returns whether it should stop.

        Facts that are left out stay as they were: host, pid, version, python, started_at, queues,
        kinds, slots, busy, rss, loop_lag, claimed, acked, failed, lost, busy_time, claimed_at,
        acked_at, claims. `measured` is what it measured since the last time, and is not repeated.
        """
        sql: LiteralString = (
            "select stop from holdfast.beat(worker => %s, facts => %s, measured => %s)"
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
        """Report for a worker that it is alive, and what it did since; whether it should stop.

        Facts and `measured` are those of `beat`; counts (claimed, acked, failed, lost, busy_time)
        add up over all who report.
        """
        sql: LiteralString = (
            "select stop from holdfast.tell("
            "worker => %s, facts => %s, counts => %s, measured => %s)"
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
        """Take a worker off the list; whether it was on it. Its leases stay as they are."""
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
        """Ask to be notified, within `patience`, of the next job in one of these queues.

        A notification is only a hint: poll as well. `kinds` are those the worker knows, if not
        all. `ear` is what `holdfast.hear()` gave to the session that listens: without it the
        worker is believed to hear until its patience ends.
        """
        function: LiteralString = (
            "holdfast.await_work(queues => %s::text[], worker => %s, patience => %s, "
            "kinds => %s::text[], ear => %s::int)"
        )
        known = None if kinds is None else [*kinds]
        await self._value(function, [[*queues], worker, wire.interval(patience), known, ear])

    async def pass_on(self, queue: str) -> None:
        """Hand a notification that one cannot use now to another worker that waits."""
        await self._value("holdfast.pass_on(queue => %s)", [queue])

    async def ping(self, worker: str) -> None:
        """Notify a worker, to test whether notifications reach it."""
        await self._value("holdfast.ping(worker => %s)", [worker])

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self) -> Sequence[WorkerRow]:
        """Return the workers of the last day, last seen first."""
        return await self._all(
            WorkerRow, "holdfast.workers order by seen_at desc, worker", reads=True
        )
