"""What a test can expect of jobs, and what it is told when they are not there."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import psycopg
import pytest

from holdfast import App
from holdfast.errors import Misuse
from holdfast.testing import Kit, kit

ORDER = UUID("0190f3a0-0000-7000-8000-000000000001")


@pytest.fixture
def app(holdfast: Kit) -> Iterator[App]:
    with App() as app:
        yield app


@pytest.fixture
def ship(app: App) -> Any:
    @app.task
    def ship(order: UUID, express: bool = False, tags: list[str] | None = None) -> None: ...

    return ship


def test_a_job_is_found_by_any_of_its_arguments_and_fields(holdfast: Kit, ship: Any) -> None:
    at = datetime(2031, 1, 1, tzinfo=UTC)
    options = ship.options(queue="mail", key="k", priority=3, run_at=at, headers={"from": "web"})
    options.enqueue(ORDER, tags=["new"])

    job = holdfast.assert_enqueued(ship)
    holdfast.assert_enqueued("ship", order=str(ORDER))
    holdfast.assert_enqueued(ship, order=ORDER, tags=["new"], express=False)
    holdfast.assert_enqueued(ship, ORDER, tags=["new"])
    holdfast.assert_enqueued(ship, queue="mail", key="k", priority=3, headers={"from": "web"})
    holdfast.assert_enqueued(ship, run_at=at + timedelta(seconds=9))
    holdfast.assert_enqueued(ship, args={"tags": ANY}, run_at=ANY, count=1)
    holdfast.assert_not_enqueued(ship, order=UUID(int=0))
    holdfast.assert_not_enqueued(ship, run_at=at + timedelta(seconds=2), within=1)
    assert job.payload == {"order": str(ORDER), "tags": ["new"]}


def test_the_nearest_job_is_shown_with_what_differs(holdfast: Kit, app: App, ship: Any) -> None:
    @app.task
    def bill() -> None: ...

    bill.enqueue()
    ship.enqueue(UUID(int=0))
    ship.options(queue="mail", delay=60).enqueue(ORDER, express=True)

    with pytest.raises(AssertionError) as caught:
        holdfast.assert_enqueued(ship, order=ORDER, express=False, queue="mail", delay=30)

    told = str(caught.value).splitlines()
    assert told[0].startswith("no job matches ship(order=UUID(")
    assert told[1].startswith('Nearest of 2 jobs of ship: ship {"order": "0190f3a0-')
    assert told[2:] == [
        "  express: expected False, is True",
        "  delay: expected 30 s, is 60 s",
        "Enqueued are also: bill (1)",
    ]


def test_a_job_is_found_however_many_were_enqueued_since(
    holdfast: Kit, ship: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit, "PAGE", 2)
    ship.enqueue(ORDER)
    for _ in range(4):
        ship.enqueue(UUID(int=0))

    assert len(holdfast.enqueued(ship)) == 5
    with pytest.raises(AssertionError, match="expected none"):
        holdfast.assert_not_enqueued(ship, ORDER)


def test_a_count_that_differs_is_told_with_the_jobs(holdfast: Kit, ship: Any) -> None:
    ship.enqueue(ORDER)
    ship.enqueue(ORDER)

    with pytest.raises(AssertionError, match=r"2 jobs match ship\(\), expected 1\n  ship"):
        holdfast.assert_enqueued(ship, count=1)
    with pytest.raises(AssertionError, match=r"2 jobs match ship\(\), expected none\n  ship"):
        holdfast.assert_not_enqueued(ship)
    with pytest.raises(AssertionError, match="expected no jobs at all, found 2"):
        holdfast.assert_not_enqueued()


def test_what_is_not_committed_is_seen_on_its_connection(holdfast: Kit, ship: Any) -> None:
    with psycopg.connect(holdfast.url) as conn:
        ship.options(conn=conn).enqueue(ORDER)

        holdfast.assert_enqueued(ship, order=ORDER, conn=conn)
        with pytest.raises(AssertionError, match=r"A transaction is open: .*pass  conn="):
            holdfast.assert_enqueued(ship)
        conn.rollback()

    holdfast.assert_not_enqueued(ship)


def test_a_name_that_is_neither_argument_nor_field_is_refused(
    holdfast: Kit, app: App, ship
) -> None:  # type: ignore[no-untyped-def]
    @app.task
    def move(queue: str) -> None: ...

    with pytest.raises(Misuse, match=r"ship has no argument `oder` \(did you mean `order`\?\)"):
        holdfast.assert_enqueued(ship, oder=ORDER)
    with pytest.raises(Misuse, match=r"ship has no argument `countdown`.*`delay`"):
        holdfast.assert_not_enqueued(ship, countdown=3)
    with pytest.raises(Misuse, match="ship: 4 has no name"):
        holdfast.assert_enqueued(ship, ORDER, False, None, 4)
    with pytest.raises(Misuse, match="'ship' is not a task"):
        holdfast.crash_next("ship")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="`queue` is an argument of move and a field of its job"):
        holdfast.assert_enqueued(move, queue="mail")
    move.enqueue("mail")
    holdfast.assert_enqueued(move, args={"queue": "mail"})
