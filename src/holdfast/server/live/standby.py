"""Reads on a standby, and on the primary while the standby does not answer."""

import logging
from time import monotonic
from typing import Any

import psycopg

from holdfast.client import AsyncClient
from holdfast.client.aio.pool import AsyncBound, AsyncPool
from holdfast.client.statement import Row, Statement
from holdfast.errors import Unavailable

log = logging.getLogger("holdfast.server")

# How long a standby that did not answer is left alone: one call in this time may wait for it.
REST = 5.0

_WRITTEN = """
select (case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
             else pg_current_wal_lsn() end)::text
"""
# An idle primary writes nothing: a standby that has all of it is not behind, however old that is.
_BEHIND = """
select case when not pg_is_in_recovery() or pg_last_wal_replay_lsn() >= %s::pg_lsn then 0
            else extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp())
       end::float8
"""


class Standby(AsyncClient):
    """A client for reads; `primary` is the address of who answers while the standby does not."""

    def __init__(self, url: str, *, primary: str, source: str, **options: Any) -> None:
        super().__init__(primary, source=source, **options)
        self._primary = self._door
        self._standby = _StandbyPool(url, self._door, **options)
        self._door = self._standby

    async def behind(self) -> float | None:
        """Return by how many seconds its answers are late; None while the primary answers."""
        [(written,)] = await self._primary.run(Statement("written", _WRITTEN, reads=True))
        [(seconds,)] = await self._door.run(Statement("behind", _BEHIND, [written], reads=True))
        return None if self._standby.rests else float(seconds)


class _StandbyPool(AsyncPool):
    def __init__(
        self,
        url: str,
        primary: AsyncPool | AsyncBound,
        *,
        pool_size: int,
        timeout: float,
        application_name: str,
    ) -> None:
        super().__init__(
            url, "--read-url", size=pool_size, timeout=timeout, application_name=application_name
        )
        self._primary = primary
        self._rests_until = 0.0

    @property
    def rests(self) -> bool:
        return monotonic() < self._rests_until

    async def run(self, statement: Statement, cut: psycopg.Error | None = None) -> list[Row]:
        if not self.rests:
            try:
                return await super().run(statement, cut)
            except Unavailable as error:
                log.warning("the primary answers for the standby", extra={"reason": str(error)})
                self._rests_until = monotonic() + REST
        return await self._primary.run(statement)

    async def close(self) -> None:
        await super().close()
        await self._primary.close()

    def abandon(self) -> None:
        super().abandon()
        self._primary.abandon()
