"""Waiting for a bell, but not for ever."""

import asyncio
from contextlib import suppress

# Who looks for what changed looks at most four times a second.
QUICK = 0.25


async def rung(bell: asyncio.Event, within: float) -> None:
    """Return when the bell rings, or the time is up.

    Not by `asyncio.wait_for`, which before Python 3.12 forgets a cancellation that comes while the
    bell rings: whoever left then would be waited for until the server ends.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await bell.wait()
