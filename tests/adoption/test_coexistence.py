"""Code that knows nothing of Holdfast goes on writing the same rows."""

import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest

from holdfast import App, Client, LeaseLost, adopt, aonce, current, once
from holdfast.errors import Misuse
from holdfast.worker import Worker
from holdfast.worker.background import start_processor
from tests.adoption.shapes import REPORTS
from tests.conftest import Clock

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def app(database: str) -> Iterator[App]:
    with App(database) as opened:
        yield opened


@pytest.fixture
def table(database: str, connect: Connect) -> psycopg.Connection:
    """The table report_jobs, adopted: 100 rows of which 5 wait."""
    connection = connect()
    REPORTS.create(connection, 100)
    adopt.adopt(database, adopt.plan(database, "report_jobs", REPORTS.choices))
    return connection


def statuses(connection: psycopg.Connection) -> dict[str, int]:
    rows = connection.execute("select status, count(*) from report_jobs group by 1").fetchall()
    return {status: count for status, count in rows if status != "completed"}


def test_a_row_that_other_code_took_is_not_handed_out(
    table: psycopg.Connection, client: Client
) -> None:
    table.execute("update report_jobs set status = 'started', started_at = now() where id = 20")

    leases = client.claim("reports", worker="w", limit=9)

    assert sorted(lease.payload["id"] for lease in leases) == [40, 60, 80, 100]
    [job] = client.jobs.list("queue:reports subject:20")
    assert client.jobs.explain(job.id) == "Other code holds row 20 of public.report_jobs."


def test_a_row_that_other_code_is_just_taking_is_passed_over(
    table: psycopg.Connection, connect: Connect, client: Client
) -> None:
    other = connect(autocommit=False)
    other.execute("update report_jobs set status = 'started' where id = 20")

    leases = client.claim("reports", worker="w", limit=9)
    other.commit()

    assert 20 not in [lease.payload["id"] for lease in leases]


def test_rows_that_other_code_puts_back_stay_with_whoever_holds_them(
    table: psycopg.Connection, client: Client
) -> None:
    leases = client.claim("reports", worker="w", limit=9)
    table.execute("update report_jobs set status = 'queued' where status = 'started'")

    assert client.claim("reports", worker="x", limit=9) == []
    assert {one.outcome for one in client.touch(leases)} == {"leased"}
    assert {one.outcome for one in client.ack(leases)} == {"done"}


def test_what_other_code_ended_cannot_be_ended_again(
    table: psycopg.Connection, client: Client
) -> None:
    [lease] = client.claim("reports", worker="w")
    table.execute(
        "update report_jobs set status = 'completed' where id = %s", [lease.payload["id"]]
    )

    [touched], [settled] = client.touch([lease]), client.ack([lease])

    assert (touched.outcome, settled.outcome) == ("lost", "lost")


def test_an_operation_on_rows_says_that_it_cannot_be_undone(
    table: psycopg.Connection, client: Client
) -> None:
    preview = client.operations.preview("cancel", "queue:reports")
    client.operations.start(preview.token)
    done = client.operations.step()

    assert done is not None
    assert (done.state, done.changed, done.undoable) == ("done", 5, 0)
    with pytest.raises(Misuse, match="rows of an adopted table"):
        client.operations.undo(done.id)


def test_a_row_that_fails_after_every_retry_is_found_by_its_attempts(
    table: psycopg.Connection, clock: Clock, client: Client
) -> None:
    [lease] = client.claim("reports", worker="w")
    client.nack([lease], final=True)
    for _ in range(3):
        client.jobs.retry([lease.id])
        [again] = client.jobs.find("queue:reports attempts:>0 state:queued")
        assert again == lease.id
        taken = next(
            one for one in client.claim("reports", worker="w", limit=9) if one.id == lease.id
        )
        client.nack([taken], final=True)
        held = client.held([taken.token])
        client.release(held)

    job = client.jobs.get(lease.id)
    assert job is not None
    assert (job.state, job.attempt, job.total_attempts) == ("dead", 1, 4)
    assert client.jobs.find("queue:reports attempts:>3") == [lease.id]
    [total] = table.execute(
        "select total_attempts from holdfast.jobs where id = %s", [lease.id]
    ).fetchone() or (None,)
    assert total == 4
    clock.advance(days=91)
    client.upkeep.run()
    assert table.execute("select count(*) from holdfast.adopted_lives").fetchone() == (0,)


def test_a_new_row_of_other_code_wakes_a_worker_that_waits(
    app: App, table: psycopg.Connection, client: Client
) -> None:
    for lease in client.claim("reports", worker="w", limit=9):
        client.ack([lease])
    seen = threading.Event()

    @app.task(queue="reports", kind="reports")
    def render(id: int, title: str, **row: object) -> None:
        seen.set()

    with start_processor(app, poll=3600) as processor:
        while not table.execute("select from holdfast.waiter").fetchall():
            time.sleep(0.01)
        table.execute(REPORTS.insert.format(n=1))
        assert seen.wait(100)
        assert processor.running


@pytest.mark.proves("S1.11")
def test_rows_that_other_code_left_are_taken_back(
    table: psycopg.Connection, clock: Clock, client: Client
) -> None:
    table.execute("insert into reports (job_id) values (40)")
    table.execute(
        "update report_jobs set status = 'started', started_at = now() where id in (20, 40)"
    )

    client.upkeep.run()
    assert statuses(table) == {"queued": 3, "started": 2}
    clock.advance(minutes=11)
    client.upkeep.run()

    assert statuses(table) == {"queued": 4}
    [row] = table.execute("select started_at, holdfast_error from report_jobs where id = 20")
    assert row == (None, "Stuck: other code took the row and left it")
    assert table.execute("select status from report_jobs where id = 40").fetchone() == (
        "completed",
    )


@pytest.mark.proves("S1.12")
def test_a_row_that_other_code_leaves_again_and_again_dies(
    table: psycopg.Connection, clock: Clock, client: Client
) -> None:
    for _ in range(3):
        assert statuses(table) == {"queued": 5}
        table.execute(
            "update report_jobs set status = 'started', started_at = holdfast.now() where id = 20"
        )
        clock.advance(minutes=11)
        client.upkeep.run()

    assert statuses(table) == {"queued": 4, "failed": 1}


def test_the_application_and_the_workers_need_no_further_rights(
    database: str, table: psycopg.Connection, connect: Connect
) -> None:
    table.execute("""
        create role adopt_app login; create role adopt_worker login in role holdfast_worker;
        grant select, insert, update, delete on report_jobs to adopt_app;
        grant usage on sequence report_jobs_id_seq to adopt_app;
    """)
    try:
        the_app = connect(user="adopt_app")
        the_app.execute("insert into report_jobs (title) values ('by the app')")
        the_app.execute("update report_jobs set status = 'started' where id = 20")
        the_app.execute("delete from report_jobs where id = 40")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            the_app.execute('select holdfast_adopted."64_oldest"()')
        worker = connect(user="adopt_worker")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("select from report_jobs")
        [lease] = worker.execute(
            "select id from holdfast.claim('reports', 'w', %s)", [uuid4()]
        ).fetchall()
        assert lease
    finally:
        for connection in (the_app, worker):
            connection.close()
        table.execute("drop owned by adopt_app, adopt_worker; drop role adopt_app, adopt_worker")


@pytest.mark.proves("S1.1")
def test_two_old_processors_and_five_workers_share_a_table(
    app: App, database: str, connect: Connect
) -> None:
    connection = connect()
    REPORTS.create(connection, 4000)
    adopt.adopt(database, adopt.plan(database, "report_jobs", REPORTS.choices))
    connection.execute("create table run (job bigint, by_whom text)")
    # Whoever is faster, everyone gets a row: the old ones begin when a worker
    # has one, and the workers end theirs when each of the old ones has one.
    held = threading.Event()
    begun = {"old 1": threading.Event(), "old 2": threading.Event()}

    @app.task(queue="reports", kind="reports")
    def render(id: int, title: str, **row: object) -> None:
        held.set()
        assert all(event.wait(100) for event in begun.values())
        with current().transaction() as handle:
            handle.execute("insert into run values (%s, 'holdfast')", [id])

    def naive(name: str) -> None:
        """What the table had before: look, then take, without a lock."""
        held.wait(100)
        with psycopg.connect(database, autocommit=True, application_name=name) as old:
            while found := old.execute(
                "select id from report_jobs where status = 'queued' order by created_at limit 5"
            ).fetchall():
                for (id,) in found:
                    old.execute(
                        "update report_jobs set status = 'started', started_at = clock_timestamp() "
                        "where id = %s",
                        [id],
                    )
                    old.execute("insert into run values (%s, %s)", [id, name])
                    begun[name].set()
                    old.execute(
                        "update report_jobs set status = 'completed', completed_at = now() "
                        "where id = %s",
                        [id],
                    )

    workers = [start_processor(app, concurrency=4, until_idle=True) for _ in range(5)]
    old = [threading.Thread(target=naive, args=[name]) for name in begun]
    for thread in old:
        thread.start()
    for thread in old:
        thread.join(60)
    for worker in workers:
        assert worker.stop(30)

    assert statuses(connection) == {}
    twice = connection.execute(
        "select job from run where by_whom = 'holdfast' group by job having count(*) > 1"
    ).fetchall()
    assert twice == []
    ran = dict(connection.execute("select by_whom, count(*) from run group by 1").fetchall())
    assert set(ran) == {"holdfast", *begun}
    report = {
        (row["who"].split(" as ")[0], row["what"]): row["jobs"]
        for row in adopt.report(database, "report_jobs")
    }
    for name in begun:
        ended = sum(
            jobs for (who, what), jobs in report.items() if who == name and ("to completed" in what)
        )
        # A row that the other had ended before is written, but not changed.
        assert 0 < ended <= ran[name]
        assert report[name, "took"] > 0


@pytest.mark.proves("S1.10", "S1.12")
def test_output_that_exists_ends_the_job_instead_of_running_it_again(
    database: str, table: psycopg.Connection, clock: Clock, client: Client
) -> None:
    leases = client.claim("reports", worker="w", limit=9)
    done, *open = (lease.payload["id"] for lease in leases)
    table.execute("insert into reports (job_id) values (%s)", [done])
    clock.advance(seconds=31)

    foreseen = {row["subject"]: row["verdict"] for row in adopt.reconcile(database, "report_jobs")}
    reaped = {row.id: row.outcome for row in client.upkeep.reap()}

    assert foreseen == {str(done): "done", **{str(id): "queued" for id in open}}
    assert sorted(reaped.values()) == ["done"] + ["queued"] * 4
    found = client.queues.get("reports")
    assert found is not None
    assert (found.reconciled, found.queued) == (1, 4)


@pytest.mark.proves("S1.12", "S1.13", "S1.14", "S1.15")
def test_a_zombie_that_writes_between_look_and_requeue_leaves_one_output(
    app: App,
    database: str,
    table: psycopg.Connection,
    connect: Connect,
    clock: Clock,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    [lease] = client.claim("reports", worker="zombie")
    id = lease.payload["id"]
    clock.advance(seconds=31)
    zombie = connect(autocommit=False)
    # it writes its output, without the guard, while the reap looks: too late to be seen
    zombie.execute("insert into reports (job_id, content) values (%s, 'zombie')", [id])
    [reaped] = client.upkeep.reap()
    assert reaped.outcome == "queued"
    zombie.commit()

    @app.task(queue="reports", kind="reports")
    def render(id: int, title: str, **row: object) -> None:
        with current().transaction() as connection:
            if once(connection, current()):
                connection.execute("insert into reports (job_id) values (%s)", [id])

    Worker(app, until_idle=True).run()

    outputs = table.execute("select content from reports where job_id = %s", [id]).fetchall()
    assert outputs == [("zombie",)]
    job = client.jobs.get(lease.id)
    assert job is not None
    assert job.state == "done"
    assert f"Duplicate prevented: {id}" in caplog.messages
    assert [
        row["jobs"]
        for row in adopt.report(database, "report_jobs")
        if row["what"] == "duplicate prevented"
    ] == [1]
    with pytest.raises(psycopg.errors.UniqueViolation):
        table.execute("insert into reports (job_id) values (%s)", [id])


def test_output_that_appears_while_the_reap_waits_for_nothing_is_seen(
    table: psycopg.Connection, connect: Connect, clock: Clock, client: Client
) -> None:
    """A holder that guards its output is left alone by the reap until it has committed."""
    [lease] = client.claim("reports", worker="slow")
    slow = connect(autocommit=False)
    clock.advance(seconds=31)
    assert slow.execute("select holdfast.guard(%s, %s)", [lease.id, lease.token]).fetchone() == (
        True,
    )
    slow.execute("insert into reports (job_id) values (%s)", [lease.payload["id"]])

    assert client.upkeep.reap() == []
    slow.commit()
    clock.advance(seconds=2)
    [reaped] = client.upkeep.reap()

    assert reaped.outcome == "done"


def test_who_lost_the_lease_may_not_make_the_output(
    table: psycopg.Connection, clock: Clock, client: Client, connect: Connect
) -> None:
    [lease] = client.claim("reports", worker="slow")
    clock.advance(seconds=31)
    client.upkeep.reap()

    with pytest.raises(LeaseLost):
        client.on(connect()).guard(lease)


@pytest.mark.proves("S1.7")
def test_a_processor_runs_inside_a_program(app: App, table: psycopg.Connection) -> None:
    ran: list[int] = []
    enough = threading.Event()

    @app.task(queue="reports", kind="reports")
    async def render(id: int, title: str, **row: object) -> None:
        async with current().transaction() as connection:
            assert await aonce(connection, current())
            ran.append(id)
        if len(ran) == 5:
            enough.set()

    processor = start_processor(app, concurrency=2)
    assert enough.wait(100)
    assert processor.stop(10)

    assert sorted(ran) == [20, 40, 60, 80, 100]
    assert not processor.running
    assert processor.failure is None
    assert statuses(table) == {}


@pytest.mark.proves("S3.9")
def test_jobs_that_wait_for_a_row_go_with_it(
    database: str, connect: Connect, client: Client
) -> None:
    connection = connect()
    connection.execute(
        "create table item (id integer primary key); insert into item select generate_series(1, 3)"
    )
    assert adopt.link(database, "item") == "item:{id}"
    waiting = client.enqueue("price", subject="item:1")
    running = client.enqueue("price", subject="item:2", queue="other")
    stays = client.enqueue("price", subject="item:3")
    client.claim("other", worker="w")

    connection.execute("delete from item where id < 3")

    assert client.jobs.get(waiting.id) is None
    assert [
        job is not None for job in (client.jobs.get(running.id), client.jobs.get(stays.id))
    ] == [
        True,
        True,
    ]
    adopt.unlink(database, "item")
    connection.execute("delete from item")
    assert client.jobs.get(stays.id) is not None


def test_counters_stay_right_whoever_writes(table: psycopg.Connection, client: Client) -> None:
    table.execute("delete from report_jobs where id between 20 and 45")
    table.execute("update report_jobs set status = 'started' where id = 60")
    table.execute(
        "insert into report_jobs (title, status) values ('a', 'queued'), ('b', 'completed')"
    )
    found = client.queues.get("reports")
    assert found is not None
    assert (found.queued, found.leased, found.done) == (3, 1, 72)
    table.execute("truncate report_jobs")
    found = client.queues.get("reports")
    assert found is not None
    assert (found.queued, found.leased, found.done) == (0, 0, 0)


def test_a_nack_of_several_rows_tells_each_its_error_its_delay_and_its_end(
    table: psycopg.Connection, client: Client
) -> None:
    leases = client.claim("reports", worker="w", limit=4)

    later = client.nack(leases[:2], message="not yet", delay=3600)
    never = client.nack(leases[2:], message="no such report", final=True)

    errors = [[one.message for one in client.jobs.attempts(lease.id)] for lease in leases]
    held = {lease.id for lease in client.claim("reports", worker="w", limit=9)}
    assert [one.outcome for one in later + never] == ["queued", "queued", "dead", "dead"]
    assert errors == [["not yet"], ["not yet"], ["no such report"], ["no such report"]]
    assert len(held) == 1
    assert not held & {lease.id for lease in leases}
