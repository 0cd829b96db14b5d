"""Jobs that Procrastinate itself stored, in tables that it made itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import procrastinate
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import App, Client, moving
from holdfast.errors import Refused
from tests.conftest import Connect
from tests.moving.conftest import Move, Run

FAR = datetime(2099, 1, 2, 3, 4, tzinfo=UTC)
BLOCKED = """
select count(*)::int from pg_stat_activity
where datname = current_database() and application_name = 'holdfast import'
  and cardinality(pg_blocking_pids(pid)) > 0
"""


@pytest.fixture
def old(database: str) -> Iterator[procrastinate.App]:
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=database))
    with app.open():
        app.schema_manager.apply_schema()

        @app.task(name="mail")
        def mail(to: str) -> None: ...

        yield app


def waiting(connect: Connect) -> int:
    [(number,)] = connect().execute("select count(*) from procrastinate_jobs where status = 'todo'")
    return int(number)


def test_jobs_keep_their_arguments_queue_priority_time_lock_and_queueing_lock(
    old: procrastinate.App, move: Move, client: Client, connect: Connect
) -> None:
    old.configure_task(
        "mail", queue="slow", priority=7, schedule_at=FAR, lock="ada", queueing_lock="once"
    ).defer(to="Ada")
    old.configure_task("mail", priority=-5).defer(to="Grace")

    report = move("procrastinate")

    ada, grace = sorted(client.jobs.list(""), key=lambda job: str(job.payload))
    assert (ada.kind, ada.payload, ada.queue) == ("mail", {"to": "Ada"}, "slow")
    assert (ada.priority, ada.run_at, ada.lane, ada.key) == (7, FAR, "ada", "once")
    assert (grace.payload, grace.priority) == ({"to": "Grace"}, 0)
    assert ada.headers == {"imported_from": "procrastinate 1"}
    assert [(one.queue, one.jobs, one.later) for one in report.moved] == [
        ("default", 1, 0),
        ("slow", 1, 1),
    ]
    assert "priorities outside" in report.notes[0]
    assert waiting(connect) == 0


def test_what_was_moved_is_cancelled_there_and_not_moved_again(
    old: procrastinate.App, move: Move, client: Client, connect: Connect
) -> None:
    old.configure_task("mail").defer(to="Ada")

    assert move("procrastinate").moved[0].jobs == 1
    assert move("procrastinate").moved == []
    assert len(client.jobs.list("")) == 1
    [(status, event)] = connect().execute(
        "select j.status, e.type from procrastinate_jobs j join procrastinate_events e"
        " on e.job_id = j.id order by e.id desc limit 1"
    )
    assert (status, event) == ("cancelled", "cancelled")


def test_a_dry_run_reports_the_same_and_changes_nothing(
    old: procrastinate.App, move: Move, client: Client, connect: Connect
) -> None:
    old.configure_task("mail").defer(to="Ada")

    tried = move("procrastinate", dry_run=True)

    assert (waiting(connect), len(client.jobs.list(""))) == (1, 0)
    assert tried.moved == move("procrastinate").moved


def test_a_running_job_and_one_that_waits_for_its_lock_stay(
    old: procrastinate.App, move: Move, client: Client, connect: Connect
) -> None:
    for name in ("Ada", "Grace"):
        old.configure_task("mail", lock="one").defer(to=name)
    connect().execute("select procrastinate_fetch_job_v2(null, null)")

    report = move("procrastinate")

    assert report.running == {"mail": 1}
    assert [(one.rows, one.example) for one in report.left] == [(1, "2")]
    assert (waiting(connect), len(client.jobs.list(""))) == (1, 0)


def test_an_app_checks_each_job_and_its_task_has_the_attempts_that_are_left(
    old: procrastinate.App, move: Move, shop: App, client: Client, connect: Connect
) -> None:
    old.configure_task("mail").defer(to="Ada")
    old.configure_task("mail").defer(too="Ada")
    old.configure_task("fax").defer(to="Ada")
    connect().execute("update procrastinate_jobs set attempts = 2 where id = 1")

    report = move("procrastinate", app=shop)

    [job] = client.jobs.list("")
    assert (job.payload, job.max_attempts) == ({"to": "Ada"}, 3)
    assert [(one.kind, one.rows) for one in report.left] == [("mail", 1), ("fax", 1)]
    assert "--map fax=KIND" in report.left[1].why
    assert waiting(connect) == 2


def test_one_row_that_is_refused_does_not_hold_back_the_others(
    old: procrastinate.App, move: Move, client: Client, connect: Connect
) -> None:
    old.configure_task("mail").defer(to="Ada")
    old.configure_task("mail", queue="a\nb").defer(to="Bob")
    old.configure_task("mail").defer(to="Grace")

    report = move("procrastinate")

    assert sorted(job.payload["to"] for job in client.jobs.list("")) == ["Ada", "Grace"]
    assert [(one.rows, one.example) for one in report.left] == [(1, "2")]
    assert waiting(connect) == 1


def test_a_row_that_holds_anything_else_is_left_and_said(
    old: procrastinate.App, move: Move, shop: App, client: Client, connect: Connect
) -> None:
    for name in ("Ada", "Bob", "Grace"):
        old.configure_task("mail").defer(to=name)
    connect().execute("update procrastinate_jobs set args = '[1]' where id = 1")
    connect().execute("""update procrastinate_jobs set args = '{"self": 1}' where id = 2""")

    report = move("procrastinate", app=shop)

    assert [job.payload for job in client.jobs.list("")] == [{"to": "Grace"}]
    assert [one.example for one in report.left] == ["1", "2"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("scheduled_at = 'infinity'", "its time infinity is beyond what Python can hold"),
        ("scheduled_at = '20000-01-01'", "is beyond what Python can hold"),
        ("args = (repeat('[', 4000) || repeat(']', 4000))::jsonb", "its JSON is nested too deeply"),
        ("args = ('[' || repeat('9', 9000) || ']')::jsonb", "its JSON cannot be read: Exceeds"),
    ],
)
def test_a_value_that_python_cannot_hold_does_not_hold_back_the_others(
    old: procrastinate.App, move: Move, connect: Connect, change: str, why: str
) -> None:
    for name in ("a", "b", "c"):
        old.configure_task(name).defer()
    connect().execute(f"update procrastinate_jobs set {change} where task_name = 'b'")

    report = move("procrastinate")

    assert [one.kind for one in report.moved] == ["a", "c"]
    [left] = report.left
    assert left.kind == "b"
    assert why in left.why


def test_only_the_queues_that_were_named_are_looked_at(
    old: procrastinate.App, move: Move, client: Client, connect: Connect
) -> None:
    old.configure_task("mail", lock="one").defer(to="Ada")
    old.configure_task("mail", lock="one").defer(to="Bob")
    old.configure_task("mail", queue="slow").defer(to="Grace")
    connect().execute("select procrastinate_fetch_job_v2(null, null)")

    report = move("procrastinate", queues=["slow"])

    assert ([one.queue for one in report.moved], report.left) == (["slow"], [])


def test_a_worker_that_claims_first_keeps_its_job(
    old: procrastinate.App, move: Move, client: Client, connect: Connect
) -> None:
    old.configure_task("mail").defer(to="Ada")
    worker, watcher = connect(autocommit=False), connect()
    worker.execute("select procrastinate_fetch_job_v2(null, null)")

    with ThreadPoolExecutor(max_workers=1) as threads:
        moved = threads.submit(move, "procrastinate")
        while watcher.execute(BLOCKED).fetchone() != (1,):
            assert not moved.done()
        worker.commit()
        report = moved.result(timeout=60)

    assert (report.moved, report.left, report.running) == ([], [], {"mail": 1})
    assert client.jobs.list("") == []


def test_a_worker_that_comes_during_the_move_finds_nothing(
    old: procrastinate.App, database: str, connect: Connect
) -> None:
    old.configure_task("mail").defer(to="Ada")
    [rows] = moving.PACKAGES["procrastinate"]()
    claims = []

    def read(row: Any) -> moving.Found:
        claims.append(connect().execute("select (procrastinate_fetch_job_v2(null, null)).id"))
        return rows.read(row)

    moving.move(database, "procrastinate", [replace(rows, read=read)], moving.Wishes())

    assert [claim.fetchall() for claim in claims] == [[(None,)]]


def test_who_may_not_change_the_old_tables_is_told_and_nothing_moves(
    old: procrastinate.App, database: str, client: Client, connect: Connect
) -> None:
    old.configure_task("mail").defer(to="Ada")
    role, owner = f"stranger_{uuid4().hex}", connect()
    owner.execute(f"create role {role} login in role holdfast_producer")
    owner.execute(f"grant select on all tables in schema public to {role}")
    url = make_conninfo(database, user=role)
    rows = moving.PACKAGES["procrastinate"]()
    try:
        with pytest.raises(Refused, match="permission denied for table procrastinate_jobs"):
            moving.move(url, "procrastinate", rows, moving.Wishes())
    finally:
        owner.execute(f"drop owned by {role}; drop role {role}")

    assert client.jobs.list("") == []


def test_the_command_reports_and_exits_with_1_if_something_stays(
    old: procrastinate.App, holdfast: Run
) -> None:
    old.configure_task("shop.mail").defer(to="Ada")
    old.configure_task("shop.mail", queue="other").defer(to="Grace")

    tried = holdfast("import", "procrastinate", "--dry-run", "--map", "shop.mail=mail")
    moved = holdfast(
        "import", "procrastinate", "--map", "shop.mail=mail", "--queue", "other", "--into", "mails"
    )

    assert tried.code == 0
    assert "2 jobs and 0 schedules would be moved" in tried.err
    assert moved.out.split()[-6:] == ["1", "0", "0", "0", "mails", "mail"]
    assert holdfast("import", "procrastinate", "--app", "nothing:app").code == 2
    assert holdfast("import", "procrastinate", "--into", "\n").code == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["procrastinate"], "has no table procrastinate_jobs"),
        (["procrastinat"], "did you mean `procrastinate`?"),
        (["procrastinate", "--map", "a"], "should look like"),
    ],
)
def test_mistakes_are_answered(words: list[str], told: str, holdfast: Run) -> None:
    ended = holdfast("import", *words)

    assert ended.code == 2
    assert told in ended.err
