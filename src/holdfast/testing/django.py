"""The test kit on the database that Django's own test runner has made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import psycopg
from django.db import connections
from psycopg.pq import TransactionStatus

from holdfast.app import joined
from holdfast.client import Client, client_on
from holdfast.current import CurrentJob
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

    Inside the transaction of a test, as in a `TestCase` or under `@pytest.mark.django_db`, jobs are
    enqueued, seen, run and rolled back in that transaction, on Django's own connection. Elsewhere,
    as in a `TransactionTestCase`, they are committed. Its time can be moved, and is set back at the
    end.
    """
    connection = connections[database]
    connection.ensure_connection()  # pytest-django refuses this in a test without its mark
    _refuse_unless_of_tests(database)
    url = address(database)
    if connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute(clock.INSTALL + _FORGET)
        with KitInside(url, connection) as opened:
            yield opened
        return
    _begin(url)
    try:
        with Kit(url) as opened:
            yield opened
    finally:
        # Django could not drop the database while somebody is connected to it.
        app_of(database).close()
        _begin(url)


class KitInside(Kit):
    """A kit inside the transaction of a test: nothing that it does is ever committed."""

    def __init__(self, url: str, connection: Any) -> None:
        super().__init__(url, client=client_on(connection))
        self._connection = connection
        # What the code under test begins itself is deeper.
        self._depth = len(connection.atomic_blocks)
        self._clock = _OrmClock(self.client, connection)

    def __enter__(self) -> Self:
        super().__enter__()
        alias = self._connection.alias
        self._open.enter_context(joined(lambda: client_on(connections[alias]), _refuse_await))
        return self

    async def adrain(self, **options: Any) -> NoReturn:
        """Refuse: an event loop uses connections of other threads, which see nothing of this."""
        raise _outside("await holdfast.adrain()")

    def crash_next(self, task: Any, at: str | None = None) -> NoReturn:
        """Refuse: a crash would end the connection of the test."""
        raise _outside("crash_next()")

    def lose_lease(self, task: Any, at: str = "start") -> NoReturn:
        """Refuse: another worker would see nothing of this."""
        raise _outside("lose_lease()")

    def drop_connection_at(self, point: Any, **options: Any) -> NoReturn:
        """Refuse: it is the connection of the test."""
        raise _outside("drop_connection_at()")

    def _has_committed(self, door: Any) -> bool:
        # As far as the code under test can tell: it has left every block of its own.
        own = getattr(door, "connection", None) is self._connection
        return own and len(self._connection.atomic_blocks) <= self._depth

    @contextmanager
    def _around(self, job: CurrentJob) -> Iterator[None]:
        if job.task.runs == "async":
            raise _outside(f"{job.kind}, which is async,")
        # A statement that fails in a handler must not break the transaction of the test. What the
        # handler wrote before goes with it; all else stays, as it would in a worker.
        before = self._connection.savepoint()
        yield
        status = self._connection.connection.info.transaction_status
        if self._connection.needs_rollback or status == TransactionStatus.INERROR:
            self._connection.needs_rollback = False
            self._connection.savepoint_rollback(before)
        else:
            self._connection.savepoint_commit(before)

    def _hint(self, conn: Any) -> str:
        return ""


class _OrmClock(clock.Clock):
    def __init__(self, client: Client, connection: Any) -> None:
        super().__init__(client)
        self._connection = connection

    def _run(self, change: Any, value: Any) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(change, [value])


def _refuse_await() -> NoReturn:
    raise _outside("a call that is awaited")


def _outside(what: str) -> Misuse:
    return Misuse(
        f"{what} cannot be part of the test's transaction",
        fix="Let the test commit:  @pytest.mark.django_db(transaction=True), or a"
        " TransactionTestCase.",
    )


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
