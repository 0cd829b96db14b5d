"""The transaction in which a job's effects and its ack commit together."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.doubt import amake_certain, assert_not_lost, make_certain
from holdfast.errors import LeaseLost, Unavailable

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from holdfast.client import AsyncClient, Client
    from holdfast.current import CurrentJob


class JobTransaction:
    """A transaction in which the effects of a job and its ack commit together."""

    def __init__(self, job: "CurrentJob", result: Any) -> None:
        self._job = job
        self._keep = job.task.keep_result
        # Whoever says a result may have added a job that takes it.
        wanted = self._keep or result is not None
        self._result = job.task.encode_result(result) if wanted else None
        self._open: Any = None
        self._foreign: Exception | None = None

    def __enter__(self) -> "Connection[Any]":
        self._open = self._sync(self._job.app.client)
        connection: Connection[Any] = self._open.__enter__()
        return connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        swallowed: bool | None = self._open.__exit__(kind, error, traceback)
        return swallowed

    async def __aenter__(self) -> "AsyncConnection[Any]":
        self._open = self._async(self._job.app.aclient)
        connection: AsyncConnection[Any] = await self._open.__aenter__()
        return connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        swallowed: bool | None = await self._open.__aexit__(kind, error, traceback)
        return swallowed

    @contextmanager
    def _sync(self, client: "Client") -> "Iterator[Connection[Any]]":
        with self._undone_noted(), self._outages_noted():
            make_certain(self._job)
            with client.transaction(
                self._job.lease, self._result, keep=self._keep, recent=self._recent()
            ) as connection:
                with self._foreign_noted(connection), self._open_noted():
                    yield connection
                assert_not_lost(self._job)
                on = client.on(connection)
                all_stored(self._job, on.steps.store(self._job.steps_to_store()))
        self._job.settled = True

    @asynccontextmanager
    async def _async(self, client: "AsyncClient") -> "AsyncIterator[AsyncConnection[Any]]":
        with self._undone_noted(), self._outages_noted():
            await amake_certain(self._job)
            async with client.transaction(
                self._job.lease, self._result, keep=self._keep, recent=self._recent()
            ) as connection:
                with self._foreign_noted(connection), self._open_noted():
                    yield connection
                assert_not_lost(self._job)
                on = client.on(connection)
                all_stored(self._job, await on.steps.store(self._job.steps_to_store()))
        self._job.settled = True

    def _recent(self) -> int:
        return self._job.app.recent.take(1)

    @contextmanager
    def _open_noted(self) -> Iterator[None]:
        self._job.in_transaction = True
        try:
            yield
        finally:
            self._job.in_transaction = False

    @contextmanager
    def _undone_noted(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # What steps did in it is undone: their results must not be stored by another one.
            self._job.undo_steps()
            raise

    @contextmanager
    def _outages_noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # A read-only database is treated like an unavailable one.
            away = isinstance(error, Unavailable) or getattr(error, "sqlstate", None) == "25006"
            if away and error is not self._foreign:
                self._job.cut_by = error
            raise

    @contextmanager
    def _foreign_noted(
        self, connection: "Connection[Any] | AsyncConnection[Any]"
    ) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # The transaction goes on: something else that the handler uses is in trouble.
            if connection.info.transaction_status.name == "INTRANS":
                self._foreign = error
            raise


def all_stored(job: "CurrentJob", answers: Sequence[tuple[str, str | None]]) -> None:
    """Refuse to commit unless the steps of the transaction are stored with it."""
    for outcome, detail in answers:
        if outcome != "stored":
            raise LeaseLost(job.id, detail or "a step of this transaction was stored before")
