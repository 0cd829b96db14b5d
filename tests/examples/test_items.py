"""Item sync: jobs commit with the prices, once for each item, and go with it."""

import logging
import os
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from examples.items.__main__ import main
from examples.items.app import app, enqueue, new_item, price_updated, set_up, sync
from tests import machine
from tests.conftest import Connect
from tests.examples.conftest import Use, shows

MONDAY = [("Chroma 3 Case", Decimal("2.31")), ("Fracture Case", Decimal("0.74"))]
TUESDAY = [("Chroma 3 Case", Decimal("4.88")), ("Fracture Case", Decimal("0.71"))]


@pytest.fixture
def conn(use: Use, connect: Connect) -> psycopg.Connection:
    """A connection to a database with the tables of the example."""
    use(app)
    conn = connect()
    set_up(conn)
    return conn


@pytest.fixture
def work(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Runs what waits; returns what people were told."""

    def drain() -> list[str]:
        capsys.readouterr()
        app.run(until_idle=True)
        return sorted(capsys.readouterr().out.splitlines())

    return drain


def waiting() -> list[tuple[str, str | None]]:
    """The jobs that wait: their kinds and their items, the oldest first."""
    return [(job.kind, job.subject) for job in app.client.jobs.list("queue:items state:queued")][
        ::-1
    ]


@pytest.mark.proves("S3.6", "S3.10", "S3.11", "S3.14", "S3.16", "S3.17", "S3.30", "S3.38")
def test_a_second_sync_of_the_same_items_adds_no_jobs(
    conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "examples.items.app")
    with conn.transaction():
        first = sync(conn, [*MONDAY, MONDAY[0]])
    before = waiting()
    with conn.transaction():
        second = sync(conn, MONDAY)

    assert (first.items, first.prices, first.new_item, first.price_updated) == (2, 3, 2, 2)
    assert (second.items, second.prices, second.new_item, second.price_updated) == (0, 2, 0, 0)
    assert waiting() == before
    assert len(before) == len(set(before)) == 4
    told = [(r.kind, r.skipped, r.enqueued) for r in caplog.records if "duplicate" in r.message]
    assert told == [("price_updated", 1, 2), ("price_updated", 2, 0)]


@pytest.mark.proves("S3.13", "S3.15", "S3.28")
def test_an_import_enqueues_a_hundred_thousand_items_in_seconds_and_leaves_none_when_undone(
    conn: psycopg.Connection,
) -> None:
    with conn.transaction() as undone:
        made = conn.execute(
            "insert into item (name) select 'item ' || n from generate_series(1, 100000) n"
            " returning id"
        )
        ids = [id for (id,) in made]
        before = busy(conn)
        enqueued = enqueue(conn, price_updated, ids)
        took = busy(conn) - before
        raise psycopg.Rollback(undone)

    assert enqueued == 100_000
    assert took < 5 * machine.slowness()
    assert waiting() == []


@pytest.mark.proves("S3.33")
def test_a_sync_whose_jobs_are_refused_stores_no_prices(conn: psycopg.Connection) -> None:
    app.client.queues.set("items", payload_limit=8)

    with pytest.raises(psycopg.Error, match="payload"), conn.transaction():
        sync(conn, MONDAY)

    assert conn.execute("select count(*) from item_price").fetchone() == (0,)
    assert waiting() == []


@pytest.mark.proves("S3.10", "S3.23")
def test_one_item_is_enqueued_unless_it_waits_or_is_worked_on(conn: psycopg.Connection) -> None:
    enqueue(conn, price_updated, [1])
    while_waiting = price_updated.enqueue(1)
    [lease] = app.client.claim("items", worker="me")
    while_running = price_updated.enqueue(1)
    app.client.ack([lease])
    afterwards = price_updated.enqueue(1)

    assert (while_waiting.created, while_running.created) == (False, False)
    assert while_running.duplicate_of == lease.id
    assert afterwards.created


@pytest.mark.proves("S3.12")
def test_nothing_to_enqueue_is_nothing_enqueued(conn: psycopg.Connection) -> None:
    assert enqueue(conn, new_item, []) == 0


@pytest.mark.proves("S3.9", "S3.38")
def test_deleting_an_item_removes_its_waiting_jobs_and_undoing_that_does_not(
    conn: psycopg.Connection,
) -> None:
    with conn.transaction():
        sync(conn, MONDAY)
    everything = waiting()

    with conn.transaction() as undone:
        conn.execute("delete from item where name = 'Fracture Case'")
        raise psycopg.Rollback(undone)
    after_undoing = waiting()
    [(gone,)] = conn.execute("delete from item where name = 'Fracture Case' returning id")

    assert after_undoing == everything
    assert waiting() == [job for job in everything if job[1] != f"item/{gone}"]
    assert len(waiting()) == 2


def test_a_job_that_runs_while_its_item_is_deleted_ends_as_cancelled(
    conn: psycopg.Connection, work: Callable[[], list[str]]
) -> None:
    handle = price_updated.enqueue(404)
    work()

    job = app.client.jobs.get(handle.id)
    assert (job.state, job.reason) == ("cancelled", "item 404 is gone")


@pytest.mark.proves("S3.8", "S3.37")
def test_processors_note_trends_and_tell_people_what_leaps_and_what_is_new(
    conn: psycopg.Connection, work: Callable[[], list[str]]
) -> None:
    with conn.transaction():
        sync(conn, MONDAY)
    on_monday = work()
    with conn.transaction():
        sync(conn, TUESDAY)
    on_tuesday = work()

    assert on_monday == ["Chroma 3 Case is new", "Fracture Case is new"]
    assert on_tuesday == ["Chroma 3 Case leapt from 2.31 to 4.88"]
    moves = conn.execute("select name, move > 0 from item_trend join item on id = item_id")
    assert dict(moves.fetchall()) == {"Chroma 3 Case": True, "Fracture Case": False}


@pytest.mark.proves("S3.2", "S3.20", "S3.21", "S3.30", "S3.31", "S3.32")
def test_success_vanishes_and_failure_stays_beside_the_next_job_of_its_item(
    conn: psycopg.Connection, work: Callable[[], list[str]]
) -> None:
    app.client.queues.set("items", keep_recent=False)
    with conn.transaction():
        sync(conn, MONDAY)
        sync_again(conn, [("Fracture Case", Decimal(0))])
    work()
    left = app.client.jobs.list("queue:items")
    with conn.transaction():
        again = sync(conn, MONDAY)

    assert [(job.kind, job.state, job.attempt) for job in left] == [("price_updated", "dead", 1)]
    assert left[0].error == "ValueError: math domain error"
    assert left[0].ended_at is not None
    assert again.price_updated == 2
    assert app.client.queues.get("items").dead == 1


@pytest.mark.proves("S3.35")
def test_the_story_is_as_its_page_shows(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    use(app)

    main()

    told = capsys.readouterr().out
    assert shows("items", told)
    assert "63 jobs done so far, 2 dead, 0 waiting" in told


def sync_again(conn: psycopg.Connection, feed: list[tuple[str, Decimal]]) -> None:
    """Sync once more inside the same transaction."""
    conn.execute("drop table feed")
    sync(conn, feed)


def busy(conn: psycopg.Connection) -> float:
    """How many seconds this process and its backend have worked: what others do does not count."""
    stat = Path(f"/proc/{conn.info.backend_pid}/stat")
    if not stat.exists():
        return time.perf_counter()
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return time.process_time() + (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
