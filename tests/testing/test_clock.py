"""The movable clock: what follows it, and where it can be."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from holdfast import App, Client, current, schema
from holdfast.errors import Misuse
from holdfast.testing import Kit

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def app(holdfast: Kit) -> Iterator[App]:
    with App() as app:
        yield app


def test_a_delayed_job_comes_due_when_the_time_is_moved(holdfast: Kit, app: App) -> None:
    @app.task
    def work() -> None: ...

    work.options(delay=timedelta(hours=2)).enqueue()

    holdfast.travel(hours=1, minutes=59)
    assert len(holdfast.drain()) == 0
    holdfast.travel(minutes=1)
    assert len(holdfast.drain().done) == 1


def test_every_slot_of_a_schedule_comes_in_its_time(holdfast: Kit, app: App) -> None:
    ran = []

    @app.schedule("0 9 * * *", tz="Europe/Paris", missed="all")
    @app.task
    def report() -> None:
        ran.append(holdfast.now().date().isoformat())

    holdfast.travel_to(datetime(2031, 1, 31, 12, 0, tzinfo=UTC))
    assert len(holdfast.drain()) == 0
    holdfast.travel(days=1)
    holdfast.drain()
    holdfast.travel(hours=1)
    holdfast.drain()

    assert ran == ["2031-02-01"]


def test_a_lease_ends_in_the_database_and_in_the_handler(holdfast: Kit, app: App) -> None:
    held = []

    @app.task(lease=60)
    def work() -> None:
        if current().attempt == 1:
            held.append(current().held())
            holdfast.travel(minutes=2)
            held.append(current().held())
            app.client.upkeep.reap()

    work.enqueue()
    drained = holdfast.drain()

    assert held == [True, False]
    assert [(ran.attempt, ran.ended) for ran in drained] == [(1, "lost"), (2, "done")]


def test_a_time_without_a_zone_is_refused(holdfast: Kit) -> None:
    with pytest.raises(Misuse, match="has no time zone"):
        holdfast.travel_to(datetime(2030, 1, 1))


def test_a_database_that_the_kit_did_not_make_has_no_clock_to_move(
    database: str, connect: Connect
) -> None:
    before = connect().execute("select prosrc from pg_proc where proname = 'now'").fetchall()

    with Kit(database) as kit, pytest.raises(Misuse, match="was not made by the test kit"):
        kit.travel(hours=1)

    after = connect().execute("select prosrc from pg_proc where proname = 'now'").fetchall()
    assert after == before


def test_migrating_a_database_of_the_kit_again_leaves_its_clock(holdfast: Kit) -> None:
    schema.migrate(holdfast.url)
    holdfast.travel(days=300)

    with Client(holdfast.url) as client:
        assert client.now() > datetime.now(UTC) + timedelta(days=299)
