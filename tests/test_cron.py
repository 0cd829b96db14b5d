"""Slots of schedules: what a clock on the wall has to show, in every zone, whatever it does."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import cron
from holdfast.cron import Cron, Interval, Turn
from holdfast.errors import InvalidSchedule
from holdfast.records import Missed

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
FIRST, LAST = datetime(2024, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
# Inside the hours in which clocks are moved, at their edges, and at noon.
TIMES = [time(0, 0), time(0, 30), time(1, 0), time(2, 30), time(3, 0), time(12, 0), time(23, 30)]
MOVING = [
    "Africa/Cairo",
    "America/Nuuk",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Antarctica/Troll",
]


@dataclass(frozen=True)
class Move:
    """A zone moves its clocks: at an instant, from one offset to another."""

    at: datetime
    before: timedelta
    after: timedelta

    def first_reading(self, wall: datetime) -> datetime:
        """The first instant near the move at which a clock on the wall shows that time or later."""
        early = (wall - self.before).replace(tzinfo=UTC)
        return early if early < self.at else max(self.at, (wall - self.after).replace(tzinfo=UTC))


@cache
def moves(zone: str) -> list[Move]:
    """Every move of a zone's clocks from 2024 to 2030."""
    found = []
    start = FIRST - 10 * DAY
    while start < LAST:
        if offset(start, zone) != offset(start + DAY, zone):
            at = start
            while offset(at, zone) == offset(start, zone):
                at += MINUTE
            found.append(Move(at, offset(start, zone), offset(at, zone)))
        start += DAY
    return found


def offset(instant: datetime, zone: str) -> timedelta:
    return instant.astimezone(ZoneInfo(zone)).utcoffset() or timedelta()


def wall(instant: datetime, zone: str) -> datetime:
    return instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)


def daily(at: time, zone: str) -> cron.Rule:
    return cron.rule(cron=f"{at.minute} {at.hour} * * *", tz=zone)


def between(rule: cron.Rule, start: datetime, end: datetime) -> list[datetime]:
    """The slots after start, up to end."""

    def slots() -> Iterator[datetime]:
        slot = rule.after(start)
        while slot is not None and slot <= end:
            yield slot
            slot = rule.after(slot)

    return list(slots())


def shown(rule: str, zone: str, start: str, count: int) -> list[str]:
    """Slots as a clock on the wall shows them."""
    after = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone))
    found = cron.next_slots(cron.rule(cron=rule, tz=zone), after, count)
    return [slot.astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z") for slot in found]


def test_the_machine_knows_its_time_zones() -> None:
    assert len(available_timezones()) > 400
    assert sum(bool(moves(zone)) for zone in sorted(available_timezones())) > 150


@pytest.mark.parametrize("at", TIMES, ids=str)
def test_a_daily_schedule_fires_once_per_local_date_wherever_clocks_are_moved(at: time) -> None:
    wrong = []
    for zone in sorted(available_timezones()):
        for move in moves(zone):
            today = wall(move.at, zone).date()
            dates = [today + n * DAY for n in range(-2, 3)]
            expected = [move.first_reading(datetime.combine(day, at)) for day in dates]
            before = expected[0] - MINUTE
            if between(daily(at, zone), before, expected[-1]) != expected:
                wrong.append((zone, move))

    assert wrong == []


@pytest.mark.parametrize("zone", MOVING)
def test_a_daily_schedule_fires_once_on_each_of_the_2557_dates_from_2024_to_2030(
    zone: str,
) -> None:
    start = datetime(2024, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    rule = cron.rule(cron="30 2 * * *", tz=zone)

    slots = between(rule, start - timedelta(seconds=1), LAST + 2 * DAY)
    dates = [wall(slot, zone).date() for slot in slots]

    every_date = [date(2024, 1, 1) + n * DAY for n in range(2557)]
    assert dates[:2557] == every_date


@pytest.mark.parametrize(
    ("rule", "zone", "start", "slots"),
    [
        # skipped: once, when the gap ends
        ("30 2 * * *", "Europe/Berlin", "2026-03-28", ["28 02:30 +0100", "29 03:00 +0200"]),
        ("15,45 2 * * *", "Europe/Berlin", "2026-03-29", ["29 03:00 +0200", "30 02:15 +0200"]),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-29", ["29 03:00 +0200", "30 02:00 +0200"]),
        # repeated: the first time
        ("30 2 * * *", "Europe/Berlin", "2026-10-25", ["25 02:30 +0200", "26 02:30 +0100"]),
        # a midnight that does not exist
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", ["24 01:00 +0300", "25 00:00 +0300"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00", ["06 01:00 -0300", "07 00:00 -0300"]),
        # a midnight that comes twice
        ("0 0 * * *", "America/Havana", "2026-10-31T12:00", ["01 00:00 -0400", "02 00:00 -0500"]),
        # the gap takes the end of a day: its last moment is the midnight that ends it
        ("30 23 * * *", "America/Nuuk", "2026-03-28T12:00", ["29 00:00 -0100", "29 23:30 -0100"]),
        # half an hour
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03", ["03 02:15 +1030", "04 02:30 +1100"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-05", ["05 01:45 +1100", "06 01:45 +1030"]),
        # two hours
        ("30 1 * * *", "Antarctica/Troll", "2026-03-28", ["28 01:30 +0000", "29 03:00 +0200"]),
        # a whole day: on a date that was not, nothing
        ("0 12 * * *", "Pacific/Apia", "2011-12-29", ["29 12:00 -1000", "31 12:00 +1400"]),
        ("0 0 * * *", "Pacific/Apia", "2011-12-29T12:00", ["31 00:00 +1400", "01 00:00 +1400"]),
        ("30 9 * * *", "Pacific/Kwajalein", "1993-08-20", ["20 09:30 -1200", "22 09:30 +1200"]),
    ],
)
def test_fixed_hours_where_clocks_are_moved(
    rule: str, zone: str, start: str, slots: list[str]
) -> None:
    assert shown(rule, zone, start, len(slots)) == slots


@pytest.mark.parametrize(
    ("rule", "zone", "start", "slots"),
    [
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T01:30",
            ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100"],
        ),
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-03-29T01:15",
            ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"],
        ),
        (
            "15 */2 * * *",
            "Australia/Lord_Howe",
            "2026-04-05T00:00",
            ["05 00:15 +1100", "05 02:15 +1030", "05 04:15 +1030"],
        ),
        (
            "0 * * * *",
            "Africa/Cairo",
            "2026-04-23T22:30",
            ["23 23:00 +0200", "24 01:00 +0300", "24 02:00 +0300"],
        ),
    ],
)
def test_stars_follow_the_clock_on_the_wall(
    rule: str, zone: str, start: str, slots: list[str]
) -> None:
    assert shown(rule, zone, start, len(slots)) == slots


@pytest.mark.parametrize("zone", MOVING)
@pytest.mark.parametrize(
    "rule", ["*/30 * * * *", "15 */2 * * *", "*/20 0-3 * * *", "7 * * * *", "*/10 2 * * SUN"]
)
def test_stars_fire_at_exactly_the_minutes_at_which_the_wall_matches(rule: str, zone: str) -> None:
    fields = cron.rule(cron=rule, tz="UTC")
    for move in moves(zone)[:4]:
        start = move.at - DAY
        minutes = [start + n * MINUTE for n in range(1, 2 * 1440)]

        slots = between(cron.rule(cron=rule, tz=zone), start, minutes[-1])

        # In UTC, where nothing moves, a time matches if it is the first after the second before.
        walls = {minute: wall(minute, zone).replace(tzinfo=UTC) for minute in minutes}
        matching = [m for m, w in walls.items() if fields.after(w - timedelta(seconds=1)) == w]
        assert slots == matching


@settings(max_examples=300, deadline=None)
@given(
    st.datetimes(datetime(2024, 1, 1), datetime(2030, 12, 31), timezones=st.just(UTC)),
    st.sampled_from([*MOVING, "UTC", "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Chatham"]),
    st.sampled_from(["*", "0", "30", "*/15", "10,50"]),
    st.sampled_from(["*", "0", "2", "*/3", "1-3", "23"]),
    st.sampled_from(["* * *", "1 * *", "* * SUN", "L * *", "29 2 *", "* 3,10 *"]),
)
def test_the_next_slot_is_after_now_and_none_lies_between(
    now: datetime, zone: str, minute: str, hour: str, days: str
) -> None:
    rule = cron.rule(cron=f"{minute} {hour} {days}", tz=zone)

    slot = rule.after(now)

    assert slot is not None
    assert slot > now
    assert slot.tzinfo is UTC
    halfway = now + (slot - now) / 2
    assert rule.after(halfway) == slot
    assert rule.after(slot - timedelta(microseconds=1)) == slot
    assert rule.newest(slot, slot + timedelta(microseconds=1)) == slot


def test_in_the_second_of_two_equal_hours_nothing_fires_that_the_first_has_fired() -> None:
    rule = cron.rule(cron="30 2 * * *", tz="Europe/Berlin")
    second = datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)

    assert rule.after(second) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_times_in_the_zone_of_a_session_mean_the_same_instants() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    before, after = datetime(2026, 3, 29, 0, tzinfo=berlin), datetime(2026, 3, 29, 6, tzinfo=berlin)
    hourly = cron.rule(every=timedelta(hours=1), anchor=before)

    turn = cron.turn(hourly, next_at=before, since=before, now=after, missed="all")

    assert len(turn.slots) == 6


def test_of_two_equal_hours_in_the_zone_of_a_session_the_second_is_later() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=0)
    now = datetime(2026, 10, 25, 2, 10, tzinfo=berlin, fold=1)

    turn = cron.turn(
        cron.rule(cron="30 2 * * *", tz="Europe/Berlin"),
        next_at=first,
        since=first,
        now=now,
        missed="once",
    )

    assert turn.slots == [first.astimezone(UTC)]


def test_an_interval_keeps_its_steps_from_its_anchor() -> None:
    anchor = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
    rule = cron.rule(every=timedelta(minutes=7), anchor=anchor)
    later = anchor + timedelta(days=1000, minutes=3)

    assert rule.after(anchor - DAY) == anchor
    assert rule.after(anchor) == anchor + timedelta(minutes=7)
    slot = rule.after(later)
    assert slot is not None
    assert timedelta() < slot - later <= timedelta(minutes=7)
    assert (slot - anchor) % timedelta(minutes=7) == timedelta()
    assert rule.newest(anchor, later) == slot - timedelta(minutes=7)


NOW = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-05-04T{text}:00+00:00")


@pytest.mark.parametrize(
    ("missed", "next_at", "expected"),
    [
        # not come yet, and not planned yet
        ("once", at("12:10"), Turn([], at("12:10"))),
        ("once", None, Turn([], at("12:05"))),
        # just come
        ("skip", at("12:00"), Turn([at("12:00")], at("12:05"))),
        ("once", at("12:00"), Turn([at("12:00")], at("12:05"))),
        ("all", at("12:00"), Turn([at("12:00")], at("12:05"))),
        # three came and nobody was there
        ("skip", at("11:50"), Turn([at("12:00")], at("12:05"))),
        ("once", at("11:50"), Turn([at("12:00")], at("12:05"))),
        ("all", at("11:50"), Turn([at("11:50"), at("11:55"), at("12:00")], at("12:05"))),
    ],
)
def test_what_a_schedule_does_about_slots_that_were_missed(
    missed: Missed, next_at: datetime | None, expected: Turn
) -> None:
    rule = cron.rule(cron="*/5 * * * *")

    assert cron.turn(rule, next_at=next_at, since=NOW, now=NOW, missed=missed) == expected


@pytest.mark.parametrize(("late", "fires"), [(60, True), (61, False)])
def test_skip_gives_a_slot_a_minute_to_be_fired(late: int, fires: bool) -> None:
    rule = cron.rule(cron="0 5 * * *")
    slot = datetime(2026, 5, 4, 5, tzinfo=UTC)

    turn = cron.turn(
        rule, next_at=slot, since=slot, now=slot + timedelta(seconds=late), missed="skip"
    )

    assert turn == Turn([slot] if fires else [], slot + DAY)


def test_all_makes_up_for_a_thousand_slots_a_turn_and_goes_on() -> None:
    rule = cron.rule(cron="* * * * *")
    first = NOW.replace(second=0) - 2499 * MINUTE
    next_at: datetime | None = first
    fired = []
    while next_at is not None and next_at <= NOW:
        turn = cron.turn(rule, next_at=next_at, since=first, now=NOW, missed="all")
        fired.append(len(turn.slots))
        next_at = turn.next_at

    assert fired == [1000, 1000, 500]
    assert next_at == NOW.replace(second=0) + MINUTE


@pytest.mark.parametrize("rule", ["* * * * *", "0 5 * * *", "0 0 1 1 *", "0 0 29 2 *"])
def test_the_newest_of_slots_missed_for_years_is_found_at_once(rule: str) -> None:
    made = cron.rule(cron=rule, tz="Europe/Paris")
    first = made.after(datetime(2012, 1, 1, tzinfo=UTC))
    assert first is not None

    newest = made.newest(first, NOW)

    following = made.after(newest)
    assert following is not None
    assert newest <= NOW < following


@pytest.mark.parametrize(
    ("rule", "zone", "told"),
    [
        ("61 5 * * *", "UTC", "minute '61' is not valid"),
        ("0 24 * * *", "UTC", "hour '24' is not valid"),
        ("0 0 0 * *", "UTC", "day of the month '0' is not valid"),
        ("0 0 * 13 *", "UTC", "month '13' is not valid"),
        ("0 0 * * FUN", "UTC", "day of the week 'FUN' is not valid"),
        ("*/0 * * * *", "UTC", "minute '*/0' is not valid"),
        ("* * * *", "UTC", "has 4 fields"),
        ("0 * * * * *", "UTC", "has 6 fields"),
        ("", "UTC", "has 0 fields"),
        ("0 0 31 2 *", "UTC", "never comes"),
        ("0 0 31 4,6 *", "UTC", "never comes"),
        ("@dayly", "UTC", "'@dayly' is unknown"),
        ("0 0 * * *", "Europe/Pariss", "'Europe/Pariss' is unknown (did you mean Europe/Paris?)"),
        ("0 0 * * *", "europe/paris", "did you mean Europe/Paris?"),
        ("0 0 * * *", "Paris", "did you mean Europe/Paris?"),
        ("0 0 * * *", "../../etc/passwd", "is unknown"),
        ("0 0 * * *", "right/Europe/Paris", "is unknown"),
        ("0 0 * * *", "Europe", "'Europe' is unknown"),
        ("0 0 * * *", "x\0y", "is unknown"),
        ("0 0 * * *", "", "'' is unknown"),
        ("0 0 * * *", "z" * 5000, "is unknown"),
    ],
)
def test_a_refusal_names_the_field_and_the_nearest_zone(rule: str, zone: str, told: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        cron.rule(cron=rule, tz=zone)

    assert refused.value.code == "HF223"
    assert told in refused.value.what


@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from("0123456789*/-,#LWMONJAN @"), max_size=30))
def test_any_text_is_a_rule_or_is_refused(rule: str) -> None:
    try:
        made = cron.rule(cron=rule)
    except InvalidSchedule:
        return
    assert made.after(NOW) is not None
    assert made.explain()


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_a_zone_or_is_refused(zone: str) -> None:
    if zone not in available_timezones():
        with pytest.raises(InvalidSchedule):
            cron.check_zone(zone)


@pytest.mark.parametrize("every", [timedelta(), timedelta(seconds=1.5), timedelta(days=367), -DAY])
def test_an_interval_is_whole_seconds_up_to_a_year(every: timedelta) -> None:
    with pytest.raises(InvalidSchedule, match="out of range"):
        cron.rule(every=every)


def test_a_rule_is_an_expression_or_an_interval() -> None:
    for arguments in ({}, {"cron": "0 0 * * *", "every": DAY}):
        with pytest.raises(InvalidSchedule, match="and not both"):
            cron.rule(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "english"),
    [
        (
            Cron("30 5 * * MON-FRI", "Europe/Paris"),
            "at 05:30 on Monday through Friday (Europe/Paris)",
        ),
        (Cron("@hourly"), "at the start of every hour"),
        (Interval(timedelta(minutes=5), NOW), "every 5 minutes"),
        (Interval(timedelta(hours=1), NOW), "every hour"),
        (Interval(timedelta(hours=1, seconds=30), NOW), "every 1 hour 30 seconds"),
    ],
)
def test_a_rule_says_itself_in_english(rule: cron.Rule, english: str) -> None:
    assert rule.explain() == english
