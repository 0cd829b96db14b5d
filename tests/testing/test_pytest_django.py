"""The test kit under the real pytest-django, in a small project of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.conftest import Connect

SETTINGS = """
import os
import django
from psycopg.conninfo import conninfo_to_dict

SECRET_KEY = "not a secret"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["holdfast.django", "shop"] + (["django_tasks"] if django.VERSION < (6, 0) else [])
TASKS = {"default": {"BACKEND": "holdfast.django.HoldfastBackend", "QUEUES": []}}
_address = conninfo_to_dict(os.environ["SHOP_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _address.pop("dbname"),
        "OPTIONS": _address,
    }
}
"""
MODELS = """
from django.db import models

class Order(models.Model):
    number = models.IntegerField(unique=True)
"""
TASKS = """
from django.db import transaction
from holdfast import current
from holdfast.django import app_of
from holdfast.django.tasks_api import task
from shop.models import Order

app = app_of()

@task
def ship(number):
    Order.objects.create(number=number)
    if number < 3:
        ship.enqueue(number + 1)

@task(retry=60, max_attempts=2)
def fail(number):
    Order.objects.create(number=number)
    Order.objects.create(number=number)

@task
async def anything():
    pass

@app.task
def own(number: int) -> None:
    with current().transaction():
        Order.objects.create(number=number)

def place(number):
    with transaction.atomic():
        transaction.on_commit(lambda: ship.enqueue(number))
"""
CONFTEST = """
import pytest
from holdfast.testing.django import kit

@pytest.fixture
def holdfast(db):
    with kit() as opened:
        yield opened
"""
TESTS = """
import pytest
from django.db import connection, connections, transaction
from holdfast.errors import Misuse
from shop.models import Order
from shop.tasks import anything, app, fail, own, place, ship


def jobs_elsewhere():
    "How many jobs, orders and schedules another session sees: what was committed."
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("select (select count(*) from holdfast.job), count(*) from shop_order")
        found = cursor.fetchone()
    other.close()
    return found


@pytest.mark.django_db
def test_a_job_is_seen_runs_and_is_never_committed(holdfast):
    ship.enqueue(1)
    own.enqueue(9)

    holdfast.assert_enqueued(ship, number=1)
    holdfast.assert_enqueued(own, number=9)
    holdfast.assert_enqueued(ship, number=1, conn=connection)
    assert jobs_elsewhere() == (0, 0)
    assert len(holdfast.drain().done) == 4
    assert sorted(Order.objects.values_list("number", flat=True)) == [1, 2, 3, 9]
    holdfast.assert_not_enqueued()
    assert jobs_elsewhere() == (0, 0)


@pytest.mark.django_db
def test_nothing_is_left_of_the_test_before(holdfast):
    holdfast.assert_not_enqueued()
    assert not Order.objects.exists()


@pytest.mark.django_db
def test_a_failed_statement_leaves_the_transaction_of_the_test_whole(holdfast):
    fail.enqueue(5)

    with pytest.raises(Exception, match="duplicate key"):
        holdfast.drain()

    assert not Order.objects.exists()
    holdfast.assert_enqueued(fail, number=5)
    assert [ran.ended for ran in holdfast.drain(raises=False)] == []
    holdfast.travel(minutes=2)
    assert [ran.ended for ran in holdfast.drain(raises=False)] == ["dead"]


@pytest.mark.django_db
def test_the_time_has_been_set_back(holdfast):
    ship.using(run_after=holdfast.now() + __import__("datetime").timedelta(hours=1)).enqueue(3)
    assert len(holdfast.drain()) == 0
    assert len(holdfast.drain(wait=True).done) == 1


@pytest.mark.django_db
def test_inline_runs_what_is_enqueued_outside_of_blocks_of_its_own(holdfast):
    with holdfast.inline():
        ship.enqueue(2)
        assert Order.objects.count() == 2
        with transaction.atomic():
            own.enqueue(7)
            assert Order.objects.count() == 2
        ship.enqueue(10)
    assert Order.objects.count() == 4


@pytest.mark.django_db
def test_callbacks_of_a_commit_enqueue_when_they_are_executed(
    holdfast, django_capture_on_commit_callbacks
):
    place(3)
    holdfast.assert_not_enqueued()
    with django_capture_on_commit_callbacks(execute=True):
        place(3)
    holdfast.assert_enqueued(ship, number=3)
    with holdfast.inline(), django_capture_on_commit_callbacks(execute=True):
        place(8)
    assert Order.objects.count() == 2


@pytest.mark.django_db
def test_a_job_can_be_bound(holdfast):
    with holdfast.job(own, 4):
        own(4)
    assert Order.objects.get().number == 4


@pytest.mark.django_db
def test_what_needs_a_commit_is_refused(holdfast):
    for refused in (lambda: holdfast.crash_next(ship), lambda: holdfast.lose_lease(ship)):
        with pytest.raises(Misuse, match=r"django_db\\(transaction=True\\)"):
            refused()
    anything.enqueue()
    with pytest.raises(Misuse, match=r"anything, which is async, cannot be part"):
        holdfast.drain()


@pytest.mark.django_db(transaction=True)
def test_a_test_that_commits_can_crash(holdfast):
    ship.enqueue(3)
    own.enqueue(9)
    anything.enqueue()
    assert jobs_elsewhere()[0] == 3
    holdfast.crash_next(own)
    assert sorted(ran.ended for ran in holdfast.drain()) == ["crashed", "done", "done"]
    holdfast.travel(seconds=31)
    holdfast.drain()
    assert Order.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_nothing_is_left_of_a_test_that_committed(holdfast):
    holdfast.assert_not_enqueued()
    assert not Order.objects.exists()


@pytest.mark.django_db
def test_and_again_inside_a_transaction(holdfast):
    holdfast.assert_not_enqueued()
    own.enqueue(1)
    assert len(holdfast.drain().done) == 1
"""
UNMARKED = """
from holdfast.testing.django import kit

def test_a_test_without_the_mark_is_told_so():
    with kit():
        pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "models.py").write_text(MODELS)
    (shop / "tasks.py").write_text(TASKS)
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = settings\n")
    (tmp_path / "test_shop.py").write_text(TESTS)
    return tmp_path


def run(project: Path, url: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=project,
        env={**os.environ, "SHOP_URL": url, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("options", [[], ["-n", "2"]])
def test_the_kit_works_inside_the_transaction_of_a_test_and_outside(
    project: Path, database: str, connect: Connect, options: list[str]
) -> None:
    ended = run(project, database, *options)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{TESTS.count('def test_')} passed" in ended.stdout
    name = conninfo_to_dict(database)["dbname"]
    left = connect().execute(
        "select datname from pg_database where starts_with(datname, %s)", [f"test_{name}"]
    )
    assert left.fetchall() == []


def test_a_test_without_the_mark_is_told_so(project: Path, database: str) -> None:
    (project / "test_shop.py").write_text(TESTS.partition("@pytest")[0] + UNMARKED)

    ended = run(project, database)

    assert ended.returncode == 1
    assert 'use the "django_db" mark' in ended.stdout
