"""The test kit on the database that Django's test runner has made."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.db import connection, transaction

from holdfast.django import app_of
from holdfast.errors import Misuse
from holdfast.testing import Kit
from holdfast.testing.django import kit


@pytest.fixture
def of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the database under the name that the test runner gives it, and no apps of other tests.

    A schedule that one of those has would run here at its time of the day.
    """
    name = connection.settings_dict["NAME"]
    monkeypatch.setitem(connection.settings_dict, "TEST", {"NAME": name})
    monkeypatch.setattr("holdfast.testing.kit.apps", lambda: [app_of()])


@pytest.fixture
def holdfast(of_tests: None) -> Iterator[Kit]:
    with kit() as opened:
        yield opened


def test_a_task_of_django_is_found_by_the_names_of_its_arguments(holdfast: Kit) -> None:
    from tests.django.shop.tasks import add, attempt

    add.enqueue(1, b=2)
    add.enqueue(7)
    attempt.enqueue(3)

    holdfast.assert_enqueued(add, a=1, b=2)
    holdfast.assert_enqueued(add, 7, b=0, queue="default")  # a default counts, too
    holdfast.assert_enqueued(attempt, count=1)
    with pytest.raises(AssertionError, match="a: expected 5, is 7"):
        holdfast.assert_enqueued(add, a=5, b=0)
    with pytest.raises(Misuse, match=r"tasks\.add has no argument `c`"):
        holdfast.assert_enqueued(add, c=5)


def test_what_is_not_committed_is_seen_on_the_connection_of_the_orm(holdfast: Kit) -> None:
    from tests.django.shop.tasks import add

    with transaction.atomic():
        add.enqueue(1)
        holdfast.assert_enqueued(add, a=1, conn=connection)
        with pytest.raises(AssertionError, match="A transaction is open"):
            holdfast.assert_enqueued(add, a=1)
        transaction.set_rollback(True)

    holdfast.assert_not_enqueued(conn=connection)


def test_tasks_of_django_run_and_crash_in_a_drain(holdfast: Kit) -> None:
    from tests.django.shop.tasks import add

    holdfast.travel_to(datetime(2030, 1, 4, 12, 0, tzinfo=UTC))  # when no schedule is near
    result = add.enqueue(1, b=2)
    holdfast.crash_next(add)

    assert [ran.ended for ran in holdfast.drain()] == ["crashed"]
    holdfast.travel(seconds=31)
    assert [ran.ended for ran in holdfast.drain()] == ["done"]
    result.refresh()
    assert result.return_value == 3


def test_a_test_finds_the_time_and_the_schedules_as_the_first_one_did(of_tests: None) -> None:
    from tests.django.shop.tasks import aadd

    for _ in range(2):
        with kit() as holdfast:
            before = holdfast.now()
            holdfast.travel_to(datetime(2030, 1, 4, tzinfo=UTC))
            holdfast.travel(days=1)
            ran = [ran for ran in holdfast.drain(raises=False) if ran.kind == aadd.kind]
        assert (before.year, len(ran)) == (datetime.now(UTC).year, 1)


def test_a_database_that_is_not_for_tests_is_refused() -> None:
    with (
        pytest.raises(Misuse, match="was not made by Django's test runner"),
        kit(),
    ):
        pass


def test_no_connection_is_left_that_django_would_wait_for(of_tests: None) -> None:
    from tests.django.shop.tasks import add

    with kit() as holdfast:
        add.enqueue(1)
        holdfast.drain()

    with connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend'"
        )
        assert cursor.fetchone() == (0,)
