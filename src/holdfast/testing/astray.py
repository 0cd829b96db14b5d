"""Refuses jobs that a test would store in another database than its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.client import AsyncClient, Client
from holdfast.client.aio.pool import AsyncPool
from holdfast.client.statement import Statement
from holdfast.client.sync.pool import Pool
from holdfast.errors import Misuse

_WHERE = Statement("database", "select current_database()::text", reads=True)


@contextmanager
def refused(database: str) -> Iterator[None]:
    """Refuse to enqueue on a connection of the caller's that is to another database.

    The code under test may have connected before the test began: its rows and jobs would be stored
    where it usually works, and the test would look for them in vain.
    """
    real, areal = Client.enqueue_many, AsyncClient.enqueue_many

    def enqueue_many(self: Client, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self._door, Pool):
            _refuse(self._door.run(_WHERE), database)
        return real(self, *args, **kwargs)

    async def aenqueue_many(self: AsyncClient, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self._door, AsyncPool):
            _refuse(await self._door.run(_WHERE), database)
        return await areal(self, *args, **kwargs)

    setattr(Client, "enqueue_many", enqueue_many)  # noqa: B010 - mypy refuses to assign a method
    setattr(AsyncClient, "enqueue_many", aenqueue_many)  # noqa: B010
    try:
        yield
    finally:
        setattr(Client, "enqueue_many", real)  # noqa: B010
        setattr(AsyncClient, "enqueue_many", areal)  # noqa: B010


def _refuse(rows: Any, database: str) -> None:
    [(found,)] = rows
    if found != database:
        raise Misuse(
            f"the job would not be stored in the test's database: its connection is to {found!r}",
            why=f"The test's own is {database!r}; the connection was opened for another one.",
            fix="Connect to  holdfast.url  in tests, or to  app.url  when the program starts.",
        )
