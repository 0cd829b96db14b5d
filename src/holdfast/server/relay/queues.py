"""Queues as Relay has them: made by their first message, and dequeued by type at any depth."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.records import is_reserved
from holdfast.server.http.request import Request

if TYPE_CHECKING:
    from holdfast.server.running import Live

# What a queue has that a message makes: what is acknowledged can be listed and its life followed,
# and a type is found behind any number of others. An operator may set it otherwise.
SETTINGS: Mapping[str, Any] = {"keep_done": 7 * 86_400, "activity": "all", "by_kind": True}
# Queues that are remembered, and messages that a queue may hold to be sorted by type at once.
REMEMBERED = 10_000
SORTABLE = 10_000
# Between two steps of sorting a large queue.
BETWEEN = 0.02

# Queues that each running server knows to have settings.
_known: "WeakKeyDictionary[Live, set[str]]" = WeakKeyDictionary()


async def make(request: Request, names: Sequence[str]) -> None:
    """Create queues without jobs and settings."""
    request.user.check_queues(names)
    known = _known.setdefault(request.live, set())
    for name in names:
        if name in known or is_reserved(name):
            continue
        if await request.live.client.queues.get(name) is None:
            await request.live.client.queues.set(name, actor=request.actor, **SETTINGS)
        if len(known) >= REMEMBERED:
            known.clear()
        known.add(name)


async def sort_by_type(request: Request, name: str) -> None:
    """Enable dequeueing by type at any depth for a queue that others created: at once, or soon."""
    found = next((one for one in await request.live.queues() if one.queue == name), None)
    if found is None or found.by_kind:
        return
    if found.queued + found.leased > SORTABLE:
        work = partial(_sort, request.live.client, name, request.actor)
        request.live.beside(f"sort {name}", work)
        return
    # Who may not set it up dequeues as before, and passes over other types one by one.
    with suppress(HoldfastError):
        await request.live.client.queues.set(name, actor=request.actor, by_kind=True)


async def _sort(client: AsyncClient, queue: str, actor: str) -> None:
    # Who may not set it up claims as before, and passes over other kinds one by one.
    with suppress(HoldfastError):
        after = await client.queues.sort_some(queue)
        while after is not None:
            await asyncio.sleep(BETWEEN)
            after = await client.queues.sort_some(queue, after=after)
        await client.queues.set(queue, actor=actor, by_kind=True)
