"""A worker of Django's tasks: transactions of the ORM, lost connections, crashes, commands."""

import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from math import inf
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.utils import timezone
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import current, schema
from holdfast.django import app_of
from holdfast.django.database import address
from holdfast.worker import fleet
from holdfast.worker.process.child import ChildJob
from tests.conftest import Clock, Connect
from tests.django.conftest import Drain, forget_connection, use_database


def orders() -> list[int]:
    """The orders that are stored, by their number."""
    from tests.django.shop.models import Order

    return list(Order.objects.order_by("id").values_list("number", flat=True))


def test_writes_of_the_orm_and_the_end_of_the_job_are_one_commit(drain: Drain) -> None:
    from tests.django.shop.tasks import ship

    result = ship.enqueue(1)
    drain()

    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", "shipped 1")
    assert result.started_at is not None
    assert orders() == [1]


def test_a_lost_lease_rolls_the_writes_of_the_orm_back(drain: Drain) -> None:
    from tests.django.shop.tasks import ship

    lost = ship.enqueue(1, lose=True)
    drain()

    assert orders() == []
    assert ship.get_result(lost.id).status == "FAILED"  # as cancelled, by somebody else


def test_a_job_that_has_ended_stays_ended_if_something_after_the_commit_fails(
    drain: Drain,
) -> None:
    from tests.django.shop.tasks import ship

    result = ship.enqueue(1, fail_after=True)
    worker = drain()

    assert ship.get_result(result.id).status == "SUCCESSFUL"
    assert orders() == [1]
    assert (worker.counts.acked, worker.counts.failed, worker.counts.lost) == (1, 0, 0)


def test_a_transaction_of_the_job_is_the_outermost_and_not_asynchronous(drain: Drain) -> None:
    from tests.django.shop.tasks import aship, ship

    inner, asynchronous = ship.enqueue(1, inside=True), aship.enqueue()
    drain()

    assert "durable" in ship.get_result(inner.id).errors[0].traceback
    assert "sync_to_async" in aship.get_result(asynchronous.id).errors[0].traceback
    assert orders() == []


def test_tasks_of_holdfasts_own_have_the_same_transaction(drain: Drain) -> None:
    from holdfast import current
    from tests.django.shop.models import Order

    app = app_of()

    @app.task(keep_result=True)
    def own(number: int) -> str:
        with current().transaction("kept"):
            Order.objects.create(number=number)
        return "not this"

    try:
        handle = own.options(conn=connection).enqueue(5)
        drain()
        assert (handle.result(timeout=5), orders()) == ("kept", [5])
    finally:
        del app.tasks["own"], app.handlers["own"]


def test_a_step_inside_the_transaction_of_the_orm_is_stored_by_it_or_not_at_all(
    drain: Drain,
) -> None:
    from tests.django.shop.models import Order

    app = app_of()
    app.client.queues.set("default", keep_done=60)

    @app.task(max_attempts=1)
    def own() -> None:
        job = current()

        def book(number: int) -> int:
            return Order.objects.create(number=number).number

        with suppress(KeyError), job.transaction():
            job.step("book", book, 1)
            raise KeyError
        with job.transaction():
            job.step("book", book, 2)

    try:
        id = own.options(conn=connection).enqueue().id
        drain()
        assert orders() == [2]
        assert [one.result_json for one in app.client.steps.list(id)] == ["2"]
    finally:
        app.client.queues.set("default", keep_done=0)
        del app.tasks["own"], app.handlers["own"]


def test_a_connection_that_was_cut_while_a_worker_was_idle_is_made_anew(drain: Drain) -> None:
    from tests.django.shop.tasks import store_and_cut

    connections.settings["default"]["CONN_MAX_AGE"] = None
    for number in range(3):
        store_and_cut.enqueue(number)
    worker = drain(queues={"default": 1})

    assert orders() == [0, 1, 2]
    assert (worker.counts.acked, worker.counts.failed) == (3, 0)


def test_a_task_whose_database_is_away_is_released_and_not_counted(
    drain: Drain, connect: Connect
) -> None:
    from tests.django.shop.tasks import lose_database

    admin = connect(address("default"), dbname="postgres")
    result = lose_database.enqueue()
    with told("the database was away", then=lambda: allow(admin, True)):
        worker = drain(queues={"default": 1})

    result.refresh()
    assert (result.status, result.attempts, result.errors) == ("READY", 0, [])
    assert (worker.counts.released, worker.counts.failed) == (1, 0)


def test_a_task_that_always_loses_its_connection_fails(drain: Drain) -> None:
    from tests.django.shop.tasks import lose_connection

    result = lose_connection.enqueue()
    drain()

    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[0].exception_class_path == "django.db.utils.OperationalError"


def test_a_connection_to_another_database_that_fails_is_a_failed_attempt(drain: Drain) -> None:
    from tests.django.shop.tasks import ask_elsewhere

    connections.settings["elsewhere"] = {
        **connections.settings["default"],
        "OPTIONS": {"host": "/nowhere"},
    }
    try:
        result = ask_elsewhere.enqueue()
        drain()
    finally:
        del connections.settings["elsewhere"]

    result.refresh()
    assert (result.status, len(result.errors)) == ("FAILED", 1)


def test_a_worker_that_is_killed_inside_atomic_leaves_neither_row_nor_job(
    database: str, clock: Clock, connect: Connect, drain: Drain
) -> None:
    from tests.django.shop.tasks import order

    session = connect()
    session.execute("create table inside (attempt int)")
    order.enqueue(7)
    with holdfast_worker(database, "--lease", "20") as worker:
        wait_for(lambda: worker.poll() or session.execute("select 1 from inside").fetchone())
        assert worker.poll() is None
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    wait_for(lambda: not others_of(session, worker.pid))

    assert orders() == []
    assert [job.kind for job in app_of().client.jobs.list()] == ["tests.django.shop.tasks.order"]

    clock.advance(seconds=30)
    drain()
    assert orders() == [7]
    assert app_of().client.jobs.count("kind:tests.django.shop.tasks.add state:done").jobs == 1


def test_a_task_in_a_process_of_its_own_has_the_same_transaction() -> None:
    from tests.django.shop.models import Order
    from tests.django.shop.tasks import add

    app, result = app_of(), add.enqueue(1)
    [lease] = app.client.claim(worker="host")
    worker: Any = SimpleNamespace(begin=lambda job: None, ending=lambda job: nullcontext())
    job = ChildJob.of(app, lease, 30.0, worker, SimpleNamespace(value=inf))
    before = timezone.now()
    with job.transaction(8):
        Order.objects.create(number=8)
        assert app.client.jobs.list("state:done") == []

    result.refresh()
    assert (result.return_value, orders(), job.settled) == (8, [8], True)
    assert before <= result.started_at


def test_a_schedule_of_a_task_is_stored_by_a_worker_and_enqueues_its_call(drain: Drain) -> None:
    from holdfast.django import schedule
    from holdfast.errors import InvalidTask
    from tests.django.shop.tasks import aadd

    drain()
    client = app_of().client
    [stored] = client.schedules.list()
    assert (stored.name, stored.cron, stored.tz) == (aadd.module_path, "0 7 * * *", "Europe/Paris")
    client.schedules.run(stored.name)
    drain()

    [job] = client.jobs.list()
    assert aadd.get_result(str(job.id)).return_value == 3
    with pytest.raises(InvalidTask, match="Write @schedule above @task"):
        schedule("0 7 * * *")(aadd.func)


def test_a_worker_says_what_is_wrong_with_its_options() -> None:
    with pytest.raises(CommandError, match=r"No backend in TASKS uses DATABASES\['elsewhere'\]"):
        call_command("holdfast_worker", database="elsewhere")
    with pytest.raises(CommandError, match="'mail:many' is not a queue and a number"):
        call_command("holdfast_worker", queues="mail:many")


def test_a_worker_is_refused_inside_a_transaction_whose_jobs_it_could_not_see() -> None:
    from tests.django.shop.tasks import store

    with transaction.atomic():
        store.enqueue(1)
        with pytest.raises(CommandError, match=r"inside atomic.*TransactionTestCase"):
            call_command("holdfast_worker", until_idle=True)
        store.enqueue(2)  # the transaction goes on

    call_command("holdfast_worker", until_idle=True, verbosity=0)
    assert sorted(orders()) == [1, 2]


def test_the_command_has_the_options_of_a_worker_that_matter_to_deploys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(fleet, "run", lambda app, **options: given.update(options))
    call_command(
        "holdfast_worker",
        *("--recycle-jobs", "1000", "--recycle-rss", "1GB", "--health", "8080", "--grace", "25"),
        *("--queues", "mail:2", "--kinds", "shop.tasks.a,shop.tasks.b"),
    )

    assert given == {
        "processes": 1,
        "until_idle": False,
        "recycle_jobs": 1000,
        "recycle_rss": 1 << 30,
        "health": "8080",
        "grace": 25.0,
        "queues": {"mail": 2},
        "kinds": ["shop.tasks.a", "shop.tasks.b"],
    }
    with pytest.raises(CommandError, match="'much' is not a size"):
        call_command("holdfast_worker", "--recycle-rss", "much")


def test_the_command_runs_the_queues_of_the_backend() -> None:
    from tests.django.shop.tasks import store

    store.enqueue(1)
    store.using(queue_name="elsewhere").enqueue(2)
    call_command("holdfast_worker", until_idle=True, max_jobs=5, verbosity=0)

    assert orders() == [1]  # no backend and no task names the other queue


def test_migrate_installs_the_schema_and_says_so_once(empty_database: str) -> None:
    with use_database(empty_database):
        assert [one.id for one in check_database()] == ["holdfast.W001"]
        call_command("migrate", "holdfast", verbosity=0)
        assert schema.status(empty_database).problem is None
        assert check_database() == []
        assert told_by("holdfast_migrate") == "The schema is up to date.\n"


def test_holdfast_migrate_says_what_it_would_do_and_does_it(empty_database: str) -> None:
    with use_database(empty_database):
        assert "would apply 0001_foundation" in told_by("holdfast_migrate", "--plan")
        assert "applied 0001_foundation" in told_by("holdfast_migrate")
        assert "create schema" in told_by("holdfast_migrate", "--sql")
    assert schema.status(empty_database).problem is None


def test_the_address_is_that_of_djangos_settings() -> None:
    connections.close_all()
    connections.settings["default"] = {
        **connections.settings["default"],
        "NAME": "shop",
        "USER": "ada",
        "PASSWORD": "it's a secret",
        "HOST": "/var/run/postgresql",
        "PORT": "6432",
        "OPTIONS": {
            "sslmode": "require",
            "pool": False,
            "isolation_level": 2,
            "assume_role": "app owner",
        },
    }
    forget_connection()

    assert conninfo_to_dict(address("default")) == {
        "dbname": "shop",
        "user": "ada",
        "password": "it's a secret",
        "host": "/var/run/postgresql",
        "port": "6432",
        "sslmode": "require",
        "client_encoding": "UTF8",
        "options": "-c role=app\\ owner",
    }


def check_database() -> list[Any]:
    """What `manage.py check --database default` says of Holdfast."""
    from django.core.checks import run_checks

    found = run_checks(databases=["default"])
    return [one for one in found if (one.id or "").startswith("holdfast")]


def told_by(*command: str) -> str:
    """What a command prints."""
    printed = io.StringIO()
    call_command(*command, stdout=printed)
    return printed.getvalue()


@contextmanager
def told(words: str, then: Any) -> Iterator[None]:
    """Do something as soon as a record of Holdfast's log says so."""

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                then()

    heard = Hears()
    logging.getLogger("holdfast.django").addHandler(heard)
    try:
        yield
    finally:
        logging.getLogger("holdfast.django").removeHandler(heard)


def allow(admin: psycopg.Connection, allowed: bool) -> None:
    """Let the test's database be connected to, or not."""
    name = connections.settings["default"]["NAME"]
    admin.execute("update pg_database set datallowconn = %s where datname = %s", [allowed, name])


@contextmanager
def holdfast_worker(database: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `manage.py holdfast_worker` in a process of its own; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "holdfast_worker", *options],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.django.settings",
            "HOLDFAST_URL": make_conninfo(database, application_name="the killed worker"),
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def others_of(session: psycopg.Connection, pid: int) -> list[Any]:
    """The sessions of the killed worker that PostgreSQL has not ended yet."""
    sql = "select pid from pg_stat_activity where application_name = 'the killed worker'"
    return session.execute(sql).fetchall()


def wait_for(condition: Any) -> None:
    """Wait until something is so."""
    until = monotonic() + 60
    while not condition():
        assert monotonic() < until
        sleep(0.02)
