"""Packages of Django: tables by their own migrations, rows by their own calls."""

import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

import celery
import django
import pytest
from celery.schedules import BaseSchedule, crontab
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from psycopg.conninfo import conninfo_to_dict

from holdfast import App, Client, moving
from holdfast.moving import pickled
from tests.conftest import Connect
from tests.moving.conftest import Move, Run

APPS = ["django_q", "django_tasks_db"]
if django.VERSION < (6, 0):
    # Its own Tasks come with Django 6, for which there is no django-celery-beat yet.
    APPS += ["django_celery_beat", "django_tasks"]
PROJECT: dict[str, Any] = {
    "Q_CLUSTER": {"name": "shop", "orm": "default", "timeout": 30, "retry": 60},
    "TASKS": {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": []}},
    "USE_TZ": True,
    "TIME_ZONE": "Europe/Berlin",
}
FAR = datetime(2099, 1, 2, 3, 4, tzinfo=UTC)


def ship(order: int) -> None: ...


@pytest.fixture(scope="module")
def migrated(fresh: Callable[..., AbstractContextManager[str]], template: str) -> Iterator[str]:
    """A database with the tables of all of them, which is Django's default one."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}})
        django.setup()
    settings.SECRET_KEY = "not a secret"
    before = connections.settings["default"]
    # Apps last: they read the other settings as soon as they are named.
    with (
        override_settings(**PROJECT),
        override_settings(INSTALLED_APPS=APPS),
        fresh(template) as url,
    ):
        of = conninfo_to_dict(url)
        name = {"ENGINE": "django.db.backends.postgresql", "NAME": of.pop("dbname"), "OPTIONS": of}
        connections.settings["default"] = {**before, **name}
        with suppress(AttributeError):
            del connections["default"]
        call_command("migrate", verbosity=0)
        yield url
        connections.close_all()
        connections.settings["default"] = before
        del connections["default"]


@pytest.fixture
def database(migrated: str) -> str:
    return migrated


def test_django_tasks_become_those_of_our_backend(
    move: Move, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = import_module("django_tasks" if "django_tasks" in APPS else "django.tasks").task
    from django_tasks_db.models import DBTaskResult

    old: Any = task()(ship)
    monkeypatch.setattr(f"{__name__}.ship", old)
    old.using(priority=100, run_after=FAR, queue_name="slow").enqueue(42)
    old.enqueue(order=43)
    DBTaskResult.objects.get(id=old.enqueue(44).id).claim("a worker")

    report = move("django-tasks-db")

    later, soon = sorted(client.jobs.list(f"kind:{__name__}.ship"), key=lambda job: -job.priority)
    assert (later.queue, later.priority, later.run_at) == ("slow", 9, FAR)
    assert later.payload == {"args": [42], "kwargs": {}}
    assert later.headers["django"]["priority"] == 100
    assert (soon.priority, soon.payload) == (3, {"args": [], "kwargs": {"order": 43}})
    assert report.running == {f"{__name__}.ship": 1}
    assert DBTaskResult.objects.count() == 1
    assert move("django-tasks-db").moved == []


def test_jobs_of_django_q_are_read_if_their_project_signed_them(
    move: Move, shop: App, client: Client, connect: Connect
) -> None:
    from django_q.models import OrmQ
    from django_q.tasks import async_task

    async_task("mail", "Ada", subject="Hello")
    async_task(print, "a function, not a name")
    async_task("mail", object)
    async_task("mail", "Ada", hook="shop.hooks.done")
    OrmQ.objects.create(key="shop", payload="forged:1:signature", lock=datetime.now(UTC))
    running = OrmQ.objects.create(key="shop", payload="", lock=FAR)

    report = move("django-q2", app=shop)

    [mail] = client.jobs.list("kind:mail")
    assert (mail.payload, mail.queue) == ({"to": "Ada", "subject": "Hello"}, "shop")
    assert {one.why.partition(";")[0] for one in report.left} == {
        "the app has no task of the kind 'builtins.print'",
        "an argument is a function or a class",
        "it has a hook, which a job cannot have",
        "its signature is not of this project's SECRET_KEY",
    }
    assert report.running == {"cluster shop": 1}
    assert OrmQ.objects.count() == 5
    OrmQ.objects.exclude(pk=running.pk).delete()


def test_schedules_of_django_q_keep_their_rule_in_the_time_zone_of_the_project(
    move: Move, client: Client
) -> None:
    from django_q.models import Schedule
    from django_q.tasks import schedule

    at = datetime(2099, 5, 4, 3, 30, tzinfo=UTC)
    for sort in ("I", "H", "D", "W", "BW", "M", "Q", "Y"):
        schedule("tidy", name=sort, schedule_type=sort, minutes=5, next_run=at)
    schedule("tidy", name="C", schedule_type="C", cron="15 6 * * 1")
    schedule("tidy", 1, name="by place", schedule_type="D")
    schedule("tidy", name="thrice", schedule_type="D", repeats=3)
    schedule("once", next_run=FAR, depth=2)

    report = move("django-q2")

    assert {one.name: one.cron or one.every for one in client.schedules.list()} == {
        "I": timedelta(minutes=5),
        "H": timedelta(hours=1),
        "D": "30 5 * * *",
        "W": "30 5 * * 1",
        "BW": timedelta(weeks=2),
        "M": "30 5 4 1,2,3,4,5,6,7,8,9,10,11,12 *",
        "Q": "30 5 4 2,5,8,11 *",
        "Y": "30 5 4 5 *",
        "C": "15 6 * * 1",
    }
    assert {one.tz for one in client.schedules.list() if one.cron} == {"Europe/Berlin"}
    [once] = client.jobs.list("kind:once")
    assert (once.payload, once.run_at) == ({"depth": 2}, FAR)
    stay = Schedule.objects.values_list("pk", "name")
    assert {(int(one.example), one.rows) for one in report.left} == {(pk, 1) for pk, _ in stay}
    assert {name for _, name in stay} == {"by place", "thrice"}


def test_a_pickle_is_read_and_nothing_that_it_names_runs() -> None:
    plain = {
        "func": ship,
        "id": UUID(int=7),
        "at": [FAR, date(2026, 1, 2), timedelta(1)],
        "n": (1, 2.5, None, True),
    }

    class Shell:
        def __reduce__(self) -> Any:
            return exec, ("import os; os._exit(1)",)

    nested: list[Any] = []
    for _ in range(50):
        nested = [nested, nested]
    endless: list[Any] = []
    endless.append(endless)

    read = pickled.read(pickle.dumps(plain), named="func")

    assert read == {**plain, "func": f"{__name__}.ship", "n": [1, 2.5, None, True]}
    for bad in (Shell(), [Shell()], b"bytes", nested, endless, {1: 2}, object(), [ship], print):
        with pytest.raises(moving.Unreadable):
            pickled.read(pickle.dumps({"args": bad}), named="func")
    for data in (b"", b"\x80", b"N.", b"cos\nsystem\n(S'true'\ntR.", zlib.compress(b"")):
        with pytest.raises(moving.Unreadable):
            pickled.read(data, named="func")


def test_schedules_of_beat_are_disabled_there_and_fire_here(move: Move, client: Client) -> None:
    if "django_celery_beat" not in APPS:
        pytest.skip("there is none for this Django")
    beat = import_module("django_celery_beat.models")
    daily = beat.CrontabSchedule.objects.create(minute="30", hour="5", timezone="Europe/Paris")
    both = beat.CrontabSchedule.objects.create(day_of_month="1", day_of_week="mon")
    often = beat.IntervalSchedule.objects.create(every=10, period="minutes")
    once = beat.ClockedSchedule.objects.create(clocked_time=FAR)
    sun = beat.SolarSchedule.objects.create(event="sunrise", latitude=1, longitude=1)
    make = beat.PeriodicTask.objects.create
    make(name="daily", task="rates", crontab=daily, kwargs='{"day": 1}', expire_seconds=60)
    make(name="often", task="rates", interval=often, queue="slow")
    make(name="later", task="rates", clocked=once, one_off=True)
    make(name="off", task="rates", interval=often, enabled=False)
    make(name="both", task="rates", crontab=both)
    make(name="sun", task="rates", solar=sun)
    before = beat.PeriodicTasks.last_change()

    report = move("django-celery-beat")

    found = {one.name: one for one in client.schedules.list() if one.kind == "rates"}
    assert found.keys() == {"daily", "often"}
    assert (found["daily"].cron, found["daily"].tz) == ("30 5 * * *", "Europe/Paris")
    assert (found["daily"].payload, found["daily"].options) == ({"day": 1}, {"expires": 60})
    assert (found["often"].every, found["often"].queue) == (timedelta(minutes=10), "slow")
    [job] = client.jobs.list("kind:rates")
    assert job.run_at == FAR
    assert len(report.left) == 2
    enabled = beat.PeriodicTask.objects.filter(enabled=True).values_list("name", flat=True)
    assert sorted(enabled) == ["both", "sun"]
    assert beat.PeriodicTasks.last_change() > before
    assert move("django-celery-beat").moved == []


def test_the_beat_schedule_of_an_app_is_moved_once(
    database: str, client: Client, shop: App
) -> None:
    old = celery.Celery("shop", set_as_current=False)
    old.conf.timezone = "Europe/Paris"
    old.conf.beat_schedule = {
        "greet": {"task": "mail", "schedule": crontab(minute=0, hour=6), "args": ("Ada",)},
        "ping": {"task": "mail", "schedule": 30.0, "kwargs": {"to": "Bob"}},
        "linked": {"task": "mail", "schedule": 30.0, "options": {"link": "x"}},
        "sun": {"task": "mail", "schedule": BaseSchedule()},
    }

    def move() -> moving.Report:
        found = moving.configured(old)
        return moving.move(database, "celery", [], moving.Wishes(app=shop), configured=found)

    first, second = move(), move()

    greet, ping = client.schedules.get("greet"), client.schedules.get("ping")
    assert greet
    assert ping
    assert (greet.cron, greet.tz, greet.payload) == ("0 6 * * *", "Europe/Paris", {"to": "Ada"})
    assert (ping.every, ping.options) == (timedelta(seconds=30), {"max_attempts": 5})
    assert [one.example for one in first.left] == ["linked", "sun"]
    assert (second.moved, len(second.left)) == ([], 4)


def test_the_command_says_what_it_lacks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--config shop.celery:app" in run("import", "celery").err
    assert "--config" in run("import", "procrastinate", "--config", "a:b").err
    assert run("import", "celery", "--config", "nothing_here:app").code == 2
