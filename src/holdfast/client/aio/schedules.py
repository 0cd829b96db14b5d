"""`client.schedules`: rules that enqueue jobs at regular times."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.records import Declared, DueSchedule, NewSchedule, Schedule, Slot


class AsyncSchedules(AsyncNoun):
    """Schedules by name. Upkeep uses `due`, `fire` and `fail`."""

    async def get(self, name: str) -> Schedule | None:
        """Return one schedule; None if no schedule has this name."""
        return await self._first(Schedule, "holdfast.schedules where name = %s", [name], reads=True)

    async def slots(self, name: str, *, limit: int = 100) -> Sequence[Slot]:
        """Return the outcome of a schedule's last slots, newest first; a thousand are kept."""
        source: LiteralString = (
            "holdfast.schedule_slots where name = %s order by slot desc limit %s::int"
        )
        return await self._all(Slot, source, [name, limit], reads=True)

    async def declare(
        self,
        schedules: Iterable[NewSchedule],
        *,
        owner: str | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> Sequence[Declared]:
        """Store the schedules that a program declares; returns one result for each, in order.

        An operator's edits stay until the declaration itself changes. With an `owner`, schedules
        that it declared before and no longer declares are withdrawn: they stop firing. A program
        without a name gives its `origin` instead: the "module" of its app and the "kinds" it has.
        """
        source: LiteralString = (
            "holdfast.schedule_declare(items => %s::jsonb, owner => %s, origin => %s::jsonb) "
            "order by ord"
        )
        place = None if origin is None else wire.settings(origin, "origin")
        return await self._all(Declared, source, [wire.schedules(schedules), owner, place])

    async def set(self, name: str, *, actor: str | None = None, **settings: Any) -> Schedule:
        """Create or change a schedule: kind, cron or every, tz, missed, overlap, queue, payload …

        The settings are the fields of NewSchedule. A changed rule applies from now on.
        """
        source: LiteralString = (
            "holdfast.schedule_set(name => %s, settings => %s::jsonb, actor => %s)"
        )
        return await self._one(
            Schedule, source, [name, wire.schedule_settings(name, settings), actor]
        )

    async def run(self, name: str, *, actor: str | None = None) -> Slot:
        """Enqueue one job of a schedule now, even if it is paused.

        Not repeated after a lost reply: it could run twice.
        """
        source: LiteralString = "holdfast.schedule_run(name => %s, actor => %s)"
        return await self._one(Slot, source, [name, actor], repeatable=False)

    async def pause(
        self, name: str, *, reason: str | None = None, actor: str | None = None
    ) -> Schedule:
        """Fire no more slots of a schedule until it is resumed."""
        source: LiteralString = "holdfast.schedule_pause(name => %s, reason => %s, actor => %s)"
        return await self._one(Schedule, source, [name, reason, actor])

    async def resume(self, name: str, *, actor: str | None = None) -> Schedule:
        """Fire again from the next slot on; slots during the pause are not fired."""
        source: LiteralString = "holdfast.schedule_resume(name => %s, actor => %s)"
        return await self._one(Schedule, source, [name, actor])

    async def delete(self, name: str, *, actor: str | None = None) -> bool:
        """Delete a schedule; its jobs stay. False if it did not exist."""
        function: LiteralString = "holdfast.schedule_delete(name => %s, actor => %s)"
        return bool(await self._value(function, [name, actor]))

    async def due(self, limit: int = 100) -> Sequence[DueSchedule]:
        """Return schedules with a slot that is due, by the clock of the database."""
        source: LiteralString = "holdfast.schedule_due(max_schedules => %s::int)"
        return await self._all(DueSchedule, source, [limit], reads=True)

    async def fire(
        self,
        due: DueSchedule,
        slots: Iterable[datetime],
        next_at: datetime | None,
        *,
        problem: str | None = None,
    ) -> Sequence[Slot]:
        """Enqueue one job for each slot and advance the schedule to `next_at`; None ends it.

        If another process has fired, edited or paused the schedule since `due`, nothing happens and
        the list is empty. Safe to repeat.
        """
        source: LiteralString = (
            "holdfast.schedule_fire(name => %s, expected_next => %s::timestamptz, "
            "slots => %s::timestamptz[], next_at => %s::timestamptz, revision => %s::bigint, "
            "problem => %s)"
        )
        parameters = [due.name, due.next_at, [*slots], next_at, due.revision, problem]
        return await self._all(Slot, source, parameters)

    async def fail(self, due: DueSchedule, problem: str) -> None:
        """Record why the slots of a schedule cannot be computed; it stays due."""
        function: LiteralString = (
            "holdfast.schedule_fault(name => %s, revision => %s::bigint, problem => %s)"
        )
        await self._value(function, [due.name, due.revision, problem])

    # Last of the public methods: after it, `list` in this class is the method.
    async def list(self) -> Sequence[Schedule]:
        """Return every schedule, by name."""
        return await self._all(Schedule, "holdfast.schedules order by name", reads=True)
