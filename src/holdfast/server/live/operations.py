"""Carries out operations: one chunk after the other, for as long as there is one."""

import asyncio
import contextlib
from time import monotonic

from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.server.live.bells import rung

EVERY = 1.0
# The next chunk of one that is under way is due after such a pause.
SOON = 0.02


class Operations:
    """The part of a server that runs operations, whichever process started them.

    Several servers may do so: each chunk is taken by one of them, and is done completely or not at
    all.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Say that there is something to do."""
        self._bell.set()

    async def run(self) -> None:
        """Run what is due, until cancelled."""
        busy_at = -EVERY
        while True:
            self._bell.clear()
            with contextlib.suppress(HoldfastError):
                if await self._client.operations.step() is not None:
                    busy_at = monotonic()
            if monotonic() - busy_at < EVERY:
                await asyncio.sleep(SOON)
            else:
                await rung(self._bell, EVERY)
