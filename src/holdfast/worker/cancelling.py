"""What a worker does when the task is cancelled that runs it."""

import asyncio
from collections.abc import Callable


async def stopped_in_order(
    ended: asyncio.Event, stop: Callable[[], None]
) -> asyncio.CancelledError | None:
    """Wait for the end; if that is cancelled, stop first, and return the cancellation.

    The threads of a worker that is simply left would go on with connections that are closed, and
    its jobs would wait until their leases expire. A second cancellation is obeyed at once.
    """
    try:
        await ended.wait()
    except asyncio.CancelledError as cancelled:
        stop()
        await ended.wait()
        return cancelled
    return None
