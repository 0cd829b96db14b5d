"""Celery beat: the tables of django-celery-beat, or `beat_schedule` in the code of an app.

Jobs of Celery wait in its broker, which is not this database: let its workers finish them.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from holdfast.moving.found import Found, Rows, Unreadable

_TAKE = """
with taken as (
  update django_celery_beat_periodictask set enabled = false, last_run_at = null
  where id = any(%s) returning id)
insert into django_celery_beat_periodictasks (ident, last_update)
select 1, now() where exists (select from taken)
on conflict (ident) do update set last_update = excluded.last_update
"""


def rows() -> list[Rows]:
    """Return where django-celery-beat has its schedules."""
    return [
        Rows(
            table="django_celery_beat_periodictask",
            waiting="""
                select p.*, p.task as kind, i.every, i.period, c.minute, c.hour, c.day_of_month,
                  c.month_of_year, c.day_of_week, c.timezone, k.clocked_time
                from django_celery_beat_periodictask p
                left join django_celery_beat_intervalschedule i on i.id = p.interval_id
                left join django_celery_beat_crontabschedule c on c.id = p.crontab_id
                left join django_celery_beat_clockedschedule k on k.id = p.clocked_id
                where p.enabled order by p.id for update of p
                """,
            running="select '', 0 where false",
            # A beat that runs reads its tables again when this time has changed.
            take=_TAKE,
            read=_read,
        )
    ]


def configured(app: Any) -> Iterable[Found]:
    """Return the entries of `beat_schedule` of an app of Celery."""
    zone = str(app.timezone)
    for name, entry in app.conf.beat_schedule.items():
        options = entry.get("options") or {}
        call = {"id": name, "kind": entry["task"]}
        call |= {"args": list(entry.get("args") or ()), "kwargs": entry.get("kwargs") or {}}
        try:
            rule = {"name": name, **_configured(entry["schedule"], options, zone)}
        except Unreadable as why:
            yield Found(**call, schedule={}, problem=str(why))
        else:
            kept = {"queue": options.get("queue"), "expires": options.get("expires")}
            yield Found(**call, options=kept, schedule=rule)


def _read(row: Any) -> Found:
    for what in ("solar_id", "expires"):
        if getattr(row, what) is not None:
            raise Unreadable(f"its {what.removesuffix('_id')} cannot be kept")
    call = {
        "id": row.id,
        "kind": row.kind,
        "args": json.loads(row.args or "[]"),
        "kwargs": json.loads(row.kwargs or "{}"),
    }
    options = {"queue": row.queue, "expires": row.expire_seconds}
    if row.clocked_time is not None:
        return Found(**call, options={**options, "run_at": row.clocked_time})
    if row.one_off:
        raise Unreadable("it runs once, at a time that only beat knows")
    if row.every is not None:
        length = timedelta(**{row.period: row.every})
        rule = {"every": length, "anchor": row.last_run_at or row.start_time}
    else:
        fields = (row.minute, row.hour, row.day_of_month, row.month_of_year, row.day_of_week)
        rule = {"cron": _cron(fields), "tz": row.timezone}
    return Found(**call, options=options, schedule={"name": row.name, **rule})


def _configured(at: Any, options: Mapping[str, Any], zone: str) -> dict[str, Any]:
    if beyond := options.keys() - {"queue", "priority", "expires"}:
        raise Unreadable(f"its option {min(beyond)!r} cannot be kept")
    if hasattr(at, "_orig_minute"):
        names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        return {"cron": _cron([getattr(at, f"_orig_{name}") for name in names]), "tz": zone}
    length = getattr(at, "run_every", at)
    if not isinstance(length, timedelta | int | float):
        raise Unreadable(f"a schedule of the type {type(at).__name__} cannot be kept")
    return {"every": length}


def _cron(fields: Iterable[Any]) -> str:
    minute, hour, day, month, weekday = (str(one).replace(" ", "") for one in fields)
    if day != "*" and weekday != "*":
        # Celery wants both, cron either of them.
        raise Unreadable("it names days of the month and of the week, and both must fit")
    return f"{minute} {hour} {day} {month} {weekday}"
