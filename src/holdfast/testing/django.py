"""The test kit on the database that Django's own test runner has made."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connections

from holdfast.django.database import address, app_of
from holdfast.errors import Misuse
from holdfast.testing import clock
from holdfast.testing.kit import Kit

# Django deletes the jobs of a test, not what remembers when they ran: the next one begins earlier.
_FORGET = """
delete from holdfast.rate_use;
delete from holdfast.schedule_slot;
delete from holdfast.schedule;
update holdfast.chore set at = '-infinity', cursor = '{}';
update holdfast.pulse set reaped_at = holdfast.now();
"""


@contextmanager
def kit(database: str = "default") -> Iterator[Kit]:
    """Open a test kit on Django's test database: `self.holdfast = self.enterContext(kit())`.

    Its time can be moved, and is set back at the end. What a transaction has not committed, as in a
    `TestCase`, is seen with `conn=connection`; `drain` runs what is committed, as in a
    `TransactionTestCase`.
    """
    _refuse_unless_of_tests(database)
    url = address(database)
    _begin(url)
    try:
        with Kit(url) as opened:
            yield opened
    finally:
        # Django could not drop the database while somebody is connected to it.
        app_of(database).close()
        _begin(url)


def _begin(url: str) -> None:
    clock.install(url)
    with psycopg.connect(url) as connection:
        connection.execute(_FORGET)


def _refuse_unless_of_tests(database: str) -> None:
    said = connections[database].settings_dict
    name, usual = str(said["NAME"]), said.get("TEST", {}).get("NAME") or "test_"
    if not name.startswith(usual):
        raise Misuse(
            f"database {name!r} was not made by Django's test runner",
            why="Only there the time can be moved, so that it never is in production.",
            fix="Open the kit in a test:  manage.py test, or pytest-django.",
        )
