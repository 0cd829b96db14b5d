"""When schedules come due: pure functions from a rule and an instant to instants, all of them UTC.

Days are the zone's days. Where a zone moves its clocks, rules behave as in Debian's cron: one with
fixed hours and minutes whose time is skipped fires once, when the gap ends, and one whose time
comes twice fires the first time only; one with a star in its hours or minutes fires whenever the
clock on the wall reads a matching time, so that `*/30` keeps its steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property, lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from holdfast.errors import InvalidSchedule
from holdfast.records import Missed

# How late a slot may be and still count as come, not missed.
GRACE = timedelta(seconds=60)
# How many missed slots one turn fires; the next turn continues.
MOST = 1000

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Cron:
    """A cron expression in a time zone. Made by `rule`, which refuses what cannot be."""

    expression: str
    tz: str = "UTC"

    def after(self, instant: datetime) -> datetime | None:
        """Return the first slot after an instant; None if there is none in fifty years."""
        instant = instant.astimezone(UTC)
        if self._is_fixed:
            walls = self._matches(self._wall(instant))
            found = (self._at(wall) for wall in walls)
            return next((at for at in found if at is not None and at > instant), None)
        at, wall = instant, self._wall(instant)
        while (match := next(self._matches(wall), None)) is not None:
            slot = (match - self._offset(at)).replace(tzinfo=UTC)
            moved = self._first_move(at, slot)
            if moved is None:
                return slot
            # From there on the wall shows other times; what it shows at that very second counts.
            at, wall = moved, self._wall(moved) - _SECOND
        return None

    def newest(self, first: datetime, until: datetime) -> datetime:
        """Return the last slot up to `until`, knowing that `first` is one."""
        for days in (1 / 24, 1, 32, 366):
            start = max(first, until - timedelta(days=days))
            if found := list(_up_to(self, start - _SECOND, until)):
                return found[-1]
            if start == first:
                break
        return max(_up_to(self, first, until), default=first)

    def explain(self) -> str:
        """Say it in English."""
        text = str(CronSim(self._fields, _EPOCH).explain())
        return text[:1].lower() + text[1:] + ("" if self.tz == "UTC" else f" ({self.tz})")

    @cached_property
    def _fields(self) -> str:
        return _NAMED.get(self.expression.lower(), self.expression)

    @cached_property
    def _is_fixed(self) -> bool:
        minute, hour, *_ = self._fields.split()
        return not minute.startswith("*") and not hour.startswith("*")

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone itself."""
        return ZoneInfo(self.tz)

    def _matches(self, wall: datetime) -> Iterator[datetime]:
        """Yield the matching times after one, as a clock would show them that is never moved."""
        return iter(CronSim(self._fields, wall))

    def _wall(self, instant: datetime) -> datetime:
        return instant.astimezone(self.zone).replace(tzinfo=None, fold=0)

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self.zone).utcoffset() or timedelta()

    def _at(self, wall: datetime) -> datetime | None:
        """Return the instant of a time on the wall: the first of two, or the end of the gap."""
        at = wall.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
        if self._wall(at) == wall:
            return at
        end = self._first_move(wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC), at)
        assert end is not None
        # A whole day can be skipped at the date line: there is no slot on it.
        if self._wall(end - _SECOND).date() < wall.date() < self._wall(end).date():
            return None
        return end

    def _first_move(self, start: datetime, end: datetime) -> datetime | None:
        """Return the first instant after start, up to end, at which the clocks are moved."""
        start = start.replace(microsecond=0)
        before = self._offset(start)
        while start < end:
            stop = min(start + timedelta(hours=12), end)
            if self._offset(stop) != before:
                while stop - start > _SECOND:
                    middle = start + (stop - start) // _SECOND // 2 * _SECOND
                    if self._offset(middle) == before:
                        start = middle
                    else:
                        stop = middle
                return stop
            start = stop
        return None


@dataclass(frozen=True, slots=True)
class Interval:
    """Slots at the anchor and every so often from then on, whatever clocks show."""

    every: timedelta
    anchor: datetime

    def after(self, instant: datetime) -> datetime:
        """Return the first slot after an instant."""
        instant = instant.astimezone(UTC)
        if instant < self.anchor:
            return self.anchor
        return self.anchor + ((instant - self.anchor) // self.every + 1) * self.every

    def newest(self, first: datetime, until: datetime) -> datetime:
        """Return the last slot up to `until`, knowing that `first` is one."""
        return max(first, self.anchor + (until - self.anchor) // self.every * self.every)

    def explain(self) -> str:
        """Say it in English."""
        left = int(self.every.total_seconds())
        parts = []
        for unit, seconds in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
            count, left = divmod(left, seconds)
            if count:
                parts.append(f"{count} {unit}" + ("s" if count > 1 else ""))
        return "every " + " ".join(parts).removeprefix("1 " if len(parts) == 1 else "")


Rule = Cron | Interval


def rule(
    *,
    cron: str | None = None,
    every: timedelta | None = None,
    anchor: datetime | None = None,
    tz: str = "UTC",
) -> Rule:
    """Create the rule of a schedule; raise InvalidSchedule if it is not valid."""
    if (cron is None) == (every is None):
        raise InvalidSchedule(
            "a schedule needs a cron expression or an interval, and not both",
            fix='For example "30 5 * * MON-FRI", or every=timedelta(minutes=5).',
        )
    if every is not None:
        return _interval(every, anchor)
    if not isinstance(cron, str):
        raise InvalidSchedule(
            f"cron {cron!r} is not an expression",
            fix='Give five fields:  "*/5 * * * *"   or an interval:  every=300',
        )
    return _cron(cron, tz)


def next_slots(rule: Rule, after: datetime, count: int) -> list[datetime]:
    """Return the next slots after an instant, at most `count`."""
    return list(islice(_slots(rule, after), count))


@dataclass(frozen=True, slots=True)
class Turn:
    """What a schedule does now: fire these slots, then wait for `next_at`, if not None."""

    slots: list[datetime]
    next_at: datetime | None


def turn(
    rule: Rule, *, next_at: datetime | None, since: datetime, now: datetime, missed: Missed
) -> Turn:
    """Decide what a schedule does at `now`, which is the database's.

    `next_at` is the slot it waits for; None if that is still to be found, the first after `since`.
    Slots that nobody was there to fire: `skip` fires the newest if it is at most GRACE old, `once`
    fires the newest, `all` fires each, MOST at a time.
    """
    # In one zone whatever the session's: there, hours would be those of its clock on the wall.
    now = now.astimezone(UTC)
    first = next_at.astimezone(UTC) if next_at else rule.after(since)
    if first is None or first > now:
        return Turn([], first)
    if missed == "all":
        slots = [first, *islice(_up_to(rule, first, now), MOST - 1)]
        return Turn(slots, rule.after(slots[-1]))
    newest = rule.newest(first, now)
    late = now - newest > GRACE
    return Turn([] if missed == "skip" and late else [newest], rule.after(now))


def check_zone(tz: str) -> None:
    """Raise InvalidSchedule, naming the nearest one, unless this is a time zone."""
    if not isinstance(tz, str):
        tz = repr(tz)
    try:
        # Of these every machine has its own, or they count leap seconds.
        if tz.partition("/")[0] in ("right", "posix", "posixrules", "localtime", "Factory"):
            raise KeyError(tz)
        ZoneInfo(tz)
    except (KeyError, ValueError, OSError, TypeError):
        known = {zone.casefold(): zone for zone in available_timezones()}
        if len(known) < 2:
            raise InvalidSchedule(
                f"time zone {tz!r} is unknown: this machine has no time zone database",
                fix="Run:  pip install tzdata",
            ) from None
        near = get_close_matches(str(tz).casefold(), known, n=1) or [
            zone for zone in sorted(known) if zone.endswith(f"/{str(tz).casefold()}")
        ]
        raise InvalidSchedule(
            f"time zone {tz!r} is unknown" + (f" (did you mean {known[near[0]]}?)" if near else ""),
            fix="Zones are named as in Europe/Paris, America/New_York, UTC.",
        ) from None


def _slots(rule: Rule, after: datetime) -> Iterator[datetime]:
    slot = rule.after(after)
    while slot is not None:
        yield slot
        slot = rule.after(slot)


def _up_to(rule: Rule, after: datetime, until: datetime) -> Iterator[datetime]:
    for slot in _slots(rule, after):
        if slot > until:
            return
        yield slot


def _interval(every: timedelta, anchor: datetime | None) -> Interval:
    if every < _SECOND or every % _SECOND or every > timedelta(days=366):
        raise InvalidSchedule(
            f"every {every} is out of range",
            fix="It is a whole number of seconds, from 1 to 31622400 (366 days).",
        )
    return Interval(every, (anchor or _EPOCH.replace(tzinfo=UTC)).astimezone(UTC))


# Reading an expression takes longer than using it, and the same few come round all the time.
@lru_cache(1024)
def _cron(expression: str, tz: str) -> Cron:
    check_zone(tz)
    text = " ".join(expression.split())
    fields = _NAMED.get(text.lower(), text).split()
    if text.startswith("@") and text.lower() not in _NAMED:
        raise InvalidSchedule(f"cron {text!r} is unknown", fix=f"Known are: {', '.join(_NAMED)}.")
    if len(fields) != 5:
        raise InvalidSchedule(
            f"cron {text!r} has {len(fields)} {'field' if len(fields) == 1 else 'fields'}",
            fix="It has five: minute, hour, day of the month, month, day of the week.",
        )
    for nth, (name, allowed) in enumerate(_FIELDS.items()):
        # Each alone, so that the message names the one that is wrong.
        alone = ["*"] * 5
        alone[nth] = fields[nth]
        try:
            CronSim(" ".join(alone), _EPOCH)
        except (CronSimError, ValueError):
            raise InvalidSchedule(
                f"cron {text!r}: {name} {fields[nth]!r} is not valid", fix=f"It is {allowed}."
            ) from None
    made = Cron(text, tz)
    try:
        never = made.after(_EPOCH.replace(tzinfo=UTC)) is None
    except CronSimError:
        never = True
    if never:
        raise InvalidSchedule(f"cron {text!r} never comes: no such day is in the calendar")
    return made


_EPOCH = datetime(2000, 1, 1)
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = {
    "minute": "0 to 59, as in 30, 0,30 or */5",
    "hour": "0 to 23, as in 5, 8-18 or */2",
    "day of the month": "1 to 31, L for the last, LW for the last from Monday to Friday",
    "month": "1 to 12 or JAN to DEC",
    "day of the week": "0 to 7 or SUN to SAT, as in MON-FRI, MON#1 for the first, 5L for the last",
}
