"""Waiting for an event, with a time limit."""

import asyncio
from contextlib import suppress

# Who looks for what changed looks at most four times a second.
QUICK = 0.25


async def rung(bell: asyncio.Event, within: float) -> None:
    """Return when the event is set, or the time is up.

    Not `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives while the
    event is set: a client that disconnected then would be waited for until the server ends.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await bell.wait()
