"""Ingredient matching: runs that overlap, are killed, come too late, and retry when asked to."""

import asyncio
import threading
from datetime import timedelta

import psycopg
import pytest

from examples.ingredients.app import add, app, learn, rows, set_up
from examples.ingredients.nightly import REASON, nightly
from holdfast import Client
from holdfast.worker import Worker
from tests.conftest import Clock, Connect
from tests.examples.conftest import Use

LINES = rows("lines.csv")


@pytest.fixture
def conn(use: Use, connect: Connect) -> psycopg.Connection:
    """A connection to a database with the names of the example, and no lines."""
    use(app)
    conn = connect()
    set_up(conn)
    return conn


@pytest.fixture
def client(conn: psycopg.Connection) -> Client:
    return app.client


def matched(conn: psycopg.Connection) -> dict[str, str]:
    """What was matched: lines and their ingredients."""
    found = conn.execute("select line, ingredient from recipe_line where ingredient is not null")
    return dict(found.fetchall())


@pytest.mark.proves("S0.5", "S0.31")
def test_runs_that_overlap_match_every_line_once(conn: psycopg.Connection, client: Client) -> None:
    with conn.transaction():
        add(conn, LINES * 10)
    runs = [Worker(app, queues={"scraper": 4, "pantry": 4}, until_idle=True) for _ in range(3)]
    threads = [threading.Thread(target=asyncio.run, args=[run.run_async()]) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    jobs = client.jobs.list("kind:match", limit=1000)
    assert len(jobs) == 240
    assert {job.attempt for job in jobs} == {1}
    assert sum(run.counts.acked for run in runs) == len(client.jobs.find("state:done")) == 210
    assert matched(conn)["250 g cherry tomatoes, halved"] == "tomato"


@pytest.mark.proves("S0.6", "S0.7", "S0.8", "S0.9", "S0.14")
def test_what_a_killed_run_held_is_matched_by_the_next_and_the_dead_one_changes_nothing(
    conn: psycopg.Connection, client: Client, clock: Clock
) -> None:
    with conn.transaction():
        add(conn, [("scraper", "1 1/2 tsp salt")])
    [lease] = client.claim("scraper", worker="killed", lease=180)

    clock.advance(seconds=100)  # a busy machine may need the rest for the run
    nightly()
    too_early = matched(conn)
    clock.advance(seconds=81)
    nightly()
    [late] = client.ack([lease])

    assert too_early == {}
    assert matched(conn) == {"1 1/2 tsp salt": "salt"}
    assert client.jobs.get(lease.id).attempt == 2
    assert late.outcome == "lost"


@pytest.mark.proves("S0.15", "S0.16")
def test_a_line_that_kills_its_runs_is_found_and_given_up(
    conn: psycopg.Connection, client: Client, clock: Clock
) -> None:
    with conn.transaction():
        add(conn, [("scraper", "1 poisoned apple")])
    circling = []
    for _ in range(5):
        assert client.claim("scraper", worker="killed", lease=180)
        circling.append(len(client.jobs.find("attempt:>3")))
        clock.advance(seconds=181)
    nightly()

    assert circling == [0, 0, 0, 1, 1]
    [job] = client.jobs.list("kind:match")
    assert (job.state, job.attempt) == ("dead", 5)


@pytest.mark.proves("S0.17", "S0.20", "S0.22")
def test_failed_lines_are_tried_again_only_when_asked_and_keep_the_reason(
    conn: psycopg.Connection, client: Client
) -> None:
    with conn.transaction():
        add(conn, [("scraper", "3 courgettes")])
    nightly()
    learn(conn, "courgette", "zucchini")

    nightly()
    unasked = matched(conn)
    [failed] = client.jobs.list("state:dead")
    nightly(retry_failed=True)

    assert unasked == {}
    assert failed.error == "LookupError: no ingredient in '3 courgettes'"
    assert matched(conn) == {"3 courgettes": "zucchini"}
    done = client.jobs.get(failed.id)
    assert (done.state, done.attempt, done.reason) == ("done", 1, REASON)
    assert REASON == "Retry requested by nightly workflow"
    assert done.ended_at > failed.ended_at


@pytest.mark.proves("S0.21")
def test_a_retry_leaves_alone_what_runs(conn: psycopg.Connection, client: Client) -> None:
    with conn.transaction():
        add(conn, [("scraper", "1 1/2 tsp salt")])
    [lease] = client.claim("scraper", worker="another run")

    nightly(retry_failed=True)

    job = client.jobs.get(lease.id)
    assert (job.state, job.worker, job.reason) == ("leased", "another run", None)


@pytest.mark.proves("S0.27")
def test_a_run_for_one_source_leaves_the_others_alone(
    conn: psycopg.Connection, client: Client
) -> None:
    with conn.transaction():
        add(conn, LINES)

    nightly(["scraper"])

    assert {job.queue for job in client.jobs.list("state:queued")} == {"pantry"}
    assert len(client.jobs.find("state:queued")) == 4


@pytest.mark.proves("S0.29", "S0.30")
def test_who_matched_a_line_and_when_is_kept_for_a_month(
    conn: psycopg.Connection, client: Client
) -> None:
    with conn.transaction():
        add(conn, [("pantry", "Milk")])
    nightly()

    [job] = client.jobs.list("kind:match")
    assert (job.queue, job.state, job.attempt, job.error) == ("pantry", "done", 1, None)
    assert job.worker is not None
    assert job.ended_at >= job.created_at
    assert client.queues.get("pantry").keep_done == timedelta(days=30)
