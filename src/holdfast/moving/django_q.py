"""django-q2: what its cluster would take from `django_q_ormq`, and `django_q_schedule`.

A payload is a pickle that is signed with the SECRET_KEY of the project. The signature is checked
first, and then the pickle is read without running what it names.
"""

import ast
import os
import zlib
from base64 import urlsafe_b64decode
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from holdfast.errors import Misuse
from holdfast.moving import pickled
from holdfast.moving.found import Found, Rows, Unreadable

_LARGEST = 16 * 1024 * 1024
# What a call may have in django-q2 and cannot have here.
_BEYOND = ("chain", "hook", "iter_count")
_EVERY = {"I": "minutes", "H": "hours"}
_MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}


def rows() -> list[Rows]:
    """Return where its jobs and schedules are."""
    project = _Project()
    return [
        Rows(
            table="django_q_ormq",
            waiting="""
                select q.*, '(unread)' as kind from django_q_ormq q
                where q.lock is null or q.lock <= now() order by q.id for update of q
                """,
            running="""
                select 'cluster ' || key, count(*) from django_q_ormq where lock > now() group by 1
                """,
            take="delete from django_q_ormq where id = any(%s)",
            read=project.job,
        ),
        Rows(
            table="django_q_schedule",
            waiting="""
                select s.*, s.func as kind from django_q_schedule s
                where s.repeats <> 0 and s.next_run is not null order by s.id for update of s
                """,
            running="select '', 0 where false",
            take="delete from django_q_schedule where id = any(%s)",
            read=project.schedule,
        ),
    ]


class _Project:
    """The settings of the Django project, whose key signs the payloads."""

    def __init__(self) -> None:
        from django.conf import settings

        if not settings.configured and "DJANGO_SETTINGS_MODULE" not in os.environ:
            raise Misuse(
                "jobs of django-q2 are signed with the SECRET_KEY of its project",
                why="They are read only if the signature is right.",
                fix="Run it where the project is, with  DJANGO_SETTINGS_MODULE=shop.settings",
            )
        self._key = settings.SECRET_KEY
        self._salt = getattr(settings, "Q_CLUSTER", {}).get("name", "default")
        self._zone = ZoneInfo(settings.TIME_ZONE or "UTC")

    def job(self, row: Any) -> Found:
        call = pickled.read(self._unsigned(row.payload), named="func")
        if not call.keys() >= {"func", "args", "kwargs"}:
            raise Unreadable("it is not a call")
        if beyond := [name for name in _BEYOND if call.get(name)]:
            raise Unreadable(f"it has a {beyond[0]}, which a job cannot have")
        return Found(
            id=row.id,
            kind=str(call["func"]),
            args=call["args"],
            kwargs=call["kwargs"],
            options={"queue": row.key},
        )

    def schedule(self, row: Any) -> Found:
        args, kwargs = _parsed(row.args, row.kwargs)
        call = {"id": row.id, "kind": row.kind, "args": args, "kwargs": kwargs}
        options = {"queue": row.cluster}
        if row.hook or row.intended_date_kwarg or kwargs.get("q_options"):
            raise Unreadable("it has a hook, an intended date or q_options")
        if row.schedule_type == "O":
            return Found(**call, options={**options, "run_at": row.next_run})
        if row.repeats > 0:
            raise Unreadable("it ends after some runs, and a schedule of Holdfast does not")
        rule = {"name": row.name or f"{row.kind} {row.id}", **self._rule(row)}
        return Found(**call, options=options, schedule=rule)

    def _unsigned(self, payload: str) -> bytes:
        from django.core import signing

        try:
            text = signing.TimestampSigner(key=self._key, salt=self._salt).unsign(payload)
        except signing.BadSignature:
            raise Unreadable("its signature is not of this project's SECRET_KEY") from None
        data = urlsafe_b64decode(text.removeprefix(".") + "==")
        if text.startswith("."):
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(data, _LARGEST)
            if unpacking.unconsumed_tail:
                raise Unreadable(f"its payload is larger than {_LARGEST:,} bytes")
        return data

    def _rule(self, row: Any) -> dict[str, Any]:
        sort, at = row.schedule_type, row.next_run.astimezone(self._zone)
        clock, zone = f"{at.minute} {at.hour}", {"tz": self._zone.key}
        if sort in _EVERY:
            length = timedelta(**{_EVERY[sort]: (row.minutes or 1) if sort == "I" else 1})
            return {"every": length, "anchor": row.next_run}
        if sort == "C":
            return {"cron": row.cron, **zone}
        if sort == "D":
            return {"cron": f"{clock} * * *", **zone}
        if sort == "W":
            return {"cron": f"{clock} * * {at.isoweekday() % 7}", **zone}
        if sort == "BW":
            return {"every": timedelta(weeks=2), "anchor": row.next_run}
        if at.day > 28:
            raise Unreadable("not every month has its day")
        months = sorted((at.month - 1 + n) % 12 + 1 for n in range(0, 12, _MONTHS[sort]))
        return {"cron": f"{clock} {at.day} {','.join(map(str, months))} *", **zone}


def _parsed(args: str | None, kwargs: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Read arguments as django-q2 does: literals of Python, nothing that could run."""
    try:
        listed = ast.literal_eval(args) if args else ()
        if not kwargs:
            named = {}
        elif kwargs.lstrip().startswith("{"):
            named = ast.literal_eval(kwargs)
        else:
            [call] = ast.parse(f"f({kwargs})").body
            named = {one.arg: ast.literal_eval(one.value) for one in call.value.keywords}  # type: ignore[attr-defined]
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise Unreadable("its arguments are not literals of Python") from None
    return list(listed) if isinstance(listed, tuple) else [listed], named
